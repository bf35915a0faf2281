"""From a trained supernet to a subnet that meets a budget."""

import copy
from collections.abc import Sequence

from torch import nn

from mmkcr.core import (
    LatencyTable,
    MacsModel,
    Structure,
    check_finite_gates,
    count_params,
    select_units,
)
from mmkcr.core.products import added_layers
from mmkcr.models.counting import cost_model, count_macs, note_backbone_macs
from mmkcr.models.search_space import leave_ordinary
from mmkcr.models.tasks import (
    find_task,
    momentum_copies,
    online_params,
    part_to_count,
    renew_record,
    search_space,
    spaces_of_copies,
    task_forward,
    unwrap,
)


def slim(model: nn.Module, target_macs: str | int | float | None = None, divisor: int = 1,
         input_shape: Sequence[int] = (3, 224, 224), part: str | None = None,
         latency: LatencyTable | None = None, cost: str = 'macs',
         ordinary: bool = True) -> tuple[nn.Module, Structure]:
    """Discretise the gates of a supernet under a budget and slice its tensors.

    Operators in the place of heads are folded: ensembles and derived kernels become plain weights.

    Args:
        model (nn.Module): A supernet: a backbone, a task model or a
            ``SearchModel``. It is not changed.
        target_macs (str | int | float, optional): Maximum MACs of the built subnet, such as
            ``'12.6G'`` or ``0.8`` of the dense model, see :func:`~mmkcr.core.parse_target`.
            Defaults to None: the channels whose gates are open.
        divisor (int): See :func:`~mmkcr.core.solve_budget`. Defaults to 1.
        input_shape, latency, ordinary: See :func:`~mmkcr.apis.compress`; as there.
        part (str, optional): What the target limits, see :func:`~mmkcr.models.tasks.part_to_count`.
            Defaults to None: the part of a ``SearchModel``'s price.
        cost (str): What the target limits, see :func:`~mmkcr.models.counting.cost_model`;
            parameters and bytes (``'40MB'``) are those of the ``state_dict``. Defaults to
            ``'macs'``.

    Returns:
        tuple[nn.Module, Structure]: The subnet with inherited weights, without any wrapper, and
        its structure.

    Raises:
        ValueError: There are no gates, they are not finite, or the target is out of reach.
    """
    model = unwrap(model)
    part = part or getattr(getattr(model, 'price', None), 'part', None)
    task = copy.deepcopy(find_task(model))  # bare; it becomes the subnet
    space, averages = search_space(task), momentum_copies(task)
    spaces, sliced = [space, *spaces_of_copies(task)], bool(space.fixed)
    for one in spaces:
        # heads that a structure replaced, beside sites with gates, get plain weights
        one.fixed = {name: one.sites[name].fold(entry) for name, entry in one.fixed.items()}
    gates, counted = space.gates(), part_to_count(task, part)  # what the target limits
    check_finite_gates(gates)
    macs = MacsModel(counted, space.host, space.gated_sites(), task_forward(counted, input_shape))
    budget = cost_model(cost, macs, latency)
    target = None if target_macs is None else budget.parse_target(target_macs)
    if target is not None and latency is not None:  # a selection's gather may itself cost time
        budget.check_target(target, {site: gate.min_size for site, gate in gates.items()})
    # a bi-mask has decided some sizes in the search; only the rest of the budget is open
    kept = {site: gate.selection() for site, gate in gates.items() if gate.decided}
    free = {site: gate for site, gate in gates.items() if not gate.decided}
    sizes = {site: len(units) for site, units in kept.items()}
    kept.update(select_units(free, budget.beside(sizes), target, divisor))
    structure = space.structure_for(kept)
    # parameters of gates and masks are not the dense network's
    copied = {module for average in averages for module in average.modules()}
    added = [layer for layer in added_layers(task).values() if layer not in copied]
    dense = online_params(task) + space.sliced_params() - sum(
        map(count_params, (*gates.values(), *added)))
    if budget is not macs:
        structure.provenance[budget.name] = budget.describe(structure.sizes())
    if sliced:
        structure.provenance['start'] = 'subnet'  # dense counts are its own
    for one in spaces:
        one.slice_to(structure)
    for average in averages:
        renew_record(average)
    structure.params = dict(dense=dense, subnet=online_params(task))
    structure.macs = dict(dense=macs.dense, subnet=count_macs(counted, input_shape),
                          input_shape=list(input_shape))
    note_backbone_macs(structure, task, part)
    if ordinary:
        leave_ordinary(task)
    return task, structure
