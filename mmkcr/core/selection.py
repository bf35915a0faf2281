"""What the gates of a supernet keep, under a budget or not."""

from typing import Callable, Dict, Mapping, Optional

from torch import Tensor

from .budget import solve_budget
from .gate import BaseGate
from .options import choose_options

#: A network of options meets its target within this share below it.
TOLERANCE = 0.03


def select_units(gates: Mapping[str, BaseGate],
                 macs: Callable[[Mapping[str, float]], float],
                 target: Optional[int] = None,
                 divisor: int = 1) -> Dict[str, Tensor]:
    """Units that every gate keeps.

    Args:
        gates (Mapping[str, BaseGate]): By site; all of free size, or all with options.
        macs (Callable): MACs from the sizes of the gates' sites.
        target (int, optional): Most MACs. Defaults to None: what the hard gates keep.
        divisor (int): Sizes of free gates are multiples of it. Defaults to 1.

    Returns:
        dict[str, Tensor]: Kept units of every site, int64, ascending.

    Raises:
        ValueError: The target is out of reach, or there is a ``divisor`` for gates with
            options, whose sizes are given.
    """
    options = {site: gate.options() for site, gate in gates.items()}
    if not options:
        if target is not None and macs({}) > target:
            raise ValueError(f'expected a target of at least the {macs({}) / 1e9:.6g}G MACs that '
                             f'the search decided on, found {target / 1e9:.6g}G')
        return {}
    if any(found is None for found in options.values()):
        return solve_budget({site: gate.scores() for site, gate in gates.items()}, macs, target,
                            divisor, {site: gate.min_size for site, gate in gates.items()})
    if divisor != 1:
        raise ValueError(f'expected `divisor` 1 for gates with options, found {divisor}')
    if target is None:
        return {site: gate.selection() for site, gate in gates.items()}
    chosen = choose_options(
        {site: [size for size, _ in found] for site, found in options.items()},
        {site: [logit for _, logit in found] for site, found in options.items()},
        macs, int(target * (1 - TOLERANCE)) + 1, target)
    return {site: gates[site].selection(option) for site, option in chosen.items()}
