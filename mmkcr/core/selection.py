"""The units that the gates of a supernet keep, with a budget or without.

Gates are free, or have a few sizes to choose from, so that the cost lands in a window.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from .budget import allowed_sizes, solve_budget
from .cost import CostModel, grow_sizes
from .gate import BaseGate

#: A network whose gates choose among options costs at most this share less than its target.
TOLERANCE = 0.03
Gates = Mapping[str, BaseGate]
Options = Mapping[str, Sequence[int]]


def select_units(gates: Gates, macs: CostModel, target: int | None = None,
                 divisor: int = 1) -> dict[str, Tensor]:
    """Units that every gate keeps.

    Args:
        gates (Mapping[str, BaseGate]): By site: free (any size), with options, or of both sorts.
        macs (CostModel): Cost of the sizes of the gates' sites.
        target (int, optional): Largest cost. Defaults to None: the units of the hard gates.
        divisor (int): For free gates, see :func:`~mmkcr.core.solve_budget`. Defaults to 1.

    Returns:
        dict[str, Tensor]: Kept units of every site, int64, ascending.

    Raises:
        ValueError: The target is out of reach; a ``divisor`` where all gates have options.
    """
    if not gates:  # the search has sliced and folded every site: the cost is what it is
        if target is not None and macs({}) > target:
            raise ValueError(f'expected a target of at least the {macs.text(macs({}))} of '
                             f'{macs.noun} that the search decided on, found {macs.text(target)}')
        return {}
    free = {site: gate for site, gate in gates.items() if gate.options() is None}
    given = {site: gate for site, gate in gates.items() if site not in free}
    if not free and divisor != 1:
        raise ValueError(f'expected `divisor` 1 for gates with options, found {divisor}')
    # options that were learned, if the free sites can then meet the target
    kept = {site: gate.selection() for site, gate in given.items()}
    sizes = {site: len(units) for site, units in kept.items()}
    if given and target is not None:
        # as `solve_budget` has them
        offered = {site: allowed_sizes(gate.total, gate.min_size, divisor, gate.group)
                   for site, gate in free.items()}
        smallest = {site: sizes[0] for site, sizes in offered.items()}
        largest = {site: sizes[-1] for site, sizes in offered.items()}
        least, most = macs({**sizes, **smallest}), macs({**sizes, **largest})
        if not least <= target <= most:
            # those that leave the free sites a size with which they meet it
            chosen = choose_within(given, macs.beside(smallest), target, most - least)
            kept = {site: given[site].selection(option) for site, option in chosen.items()}
            sizes = {site: len(units) for site, units in kept.items()}
        # options may leave more than the free sites can take
        target = min(target, macs({**sizes, **largest}))
    if not free:
        return kept
    # the free sites fill what is left of the budget
    scores = {site: gate.scores() for site, gate in free.items()}
    min_sizes = {site: gate.min_size for site, gate in free.items()}
    groups = {site: gate.group for site, gate in free.items()}
    return {**kept, **solve_budget(scores, macs.beside(sizes), target, divisor, min_sizes, groups)}


def choose_within(gates: Gates, macs: CostModel, target: int, missing: int = 0) -> dict[str, int]:
    """Choose options of gates that cost the target, or a little less, see :func:`choose_options`.

    Args:
        gates (Mapping[str, BaseGate]): By site; all have options.
        macs (CostModel): Cost of the sizes of the gates' sites.
        target (int): Largest cost.
        missing (int): Cost that may be missing beside the :data:`TOLERANCE`, as other sites can
            fill it. Defaults to 0.

    Returns:
        dict[str, int]: By site the position among :meth:`~mmkcr.core.BaseGate.options`.
    """
    sizes, logits = {}, {}
    for site, gate in gates.items():
        sizes[site], logits[site] = zip(*gate.options())
    low = int(target * (1 - TOLERANCE)) + 1 - missing
    return choose_options(sizes, logits, macs, low, target)


def choose_options(options: Options, scores: Mapping[str, Sequence[float]], macs: CostModel,
                   low: int, high: int) -> dict[str, int]:
    r"""Choose an option at every site so that ``low <= MACs <= high``.

    The sites' distributions :math:`p_k \propto e^{s_k}` are tilted to
    :math:`p_k e^{-\lambda c_k}`, where c_k is the option's marginal cost and one :math:`\lambda`
    puts the expected MACs into the middle of the window. Sites are then decided one after another,
    the costliest first, each for its likeliest option, and the rest is tilted anew. If no
    completion can reach the window, the search backtracks. It finds a choice if there is one.

    Args:
        options (Mapping[str, Sequence[int]]): Sizes to choose from, by site.
        scores (Mapping[str, Sequence[float]]): Logits of the options, by site.
        macs (CostModel): Sizes may be fractional. If it may fall (:attr:`CostModel.rises`), the
            search is complete only where sites do not meet in one product.
        low, high (int): Fewest and most MACs.

    Returns:
        dict[str, int]: Position of the chosen option by site.

    Raises:
        ValueError: No choice lies in the window; the message gives the reachable range.
    """
    search = _Search(options, scores, macs, low, high)
    best = search.run({}, search.order)
    if best is not None:
        return best
    smallest, largest = search.ends({}, search.order)
    raise ValueError(f'expected a target within the reachable '
                     f'{macs.range_text(smallest, largest)}, with sizes that meet it, found '
                     f'{macs.text(low)} to {macs.text(high)}')


def can_meet(options: Options, macs: CostModel, low: int, high: int) -> bool:
    """Whether some choice of options has ``low <= MACs <= high``: fast, with no false positives.

    The network grows from the smallest, one option of one site at a time, as far as it stays
    within ``high``: site by site, the costliest first, and with all sites in turn. Arguments are
    those of :func:`choose_options`; its full search may find a choice where this says False.
    """
    sizes = _ascending(macs, options)
    smallest = {site: offered[0] for site, offered in sizes.items()}
    costs = {site: macs({**smallest, site: offered[-1]}) for site, offered in sizes.items()}
    costliest = sorted(sizes, key=costs.__getitem__, reverse=True)
    steps = [(rank, site, size) for site in costliest for rank, size in enumerate(sizes[site][1:])]
    in_turns = sorted(steps, key=lambda step: step[0])
    for order in (steps, in_turns):
        sizes = grow_sizes(smallest, [(site, size) for _, site, size in order], macs, high)
        if low <= macs(sizes) <= high:
            return True
    return False


def _ascending(cost: CostModel, options: Options) -> dict[str, list[int]]:
    """Sizes of every site, distinct, the cheapest first.

    Where the cost may fall, it is taken while the other sites have their largest size.
    """
    sizes = {site: sorted({int(size) for size in offered}) for site, offered in options.items()}
    if cost.rises:
        return sizes
    largest = {site: offered[-1] for site, offered in sizes.items()}
    return {site: sorted(offered, key=lambda size, site=site: cost({**largest, site: size}))
            for site, offered in sizes.items()}


class _Search:
    """Depth-first search with exact bounds; sites are decided in a fixed order."""

    def __init__(self, options: Options, scores: Mapping[str, Sequence[float]],
                 macs: CostModel, low: int, high: int) -> None:
        self.macs, self.low, self.high = macs, low, high
        self.sizes = {site: [int(size) for size in sizes] for site, sizes in options.items()}
        self.ordered = _ascending(macs, self.sizes)
        self.logits = {site: np.asarray(scores[site], float) for site in options}
        self.means = {site: np.mean(sizes) for site, sizes in self.sizes.items()}
        self.base = macs(self.means)
        # what each option costs beside mean sizes, as a share of the cost there
        self.costs = {site: np.asarray([macs({**self.means, site: size}) / self.base - 1
                                        for size in sizes]) for site, sizes in self.sizes.items()}
        self.order = sorted(options, key=lambda site: -np.ptp(self.costs[site]))

    def run(self, chosen: dict[str, int], rest: list[str]) -> dict[str, int] | None:
        """A choice in the window that completes a partial one, or None if there is none."""
        fixed = {site: self.sizes[site][index] for site, index in chosen.items()}
        least, most = self.ends(fixed, rest)  # they bound all other completions
        if least > self.high or most < self.low:
            return None
        if not rest:
            return chosen
        # the likeliest option first; if no completion of it is reachable, the next one
        for index in np.argsort(-self._tilt(fixed, rest)[rest[0]], kind='stable'):
            best = self.run({**chosen, rest[0]: int(index)}, rest[1:])
            if best is not None:
                return best
        return None

    def ends(self, fixed: Mapping[str, int], rest: Sequence[str]) -> tuple[int, int]:
        """Cost of the cheapest and of the costliest completion."""
        return tuple(self.macs({**fixed, **{site: self.ordered[site][end] for site in rest}})
                     for end in (0, -1))

    def _tilt(self, fixed: Mapping[str, int], rest: Sequence[str]) -> dict[str, np.ndarray]:
        """Probabilities of the open sites that put the expected cost into the window's middle."""
        low, high = -1e4, 1e4  # bisection for lambda: MACs fall as it grows
        for _ in range(40):
            tilt, probs = (low + high) / 2, {}
            for site in rest:
                logits = self.logits[site] - tilt * self.costs[site]
                exps = np.exp(logits - logits.max())
                probs[site] = exps / exps.sum()
            if self._mean_cost(fixed, probs) > (self.low + self.high) / 2:
                low = tilt
            else:
                high = tilt
        return probs

    def _mean_cost(self, fixed: Mapping[str, int], probs: Mapping[str, np.ndarray]) -> float:
        if self.macs.rises:
            return self.macs({**fixed, **{site: float(prob @ self.sizes[site])
                                          for site, prob in probs.items()}})
        given = self.macs({**self.means, **fixed})
        return given + self.base * sum(float(prob @ self.costs[site])
                                       for site, prob in probs.items())


def allowed_ratio_sizes(total: int, start: float, step: float) -> tuple[int, ...]:
    """Sizes whose shares of ``total`` units go from ``start``, within (0, 1], to 1 in steps.

    They are ascending, distinct, at least 1; the last is ``total``.

    Raises:
        ValueError: A share out of range, or a step that is not positive.
    """
    if not 0 < start <= 1 or step <= 0:
        raise ValueError(f'expected options from a share within (0, 1] in positive steps, found '
                         f'start {start} and step {step}')
    count = int((1 - start) / step + 1e-6) + 1  # 1e-6: the quotient may round below an integer
    sizes = {max(1, round(total * (start + step * k))) for k in range(count)}
    return tuple(sorted({*sizes, total}))
