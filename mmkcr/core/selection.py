"""The units that the gates of a supernet keep, with a budget or without."""

import math
from collections.abc import Mapping

from torch import Tensor

from .budget import allowed_sizes, solve_budget
from .cost import CostModel
from .gate import BaseGate
from .options import choose_options

#: A network whose gates choose among options costs at most this share less than its target.
TOLERANCE = 0.03
Gates = Mapping[str, BaseGate]


def select_units(gates: Gates, macs: CostModel, target: int | None = None,
                 divisor: int = 1) -> dict[str, Tensor]:
    """Units that every gate keeps.

    Args:
        gates (Mapping[str, BaseGate]): By site: free (any size), with options, or of both sorts.
        macs (CostModel): Cost of the sizes of the gates' sites.
        target (int, optional): Largest cost. Defaults to None: what the hard gates keep.
        divisor (int): Sizes of free gates are multiples of it. Defaults to 1.

    Returns:
        dict[str, Tensor]: Kept units of every site, int64, ascending.

    Raises:
        ValueError: The target is out of reach, or a ``divisor`` is given although all gates have
            options, whose sizes are fixed.
    """
    if not gates:  # the search has sliced and folded every site: the cost is what it is
        if target is not None and macs({}) > target:
            raise ValueError(f'expected a target of at least the {macs.text(macs({}))} of '
                             f'{macs.noun} that the search decided on, found {macs.text(target)}')
        return {}
    free = {site: gate for site, gate in gates.items() if gate.options() is None}
    given = {site: gate for site, gate in gates.items() if site not in free}
    if not given:
        return _select_free(free, macs, target, divisor)
    if not free:
        if divisor != 1:
            raise ValueError(f'expected `divisor` 1 for gates with options, found {divisor}')
        return _select_options(given, macs, target)
    return _select_both(free, given, macs, target, divisor)


def _select_free(gates: Gates, macs: CostModel, target: int | None,
                 divisor: int) -> dict[str, Tensor]:
    return solve_budget({site: gate.scores() for site, gate in gates.items()}, macs, target,
                        divisor, {site: gate.min_size for site, gate in gates.items()},
                        {site: gate.group for site, gate in gates.items()})


def choose_within(gates: Gates, macs: CostModel, target: int, missing: int = 0) -> dict[str, int]:
    """Options of gates that cost the target, or less by its tolerance and ``missing``.

    Returns:
        dict[str, int]: Position among :meth:`~mmkcr.core.BaseGate.options` by site.

    Raises:
        ValueError: As of :func:`~mmkcr.core.choose_options`.
    """
    options_of = {site: gate.options() for site, gate in gates.items()}
    return choose_options(
        {site: [size for size, _ in options] for site, options in options_of.items()},
        {site: [logit for _, logit in options] for site, options in options_of.items()},
        macs, int(target * (1 - TOLERANCE)) + 1 - missing, target)


def _select_options(gates: Gates, macs: CostModel, target: int | None,
                    missing: int = 0) -> dict[str, Tensor]:
    """Units of the options within a target, or of those that were learned."""
    if target is None:
        return {site: gate.selection() for site, gate in gates.items()}
    return {site: gates[site].selection(option)
            for site, option in choose_within(gates, macs, target, missing).items()}


def _select_both(free: Gates, given: Gates, macs: CostModel, target: int | None,
                 divisor: int) -> dict[str, Tensor]:
    """Options first: those that were learned, if the free sites can then meet the target.

    Otherwise options are chosen that leave the free sites a size with which they meet it. In both
    cases these fill what is left of the budget.
    """
    kept = _select_options(given, macs, None)
    if target is not None:
        # as `solve_budget` has them
        offered = {site: allowed_sizes(gate.total, gate.min_size, math.lcm(divisor, gate.group))
                   for site, gate in free.items()}
        smallest, largest = ({site: sizes[place] for site, sizes in offered.items()}
                             for place in (0, -1))
        sizes = {site: len(units) for site, units in kept.items()}
        least, most = macs({**sizes, **smallest}), macs({**sizes, **largest})
        if not least <= target <= most:
            kept = _select_options(given, macs.beside(smallest), target, most - least)
    sizes = {site: len(units) for site, units in kept.items()}
    if target is not None:  # options may leave more than the free sites can take
        target = min(target, macs({**sizes, **largest}))
    return {**kept, **_select_free(free, macs.beside(sizes), target, divisor)}
