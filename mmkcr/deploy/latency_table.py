"""Tables of measured times by kept sizes, and timing of subnets against their predictions."""

import bisect
import copy
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmkcr.closed_form.options import CompressOptions, default_kinds
from mmkcr.closed_form.profiles import size_options
from mmkcr.core import LatencyTable, MacsModel, load_table
from mmkcr.core.latency import milliseconds
from mmkcr.core.machine import hardware_name, this_machine
from mmkcr.deploy.latency import Side, export_for_timing, measure_pair
from mmkcr.deploy.runtimes import PACKAGES, require_runtime
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.base import KindConfig
from mmkcr.models.tasks import part_to_count, search_space, task_forward

#: Measured shares of the units; the last stands for the largest size below the full one.
SHARES = (0.05, 0.25, 0.5, 0.75, 1 - 1e-9)
#: A prediction that is further off, as a share of itself, is warned of.
MOST_OFF = 0.05
#: Conditions of a table where a user names no others.
CONDITIONS: dict[str, Any] = dict(runtime='onnxruntime', threads=1, batch=1)


def table_path(config: str | Path, runtime: str, threads: int, batch: int) -> Path:
    """Path where a table of this machine is written, and looked for by default.

    Args:
        config (str | Path): Config of the network; its name begins the file's.
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.RUNTIMES`.
        threads (int): CPU threads.
        batch (int): Images of a batch.
    """
    conditions = f'{runtime}_threads{threads}_batch{batch}_{hardware_name()}'
    return Path(f'work_dirs/latency_tables/{Path(config).stem}_{conditions}.json')


def find_table(args: Any) -> Path | None:
    """Find the table of a target of time, and check it against the given conditions.

    Args:
        args (Timed): Arguments of a command with ``target_latency``, ``config``, ``part``,
            ``shape`` and, if the command has them, ``sites``.

    Returns:
        Path, optional: The table; None without a target of time.

    Raises:
        FileNotFoundError: There is no table; the message has the command that measures it.
        ValueError: It is of other conditions or another machine.
    """
    if args.target_latency is None:
        return None
    given = {key: getattr(args, key) for key in CONDITIONS if getattr(args, key) is not None}
    wanted = {**CONDITIONS, **given}
    path = Path(args.latency_table or table_path(args.config, **wanted))
    if args.latency_table is None and not path.is_file():
        require_runtime(wanted['runtime'])  # no table is asked for that cannot be made
        wanted.update(sites=getattr(args, 'sites', None), part=args.part, shape=args.shape)
        options = [f'--{key} {" ".join(map(str, value)) if isinstance(value, list) else value}'
                   for key, value in wanted.items() if value is not None]
        raise FileNotFoundError(f'expected a table of latencies at `{path}`, found none: `mmkcr '
                                f'latency-table {args.config} {" ".join(options)}` measures it '
                                '(with the same `--cfg-options`)')
    usable_table(path, given, args.force_table)
    return path


def usable_table(path: str | Path, settings: Mapping[str, Any] | None = None,
                 force: bool = False) -> LatencyTable:
    """Load a table of latencies whose runtime is installed.

    Args:
        path (str | Path): File of the table.
        settings (Mapping, optional): Conditions that it must have, by name. Defaults to None: any.
        force (bool): Take a table of another machine. Defaults to False.

    Raises:
        ImportError: Its runtime is not installed.
        ValueError: It is of other conditions or another machine.
    """
    table = load_table(path, settings, force)
    require_runtime(table.settings['runtime'])  # the built network will be timed in it
    return table


def ensure_search_space(model: nn.Module, sites: Sequence[KindConfig] | None = None) -> SearchSpace:
    """The search space of a backbone, or of a task model's; a new one if there is none.

    Args:
        model (nn.Module): A backbone or task model.
        sites (Sequence[str | dict], optional): Kinds of site. Defaults to None: the kinds of the
            backbone's class, or :func:`~mmkcr.closed_form.options.default_kinds`.
    """
    backbone = getattr(model, 'backbone', model)
    host = backbone if isinstance(backbone, nn.Module) else model
    space = getattr(host, 'search_space', None)
    if sites or space is None or not space.kinds:
        return SearchSpace(host, sites or default_kinds(host))
    return space


def measure_table(model: nn.Module, path: str | Path, settings: Mapping[str, Any],
                  sites: Sequence[KindConfig] | None = None, divisor: int = 8,
                  repeats: int = 15) -> Iterator[str]:
    """Measure the share of a network's sites in its time at some sizes, line by line.

    Sites of equal cost (kind, units, input, MACs) are cut to one size together while the rest
    stays dense, and the difference is divided among them. So fusion and caches have their effects.
    The table is written after every measurement; sizes that it already contains are not measured
    again. One of another machine or of other conditions is refused.

    Args:
        model (nn.Module): Dense model with a backbone that has sites; it is not changed.
        path (str | Path): File of the table.
        settings (Mapping): See :class:`~mmkcr.core.LatencyTable`.
        sites (Sequence[str | dict], optional): See :func:`ensure_search_space`.
        divisor (int): Sizes are multiples of it. Defaults to 8.
        repeats (int): Timed pairs of a size. Defaults to 15.

    Yields:
        str: A sentence about each measured size.

    Raises:
        ValueError: No site has sizes to choose from, or the file has another table.
    """
    dense = copy.deepcopy(model)
    ensure_search_space(dense, sites)
    table = _open_table(dense, Path(path), settings, divisor)
    if not any(entry['measured'] for entry in table.classes):
        raise ValueError(f'expected sites with sizes to choose from, found {len(table.classes)} '
                         f'kinds of them with one size each (divisor {divisor})')
    with tempfile.TemporaryDirectory() as folder:
        side = model
        if settings['runtime'] in PACKAGES:  # once for all pairs
            shape = settings['batch'], *settings['input_shape']
            side = export_for_timing(_find_timed_part(model, settings), Path(folder) / 'dense.onnx',
                                     shape, settings['runtime'])
        for entry in table.classes:
            for size in entry['measured']:
                if str(size) in entry['changes']:
                    continue
                subnet = copy.deepcopy(dense)
                space = search_space(subnet)
                # scattered units, equally many of every head
                kept = torch.arange(size) * entry['total'] // size
                space.slice_to(space.structure_for(dict.fromkeys(entry['sites'], kept)))
                dense_ns, ratio = time_against(side, subnet, settings, repeats)
                # one dense time for the whole table: machines drift, ratios do not
                table.dense = table.dense or round(dense_ns)
                change = (ratio - 1) * table.dense / len(entry['sites'])
                entry['changes'][str(size)] = round(change)
                table.save(path)
                yield (f'{size} of {entry["total"]} units at {len(entry["sites"])} sites such as '
                       f'`{entry["sites"][0]}`: {ratio:.3f} of the dense time')


def _open_table(dense: nn.Module, path: Path, settings: Mapping[str, Any],
                divisor: int) -> LatencyTable:
    """The table as far as it exists, or an empty one."""
    space, counted = search_space(dense), part_to_count(dense, settings['part'])
    macs = MacsModel(counted, space.host, space.sites,
                     task_forward(counted, settings['input_shape']))
    full = {name: site.total for name, site in space.sites.items()}
    entries: dict[tuple, dict[str, Any]] = {}
    for name, site in space.sites.items():
        offered = size_options(site, CompressOptions(divisor=divisor, min_share=0.))
        # for every share the largest size on offer below it, or the smallest
        measured = {offered[max(bisect.bisect(offered, share * site.total), 1) - 1]
                    for share in SHARES} - {site.total}
        # equal shapes and MACs: runtimes take the same time for these sites
        key = site.kind, site.total, macs.shapes[name], macs.site_macs(name, full)
        entries.setdefault(key, dict(sites=[], total=site.total, measured=sorted(measured),
                                     changes={}))['sites'].append(name)
    conditions = dict(settings, input_shape=list(settings['input_shape']))  # as in a file
    table = LatencyTable(this_machine(), conditions, classes=[*entries.values()])
    if not path.is_file():
        return table
    before = LatencyTable.load(path)
    # times of other conditions must not be mixed
    if table != dataclasses.replace(before, dense=0, classes=[
            dict(entry, changes={}) for entry in before.classes]):
        raise ValueError(f'expected a table of the same machine, settings and sites at `{path}` to '
                         'go on with, found another')
    return before


def time_against(dense: Side, subnet: nn.Module, settings: Mapping[str, Any],
                 repeats: int = 15) -> tuple[float, float]:
    """Time a subnet in turns with its dense network.

    Args:
        dense (nn.Module | str | Path): The dense network, or its ONNX file.
        subnet (nn.Module): The subnet.
        settings (Mapping): Conditions of a table: runtime, threads, batch, part and shape.
        repeats (int): Timed pairs. Defaults to 15.

    Returns:
        tuple[float, float]: Nanoseconds of the dense network, and the subnet's share of its time.
    """
    images = torch.randn(settings['batch'], *settings['input_shape'])
    sides = [_find_timed_part(side, settings) for side in (dense, subnet)]
    timing = measure_pair(*sides, images, repeats, 2, settings['runtime'], settings['threads'])
    return timing.seconds[0] * 1e9, timing.ratio


def _find_timed_part(side: Side, settings: Mapping[str, Any]) -> Side:
    """The part of a side that is timed, on the CPU; a file is timed whole."""
    part = getattr(side, 'backbone', side) if settings['part'] == 'backbone' else side
    elsewhere = isinstance(part, nn.Module) and next(part.parameters()).device.type != 'cpu'
    return copy.deepcopy(part).cpu() if elsewhere else part


def check_prediction(dense: nn.Module, subnet: nn.Module, predicted: dict[str, Any]) -> str:
    """Time a subnet, and say in a sentence how accurate the prediction of its time was.

    A line of warning follows if it is off by more than :data:`MOST_OFF`.

    Args:
        dense (nn.Module): The dense network.
        subnet (nn.Module): The subnet.
        predicted (dict): Entry ``latency`` of the provenance of its structure: conditions, and
            predicted times of both networks in nanoseconds.
    """
    _, ratio = time_against(dense, subnet, predicted)
    share = predicted['subnet'] / predicted['dense']
    off = ratio / share - 1
    where = 'above' if off > 0 else 'below'
    warning = '' if abs(off) <= MOST_OFF else (
        f'\nwarning: the measured time is more than {MOST_OFF:.0%} {where} the prediction: measure '
        'on an idle machine, or make the table again with more `--repeats`')
    runtime, threads, batch = (predicted[key] for key in CONDITIONS)
    return (f'Time in `{runtime}`, batch {batch}, threads {threads}: '
            f'predicted {milliseconds(predicted["subnet"])} of {milliseconds(predicted["dense"])} '
            f'({share:.1%}), measured {ratio:.1%} ({off:+.1%} of the prediction){warning}')
