"""Levers on one network, its images and this machine: each alone and in pairs, measured."""

import copy
import dataclasses
import importlib.util
import itertools
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.closed_form.batches import batch_digest, get_images, single_images, split_batches
from mmkcr.closed_form.compression import compress_network
from mmkcr.closed_form.given import copy_network
from mmkcr.closed_form.options import CompressOptions, Forward
from mmkcr.closed_form.progress import CompressProgress
from mmkcr.closed_form.report import agreement
from mmkcr.core import atomic_write
from mmkcr.core.budget import parse_target
from mmkcr.core.checks import one_line
from mmkcr.core.file_names import STRUCTURE
from mmkcr.core.forward import flat_tensors
from mmkcr.core.machine import has_int8, this_machine
from mmkcr.core.progress import Progress
from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.frontier import AGREEMENTS, Lever, Row, combine, drop_beaten
from mmkcr.deploy.frontier_files import FrontierResult
from mmkcr.deploy.int8 import QUANTIZERS, quantize_onnx, require_quantizer, sensitive_nodes
from mmkcr.deploy.latency import measure_pair
from mmkcr.deploy.runtimes import half_precision, open_onnx, set_precision
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.models.search_space import leave_ordinary
from mmkcr.models.tasks import is_detector, is_segmentor
from mmkcr.version import __version__
from mmkcr.visualization import show_progress
from .networks import gives_scores, set_input_size
from .saved import load, save

#: Most images that agreement is measured on, that ranges of int8 are chosen from, and that the
#: blocks which stay in fp32 are chosen on; pairs that are timed.
HELD_OUT, RANGES, LOOKED_AT, PAIRS = 64, 64, 16, 20
#: Explanation of a measure of agreement.
EXPLAINED_VARIANCE = (
    "Explained variance: 100% minus the squared difference over the features' squared distance "
    'from their mean over the images. The mean itself has 0%.')
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
        if not re.fullmatch(r'\d*\.?\d+%?', str(self.keep)) or not 0 < self.share_to_keep <= 1:
            raise ValueError(f"expected `keep` such as '95%' or 0.95, found {self.keep!r}")
        dense = 2**62  # of a network so large that a number of MACs is no share of it
        for target in self.targets:
            if not 0.001 * dense < parse_target(target, dense) < dense:
                raise ValueError('expected `targets` as shares of the dense network below it, such '
                                 f"as '60%' or 0.6, found {target!r}")
        for side in self.sides:
            if not 0 < side < 1:  # NaN is refused too
                raise ValueError(f'expected `sides` as shares such as 0.75, found {side!r}')
        if (least := min(self.threads, default=1)) < 1:
            raise ValueError(f'expected `threads` of at least 1, found {least}')
        for name in self.runtime or ():
            require_quantizer(name)

    @property
    def share_to_keep(self) -> float:
        """The share that must stay, as a number."""
        share, percent, _ = str(self.keep).partition('%')
        return float(share) / (100 if percent else 1)

    @property
    def runtimes(self) -> list[str]:
        """The runtimes that are asked for, else all that are installed."""
        return list(self.runtime or [name for name, package in QUANTIZERS.items() if all(
            importlib.util.find_spec(needed) for needed in (name, package))])


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
    rows, steps, made = [], [], set()
    for runtime, combined, threads in itertools.product(
            options.runtimes, combine(bench.levers()), options.threads):
        # about the images that pass the network
        work = 300 if any(lever.kind == 'int8' for lever in combined) else 100
        for lever in combined:
            if lever.kind == 'cut' and lever.name not in made:
                made.add(lever.name)
                work += 7 * len(bench.fit)
        steps.append((work, combined, runtime, threads))
    total = sum(step[0] for step in steps)
    for _, combined, runtime, threads in show_progress(steps, 'Frontier', total, False,
                                                       size=lambda step: step[0]):
        failed = {row.levers for row in rows if row.runtime == runtime and row.ratio is None}
        if len(combined) < 2 or failed.isdisjoint(lever.name for lever in combined):
            rows.append(bench.row(combined, runtime, threads))
    return bench.finish(rows)


class SmallerInput(nn.Module):
    """A network that computes on smaller images; maps that it returns get their usual size.

    Args:
        network (nn.Module): It is not changed.
        sides (tuple[int, int]): Height and width that it computes on.
        shapes (Sequence[Sequence[int]]): Of its usual outputs for one image.
    """

    def __init__(self, network: nn.Module, sides: tuple[int, int],
                 shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        if is_detector(network):
            raise ValueError('expected outputs that can be compared at another size, found a '
                             "detector's: give its config a smaller `scale`")
        network = copy.deepcopy(network)
        set_input_size(network, sides)
        self.network, self.sides, self.shapes = TensorModel(network), sides, shapes

    def forward(self, images: Tensor) -> list[Tensor]:
        """Run on images (B, C, H, W) of the usual size.

        Raises:
            ValueError: A shape of an output depends on the size of the image.
        """
        small = F.interpolate(images, self.sides, mode='bilinear')
        outputs = flat_tensors(self.network(small), floating=False)
        outputs = [F.interpolate(out, shape[2:], mode='bilinear') if len(shape) == 4 else out
                   for out, shape in zip(outputs, self.shapes)]
        for out, shape in zip(outputs, self.shapes):
            if tuple(out.shape[1:]) != tuple(shape[1:]):
                raise ValueError("expected outputs of a shape that does not depend on the image's "
                                 f'size, found {tuple(out.shape)} in place of {tuple(shape)}')
        return outputs


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
        count = min(max(len(batches) // 4, 2), HELD_OUT)
        self.fit, self.held = split_batches(batches, None, count)
        self.shape = tuple(options.input_shape or get_images(batches[0]).shape[1:])
        self.ranges, pictures = self._pictures(self.fit[:RANGES]), self._pictures(self.held)
        view = TensorModel(self.dense)
        with torch.no_grad():
            self.expected = {image: flat_tensors(view(image), floating=False) for image in pictures}
        self.usual = [tuple(output.shape) for output in self.expected[pictures[0]]]
        self.options = dataclasses.replace(
            options, progress=False, input_shape=self.shape,
            logits=options.logits or gives_scores(self.dense, self.expected[pictures[0]]))
        self.measure = 'top1' if self.options.logits else \
            'pixels' if is_segmentor(self.dense) else 'variance'
        itself = agreement(self.dense, self.dense, pictures, lambda _, image: self.expected[image])
        if self.measure == 'variance' and 'variance' not in itself:
            raise ValueError('expected images whose features differ, found that those of '
                             f'{len(pictures)} images are equal')
        self.out, self.forward, self.evaluate = out, forward, evaluate
        #: Any runtimes, threads and levers go on with what others left.
        self.progress = Progress(out / '.progress', dict(
            self.options.compression(), version=__version__, torch=torch.__version__,
            keep=options.share_to_keep,
            weights=batch_digest(list(self.dense.state_dict().values())).hex(),
            images=batch_digest([*self.ranges, *pictures]).hex(), count=len(batches),
            evaluated=evaluate is not None))
        self.progress.save('begun', {})  # files of other work go
        self.cuts: dict[str, nn.Module] = {}

    def _pictures(self, batches: Sequence[Any]) -> list[Tensor]:
        """The images of batches, each (1, C, H, W) of the files' size."""
        images = [image for batch in batches for image in get_images(batch).float().cpu().split(1)]
        return [F.interpolate(image, self.shape[1:], mode='bilinear') for image in images]

    def levers(self) -> list[Lever]:
        """All levers, in the order in which a row names them."""
        patch = next((layer.stride[0] for layer in self.dense.modules()
                      if isinstance(layer, nn.Conv2d)), 1)
        step = patch if patch >= 8 else 32  # whole patches, or whole windows of deep maps
        levers = [Lever('int8', 'int8'), Lever('half precision', 'half')]
        for share in self.options.sides:
            size = tuple(max(round(share * side / step), 1) * step for side in self.shape[1:])
            levers.append(Lever(f'input {size[0]} x {size[1]}', 'input', partial(
                SmallerInput, sides=size, shapes=self.usual)))
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
            key, of_model = dict(of=self.progress.key, scope=scope), scope == 'model'
            shared = CompressProgress(self.progress.folder / scope, key)
            result = compress_network(
                self.model, self.fit, CompressOptions(**dict(
                    self.options.compression(), target=target, scope=scope,
                    part='model' if of_model else self.options.part)),
                None if of_model else self.forward, self.held, done=CompressProgress(
                    shared.folder / folder.name, dict(key, target=target), shared))
            leave_ordinary(result.model)
            save(result, folder)
        if folder.name not in self.cuts:
            self.cuts[folder.name] = load(folder, network)
        return self.cuts[folder.name]

    def file(self, levers: Sequence[Lever], runtime: str) -> Path:
        """The ONNX file of some levers in a runtime; it is made once."""
        path = self.progress.folder / f'{runtime}-{_plain(_name(levers))}.onnx'
        kind = levers[0].kind if levers else ''
        if path.is_file():
            return path
        if kind == 'int8':
            self._quantize(self.file(levers[1:], runtime), path, runtime)
        elif kind == 'half':
            set_precision(self.file((), runtime), path, half_precision(runtime))
        else:
            network = self.dense
            for lever in reversed(levers):
                network = lever.change(network)
            export_onnx(network, path, self.shape, False, (1, 2), runtime=runtime)
        return path

    def _quantize(self, source: Path, path: Path, runtime: str) -> None:
        """Write an int8 file; where int8 alone loses too much, some blocks stay in fp32."""
        session = open_onnx(source, runtime)
        expected = {image: _run(session, image) for image in self.ranges[:LOOKED_AT]}
        ranges = [image.numpy() for image in self.ranges]

        def judge(file: Path) -> tuple[float, float]:
            compared = self.compare(file, runtime, expected)
            # images whose features are equal tell nothing
            return compared['error'], compared.get(self.measure, 1.)

        with atomic_write(path) as file:
            quantize_onnx(source, file, ranges, runtime)
            if judge(file)[1] < self.options.share_to_keep:
                blocks = sensitive_nodes(file, judge, self.options.share_to_keep)
                stay = f'{", ".join(blocks)} stay in fp32' if blocks else \
                    'keeping half of its blocks in fp32 is not enough'
                self.progress.save(f'{path.stem}.note', dict(note=stay))
                if blocks:
                    nodes = itertools.chain.from_iterable(blocks.values())
                    quantize_onnx(source, file, ranges, runtime, list(nodes))

    def compare(self, file: Path, runtime: str,
                expected: Mapping[Tensor, Sequence[Tensor]]) -> dict[str, float]:
        """Agreement of a file with the dense network.

        Args:
            file (Path): ONNX file.
            runtime (str): Runtime that runs it.
            expected (Mapping): The dense network's outputs by image (1, C, H, W).
        """
        session = open_onnx(file, runtime)
        return agreement(self.dense, file, list(expected), lambda network, image: _run(
            session, image) if network is file else expected[image], self.options.logits)

    def row(self, levers: Sequence[Lever], runtime: str, threads: int) -> Row:
        """Measure a file, or read the row of an earlier call; an error becomes a note.

        Args:
            levers (Sequence[Lever]): Levers of the file; none for the dense network.
            runtime (str): Runtime that runs it.
            threads (int): CPU threads.
        """
        name = _name(levers)
        stored = f'{runtime}-{_plain(name)}-{threads}.row'
        if known := self.progress.read(stored):
            return Row(**known)
        row = Row(name, runtime, threads, any(lever.kind == 'int8' for lever in levers))
        try:
            file = self.file(levers, runtime)
            timing = measure_pair(self.file((), runtime), file, next(iter(self.expected)), PAIRS, 3,
                                  runtime, threads)
            judged = self._judge(levers, file, runtime)
            note = self.progress.read(f'{file.stem}.note') or {}
            # other load may change between rows, but not between the turns of a pair
            ms = timing.ratio * self.row((), runtime, threads).ms if levers else \
                1e3 * timing.seconds[1]
            row = dataclasses.replace(
                row, ratio=timing.ratio, quartiles=timing.quartiles, ms=ms,
                bytes=file.stat().st_size, file=file.name, **judged, **note)
        except Exception as error:  # of whatever exports, quantises and runs
            if not levers:
                raise
            row = dataclasses.replace(row, note=f'failed: {one_line(error)}')
        self.progress.save(stored, dataclasses.asdict(row))
        return row

    def _judge(self, levers: Sequence[Lever], file: Path, runtime: str) -> dict[str, Any]:
        """Agreement on the held-out images and the metric, equal for any number of threads."""
        name = f'{file.stem}.judged'
        if (judged := self.progress.read(name)) is None:
            compared = self.compare(file, runtime, self.expected)
            judged = dict(agreement=compared[self.measure])
            if self.evaluate is not None:
                cut = next((lever for lever in levers if lever.kind == 'cut'), None)
                folder = self.progress.folder / _plain(cut.name) if cut else None
                judged['metric_name'], judged['metric'] = self.evaluate(file, runtime, folder)
            self.progress.save(name, judged)
        return judged

    def finish(self, rows: list[Row]) -> FrontierResult:
        """Move the networks that no other beats out of the progress, and write the rest."""
        best, folder = {row.file for row in drop_beaten(rows)}, self.out / 'networks'
        folder.mkdir(parents=True, exist_ok=True)
        cuts = [path.parent.name for path in self.progress.folder.glob(f'*/{STRUCTURE}')]
        for name in (*best, *(cut for cut in cuts if any(cut in file for file in best))):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            os.replace(self.progress.folder / name, folder / name)
        rows = [dataclasses.replace(row, file=f'networks/{row.file}' if row.file in best else '')
                for row in rows]
        result = FrontierResult(rows, AGREEMENTS[self.measure], self.options.share_to_keep,
                                self._about(rows), self.out)
        result.write()
        self.progress.remove()
        return result

    def _about(self, rows: Sequence[Row]) -> list[str]:
        """Sentences about the measurement, its words and the machine."""
        size, metric = ' x '.join(map(str, self.shape)), rows[0].metric_name
        about = [
            f'Dense: the network as it was given, `{type(self.dense).__name__}`, images of {size}, '
            f'one at a time{", backbone and neck without heads" * is_detector(self.dense)}.',
            f'Time: the dense network and the other in turns, {PAIRS} pairs; the median of the '
            'ratios, with their quartiles. 0.5 is half of the time. Milliseconds are the ratio '
            "times the dense network's.",
            f'Quality: {metric or "agreement of the outputs with those of the dense network"}. '
            f'Agreement is measured on {len(self.expected)} images that nothing was fitted to.',
            'MACs: multiply-accumulate operations. A network of fewer has narrower layers, chosen '
            'and refitted on images without labels; it was not trained.',
            f'int8: numbers of 8 bits, whose ranges are those of {len(self.ranges)} images. Half '
            'precision: numbers of 16 bits; fp32: of 32 bits. Input: images are made smaller '
            'first.',
            'Machine: {hardware}; {versions}.'.format(**this_machine())]
        if self.measure == 'variance':
            about.insert(3, EXPLAINED_VARIANCE)
        if not has_int8():
            about.append('This processor has no instructions for int8 (VNNI, AMX): int8 is slower '
                         'here than on one that has them.')
        return about


def _run(session: Callable[[Any], Sequence[Any]], image: Tensor) -> list[Tensor]:
    """Outputs of a file; copied, as runtimes reuse their memory."""
    return [torch.from_numpy(output.copy()) for output in session(image.numpy())]


def _name(levers: Sequence[Lever]) -> str:
    return ' with '.join(lever.name for lever in levers) or 'dense'


def _plain(name: str) -> str:
    """A name for files."""
    return re.sub('[^a-z0-9.]+', '-', name.lower())
