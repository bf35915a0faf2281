"""The price of a supernet's gates (KCR, section 3.3)."""

from functools import partial
from typing import Dict, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from mmkcr.core import LatencyModel, LatencyTable, MacsModel, parse_target
from mmkcr.registry import MODELS


@MODELS.register_module()
class MacsPrice(nn.Module):
    r"""Price of what the gates keep: :math:`\lambda \log(c / c_{dense})`.

    The paper's term is :math:`\lambda \log c`; dividing by the dense cost
    changes the value by a constant and no gradient. It has no floor: its pull
    grows relatively as the cost falls.

    With a target the price is :math:`\lambda |\log(c_{open} / c_{target})|`.
    Its value, and so the direction in which it pulls, is that of the network
    of the open gates, the one that slimming without a target builds; its
    gradient is that of the expected cost. (The two costs differ as long as
    many :math:`\alpha` are near 0.) No :math:`\lambda` is right for all
    networks, since the task loss pulls too: so it grows by ``growth`` times
    the distance from the target in every step.

    Args:
        weight (float): :math:`\lambda`, with a target that of the first step.
            Defaults to 0.2.
        cost (str): ``'macs'``, the exact count of the whole network's
            multiply-accumulates at the expected sizes, or ``'paper'``,
            :math:`\sum_j l_j (2 \tilde D_j^2 + \tilde D_j)` over the blocks
            with the sampled masks (at least ``min_size`` channels of each),
            which ignores tokens and hidden width; or ``'latency'``, the time of the
            expected sizes in ``table``. Defaults to ``'macs'``.
        target (str | int | float, optional): As in
            :func:`~mmkcr.core.parse_target`; a share for
            ``cost='paper'``, a time for ``'latency'``. Defaults to None.
        growth (float): Of :math:`\lambda` in a step of training, for a distance
            :math:`|\log(c_{open} / c_{target})|` of 1. Defaults to 0.01.
        input_shape (Sequence[int], optional): (C, H, W) of the image that the
            MACs are counted for. Defaults to that of the first batch, which is
            a function of the run only if all batches have one size.
        part (str, optional): ``'model'`` or ``'backbone'``, whose MACs are
            counted, see :func:`~mmkcr.models.utils.counted_part`. Defaults to
            None: the backbone of a detector, else the task model.
        table (str, optional): File of :class:`~mmkcr.core.LatencyTable`, for
            ``cost='latency'``. Defaults to None.

    Raises:
        FileNotFoundError: There is no such table.
        ValueError: Unknown ``cost`` or ``part``, ``cost='latency'`` without a table, or a
            negative ``weight`` or ``growth``.
    """

    def __init__(self,
                 weight: float = 0.2,
                 cost: str = 'macs',
                 target: Union[str, int, float, None] = None,
                 growth: float = 0.01,
                 input_shape: Optional[Sequence[int]] = None,
                 part: Optional[str] = None,
                 table: Optional[str] = None) -> None:
        super().__init__()
        if cost not in ('macs', 'paper', 'latency'):
            raise ValueError('expected `cost` of a price to be `macs`, `paper` or `latency`, found '
                             f'{cost!r}')
        if (cost == 'latency') != (table is not None):
            raise ValueError("expected a `table` with the `cost` 'latency', found "
                             f'{table!r} with {cost!r}')
        if min(weight, growth) < 0:
            raise ValueError('expected a non-negative price `weight` and `growth`, found '
                             f'{weight} and {growth}')
        if part not in (None, 'model', 'backbone'):
            raise ValueError('expected `part` of a price to be `model` or `backbone`, found '
                             f'{part!r}')
        self.cost = cost
        self.table = None if table is None else LatencyTable.load(table)
        self.part = part
        self.target = target
        self.growth = growth
        self.input_shape = None if input_shape is None else tuple(input_shape)
        # a buffer: where it has grown to is in the checkpoint
        self.register_buffer('weight', torch.tensor(float(weight)), target is not None)

    def forward(self, macs: MacsModel) -> Dict[str, Tensor]:
        """Price the gates as they are.

        Args:
            macs (MacsModel): Of the supernet.

        Returns:
            dict[str, Tensor]: ``loss_price``, and for the log ``macs`` (G, expected),
            ``macs_open`` (G, of what the hard gates keep), ``kept`` (their share of all units)
            and, with a target, ``price_weight``.

        Raises:
            ValueError: The target is out of reach; the message gives the reachable range.
        """
        gates = {name: site.gate for name, site in macs.sites.items()}
        expected = {name: gate.expected_size() for name, gate in gates.items()}
        kept = {name: gate.hard_size() for name, gate in gates.items()}
        expected_macs, open_macs = macs(expected), macs(kept)
        logged = dict(macs=expected_macs.detach() / 1e9, macs_open=open_macs / 1e9,
                      kept=sum(kept.values()) / sum(gate.total for gate in gates.values()))
        parse = parse_target
        if self.cost == 'macs':
            count, cost = macs, expected_macs
        elif self.cost == 'latency':
            count = LatencyModel(macs, self.table)
            cost, parse = count(expected), lambda target, _: count.parse_target(target)
            logged.update(latency=cost.detach() / 1e6, latency_open=count(kept) / 1e6)  # ms
        else:
            # all masks of a sample may underflow to 0, whose logarithm has no gradient
            count = partial(self._paper_cost, macs)
            cost = count({name: gate.soft_mask().sum().clamp(min=gate.min_size)
                          for name, gate in gates.items()})
        dense = macs.dense if self.cost == 'macs' else count(
            {name: gate.total for name, gate in gates.items()})
        if self.target is None:
            return dict(loss_price=self.weight * torch.log(cost / dense), **logged)
        target = parse(self.target, dense)
        self._check_reach(target, *(count({name: getattr(gate, size)
                                           for name, gate in gates.items()})
                                    for size in ('min_size', 'total')))
        # the open gates' cost with the gradient of the expected one
        distance = torch.log((cost + (count(kept) - cost).detach()) / target).abs()
        price = self.weight.clone() * distance
        if self.training:
            self.weight += self.growth * distance.detach()
        return dict(loss_price=price, price_weight=self.weight.clone(), **logged)

    @staticmethod
    def _paper_cost(macs: MacsModel, sizes: Mapping[str, Union[int, Tensor]]) -> Union[int, Tensor]:
        return sum(macs.sites[name].paper_cost(size, macs.shapes[name])
                   for name, size in sizes.items())

    def _check_reach(self, target: int, smallest: int, largest: int) -> None:
        if not smallest <= target <= largest:
            unit, scale = dict(macs=('G MACs', 1e9), latency=(' ms', 1e6)).get(self.cost, ('', 1))
            raise ValueError(f'expected a price `target` within the reachable '
                             f'{smallest / scale:.6g}{unit} to {largest / scale:.6g}{unit}, found '
                             f'{target / scale:.6g}{unit}')
