"""Levers on one network, its images and this machine: each alone and in pairs, measured."""

import importlib.util
import itertools
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.closed_form.batches import batch_digest, get_images, single_images, split_batches
from mmkcr.closed_form.compression import compress_network
from mmkcr.closed_form.given import copy_network
from mmkcr.closed_form.options import CompressOptions, Forward
from mmkcr.closed_form.progress import CompressProgress
from mmkcr.core import atomic_write
from mmkcr.core.budget import read_share
from mmkcr.core.checks import one_line
from mmkcr.core.machine import has_int8, this_machine
from mmkcr.core.progress import Progress
from mmkcr.deploy.file_bench import AGREEMENTS, PAIRS, VISITS, FileBench, tell_blocks
from mmkcr.deploy.frontier import Lever, Row, combine, drop_beaten
from mmkcr.deploy.frontier_files import FrontierResult
from mmkcr.deploy.int8 import find_quantizers, require_quantizer
from mmkcr.deploy.latency import PairTiming
from mmkcr.deploy.runtimes import half_precision, set_precision
from mmkcr.deploy.smaller_input import SmallerInput
from mmkcr.models.search_space import leave_ordinary
from mmkcr.models.tasks import is_detector
from mmkcr.version import __version__
from mmkcr.visualization import show_progress
from .saved import load, save

#: Most images that agreement is measured on.
HELD_OUT = 64
#: Files that are compared at a time, each by a part of the threads, while others are made.
JUDGES = 2
#: Files that are timed at a time, in rounds with the dense network's.
TIMED = 3
#: Gives a metric's name and value, of an ONNX file, its runtime, and the folder of a cut network.
Evaluate = Callable[[Path, str, Path | None], tuple[str, float]]


@dataclass(frozen=True, kw_only=True)
class FrontierOptions(CompressOptions):
    """Options of a frontier; the inherited ones, but ``target`` and ``scope``, are of its cuts.

    Args:
        keep (str | float): Share of the dense network's quality that must stay, ``'95%'`` or 0.95.
            Defaults to 95 %.
        targets (Sequence[str]): MACs of the cuts, as shares of the dense network's. Defaults to
            80, 60 and 40 %.
        sides (Sequence[float]): Sides of smaller inputs, as shares. Defaults to 0.75 and 0.5.
        scopes (Sequence[str]): Parts that are cut: the ``'backbone'``, the whole ``'model'`` of a
            detector or segmentor, or both in turn. Defaults to the backbone.
        runtime (Sequence[str], optional): Of ``'onnxruntime'`` and ``'openvino'``. Defaults to
            None: each that is installed with its quantiser.
        threads (Sequence[int]): Threads of the processor. Defaults to 1.

    Raises:
        ImportError: A runtime or its quantiser is missing.
        ValueError: ``keep``, a target or a side is no share, or a number of threads is below one.
    """

    keep: str | float = '95%'
    targets: Sequence[str] = ('80%', '60%', '40%')
    sides: Sequence[float] = (0.75, 0.5)
    scopes: Sequence[str] = ('backbone', )
    runtime: Sequence[str] | None = None
    threads: Sequence[int] = (1, )

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = dict(keep=[self.keep], targets=self.targets, sides=self.sides)
        for name, share in ((name, share) for name, given in shares.items() for share in given):
            # NaN is refused too; what is kept may be all
            if not 0 < read_share(share) < 1 and (name, read_share(share)) != ('keep', 1):
                raise ValueError(f"expected `{name}` such as '60%' or 0.6, shares of the dense "
                                 f'network below it, found {share!r}')
        if (least := min(self.threads, default=1)) < 1:
            raise ValueError(f'expected `threads` of at least 1, found {least}')
        for name in self.runtime or ():
            require_quantizer(name)


def frontier(model: nn.Module, images: Tensor | Sequence[Any], out: str | Path = 'frontier',
             forward: Forward | None = None, evaluate: Evaluate | None = None,
             **options: Any) -> FrontierResult:
    """Measure levers that make a network faster, alone and in pairs, and recommend.

    Levers are cuts by :func:`~mmkcr.closed_form.compression.compress`, int8, half precision and a
    smaller input. A lever that fails is a row that says why. A killed call goes on if it is
    repeated. The folder gets ``frontier.csv``, ``frontier.md``, pictures, and in ``networks`` the
    networks that no other beats.

    Args:
        model (nn.Module): Dense network; it is not changed.
        images (Tensor | Sequence): Without labels, as for ``compress``. A quarter of them, 64 or
            a few more, is for comparison alone.
        out (str | Path): Folder to write to. Defaults to ``'frontier'``.
        forward (Callable, optional): Of ``compress``.
        evaluate (Evaluate, optional): Tests a file with labels. Defaults to None: quality is
            agreement with the dense network.
        **options: See :class:`FrontierOptions`; ``input_shape`` defaults to the first image's.

    Raises:
        ImportError: A runtime, its quantiser or matplotlib is missing.
        ValueError: Fewer than three images, images whose features are equal, or a dense network
            that cannot be exported.
    """
    return measure_frontier(model, images, FrontierOptions(**options), Path(out), forward, evaluate)


def measure_frontier(model: nn.Module, images: Tensor | Sequence[Any], options: FrontierOptions,
                     out: Path, forward: Forward | None = None,
                     evaluate: Evaluate | None = None) -> FrontierResult:
    """Measure a frontier as :func:`frontier`, with a record of options.

    Args:
        model, images, out, forward, evaluate: See :func:`frontier`.
        options (FrontierOptions): Levers, runtimes, threads and the quality to keep.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: See :func:`frontier`.
    """
    if importlib.util.find_spec('matplotlib') is None:
        raise ImportError('expected matplotlib for the picture, found that it is not installed: '
                          'pip install matplotlib')
    bench = _Bench(model, images, options, out, forward, evaluate)
    runtimes, ways = options.runtime or find_quantizers(), combine(bench.levers())
    work = {}  # steps, and how much of the bar each is
    for runtime, levers in itertools.product(runtimes, ways):
        kinds = [lever.kind for lever in levers]
        # a cut is made where it is alone, and takes longest
        work[partial(bench.make, runtime, levers)] = 20 if kinds == ['cut'] else 1
    for runtime, threads in itertools.product(runtimes, options.threads):
        work |= {partial(bench.time, runtime, ways, threads, visit): 1
                 for visit in range(VISITS) for _ in range(0, len(ways), TIMED)}
        work |= {partial(bench.add_row, runtime, levers, threads): 1 for levers in ways}
    try:
        for step in show_progress(work, 'Frontier', sum(work.values()), False, size=work.get):
            step()
    finally:
        bench.judges.shutdown(cancel_futures=True)
        torch.set_num_threads(bench.threads)
    return bench.finish()


class _Bench:
    """Makes files of one network, and rows of files; both stay in a folder for a repeated call.

    Arguments are as of :func:`measure_frontier`.
    """

    def __init__(self, model: nn.Module, images: Any, options: FrontierOptions, out: Path,
                 forward: Forward | None, evaluate: Evaluate | None) -> None:
        self.model, self.dense = model, copy_network(model).float().cpu()
        self.dense.eval()  # that of mmpretrain's backbones returns None
        batches = single_images(images)
        if len(batches) < 3:
            raise ValueError(f'expected at least three images, found {len(batches)}')
        self.fit, self.held = split_batches(
            batches, None, min(max(len(batches) // 4, 2), HELD_OUT))
        shape = tuple(options.input_shape or get_images(batches[0]).shape[1:])
        self.files = FileBench(self.dense, self.held, self.fit, shape, options.logits)
        self.measure = self.files.find_measure()
        self.options = replace(options, progress=False, input_shape=shape,
                               logits=self.files.logits)
        self.out, self.forward, self.evaluate = out, forward, evaluate
        #: Any runtimes, threads and levers go on with what others left.
        self.progress = Progress(out / '.progress', dict(
            self.options.compression(), version=__version__, torch=torch.__version__,
            keep=read_share(options.keep),
            weights=batch_digest(list(self.dense.state_dict().values())).hex(),
            images=batch_digest([*self.files.ranges, *self.files.expected]).hex(),
            count=len(batches), evaluated=evaluate is not None))
        self.progress.save('begun', {})  # files of other work go
        #: Threads of cuts; other files are made, and each is compared, on a share of them. More
        #: threads than cores slow all: OpenMP's either wait in a loop or sleep too soon.
        self.threads = torch.get_num_threads()
        self.share = max(self.threads // (JUDGES + 1), 1)
        self.judges = ThreadPoolExecutor(JUDGES, 'judge', torch.set_num_threads, (1, ))
        #: Agreements of files, or the errors of those that could not be made or timed.
        self.judged: dict[tuple[str, Sequence[Lever]], Future] = {}
        self.rows: list[Row] = []

    def levers(self) -> list[Lever]:
        """All levers, in the order in which a row names them."""
        patch = next((layer.stride[0] for layer in self.dense.modules()
                      if isinstance(layer, nn.Conv2d)), 1)
        step = patch if patch >= 8 else 32  # whole patches, or whole windows of deep maps
        levers = [Lever('int8', 'int8'), Lever('half precision', 'half')]
        usual = [output.shape for output in self.files.expected[self.files.held_out[0]]]
        for share in self.options.sides:
            size = tuple(max(round(share * side / step), 1) * step for side in self.files.shape[1:])
            levers.append(Lever(f'input {size[0]} x {size[1]}', 'input', partial(
                SmallerInput, sides=size, shapes=usual)))
        for scope, target in itertools.product(self.options.scopes, self.options.targets):
            name = f'{target} of the MACs' + ' of the whole model' * (scope == 'model')
            levers.append(Lever(name, 'cut', partial(
                self.cut, folder=self.progress.folder / _plain(name), target=target, scope=scope)))
        return levers

    def cut(self, network: nn.Module, folder: Path, target: str, scope: str) -> nn.Module:
        """Cut the dense network once; later calls load the result from the folder.

        Args:
            network (nn.Module): The dense network.
            folder (Path): Folder of the cut network.
            target (str): MACs, as a share of the dense network's.
            scope (str): ``'backbone'`` or ``'model'``.
        """
        if not folder.is_dir():
            wait(self.judged.values())
            torch.set_num_threads(self.threads)
            of_model = scope == 'model'
            key = dict(of=self.progress.key, scope=scope)
            shared = CompressProgress(self.progress.folder / f'.{scope}', key)
            result = compress_network(
                self.model, self.fit, replace(self.options, target=target, scope=scope,
                                              part='model' if of_model else self.options.part),
                None if of_model else self.forward, self.held, done=CompressProgress(
                    shared.folder / folder.name, dict(key, target=target), shared))
            leave_ordinary(result.model)
            with warnings.catch_warnings():
                # it names this folder, which moves; `load` says that it needs the dense network
                warnings.filterwarnings('ignore', 'expected to build the dense')
                save(result, folder)
        return load(folder, network)

    def file(self, levers: Sequence[Lever], runtime: str) -> Path:
        """The ONNX file of some levers in a runtime; it is made once."""
        path = self.progress.folder / f'{runtime}-{_plain(_name(levers))}.onnx'
        if path.is_file():
            return path
        full = tuple(lever for lever in levers if lever.kind != 'half')
        if len(full) < len(levers):
            set_precision(self.file(full, runtime), path, half_precision(runtime))
        elif levers and levers[0].kind == 'int8':
            source, stored = self.file(levers[1:], runtime), f'{runtime}.blocks'
            known = self.progress.read(stored)  # of int8 alone: pairs take the same blocks
            keep, blocks = (None, known['blocks']) if known else (read_share(self.options.keep), ())
            with atomic_write(path) as temporary:
                blocks = self.files.quantize(source, temporary, runtime, keep, blocks or ())
                if known is None:
                    self.progress.save(stored, dict(blocks=blocks))
        else:
            network = self.dense
            for lever in reversed(levers):
                network = lever.change(network)
            self.files.export(network, path, runtime)
        return path

    def make(self, runtime: str, levers: Sequence[Lever]) -> None:
        """Make a file; its agreement is measured while others are made.

        A pair is left out where one of its levers failed alone.

        Args:
            runtime (str): Runtime that runs it.
            levers (Sequence[Lever]): Levers of the file; none for the dense network.

        Raises:
            Exception: The dense network cannot be exported.
        """
        pair = levers if len(levers) > 1 else ()
        if any(self.judged[runtime, (lever, )].exception() for lever in pair):
            return
        torch.set_num_threads(self.share)
        try:
            file = self.file(levers, runtime)
        except Exception as error:  # of whatever exports and quantises
            self._note_failure(runtime, levers, error)
            return
        compare = partial(self.files.compare, file, runtime, threads=self.share) if levers \
            else self.files.compare_dense  # the export compared it
        self.judged[runtime, levers] = self.judges.submit(
            self.progress.once, f'{_shared_name(runtime, levers)}.agreement', compare)

    def _note_failure(self, runtime: str, levers: Sequence[Lever], error: Exception) -> None:
        """Have the row of a file say why it failed; the error of the dense network's is raised."""
        if not levers:
            raise error
        self.judged[runtime, levers] = judged = Future()
        judged.set_exception(error.with_traceback(None))  # its frames hold networks

    def time(self, runtime: str, files: Sequence[Sequence[Lever]], threads: int,
             visit: int) -> None:
        """Time the next files of a visit, :data:`TIMED` at most.

        Args:
            runtime (str): Runtime that runs them.
            files (Sequence[Sequence[Lever]]): Levers of each file; none for the dense network.
                Files that were not made, or that this visit has timed, are passed over.
            threads (int): CPU threads.
            visit (int): Number of the visit, from 0. All other files are visited in between.

        Raises:
            Exception: The dense network's file does not run.
        """
        wait(self.judged.values())  # nothing computes beside files that are timed
        torch.set_num_threads(self.threads)
        made = [levers for levers in files
                if (judged := self.judged.get((runtime, levers))) and not judged.exception()]
        new = [levers for levers in made if self.progress.read(
            _timing_name(runtime, levers, threads, visit)) is None][:TIMED]
        if not new:
            return
        dense, *others = (self.file(levers, runtime) for levers in ((), *new))
        try:
            timings = self.files.time(dense, others, runtime, threads)
        except Exception as error:  # of whatever runs files
            timings = []
            if len(new) == 1:
                self._note_failure(runtime, new[0], error)
        if not timings and len(new) > 1:  # each alone, so that only the one that fails has no time
            for levers in new:
                self.time(runtime, [levers], threads, visit)
        for levers, timing in zip(new, timings):
            self.progress.save(_timing_name(runtime, levers, threads, visit), dict(
                dense=timing.dense, slim=timing.slim))

    def _timing(self, runtime: str, levers: Sequence[Lever], threads: int) -> PairTiming:
        """The pairs of all visits of a file."""
        return PairTiming.join([
            PairTiming(**self.progress.read(_timing_name(runtime, levers, threads, visit)))
            for visit in range(VISITS)])

    def add_row(self, runtime: str, levers: Sequence[Lever], threads: int) -> None:
        """Put together the numbers of a file; an error becomes a note.

        Args:
            runtime (str): Runtime that runs it.
            levers (Sequence[Lever]): Levers of the file; none for the dense network.
            threads (int): CPU threads.

        Raises:
            Exception: The test of the dense network's file fails.
        """
        if (runtime, levers) not in self.judged:
            return
        row = Row(_name(levers), runtime, threads, any(lever.kind == 'int8' for lever in levers))
        try:
            numbers = self._measure(row, levers)
        except Exception as error:  # of whatever makes and runs files
            if not levers:
                raise
            numbers = dict(note=f'failed: {one_line(error)}')
        self.rows.append(replace(row, **numbers))

    def _measure(self, row: Row, levers: Sequence[Lever]) -> dict[str, Any]:
        """The numbers of a row, and the note of an int8 file."""
        agreement = self.judged[row.runtime, levers].result()[self.measure]
        file = self.file(levers, row.runtime)
        timing, dense = (self._timing(row.runtime, timed, row.threads) for timed in (levers, ()))
        # other load may change between rows, but not within a round
        ms = 1e3 * dense.seconds[1] * (timing.ratio if levers else 1)
        numbers = dict(ratio=timing.ratio, quartiles=timing.quartiles, ms=ms, agreement=agreement,
                       bytes=file.stat().st_size, file=file.name)
        if row.int8:
            half = any(lever.kind == 'half' for lever in levers)
            blocks = self.progress.read(f'{row.runtime}.blocks')['blocks']
            numbers['note'] = tell_blocks(blocks, 'half precision' if half else 'fp32')
        if self.evaluate is not None:  # equal for all threads
            cut = next((lever for lever in levers if lever.kind == 'cut'), None)
            folder = self.progress.folder / _plain(cut.name) if cut else None
            numbers |= self.progress.once(
                f'{_shared_name(row.runtime, levers)}.metric', lambda: dict(zip(
                    ('metric_name', 'metric'), self.evaluate(file, row.runtime, folder))))
        return numbers

    def finish(self) -> FrontierResult:
        """Write the result, and move the networks that no other beats out of the progress."""
        unbeaten, folder = drop_beaten(self.rows), self.out / 'networks'
        best = {row.file for row in unbeaten}
        rows = [replace(row, file=f'networks/{row.file}' if row.file in best else '')
                for row in self.rows]
        result = FrontierResult(rows, AGREEMENTS[self.measure],
                                read_share(self.options.keep), self._about(), self.out)
        result.write()
        # the folders of cut networks, too
        kept = best | {_plain(name) for row in unbeaten for name in row.levers.split(' with ')}
        folder.mkdir(parents=True, exist_ok=True)
        for path in [*self.progress.folder.iterdir()]:
            if path.name in kept:
                shutil.rmtree(folder / path.name, ignore_errors=True)
                path.replace(folder / path.name)
        self.progress.remove()
        return result

    def _about(self) -> list[str]:
        """Sentences about the measurement, its words and the machine."""
        size, metric = ' x '.join(map(str, self.files.shape)), self.rows[0].metric_name
        slow = ' It has no instructions for int8 (VNNI, AMX): int8 is slower here than with them.'
        return [
            f'Dense: the network as it was given, `{type(self.dense).__name__}`, images of {size}, '
            f'one at a time{", backbone and neck without heads" * is_detector(self.dense)}.',
            f'Time: the dense network and at most {TIMED} others in turns, {VISITS} visits of '
            f'{PAIRS} times each, for which the files are opened anew; the median of the ratios, '
            'with their quartiles. 0.5 is half of the time. Milliseconds are the ratio times the '
            "dense network's.",
            f'Quality: {metric or "agreement of the outputs with those of the dense network"}. '
            f'Agreement is measured on {len(self.files.held_out)} images that nothing was fitted '
            f'to. {AGREEMENTS[self.measure].meaning}',
            'MACs: multiply-accumulate operations. A network of fewer has narrower layers, chosen '
            'and refitted on images without labels; it was not trained.',
            f'int8: numbers of 8 bits, with ranges of {len(self.files.ranges)} images. Half '
            'precision: numbers of 16 bits; fp32: of 32 bits. Input: images are made smaller '
            'first.',
            'Machine: {hardware}; {versions}.'.format(**this_machine()) + slow * (not has_int8())]


def _name(levers: Sequence[Lever]) -> str:
    return ' with '.join(lever.name for lever in levers) or 'dense'


def _plain(name: str) -> str:
    """A name for files."""
    return re.sub('[^a-z0-9.]+', '-', name.lower())


def _timing_name(runtime: str, levers: Sequence[Lever], threads: int, visit: int) -> str:
    return f'{runtime}-{_plain(_name(levers))}-{threads}-{visit}.time'


def _shared_name(runtime: str, levers: Sequence[Lever]) -> str:
    """Name of files that agree equally.

    An export was compared with PyTorch in its runtime: fp32 agrees equally in all.
    """
    fp32 = not any(lever.kind in ('int8', 'half') for lever in levers)
    return f'{"fp32" if fp32 else runtime}-{_plain(_name(levers))}'
