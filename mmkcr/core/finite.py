"""Numbers that must be numbers."""

from typing import Mapping

import torch
from torch import Tensor, nn


def check_finite(values: Mapping[str, Tensor], what: str) -> None:
    """Refuse values that are not finite.

    Args:
        values (Mapping[str, Tensor]): Tensors by name.
        what (str): What they are, for the message.

    Raises:
        ValueError: The first that holds a NaN or an infinity, by its name.
    """
    for name, value in values.items():
        wrong = value.detach()[~torch.isfinite(value.detach())]
        if len(wrong):
            raise ValueError(f'expected finite {what}, found {float(wrong[0])} in `{name}`')


def check_finite_gates(gates: Mapping[str, nn.Module], where: str = '') -> None:
    """Refuse gates whose parameters are not finite.

    Args:
        gates (Mapping[str, nn.Module]): By site.
        where (str): Added to the message. Defaults to none.

    Raises:
        ValueError: With the first such parameter's name.
    """
    check_finite({f'{site}.gate.{name}': parameter for site, gate in gates.items()
                  for name, parameter in gate.named_parameters()}, f'gates{where}')
