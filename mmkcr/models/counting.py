"""MACs, parameters and bytes of any model of the three task families."""

import logging
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress

from torch import nn

from mmkcr.core import (
    COUNTED,
    CostModel,
    LatencyModel,
    LatencyTable,
    MacsModel,
    MacsReport,
    Structure,
    count_forward_macs,
    count_params,
)
from mmkcr.core.products import state_bytes
from .head_choice import is_choice
from .search_space import StructureLike, search_spaces
from .tasks import (
    find_task,
    is_dense_task,
    keep_randomness,
    momentum_copies,
    online_params,
    part_to_count,
    search_space,
    task_forward,
    unwrap,
)
from .two_stage import MASKS, most_proposals


def macs_report(model: nn.Module, input_shape: Sequence[int] = (3, 224, 224)) -> MacsReport:
    """Count the MACs of one image in total, by module and by operator, attention products included.

    Args:
        model (nn.Module): A backbone, or a classifier, detector or segmentor. A task model is
            counted with its head, a two-stage detector with its maximum number of proposals.
        input_shape (Sequence[int]): (C, H, W). Defaults to (3, 224, 224).

    Raises:
        ValueError: ``input_shape`` is not three positive integers, or the model does not run on
            such an image.
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(f'expected an input shape (C, H, W), found {tuple(input_shape)}')
    model = unwrap(model)
    return count_forward_macs(model, task_forward(model, input_shape))


def count_macs(model: nn.Module, input_shape: Sequence[int] = (3, 224, 224)) -> int:
    """Total of :func:`macs_report`."""
    return macs_report(model, input_shape).total


def cost_model(cost: str, macs: MacsModel, table: LatencyTable | None = None) -> CostModel:
    """Build the cost model of a budget: ``'macs'``, ``'params'`` or ``'bytes'``.

    With a ``table`` of the network, ``'macs'`` means time; a table of another network is refused.
    """
    if cost not in COUNTED or table is not None and cost != 'macs':
        raise ValueError(f'expected a budget of {list(COUNTED)} or, with a table of latencies, of '
                         f'time, found {cost!r}{" with a table" if table is not None else ""}')
    if table is not None:
        return LatencyModel(macs, table)
    if cost == 'macs':
        return macs
    return COUNTED[cost](macs.model, macs.sites, momentum_copies(macs.model))


def check_built(promises: Sequence[CostModel], promised: Sequence[int],
                input_shape: Sequence[int]) -> None:
    """Refuse a built network that costs more than was promised.

    Args:
        promises (Sequence[CostModel]): MACs, then parameters and bytes, of the network; it was
            sliced since.
        promised (Sequence[int]): Cost of the chosen sizes by each of them, before the slicing: some
            count on the layers themselves.
        input_shape (Sequence[int]): (C, H, W) that MACs are counted for.

    Raises:
        ValueError: The message gives both costs.
    """
    model = promises[0].model
    copies = sum(map(state_bytes, momentum_copies(model)))
    counts = (count_macs(model, input_shape), online_params(model), state_bytes(model) - copies)
    for promise, most, cost in zip(promises, promised, counts):
        if cost > most:
            raise ValueError(f'expected {most} {promise.noun} of the compressed '
                             f'`{type(model).__name__}`, found {cost}: please report this network')


#: MACs by part: (dense, slim).
Parts = dict[str, tuple[int, int]]


def macs_by_part(report: MacsReport, model: nn.Module) -> dict[str, int]:
    """Split the count of a model, possibly wrapped, by the path of the part.

    Parts (``'backbone'``, ``'neck'``, ``'roi_head.bbox_head'`` ...) are in the modules' order;
    parts without MACs are left out. ``'rest'`` counts modules of no part. The sum is the model's.
    """
    task = find_task(model)
    prefix = next(f'{path}.' for path, module in model.named_modules() if module is task)
    by_module = {f'{path.removeprefix(prefix)}.': macs for path, macs in report.own.items()}
    names = []
    for name, child in task.named_children():
        inside = [f'{name}.{below}' for below, _ in child.named_children()]
        names += inside if name in ('roi_head', 'panoptic_head') else [name]
    parts = {part: sum(macs for path, macs in by_module.items() if path.startswith(f'{part}.'))
             for part in names}
    parts['rest'] = report.total - sum(parts.values())
    return {part: macs for part, macs in parts.items() if macs}


def count_parts(model: nn.Module, input_shape: Sequence[int]) -> dict[str, int]:
    """MACs of a whole task model, not in a training wrapper; see :func:`macs_by_part`."""
    return macs_by_part(macs_report(model, input_shape), model)


def uncut_parts(model: nn.Module, paths: Iterable[str], input_shape: Sequence[int]) -> str:
    """The end of a message on an unreachable target: parts of a whole model without sites.

    Args:
        model (nn.Module): A dense network. One without a ``backbone`` has no parts.
        paths (Iterable[str]): Paths of the sites in the model.
        input_shape (Sequence[int]): (C, H, W) that MACs are counted for.
    """
    if not isinstance(getattr(model, 'backbone', None), nn.Module):
        return ''
    counts = count_parts(model, input_shape)
    cut = {name for name in counts if any(path.startswith(f'{name}.') for path in paths)}
    untouched = [f'`{name}`, {macs / sum(counts.values()):.0%} of the MACs'
                 for name, macs in counts.items() if name not in {*cut, 'rest'}]
    return f'; nothing can be cut in {", ".join(untouched)}' if untouched else ''


def both_parts(dense: nn.Module, subnet: nn.Module, input_shape: Sequence[int]) -> Parts:
    """MACs of two detectors or segmentors by part.

    Empty for classifiers; empty, too, with a warning, where a whole model cannot be counted: of
    some (Sparse R-CNN, PointRend) the backbones alone can be.

    Args:
        dense (nn.Module): The network before.
        subnet (nn.Module): The network afterwards.
        input_shape (Sequence[int]): (C, H, W) that MACs are counted for.
    """
    if not is_dense_task(subnet):
        return {}
    try:
        slim = count_parts(subnet, input_shape)
        return {part: (macs, slim.get(part, 0))
                for part, macs in count_parts(dense, input_shape).items()}
    except ValueError as error:
        warnings.warn(f'MACs by part are not counted: {error}', stacklevel=2)
        return {}


def part_rows(parts: Parts) -> list[tuple[str, ...]]:
    """Rows of a table, G MACs: part, dense, slim, share; the whole model last."""
    totals = tuple(sum(side) for side in zip(*parts.values()))
    return [(name, f'{dense / 1e9:.4g}', f'{slim / 1e9:.4g}', f'{slim / dense:.1%}')
            for name, (dense, slim) in {**parts, 'whole model': totals}.items()]


def describe_proposals(model: nn.Module) -> str | None:
    """A sentence on the number of proposals in a two-stage detector's MACs, None for others."""
    count = most_proposals(find_task(model))
    return None if count is None else (
        f'The second stage is counted for {count} proposals (`test_cfg.rpn.max_per_img`), its '
        f'masks for {min(count, MASKS)}.')


def note_backbone_macs(structure: Structure, subnet: nn.Module, part: str | None) -> None:
    """Record in a structure the part that its MACs count, and the MACs of the backbone.

    They are checked when a model is built, possibly with another head.

    Args:
        structure (Structure): With ``macs``; changed in place.
        subnet (nn.Module): A bare backbone or task model.
        part (str, optional): See :func:`~mmkcr.models.tasks.part_to_count`.
    """
    host = search_space(subnet).host
    if host is subnet and is_dense_task(subnet):
        structure.macs['part'] = 'model'  # a whole model has no separate backbone
    elif part_to_count(subnet, part) is not subnet:
        structure.macs['part'] = 'backbone'
    else:
        structure.macs['backbone'] = count_macs(host, structure.macs['input_shape'])


def dense_counts(host: nn.Module, structure: StructureLike) -> tuple[int | None, int] | None:
    """MACs and parameters of a host that a structure is about to slice, for :func:`check_recorded`.

    None without a structure, or with heads to replace, which record nothing. MACs are None where
    they are not recorded, or where the host does not run on one image of the recorded shape.
    """
    if structure is None or is_choice(structure):
        return None
    shape = Structure.load(structure).macs.get('input_shape')
    with suppress(ValueError), keep_randomness():
        return shape and count_macs(host, shape), count_params(host)
    return None, count_params(host)


def check_recorded(host: nn.Module, structure: Structure | None, model: nn.Module | None = None,
                   dense: tuple[int | None, int] | None = None) -> None:
    """Refuse a built network with other MACs or parameters than its structure records.

    A structure without ``macs`` and ``params`` is not compared. What else cannot be counted is
    logged: MACs of a network that runs by a ``forward`` of its own, and dense numbers of a search
    that began with a subnet, or with replaced heads.

    Args:
        host (nn.Module): A backbone, or a whole model that was compressed as one.
        structure (Structure, optional): That the host was sliced to, or None.
        model (nn.Module, optional): The network around the host, or the host itself, that was
            compressed. Defaults to None: it is not known, and may have another head. Then numbers
            of the whole are compared by their differences alone, see :func:`tell_other_sizes`.
        dense (tuple, optional): :func:`dense_counts` of the host. Defaults to None: what was saved
            is not compared.

    Raises:
        ValueError: A number is another; the message says which.
    """
    if structure is None:
        return
    macs, params = structure.macs, structure.params
    shape, kind = macs.get('input_shape'), type(host).__name__

    def compare(what: str, promised: int, count: int, surely: bool = True) -> None:
        if promised == count:
            return
        if not surely:
            _say_unchecked(f'{promised} {what} of the `{kind}`, of which {count} are counted')
            return
        raise ValueError(
            f'expected `{kind}` of {promised} {what}, as its structure says, found one of '
            f'{count}: the structure or the arguments of the backbone were altered since it was '
            'searched (a structure without `macs` and `params` is not compared)')

    def count_once(module: nn.Module) -> int | None:
        try:
            with keep_randomness():
                return count_macs(module, shape)
        except ValueError as error:
            if {'part', 'backbone'} & {*macs}:
                raise
            # one that was not counted as a part may run by a `forward` of its own alone
            _say_unchecked(f'the MACs of the `{type(module).__name__}` ({error})')
            return None

    complete = host if 'part' in macs else model
    built = count_once(host) if shape else None
    if built is not None and complete is not host and 'backbone' in macs:
        compare(f'MACs at {tuple(shape)}', macs['backbone'], built)
    # of the whole network, unless that is not known and may have another head
    total = built if complete in (host, None) else count_once(complete)
    if total is not None and not (complete is None and 'backbone' in macs):
        compare(f'MACs at {tuple(shape)}', macs['subnet'], total, complete is not None)
    if params and model is not None:
        compare('parameters', params['subnet'], count_params(model))
    if dense is None:
        return
    # of a search from a subnet, or with replaced heads, the dense counts are what it began with
    surely = 'start' not in structure.provenance and not any(
        entry.operator for entry in structure.sites.values())
    before, weights = dense
    if None not in (before, built):
        compare('MACs when dense', macs['dense'], macs['subnet'] - built + before, surely)
    if params:
        compare('parameters when dense', params['dense'],
                params['subnet'] - count_params(host) + weights, surely)


def tell_other_sizes(model: nn.Module) -> None:
    """Log where a task model, possibly wrapped, has other sizes than its structure records.

    It may have another head than the network that was compressed. Or the structure was edited by
    amounts that :func:`check_recorded` cannot see at the backbone alone.
    """
    task = find_task(model)
    structures = [space.structure for space in search_spaces(task) if space.structure is not None]
    if len(structures) != 1:  # momentum copies repeat theirs
        return
    (structure, ) = structures
    counts = dict(parameters=(structure.params.get('subnet'), online_params(task)))
    if 'backbone' in structure.macs:
        with keep_randomness():
            count = count_macs(task, structure.macs['input_shape'])
        counts['MACs'] = structure.macs['subnet'], count
    for what, (recorded, count) in counts.items():
        if recorded not in (None, count):
            _say_unchecked(f'{recorded} {what} of the whole network, as this `'
                           f'{type(task).__name__}` of {count} has another head or the structure '
                           'was edited')


def _say_unchecked(what: str) -> None:
    logging.getLogger('mmkcr').warning('Not checked: of what the structure records, %s.', what)
