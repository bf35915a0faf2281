"""Latency as a function of the sizes of sites, from a measured table."""

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from .cost import CostModel
from .io import atomic_write
from .machine import this_machine
from .macs import MacsModel
from .sites import Cost


@dataclass
class LatencyTable:
    """Measured times of one network on one machine in one runtime.

    Args:
        machine (dict): See :func:`~mmkcr.core.machine.this_machine`.
        settings (dict): ``runtime``, ``threads``, ``batch``, ``input_shape`` (C, H, W), ``part``.
        dense (int): Nanoseconds of the dense network; 0 before it was measured.
        classes (list[dict]): Groups of sites that cost the same. Each has the names of its
            ``sites``, their ``total``, the sizes to be ``measured``, and the ``changes``: by kept
            size the nanoseconds that one such site adds to the time of the dense network. Sizes
            that were not measured yet are absent.
        format_version (int): Version of the file format. Defaults to 1.
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    dense: int = 0
    classes: list[dict[str, Any]] = field(default_factory=list)
    format_version: int = 1

    @classmethod
    def load(cls, path: str | Path) -> 'LatencyTable':
        """Read a table; a missing file, a file that is no table, and another format are refused."""
        if not Path(path).is_file():
            raise FileNotFoundError(f'expected a table of latencies at `{path}`, found none: '
                                    '`mmkcr latency-table` measures one')
        try:
            table = cls(**json.loads(Path(path).read_text()))
            if table.format_version != 1:
                raise ValueError(f'format {table.format_version}')
            table.curves()  # reads every entry but the sizes to measure
            [len(entry['measured']) for entry in table.classes]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'expected a table of latencies in `{path}`, found one that cannot be '
                             f'read ({type(error).__name__}: {error})') from error
        return table

    def save(self, path: str | Path) -> None:
        """Write the table, by a temporary file and a rename."""
        with atomic_write(Path(path)) as target:
            target.write_text(json.dumps(asdict(self), indent=1) + '\n')

    def curves(self) -> dict[str, tuple[int, list[int], list[int]]]:
        """By site: its units, the measured sizes (ascending), and the nanoseconds they add."""
        curves = {}
        for entry in self.classes:
            points = {**{int(size): change for size, change in entry['changes'].items()},
                      entry['total']: 0}
            sizes = sorted(points)
            for name in entry['sites']:
                curves[name] = entry['total'], sizes, [points[size] for size in sizes]
        return curves


def load_table(path: str | Path, settings: Mapping[str, Any] | None = None,
               force: bool = False) -> LatencyTable:
    """Read a finished table of this machine.

    Args:
        path (str | Path): The file.
        settings (Mapping, optional): Required conditions, some of the table's ``settings``.
        force (bool): Accept a table of another machine or of other versions. Defaults to False.

    Raises:
        ValueError: It is of another machine, of other conditions, or unfinished.
    """
    table = LatencyTable.load(path)
    wanted = {**({} if force else this_machine()), **(settings or {})}
    given = {**table.machine, **table.settings}
    differ = [key for key in wanted if given.get(key) != wanted[key]]
    if differ:
        this, other = ({key: side.get(key) for key in differ} for side in (wanted, given))
        raise ValueError(f'expected a table about {this} in `{path}`, found {other}: measure '
                         'another, or force one of another machine (`--force-table`, of a price '
                         '`force_table=True`)')
    if not table.dense or any(len(entry['changes']) < len(entry['measured'])
                              for entry in table.classes):
        raise ValueError(f'expected a finished table in `{path}`, found sizes that were not '
                         'measured: run the command that made it again')
    return table


def milliseconds(nanoseconds: float) -> str:
    """A time as text, such as ``'12.3 ms'``."""
    return f'{nanoseconds / 1e6:.4g} ms'


class LatencyModel(CostModel):
    """Time of the subnet from the sizes of its sites, like :class:`~mmkcr.core.MacsModel`.

    Each site adds its measured change to the time of the dense network; between measured sizes
    the change is linear. If several sites lie along one product, the saving of one site shrinks
    with the sizes of the others, in proportion to its MACs.

    Raises:
        ValueError: The table lacks a site, or has it with another number of units.
    """

    name, noun, suffix, multiple, scale = 'latency', 'time', 'ms', '', 10**6
    units = {'S': 10**9, 'MS': 10**6, 'US': 10**3, 'NS': 1}
    rises = False  # a selection takes time too, and measurements are noisy
    text = staticmethod(milliseconds)

    def __init__(self, macs: MacsModel, table: LatencyTable) -> None:
        self.macs, self.table, self.sites = macs, table, macs.sites
        self.curves = table.curves()
        for name, site in self.sites.items():
            if (units := self.curves.get(name, (0, ))[0]) != site.total:
                kinds = dict.fromkeys(site.rpartition('.')[2] for site in self.sites)
                raise ValueError(f'expected site `{name}` of {site.total} units in the table of '
                                 f'latencies, found {units} units: measure one with '
                                 f'`--sites {" ".join(kinds)}`')
        self.full = {name: site.total for name, site in self.sites.items()}
        # sites with a product that another site lies along too
        self.shared = {name for names in macs.terms if len(set(names)) > 1 for name in names}
        self.dense = table.dense

    def __call__(self, sizes: Mapping[str, Cost]) -> Cost:
        """Nanoseconds of the network, see :meth:`~mmkcr.core.CostModel.__call__`."""
        total = self._total({name: interpolate(*self.curves[name][1:], sizes[name])
                             for name in self.sites}, sizes)
        return total.clamp(min=1.) if isinstance(total, Tensor) else max(round(total), 1)

    def expectation(self, names: Sequence[str], probabilities: Tensor, sizes: Tensor) -> Tensor:
        """Expected time; arguments are those of :meth:`~mmkcr.core.CostModel.expectation`.

        The change is averaged over the sizes, because it is not linear in them. The share of the
        saving that other sites leave is linear in each of their sizes.
        """
        changes = {}
        for name, row, choices in zip(names, probabilities, sizes.tolist()):
            times = [interpolate(*self.curves[name][1:], size) for size in choices]
            changes[name] = (row * row.new_tensor(times)).sum()
        return self._total(changes, dict(zip(names, (probabilities * sizes).sum(1)))).clamp(min=1.)

    def _total(self, changes: Mapping[str, Cost], sizes: Mapping[str, Cost]) -> Cost:
        """Time with the changes of all sites, as far as sites with shared products leave them."""
        # one site after the other: each saves in a shared product only what its predecessors left
        total, others = self.dense, dict(self.full)
        for name in self.sites:
            change = changes[name]
            if name in self.shared:
                # a site's MACs beside the others' sizes, and beside dense ones
                here, alone = (self.macs.site_macs(name, kept) for kept in (others, self.full))
                change = change * (here / alone) if alone else change
            total, others[name] = total + change, sizes[name]
        return total

    def describe(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The entry in a structure file: nanoseconds, and the settings and machine they are for."""
        return dict(dense=self.dense, subnet=self(sizes), **self.table.settings,
                    **self.table.machine)


def interpolate(sizes: Sequence[int], values: Sequence[float], size: Cost) -> Cost:
    """Value at a size: linear between measured sizes, and extrapolated beyond them.

    Args:
        sizes (Sequence[int]): Measured sizes, ascending.
        values (Sequence[float]): Value at each of them.
        size (int | Tensor): Where; a tensor gives a differentiable result.
    """
    if len(sizes) == 1:
        return values[0]
    where = float(size.detach()) if isinstance(size, Tensor) else size
    # the segment [place - 1, place] that holds the size, or the nearest one
    place = min(max(bisect.bisect_left(sizes, where), 1), len(sizes) - 1)
    (low, high), (start, end) = sizes[place - 1:place + 1], values[place - 1:place + 1]
    return start + (end - start) * ((size - low) / (high - low))
