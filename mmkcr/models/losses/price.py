"""The price of a supernet's gates (KCR, section 3.3)."""

from typing import Dict, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from mmkcr.core import MacsModel, parse_target
from mmkcr.registry import MODELS


@MODELS.register_module()
class MacsPrice(nn.Module):
    r"""Price of what the gates keep: :math:`\lambda \log(c / c_{dense})`.

    The paper's term is :math:`\lambda \log c`; dividing by the dense cost
    changes the value by a constant and no gradient. It has no floor: its pull
    grows relatively as the cost falls. With a target the price is
    :math:`\lambda |\log(c / c_{target})|`.

    Args:
        weight (float): :math:`\lambda`. Defaults to 0.2.
        cost (str): ``'macs'``, the exact count of the whole network's
            multiply-accumulates at the expected sizes, or ``'paper'``,
            :math:`\sum_j l_j (2 \tilde D_j^2 + \tilde D_j)` over the blocks
            with the sampled masks (at least ``min_size`` channels of each),
            which ignores tokens and hidden width.
            Defaults to ``'macs'``.
        target (str | int | float, optional): As in
            :func:`~mmkcr.core.parse_target`; a share for
            ``cost='paper'``. Defaults to None.
        input_shape (Sequence[int], optional): (C, H, W) of the image that the
            MACs are counted for. Defaults to that of the first batch, which is
            a function of the run only if all batches have one size.
        part (str, optional): ``'model'`` or ``'backbone'``, whose MACs are
            counted, see :func:`~mmkcr.models.utils.counted_part`. Defaults to
            None: the backbone of a detector, else the task model.

    Raises:
        ValueError: Unknown ``cost`` or ``part``, or a negative ``weight``.
    """

    def __init__(self,
                 weight: float = 0.2,
                 cost: str = 'macs',
                 target: Union[str, int, float, None] = None,
                 input_shape: Optional[Sequence[int]] = None,
                 part: Optional[str] = None) -> None:
        super().__init__()
        if cost not in ('macs', 'paper'):
            raise ValueError(f'expected `cost` of a price to be `macs` or `paper`, found {cost!r}')
        if weight < 0:
            raise ValueError(f'expected a non-negative price `weight`, found {weight}')
        if part not in (None, 'model', 'backbone'):
            raise ValueError('expected `part` of a price to be `model` or `backbone`, found '
                             f'{part!r}')
        self.weight = weight
        self.cost = cost
        self.part = part
        self.target = target
        self.input_shape = None if input_shape is None else tuple(input_shape)

    def forward(self, macs: MacsModel) -> Dict[str, Tensor]:
        """Price the gates as they are.

        Args:
            macs (MacsModel): Of the supernet.

        Returns:
            dict[str, Tensor]: ``loss_price``, and for the log ``macs`` (G,
            expected) and ``kept`` (share of all units that the hard gates
            keep).
        """
        gates = {name: layer.gate for name, layer in macs.layers.items()}
        expected = macs({name: gate.expected_size() for name, gate in gates.items()})
        if self.cost == 'macs':
            cost, dense = expected, macs.dense
        else:
            # all masks of a sample may underflow to 0, whose logarithm has no gradient
            sizes = {name: gate.soft_mask().sum().clamp(min=gate.min_size)
                     for name, gate in gates.items()}
            cost = sum(macs.layers[name].paper_cost(size, macs.shapes[name])
                       for name, size in sizes.items())
            dense = sum(macs.layers[name].paper_cost(gate.total, macs.shapes[name])
                        for name, gate in gates.items())
        if self.target is None:
            price = torch.log(cost / dense)
        else:
            price = torch.log(cost / parse_target(self.target, dense)).abs()
        kept = sum((gate.scores() > 0).sum() for gate in gates.values())
        total = sum(gate.total for gate in gates.values())
        return dict(loss_price=self.weight * price, macs=expected.detach() / 1e9,
                    kept=kept.float() / total)
