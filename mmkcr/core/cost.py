"""Cost of a network as a function of the sizes of its sites: one interface for every cost."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from .sites import Cost

Target = str | int | float


class CostModel:
    """Cost of a network: MACs, time, parameters or bytes.

    The texts of the base class are about MACs.
    """

    #: Name of the cost in configs and files.
    name: ClassVar[str] = 'macs'
    #: Noun in messages about targets, and the unit that follows a number.
    noun: ClassVar[str] = 'MACs'
    suffix: ClassVar[str] = ''
    #: Units of targets, in capitals, without the suffix.
    units: ClassVar[Mapping[str, int]] = {'': 1, 'K': 10**3, 'M': 10**6, 'G': 10**9, 'T': 10**12}
    #: Multiple that messages and logs use: its prefix letter and its value.
    multiple: ClassVar[str] = 'G'
    scale: ClassVar[int] = 10**9
    #: Whether it never falls when a site grows. Measured times may.
    rises: ClassVar[bool] = True
    #: Cost of the dense network, where it is known.
    dense: int | None = None

    def __call__(self, sizes: Mapping[str, Cost]) -> Cost:
        """Cost at kept units of every site: an integer, or of tensors a differentiable scalar."""
        raise NotImplementedError

    def expectation(self, names: Sequence[str], probabilities: Tensor, sizes: Tensor) -> Tensor:
        """Expected cost if every site's size is drawn on its own, a differentiable scalar.

        It is the cost of the expected sizes: exact for sums of products in which no site occurs
        twice.

        Args:
            names (Sequence[str]): Names of the sites.
            probabilities (Tensor): Of each site's K options, (sites, K).
            sizes (Tensor): Kept units of each option, (sites, K); any where the probability is 0.
        """
        return self(dict(zip(names, (probabilities * sizes).sum(1))))

    @classmethod
    def read_target(cls, target: Target, dense: int) -> int:
        """Read a target.

        Args:
            target (str | int | float): Such as ``12600000000``, ``'12.6G'``, ``'450M'`` (bytes:
                ``'40MB'``; time: ``'12ms'``, ``'900us'``), or a share of the dense network's cost
                (``0.8``, ``'80%'``). A number of at most 1 is a share.
            dense (int): Cost of the dense network.

        Raises:
            ValueError: Anything else; also a number from 1 to 100, or a time, without a unit.
        """
        match = re.fullmatch(r'\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z%]*)\s*', str(target))
        value, unit = (float(match[1]), match[2].upper()) if match else (0., '')
        unit = unit.removesuffix(cls.suffix)  # such as `40MB`
        if value <= 0 or unit not in {'', '%', *cls.units}:
            raise ValueError(f'expected a target of {cls.noun} such as '
                             f'`12.6{cls.multiple}{cls.suffix}`, `80%` or `0.8`, found {target!r}')
        if unit == '%' or not match[2] and value <= 1:
            return int(dense * (value / 100 if unit == '%' else value))
        if not match[2] and (value <= 100 or '' not in cls.units):
            raise ValueError(f'expected a target of {cls.noun} with a unit, found {target!r}: a '
                             f'share of the dense network is at most 1, as `0.6` or `60%`, and a '
                             f'number is such as `{value:g}{cls.multiple}{cls.suffix}`')
        return int(value * cls.units[unit])

    def parse_target(self, target: Target) -> int:
        """Read a target relative to this model's dense network, see :meth:`read_target`."""
        return self.read_target(target, self.dense)

    @classmethod
    def text(cls, value: float) -> str:
        """A cost as text, without the noun, such as ``'12.6G'``."""
        return f'{value / cls.scale:.6g}{cls.multiple}{cls.suffix}'

    @classmethod
    def range_text(cls, lowest: float, highest: float) -> str:
        """A range of costs as text, such as ``'0.5G to 1.2G MACs'``."""
        noun = '' if cls.suffix else f' {cls.noun}'
        return f'{cls.text(lowest)} to {cls.text(highest)}{noun}'

    def check_target(self, target: int, least: Mapping[str, int]) -> None:
        """Refuse a target out of the range from these sizes to the dense network."""
        self.check_range(target, self(least), self.dense)

    def check_range(self, target: float, lowest: float, highest: float,
                    what: str = 'a target') -> None:
        """Refuse a target out of a range.

        Args:
            target (float): The cost that is asked for.
            lowest, highest (float): Ends of the range, which the message gives.
            what (str): Noun of the message. Defaults to ``'a target'``.

        Raises:
            ValueError: The target is out of the range.
        """
        if not lowest <= target <= highest:
            # rounded up, so that the share that the message names can be reached
            shares = (f' (reachable: {math.ceil(1000 * lowest / self.dense) / 10}% to '
                      f'{highest / self.dense:.1%} of the dense network)') if self.dense else ''
            raise ValueError(f'expected {what} within the reachable '
                             f'{self.range_text(lowest, highest)}, found '
                             f'{self.text(target)}{shares}')

    def describe(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The entry about this cost in the structure file of a subnet."""
        return dict(dense=self.dense, subnet=self(sizes))

    def beside(self, sizes: Mapping[str, int]) -> 'CostModel':
        """The cost as a function of some sites only, while the others have these sizes."""
        return _Beside(self, sizes)


class _Beside(CostModel):
    """See :meth:`CostModel.beside`."""

    def __init__(self, cost: CostModel, sizes: Mapping[str, int]) -> None:
        self.cost, self.sizes, self.dense, self.rises = cost, dict(sizes), cost.dense, cost.rises
        # messages are those of the cost itself
        self.noun, self.text, self.range_text = cost.noun, cost.text, cost.range_text

    def __call__(self, sizes: Mapping[str, Cost]) -> Cost:
        """Cost of the whole network."""
        return self.cost({**self.sizes, **sizes})


def useful_sizes(costs: Sequence[int]) -> list[int]:
    """Positions of the sizes that cost less than every larger size.

    A size just below the full one may cost more than the full one, because only it needs a
    selection of channels. Sizes ascend.
    """
    return [place for place, cost in enumerate(costs)
            if all(cost < other for other in costs[place + 1:])]


def useful_options(cost: Callable, options: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The :func:`useful_sizes` of every site, ascending, while the others have their largest."""
    full = {site: sizes[-1] for site, sizes in options.items()}
    useful = {}
    for site, sizes in options.items():
        costs = [int(cost({**full, site: size})) for size in sizes]
        useful[site] = [sizes[place] for place in useful_sizes(costs)]
    return useful


def grow_sizes(sizes: Mapping[str, int], steps: Iterable[tuple[str, int]], cost: Callable,
               most: int) -> dict[str, int]:
    """Take all steps that a budget has room for.

    Args:
        sizes (Mapping[str, int]): Kept units by site, to begin with; they stay as they are.
        steps (Iterable[tuple[str, int]]): A site and its next larger size, in the order in which
            they are tried. Behind a step without room the later steps of its site, which cost
            more, are out too.
        cost (Callable): Cost of sizes by site.
        most (int): Largest cost.

    Returns:
        dict[str, int]: The sizes afterwards.
    """
    sizes, full = dict(sizes), set()
    for site, size in steps:
        larger = {**sizes, site: size}
        if site in full or cost(larger) > most:
            full.add(site)
        else:
            sizes = larger
    return sizes
