"""The report of a compression, in tables and sentences."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import Structure
from mmkcr.core.forward import flat_tensors
from mmkcr.models.tasks import is_segmentor
from mmkcr.visualization import format_table
from .batches import count_images, number_batches, of_size
from .calibration import images_in
from .given import Calibration
from .options import Forward

#: Rows per input of a layer below which a refit is reported as uncertain.
LEAST_PER_INPUT = 4
#: Share of the outputs' energy that must differ between images for them to tell something.
LEAST_SPREAD = 1e-6


def site_table(structure: Structure) -> str:
    """How many units every site keeps."""
    notes = dict.fromkeys(structure.provenance.get('unread', ()), ': no output depends on it')
    rows = [(name, site.total, len(site.kept),
             f'{len(site.kept) / site.total:.1%}{notes.get(name, "")}')
            for name, site in structure.sites.items()]
    return format_table(('site', 'units', 'kept', 'of them'), rows)


def size_table(structure: Structure, rows: Sequence[tuple[str, float, float]] = (),
               metrics: Sequence[Mapping[str, float]] = ()) -> str:
    """The networks side by side: dense, slim, and fine-tuned if there are metrics of a third.

    Args:
        structure (Structure): Structure with MACs and parameters.
        rows (Sequence[tuple[str, float, float]]): Sizes beside MACs and parameters: name, dense
            value, slim value. Defaults to none.
        metrics (Sequence[Mapping[str, float]]): Metrics by name, of each network in order.
            Defaults to none.
    """
    tuned = ['tuned'] * (len(metrics) > 2)
    sizes = (('MACs (G)', structure.macs['dense'] / 1e9, structure.macs['subnet'] / 1e9),
             ('parameters (M)', structure.params['dense'] / 1e6, structure.params['subnet'] / 1e6),
             *rows)
    table = [(name, f'{dense:.4g}', f'{slim:.4g}', *[''] * len(tuned), f'{slim / dense:.1%}')
             for name, dense, slim in sizes]
    for name, value in metrics[0].items() if metrics else ():
        if isinstance(value, Real):  # mmseg gives NumPy's
            table.append((name, *(f'{numbers[name]:.4g}' for numbers in metrics), ''))
    return format_table(('', 'dense', 'slim', *tuned, 'left'), table)


def sentences(structure: Structure, agreement: Mapping[str, float] | None) -> list[str]:
    """Sentences behind the tables: the agreement of the outputs, and doubts about the refit."""
    lines = [] if agreement is None else [_agreement(agreement)]
    if still := structure.provenance.get('constant'):
        lines.append(f'{len(still)} layers see the same at all positions of all images, as '
                     f'`{still[0]}`: nothing could be learnt about them. Take other images.')
    if few := structure.provenance.get('few_rows'):
        path = max(few, key=lambda name: few[name]['inputs'] / few[name]['rows'])
        worst = few[path]
        lines.append(
            f'Few images: {len(few)} layers were refitted on less than {LEAST_PER_INPUT} tokens or '
            f'positions for each of their inputs, at worst `{path}` on {worst["rows"]} for '
            f'{worst["inputs"]} inputs, of {worst["images"]} images. Give more images that differ.')
    if dense := structure.provenance.get('dense_attention'):
        named = [f'{len(paths)} `{name}` (as `{paths[0]}`)' for name, paths in dense.items()]
        lines.append(f'Attention layers that stay dense, as no adapter knows how to cut them: '
                     f'{", ".join(named)}.')
    height, width = structure.macs['input_shape'][1:]
    origin = structure.provenance.get('input_shape')
    lines.append(f'MACs of the {structure.macs.get("part", "model")} for one image of {height} x '
                 f'{width}{f", {origin}" if origin else ""}.')
    return lines


def _agreement(agreement: Mapping[str, float]) -> str:
    """How well outputs agree, in sentences."""
    count = agreement['images']
    images = f'{count} image{"s" * (count != 1)}'
    seen = agreement.get('seen', 0)
    if not seen:
        which = f'{images} that the refit did not see'
    elif seen < count:
        which = f'{images}, {seen} of which the refit saw,'
    else:
        which = f'the {images} of the refit itself, not on others,'
    same = ''.join(f'; {agreement[key]:.1%} of the {of} have the same class' for key, of in (
        ('top1', images), ('pixels', f'pixels of the {images}')) if key in agreement)
    error, own = agreement['error'], agreement.get('refit_error')
    gap = '' if own is None else f', on images that it saw by {own:.1%}'
    text = f'Outputs on {which} differ by {error:.1%} of their size{gap}{same}.'
    if own is not None and error**2 > 2 * own**2:  # most of the loss is on unseen images
        text += ' More images that differ would help more than a larger budget.'
    if agreement['spread'] < LEAST_SPREAD and count > 1:
        text += (f' These {images} are all alike: their outputs agree up to '
                 f'{agreement["spread"]:.1g} of their energy. So this says nothing about other '
                 'images.')
    return text


def result_text(result: Any) -> str:
    """Tables and sentences of a :class:`~mmkcr.closed_form.compression.CompressResult`."""
    structure = result.structure
    return '\n'.join([site_table(structure), size_table(structure),
                      *sentences(structure, result.agreement),
                      'Next: `.model` is the network, `.structure.save(FILE)` says what it keeps.'])


def plan(calibration: Calibration, layers: Sequence[nn.Module], groups: int, fits: float) -> str:
    """The work ahead of a compression, and the time of all its passes, in a sentence.

    Args:
        calibration (Calibration): The network and the images.
        layers (Sequence[nn.Module]): Layers that may be refitted.
        groups (int): Groups of sites that are profiled in turn; 0 if profiles are known.
        fits (float): Mean number of fits in a block; a fit runs the slim block once.
    """
    surveyed, settings = calibration.survey, calibration.settings
    there, held = count_images(calibration.batches), count_images(calibration.held_out)
    needed = surveyed.needed(layers, max(settings.per_unit), settings.least_images)
    used = min(there, max(needed, 1))
    forward, backward = surveyed.seconds
    probes = min(there, settings.probe_images)
    # a group's orders, and its losses of sizes
    profile = used * forward + min(there, settings.backward_images) * backward + \
        probes * (forward + backward)
    # the inputs of a block in both networks, its outputs in the dense one and, when they are final,
    # in the slim one, whether they are a sum, and the fits
    refit = (5 + fits) * used * forward
    comparison = 2 * held * forward
    seconds = groups * profile + refit + comparison
    sizes = ' x '.join(map(str, surveyed.sizes[0])) if surveyed.sizes else 'their own size'
    sizes += ' and others' * (len(surveyed.sizes) > 1)
    time = f'{seconds:.0f} s' if seconds < 100 else f'{seconds / 60:.0f} min'
    return (f'Calibration: {used} of {there} images of {sizes}, {calibration.size} at a time, '
            f'{held} for the comparison; passes take about {time}, statistics come on top.')


@torch.no_grad()
def agreement(dense: nn.Module, subnet: nn.Module, batches: Sequence[Any], forward: Forward,
              logits: bool = False, size: int = 1, seen: int = 0) -> dict[str, float]:
    """Distance between the outputs of two networks on images.

    Args:
        dense (nn.Module): The dense network.
        subnet (nn.Module): The compressed network.
        batches (Sequence): Batches of images.
        forward (Callable): Takes a network and a batch; returns the outputs.
        logits (bool): Whether the last output is class scores (B, C). Defaults to False.
        size (int): Maximum number of images in a batch. Defaults to 1.
        seen (int): Number of these images that calibration used. Defaults to 0.

    Returns:
        dict[str, float]: ``error``, the root of the summed squared difference over the summed
        squares of the outputs; ``images``, their number; ``spread``, the share of the outputs'
        squares that differs between images, that is their squared distances from their mean over
        the images (1 for images of several sizes); ``variance``, 1 minus the summed squared
        difference over these squared distances, the mean over the outputs that differ between
        images (NaN if none does): 1 for equal outputs, 0 for the mean; with ``logits`` also
        ``top1``, the share of images with equal first classes, and of a segmentor ``pixels``, the
        share of pixels with equal classes; ``seen``, if any.

    Raises:
        ValueError: Outputs are not finite.
    """
    same = total = 0.
    outputs: list[_Output] = []
    count, maps = 0, is_segmentor(dense)
    for batch, images in number_batches(of_size(batches, size)):
        ours, theirs = (flat_tensors(forward(model, batch)) for model in (subnet, dense))
        outputs = outputs or [_Output() for _ in theirs]
        for output, a, b in zip(outputs, ours, theirs):
            output.add(a, b, len(images))
        # all outputs in one sum: large maps weigh more
        lost = sum(output.lost for output in outputs)
        energy = sum(output.energy for output in outputs)
        if not math.isfinite(lost + energy):
            raise ValueError('expected finite outputs of the '
                             f'{"compressed" if math.isfinite(energy) else "dense"} network on '
                             f'held-out images, found `nan` or `inf` in images {images.start + 1} '
                             f'to {images.stop} of these')
        if logits or maps and ours[-1].ndim == 4:
            same += float((ours[-1].argmax(1) == theirs[-1].argmax(1)).sum())
            total += ours[-1].numel() / ours[-1].shape[1]
        count = images.stop
    apart = sum(output.apart for output in outputs)
    kept = [1 - output.lost / output.apart for output in outputs if output.differs]
    result = dict(error=(lost / max(energy, 1e-30))**0.5, images=count,
                  spread=apart / max(energy, 1e-30))
    if kept:
        result['variance'] = sum(kept) / len(kept)
    if total:
        result['pixels' if maps else 'top1'] = same / total
    return dict(result, seen=seen) if seen else result


class _Output:
    """Sums over the images for one output of two networks."""

    def __init__(self) -> None:
        self.lost = self.energy = 0.
        self.count = 0
        self.sum: Tensor | None = None

    def add(self, ours: Tensor, theirs: Tensor, images: int) -> None:
        """Add a batch.

        Args:
            ours (Tensor): Output of the compressed network.
            theirs (Tensor): Output of the dense network, of the same shape.
            images (int): Number of images of the batch.
        """
        self.lost += _square(ours - theirs)
        self.energy += _square(theirs)
        parts = images_in(theirs, images)
        self.count += parts
        batch = theirs.reshape(parts, -1).sum(0, dtype=torch.float64)
        if self.sum is None:
            self.sum = batch
        elif self.sum.shape == batch.shape:
            self.sum += batch
        else:  # images of several sizes have no mean
            self.sum = batch.new_zeros(())

    @property
    def apart(self) -> float:
        """The dense outputs' summed squared distances from their mean."""
        return max(self.energy - _square(self.sum) / self.count, 0.)

    @property
    def differs(self) -> bool:
        """Whether the dense outputs differ between images."""
        return self.apart > LEAST_SPREAD * self.energy


def _square(values: Tensor) -> float:
    """The sum of the squares, without a copy in fp64."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))**2
