"""Rates of dropout and stochastic depth, which change a network in training alone."""

from collections.abc import Mapping
from typing import Any

from torch import nn


def read_drop_rates(model: nn.Module) -> dict[str, float]:
    """Read the rates of dropout and stochastic depth that are not 0.

    Args:
        model (nn.Module): Network of any library.

    Returns:
        dict[str, float]: By the place in the network, such as ``'blocks.1.drop_path1.drop_prob'``.
    """
    return {f'{path}.{name}'.lstrip('.'): float(value)
            for path, module in model.named_modules()
            for name, value in vars(module).items() if value and _is_rate(module, name, value)}


def _is_rate(module: nn.Module, name: str, value: Any) -> bool:
    """Whether an attribute is a rate: a number in a drop layer, or one that is named so."""
    named = 'drop' in name or name in ('p', 'prob') and 'drop' in type(module).__name__.lower()
    return named and isinstance(value, (int, float)) and not isinstance(value, bool)


def set_drop_rates(model: nn.Module, rates: Mapping[str, float]) -> None:
    """Give a network the rates of another one, in place; places that it does not have are left out.

    Args:
        model (nn.Module): The network. Where it has an identity, a layer of the rate is put.
        rates (Mapping[str, float]): See :func:`read_drop_rates`.

    Raises:
        ValueError: A value is no rate, or there is no table of rates.
    """
    if not isinstance(rates, Mapping):
        raise ValueError(f'expected rates of dropout by their places, found {rates!r:.80}')
    modules = dict(model.named_modules())
    for place, rate in rates.items():
        path, _, name = place.rpartition('.')
        if not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise ValueError(f'expected a rate between 0 and 1 at `{place}`, found {rate!r}')
        module = modules.get(path)
        if type(module) is nn.Identity and name in ('p', 'drop_prob'):
            module = _drop_layer(name).train(module.training)
            model.set_submodule(path, module)
        if module is not None and _is_rate(module, name, getattr(module, name, None)):
            setattr(module, name, rate)


def _drop_layer(name: str) -> nn.Module:
    """A layer of a rate with that name, which drops nothing yet."""
    if name == 'p':
        return nn.Dropout(0.)
    from timm.layers import DropPath
    return DropPath(0.)
