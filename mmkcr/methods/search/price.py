"""The price of a supernet's gates (KCR, section 3.3)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import COUNTED, Cost, CostModel, MacsModel, load_table
from mmkcr.models.counting import cost_model
from mmkcr.registry import MODELS


class Priced(nn.Module):
    """A loss about the cost of a supernet; a search model and hooks read ``target`` and ``part``.

    Args:
        cost (str): The counted cost, at the expected sizes: ``'macs'`` of the whole network,
            exactly, ``'params'``, ``'bytes'`` of the ``state_dict``, or ``'latency'``, the time by
            ``table``.
        target (str | int | float, optional): As in :func:`~mmkcr.core.parse_target`, a time for
            ``'latency'``, a size such as ``'40MB'`` for ``'bytes'``.
        input_shape (Sequence[int], optional): (C, H, W) of the image that the
            MACs are counted for. Defaults to the shape of the first batch, which is
            reproducible only if all batches have one size.
        part (str, optional): See :func:`~mmkcr.models.tasks.part_to_count`. Defaults to None.
        table (str, optional): File of :class:`~mmkcr.core.LatencyTable`, for
            ``cost='latency'``. Defaults to None.
        force_table (bool): Accept a table of another machine, such as that where the
            network will run. Defaults to False.
    """

    #: What ``cost`` may be.
    costs: Sequence[str] = (*COUNTED, 'latency')

    def __init__(self, cost: str, target: str | int | float | None,
                 input_shape: Sequence[int] | None = None, part: str | None = None,
                 table: str | None = None, force_table: bool = False) -> None:
        super().__init__()
        if part not in (None, 'model', 'backbone'):
            raise ValueError('expected `part` of a price to be `model` or `backbone`, found '
                             f'{part!r}')
        if cost not in self.costs:
            raise ValueError(f'expected `cost` of a price among {list(self.costs)}, found {cost!r}')
        if (cost == 'latency') != (table is not None):
            raise ValueError("expected a `table` with the `cost` 'latency', found "
                             f'{table!r} with {cost!r}')
        self.cost, self.target, self.part = cost, target, part
        self.input_shape = None if input_shape is None else tuple(input_shape)
        about = {} if input_shape is None else dict(input_shape=list(input_shape))
        self.table = None if table is None else load_table(table, about, force_table)
        self._of: tuple[MacsModel, CostModel] | None = None

    def cost_model(self, macs: MacsModel) -> CostModel:
        """The cost of a supernet that is priced, and that the target limits."""
        if self._of is None or self._of[0] is not macs:  # rebuilt if the supernet's count was
            self._of = macs, PaperCost(macs) if self.cost == 'paper' else cost_model(
                'macs' if self.cost == 'latency' else self.cost, macs, self.table)
        return self._of[1]

    def cost_and_target(self, macs: MacsModel) -> tuple[CostModel, int]:
        """The cost of a supernet, and the most that the target allows."""
        cost = self.cost_model(macs)
        return cost, cost.parse_target(self.target)

    def weigh(self, weight: Tensor, distance: Tensor) -> Tensor:
        """Multiply the distance from the target by a weight, which in training then grows.

        Args:
            weight (Tensor): A buffer, a scalar; it is changed in place.
            distance (Tensor): A scalar, at least 0.
        """
        term = weight.clone() * distance  # a clone: autograd saves it, and it changes in place
        if self.training:
            weight += self.growth * distance.detach()
        return term


class PaperCost(CostModel):
    """The sum of the sites' own cost terms, see :meth:`~mmkcr.core.Site.paper_cost`."""

    name, noun, multiple, scale = 'paper', "units of the paper's cost", '', 1

    def __init__(self, macs: MacsModel) -> None:
        self.macs = macs
        self.dense = self({name: site.total for name, site in macs.sites.items()})

    def __call__(self, sizes: Mapping[str, Cost]) -> Cost:
        """See :class:`~mmkcr.core.CostModel`."""
        return sum(self.macs.sites[name].paper_cost(size, self.macs.shapes[name])
                   for name, size in sizes.items())


@MODELS.register_module()
class MacsPrice(Priced):
    r"""Price of the kept units: :math:`\lambda \log(c / c_{dense})`.

    The paper's term is :math:`\lambda \log c`. Dividing by the dense cost changes the value by a
    constant, not the gradient. The price has no floor: its relative pull grows as the cost falls.

    With a target the price is :math:`\lambda |\log(c_{open} / c_{target})|`. Its value, and so the
    direction of its pull, is computed for the network of the open gates, which slimming without a
    target would build. Its gradient is the gradient of the expected cost. (The two costs differ as
    long as
    many :math:`\alpha` are near 0.) No fixed :math:`\lambda` suits all networks, because the task
    loss pulls too. So in every training step of the gates :math:`\lambda` grows by ``growth`` times
    the distance from the target. (It is the multiplier of a limit on the gates, and this is its
    gradient ascent. The weights' step of a bilevel search does not change it, because the price is
    then in evaluation mode.)

    Args:
        weight (float): :math:`\lambda`; with a target its initial value. Defaults to 0.2.
        cost (str): See :class:`Priced`, or ``'paper'``:
            :math:`\sum_j l_j (2 \tilde D_j^2 + \tilde D_j)` over the blocks with the sampled masks
            (at least ``min_size`` channels of each), which ignores tokens and hidden width.
            Defaults to ``'macs'``.
        target (str | int | float, optional): See :class:`Priced`; a share for ``cost='paper'``.
            Defaults to None.
        growth (float): Growth of :math:`\lambda` per step of the gates at a distance
            :math:`|\log(c_{open} / c_{target})|` of 1. Defaults to 0.02.
        **kwargs: See :class:`Priced`.
    """

    costs = (*COUNTED, 'paper', 'latency')

    def __init__(self, weight: float = 0.2, cost: str = 'macs',
                 target: str | int | float | None = None, growth: float = 0.02,
                 **kwargs: Any) -> None:
        super().__init__(cost, target, **kwargs)
        if min(weight, growth) < 0:
            raise ValueError('expected a non-negative price `weight` and `growth`, found '
                             f'{weight} and {growth}')
        self.growth = growth
        # a buffer, so that a grown weight is in the checkpoint
        self.register_buffer('weight', torch.tensor(float(weight)), target is not None)

    def check_target(self, macs: MacsModel) -> int:
        """The target; one that no sizes of the gates reach is refused with the range."""
        cost, target = self.cost_and_target(macs)
        # sorted: full convolutions in the place of heads can cost more than what they replace
        ends = sorted(cost({name: getattr(site.gate, size) for name, site in macs.sites.items()})
                      for size in ('min_size', 'total'))
        cost.check_range(target, *ends, 'a price `target`')
        return target

    def forward(self, macs: MacsModel) -> dict[str, Tensor]:
        """Price the gates as they are; refuses a target out of reach.

        Returns:
            dict[str, Tensor]: ``loss_price``, and for the log ``macs`` (G, expected),
            ``macs_open`` (G, of what the hard gates keep), the same two of another counted cost
            (ms, M, MB), ``kept`` (the open gates' share of all units) and, with a target,
            ``price_weight``.
        """
        gates = {name: site.gate for name, site in macs.sites.items()}
        expected = {name: gate.expected_size() for name, gate in gates.items()}
        kept = {name: gate.hard_size() for name, gate in gates.items()}
        count = self.cost_model(macs)
        logged = dict(kept=sum(kept.values()) / sum(gate.total for gate in gates.values()))
        for known in dict.fromkeys([macs] if count.name == 'paper' else [macs, count]):
            cost = known(expected)
            logged[known.name] = cost.detach() / known.scale
            logged[f'{known.name}_open'] = known(kept) / known.scale
        if count.name == 'paper':
            # clamped: sampled masks may all underflow to 0, where log has no finite gradient
            cost = count({name: gate.soft_mask().sum().clamp(min=gate.min_size)
                          for name, gate in gates.items()})
        if self.target is None:
            return dict(loss_price=self.weight * torch.log(cost / count.dense), **logged)
        # the value of the open gates' cost, with the gradient of the expected cost
        counted = cost + (count(kept) - cost).detach()
        distance = torch.log(counted / self.check_target(macs)).abs()
        return dict(loss_price=self.weigh(self.weight, distance),
                    price_weight=self.weight.clone(), **logged)
