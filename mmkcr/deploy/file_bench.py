"""Files of networks for a runtime: made, timed beside the dense network's, compared with it."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.closed_form.batches import get_images, single_images, split_batches
from mmkcr.closed_form.report import agreement
from mmkcr.core import atomic_write
from mmkcr.core.forward import flat_tensors
from mmkcr.models.tasks import deciding_scores, find_task, gives_scores
from .export import export_onnx
from .int8 import choose_fp32_blocks, compute_in_fp32, quantize_onnx
from .latency import PairTiming, measure_rounds
from .runtimes import open_onnx
from .tensor_model import TensorModel

#: Most images that ranges of int8 are chosen from, and that blocks which compute in fp32 are chosen
#: on.
RANGES, LOOKED_AT = 16, 8
#: Visits of a file, and timed pairs in each. A visit opens it anew: times differ between openings
#: by more than within one, in ONNX Runtime by up to a tenth.
VISITS, PAIRS = 4, 4


class Quality(NamedTuple):
    """How a number that says how good a network is is shown."""

    heading: str  # with the unit
    scale: int  # of numbers below the heading
    sentence: str
    meaning: str  # in sentences


#: Agreement with the dense network, by its key in :func:`~mmkcr.closed_form.report.agreement`; the
#: first that a network has counts.
AGREEMENTS = dict(
    top1=Quality('same class as dense (% of images)', 100,
                 '{:.1%} of the images get the class that the dense network gives',
                 'Same class: the class of the largest score.'),
    pixels=Quality('same class as dense (% of pixels)', 100,
                   '{:.1%} of the pixels get the class that the dense network gives',
                   'Same class: the class of the largest score.'),
    variance=Quality('explained variance of dense features (%)', 100,
                     "{:.1%} of the variance of the dense network's features",
                     'Explained variance: 100% minus the squared difference over the squared '
                     'distance of the features from their mean over the images. The mean itself '
                     'has 0%.'))


def find_measure(compared: Mapping[str, float]) -> str | None:
    """The key of :data:`AGREEMENTS` that an agreement is told by; None if features are equal."""
    return next((name for name in AGREEMENTS if name in compared), None)


def read_images(batches: Iterable[Any], sides: Sequence[int],
                most: int | None = None) -> list[Tensor]:
    """The images of batches, each (1, C, H, W) in fp32 and of one size.

    Args:
        batches (Iterable): See :func:`~mmkcr.closed_form.batches.get_images`.
        sides (Sequence[int]): (H, W); images of another size are resized.
        most (int, optional): Most images. Defaults to None: all.
    """
    images = (image for batch in batches for image in get_images(batch).float().cpu().split(1))
    return [F.interpolate(image, tuple(sides), mode='bilinear')
            for image in itertools.islice(images, most)]


class DeployedFile(NamedTuple):
    """One file, measured beside the dense network's."""

    name: str  # 'dense', 'slim', 'dense int8' or 'slim int8'
    path: Path
    bytes: int
    ratio: float  # its time over that of the dense fp32 file
    agreement: dict[str, float]  # with the dense network in PyTorch, on held-out images


def tell_blocks(blocks: Sequence[str] | None, precision: str = 'fp32') -> str:
    """The note of an int8 file, see :meth:`FileBench.quantize`.

    Args:
        blocks (Sequence[str], optional): Blocks whose activations int8 does not round.
        precision (str): What they compute in. Defaults to fp32.
    """
    if blocks is None:
        return ''
    return f'{", ".join(blocks)} compute in {precision}' if blocks else \
        'half of the blocks in fp32 are not enough for int8 alone'


class FileBench:
    """Makes and measures files of networks, and compares them with a dense network in PyTorch.

    Args:
        dense (nn.Module): Task model or backbone on the CPU; it gets eval mode.
        held_out (Sequence): Batches whose images outputs are compared on.
        fit (Sequence): Other batches. The ranges of int8 are chosen from the first, blocks that
            compute in fp32 on the last, :data:`LOOKED_AT` or fewer; a single batch serves for both.
        shape (Sequence[int]): (C, H, W) that files take; other images are resized.
        logits (bool): Whether outputs are class scores (B, C). Defaults to False: if the network
            says so.
        most (int): Images that ranges are chosen from at most. Defaults to :data:`RANGES`.
    """

    def __init__(self, dense: nn.Module, held_out: Sequence[Any], fit: Sequence[Any],
                 shape: Sequence[int], logits: bool = False, most: int = RANGES) -> None:
        fit = single_images(fit)
        first, last = split_batches(fit, None, min(len(fit) // 4 + 1, LOOKED_AT))
        self.dense, self.shape = dense, tuple(shape)
        self.held_out, self.ranges, self.looked_at = (
            read_images(batches, self.shape[1:], count)
            for batches, count in ((held_out, None), (first, most), (last, LOOKED_AT)))
        view = TensorModel(dense)
        with torch.no_grad():
            #: The dense network's outputs by image (1, C, H, W).
            self.expected = {image: flat_tensors(view(image), floating=False)
                             for image in (*self.held_out, *self.looked_at)}
        self.logits = logits or gives_scores(dense, self.expected[self.held_out[0]])

    def find_measure(self) -> str:
        """The measure of the held-out images, see :func:`find_measure`.

        Raises:
            ValueError: The features of all images are equal.
        """
        if (measure := find_measure(self.compare_dense())) is None:
            raise ValueError('expected images whose features differ, found that those of '
                             f'{len(self.held_out)} images are equal')
        return measure

    def export(self, network: nn.Module, path: Path, runtime: str) -> Path:
        """Write the file of a network, compared with PyTorch in its runtime.

        Args:
            network (nn.Module): A network with the outputs of the dense one, on the CPU.
            path (Path): The new file.
            runtime (str): Runtime that the file is made for.
        """
        # traced for two images: one image shows that their number is free
        return export_onnx(network, path, self.shape, False, (1, ), runtime=runtime).path

    def quantize(self, source: Path, target: Path, runtime: str, keep: float | None = None,
                 blocks: Sequence[str] = ()) -> list[str] | None:
        """Write the int8 form of a file.

        Args:
            source (Path): The fp32 file.
            target (Path): The new file.
            runtime (str): One of :data:`~mmkcr.deploy.int8.QUANTIZERS`.
            keep (float, optional): Quality that is enough on the images to look at. With less, as
                few blocks as possible compute in fp32. Defaults to None: the given blocks.
            blocks (Sequence[str]): Blocks that compute in fp32. Defaults to none.

        Returns:
            list[str] | None: Blocks that compute in fp32, none if half of all are not enough; None
            if int8 keeps enough.
        """
        def judge(file: Path) -> tuple[float, float]:
            compared = self.compare(file, runtime, self.looked_at)
            # equal features tell nothing
            return compared['error'], compared.get(find_measure(compared), 1.)

        with atomic_write(target) as path:
            quantize_onnx(source, path, [image.numpy() for image in self.ranges], runtime)
            if keep is not None:
                blocks = None if judge(path)[1] >= keep else choose_fp32_blocks(path, judge, keep)
            if blocks:
                compute_in_fp32(path, path, blocks)
        return blocks

    def compare_dense(self) -> dict[str, float]:
        """Agreement of the dense network with itself."""
        return self._compare(self.held_out, self.expected.get)

    def compare(self, path: Path, runtime: str,
                images: Sequence[Tensor] | None = None,
                threads: int | None = None) -> dict[str, float]:
        """Agreement of a file with the dense network.

        Args:
            path (Path): ONNX file.
            runtime (str): Runtime that runs it.
            images (Sequence[Tensor], optional): Images whose outputs are known.
                Defaults to None: the held-out images.
            threads (int, optional): CPU threads. Defaults to None: the runtime's default.
        """
        session = open_onnx(path, runtime, threads)

        def run(image: Tensor) -> list[Tensor]:
            # copied: the runtimes reuse the memory of their outputs in the next call
            return [torch.from_numpy(output.copy()) for output in session(image.numpy())]

        return self._compare(self.held_out if images is None else images, run)

    def _compare(self, images: Sequence[Tensor], run: Any) -> dict[str, float]:
        """Agreement of the outputs that a function gives for an image."""
        task = find_task(self.dense)
        return agreement(self.dense, run, images, lambda side, image: deciding_scores(
            task, run(image) if side is run else self.expected[image]), self.logits)

    def time(self, dense: Path, files: Sequence[Path], runtime: str,
             threads: int = 1) -> list[PairTiming]:
        """One visit: time files in rounds with the dense network's, one image each.

        Args:
            dense (Path): The dense network's file.
            files (Sequence[Path]): The files; all are open at a time.
            runtime (str): Runtime that runs all.
            threads (int): CPU threads. Defaults to 1.
        """
        return measure_rounds(dense, files, self.held_out[0], PAIRS, 1, runtime, threads)

    def deploy(self, slim: nn.Module, folder: Path, runtime: str) -> list[DeployedFile]:
        """Write and measure files of the dense and of a slim network, in fp32 and in int8.

        Args:
            slim (nn.Module): The slim network, on the CPU.
            folder (Path): Where the files are written.
            runtime (str): One of :data:`~mmkcr.deploy.int8.QUANTIZERS`.
        """
        files = {name: self.export(network, folder / f'{name}_{runtime}.onnx', runtime)
                 for name, network in (('dense', self.dense), ('slim', slim))}
        for name, path in list(files.items()):
            files[f'{name} int8'] = target = path.with_stem(f'{path.stem}_int8')
            self.quantize(path, target, runtime)
        # every file in turns with the dense fp32 file, itself included
        visits = [self.time(files['dense'], [*files.values()], runtime) for _ in range(VISITS)]
        return [DeployedFile(name, path, path.stat().st_size, PairTiming.join(timings).ratio,
                             self.compare(path, runtime))
                for (name, path), *timings in zip(files.items(), *visits)]
