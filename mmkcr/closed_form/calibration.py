"""The two statistics that closed-form slimming needs of a network on calibration images.

They are the moments of the readers' inputs, and how its outputs react to the readers' outputs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core.forward import flat_tensors
from mmkcr.core.processes import sum_over_processes
from mmkcr.functional.moments import Moments
from .options import Forward
from .readers import Rows, count_rows, input_rows, output_rows, pick, weight_matrix


class ReaderMoments:
    """Moments of a reader's inputs and, if ``sensitive``, of the gradients of its outputs.

    Args:
        layer (nn.Module): The reader, with d inputs and m outputs.
        name (str): Name of the moments in messages.
        rows (Rows): Number of rows of an image that enter the moments.
        sensitive (bool): Whether the gradients of the outputs are observed, too.
    """

    def __init__(self, layer: nn.Module, name: str, rows: Rows, sensitive: bool) -> None:
        outputs, inputs = weight_matrix(layer).shape
        device = layer.weight.device
        self._most, self._seen, self._count, self._last = rows.of(inputs), 0, 0, None
        self.inputs = Moments(inputs, device=device, name=name)
        self.gradients = Moments(outputs, device=device, name=name) if sensitive else None

    def hook(self, images: range, layer: nn.Module, args: tuple, out: Tensor) -> None:
        """Add a call of the layer to the moments.

        Args:
            images (range): Numbers of the batch's images among all images.
            layer (nn.Module): The reader.
            args (tuple): Its positional arguments; the first one is the input.
            out (Tensor): Its output.
        """
        x = args[0].detach()
        count = count_rows(layer, x, out)
        if images != self._last:  # further calls of a layer see the same images
            self._last, self._count = images, self._count + len(images)
        self._seen += count
        chosen = pick(count, self._most, images)
        self.inputs.add(input_rows(layer, x, chosen))
        if self.gradients is not None and out.requires_grad:
            # the rows of the inputs: both moments are of equal positions
            def take(gradient: Tensor) -> None:
                self.gradients.add(output_rows(layer, gradient, chosen))

            out.register_hook(take)

    def share(self) -> None:
        """Take in what other processes observed."""
        for moments in filter(None, (self.inputs, self.gradients)):
            moments.share()
        counts = torch.tensor([float(self._seen), float(self._count)])
        sum_over_processes(counts)
        self._seen, self._count = counts.tolist()

    @property
    def positions(self) -> float:
        """Mean number of rows per image, summed over all calls of the layer."""
        return self._seen / max(self._count, 1)

    @property
    def sensitivity(self) -> Tensor:
        """S: the second moment of the gradients, summed over an image's positions."""
        if self.gradients.count == 0:  # another layer of the site is read
            outputs = self.gradients.num_features
            return self.inputs.mean.new_zeros(outputs, outputs)
        return self.positions * self.gradients.second_moment


def passes(model: nn.Module, batches: Iterable[tuple[Any, range]], forward: Forward,
           hooks: Sequence[tuple[nn.Module, Callable]], logits: bool, seed: int = 0,
           scales: Sequence[float] | None = None, backward: float = math.inf) -> Iterator[range]:
    """Run numbered batches forward, and backward from a random projection of the outputs.

    The second moments F of the gradients tell by how much an error dy of a layer's output changes
    the outputs z: ``E |dz|^2 = positions * tr(F cov(dy))``.

    With activation checkpointing a layer runs in the forward pass, with or without gradients, and
    again in the backward pass. Hooks are called once, behind the first run with gradients.

    Args:
        model (nn.Module): The dense network, in the mode ``eval``.
        batches (Iterable): Batches of images.
        forward (Callable): Takes the model and a batch; returns the outputs z.
        hooks (Sequence[tuple[nn.Module, Callable]]): Layers, and functions that are called behind
            them with the numbers of the batch's images, the layer, its arguments and its output.
        logits (bool): Whether the outputs are class scores (B, C). If so, their error is measured
            as a Kullback-Leibler divergence, otherwise relative to the outputs' size.
        seed (int): Seed of the projections. Defaults to 0.
        scales (Sequence[float], optional): Sizes of the outputs, see :func:`output_scales`.
            Defaults to None: the sizes of each batch.
        backward (float): Number of images that are run backward, the first ones. Defaults to all.

    Yields:
        range: Numbers of the batch's images among all images.
    """
    sensed = again = False
    seen: set[nn.Module] = set()

    def once(hook: Callable, layer: nn.Module, args: tuple, out: Tensor) -> None:
        """Call a hook with a layer, its args and its out, but for one run of each forward."""
        if not sensed or torch.is_grad_enabled() and not (again and layer in seen):
            seen.update(() if again else (layer, ))
            hook(images, layer, args, out)

    with ExitStack() as stack:
        # before the hooks, which run later and so see outputs that require gradients
        stack.enter_context(gradients_of_activations(model, [layer for layer, _ in hooks]))
        for layer, hook in hooks:
            stack.enter_context(layer.register_forward_hook(partial(once, hook)))
        for batch, images in batches:
            sensed = images.start < backward
            with torch.set_grad_enabled(sensed):
                outputs = flat_tensors(forward(model, batch))
                again = True
                if sensed:
                    pairs = zip(outputs, _projection(outputs, logits, images, seed, scales))
                    pairs = [pair for pair in pairs if pair[0].requires_grad]
                    if pairs:
                        torch.autograd.backward(*zip(*pairs))
            again = False
            seen.clear()
            yield images


class WeightChange(NamedTuple):
    """Trial changes of a layer's weights: its outputs change by ``delta (x - mean)``."""

    layer: nn.Module
    #: Of x, (d,).
    mean: Tensor
    #: (tries, m, d); or with changes of the bias as one more column, (tries, m, d + 1).
    deltas: Tensor
    #: The m outputs of the layer that change.
    outputs: slice = slice(None)


#: Numbers of a matrix of rows that is made at a time, 128 MiB.
_AT_ONCE = 2**25


def output_changes(model: nn.Module, batches: Iterable[tuple[Any, range]], forward: Forward,
                   changes: Mapping[str, Sequence[WeightChange]], logits: bool,
                   seed: int = 0, scales: Sequence[float] | None = None) -> dict[str, Tensor]:
    """First-order effect on a network's outputs of changes that are made together, by name.

    The errors of a reader's outputs at the positions of one image are correlated, most of all
    behind attention, so their effects add up. Let S be the sum, over the image's positions, of
    ``gradient x^T``, with the gradient of a random projection of the outputs. Then
    ``dz = <delta, S>`` for every image, and squares are taken only after that sum.

    Args:
        model (nn.Module): The dense network, in the mode ``eval``.
        batches (Iterable): Batches of images.
        forward (Callable): Takes the model and a batch; returns the outputs z.
        changes (Mapping[str, Sequence[WeightChange]]): By name, changes that are made together,
            all with equally many tries.
        logits (bool): Whether the outputs are class scores (B, C).
        seed (int): Seed of the projections. Defaults to 0.
        scales (Sequence[float], optional): Sizes of the outputs, see :func:`output_scales`.
            Defaults to None: the sizes of each batch.

    Returns:
        dict[str, Tensor]: By name, the mean of ``|dz|^2`` over the images for every try, (tries,),
        fp64, in the unit of :func:`passes`.
    """
    # per try; all changes of a name have equally many
    sums = {name: torch.zeros(len(tried[0].deltas), dtype=torch.float64)
            for name, tried in changes.items()}
    count = 0
    #: dz of every image by name: calls of a layer, and changes made together, add up in it.
    moved: dict[str, Any] = {}

    def catch(name: str, change: WeightChange, images: range, layer: nn.Module, args: tuple,
              out: Tensor) -> None:
        """Add a layer's call on images, by its args and the gradient of its out, to a change."""
        x = args[0].detach()
        # rows are made later, and hosts may go on in place
        x = x if isinstance(layer, nn.Linear) else x.clone()
        kept = [x]  # let go with the layer's gradient, not with the whole graph

        def take(gradient: Tensor) -> None:
            change_here = _changes_of_images(change, kept.pop(), gradient, images)
            moved[name] = moved.get(name, 0.) + change_here

        out.register_hook(take)

    hooks = [(change.layer, partial(catch, name, change))
             for name, tried in changes.items() for change in tried]
    for images in passes(model, batches, forward, hooks, logits, seed, scales):
        for name, change in moved.items():
            sums[name] += change.square().sum(0)
        moved.clear()
        count += len(images)
    counts = torch.tensor([float(count)])
    for total in (*sums.values(), counts):
        sum_over_processes(total)
    return {name: total / counts.clamp(min=1) for name, total in sums.items()}


def _changes_of_images(change: WeightChange, x: Tensor, gradient: Tensor,
                       images: Sequence[int]) -> Tensor:
    """``<delta, S>`` of a call for every image and try, (images, tries), fp64.

    Rows that do not divide evenly into images, as regions, count as one image.
    """
    rows = count_rows(change.layer, x, gradient)
    count = len(images) if rows % len(images) == 0 else 1
    each, inputs = rows // count, change.mean.numel()
    # autocast gives gradients and inputs of different precision
    dtype = torch.promote_types(torch.promote_types(x.dtype, gradient.dtype), torch.float32)
    deltas = change.deltas.to(x.device, dtype).flatten(1)  # (tries, m d)
    mean, most, parts = change.mean.to(x.device, dtype), max(1, _AT_ONCE // inputs), []
    biased = change.deltas.shape[2] > inputs  # the last column reads an input of ones
    with torch.autocast(x.device.type, enabled=False):
        for first in range(0, rows, max(each, 1)):
            # S = sum over the image's positions of gradient x^T, (m, n) @ (n, d)
            seen = 0.
            for some in torch.arange(first, first + each, device=x.device).split(most):
                centred = input_rows(change.layer, x, some).to(dtype) - mean
                out = output_rows(change.layer, gradient, some)[:, change.outputs]
                if biased:
                    centred = F.pad(centred, (0, 1), value=1.)
                seen = seen + out.to(dtype).mT @ centred
            parts.append(deltas @ seen.flatten())
    return torch.stack(parts).double().cpu() if parts else torch.zeros(1, len(deltas)).double()


@contextmanager
def gradients_of_activations(model: nn.Module, layers: Iterable[nn.Module]) -> Iterator[None]:
    """Within the block, activations have gradients and parameters have none.

    Some layers may not depend on the images, as readers of a decoder's first queries. Their
    outputs become copies of leaves that require gradients: hosts may work on them in place.
    """
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    first = next(module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear)))
    with ExitStack() as stack:
        for parameter, before in wanted.items():
            stack.callback(parameter.requires_grad_, before)
            parameter.requires_grad_(False)
        # the first layer's output starts the graph: no parameter and no image requires a gradient
        for layer in dict.fromkeys([first, *layers]):
            stack.enter_context(layer.register_forward_hook(
                lambda _, __, out: out.requires_grad_().clone()
                if torch.is_grad_enabled() and not out.requires_grad else out))
        yield


def output_scales(outputs: Sequence[Tensor], images: int = 1) -> list[float]:
    """Sizes of an image's outputs: the root of the mean of their summed squares."""
    # the squares of a map would overflow in half precision
    return [float((out.detach().double().square().sum() / images_in(out, images)).sqrt())
            for out in outputs]


def images_in(out: Tensor, images: int) -> int:
    """Number of images in an output: 1 if its first axis does not divide evenly into images."""
    return images if out.ndim and len(out) % images == 0 else 1


def _projection(outputs: Sequence[Tensor], logits: bool, images: Sequence[int], seed: int,
                scales: Sequence[float] | None) -> list[Tensor]:
    """Gradients at the outputs that have, in expectation, their sensitivity as second moments.

    The draw for an image does not depend on its batch. Images do not interact in eval mode, so a
    backward pass of a batch gives each image its own gradient.

    Args:
        outputs (Sequence[Tensor]): Outputs of the network for a batch.
        logits (bool): Whether the last output is class scores (B, C).
        images (Sequence[int]): Numbers of the batch's images among all images.
        seed (int): Seed of the draws.
        scales (Sequence[float], optional): Sizes of the outputs; of None they are measured.

    Returns:
        list[Tensor]: A gradient for each output, in its shape.
    """
    # PyTorch's generator takes 32 bits
    draws = [torch.Generator().manual_seed((seed * 1_000_003 + image) % 2**32) for image in images]
    if logits:
        chances = outputs[-1].detach().float().softmax(-1)
        drawn = torch.cat([torch.multinomial(part, 1, generator=draw) for part, draw in zip(
            chances.cpu().split(1), draws)]).to(chances.device)
        # gradient onehot(y) - p with y ~ p: its second moment diag(p) - p p^T is the Fisher matrix
        # of the softmax, so E (g . dz)^2 = dz^T F dz, twice the divergence KL to second order
        gradient = torch.zeros_like(chances).scatter_(1, drawn, 1.) - chances
        return [torch.zeros_like(out) for out in outputs[:-1]] + [gradient.to(outputs[-1])]
    scales = scales or output_scales(outputs, len(images))
    changed = []
    for out, scale in zip(outputs, scales):
        # random signs s have E s s^T = I: E (s . dz)^2 / scale^2 is the squared relative error
        parts = images_in(out, len(images))
        shape = (len(out) // parts, *out.shape[1:]) if out.ndim else ()
        signs = torch.cat([torch.randint(0, 2, shape, generator=draw, dtype=torch.int8)
                           for draw in draws[:parts]]) if out.ndim else out.new_ones(())
        # the mean over outputs, not the sum
        factor = 1. / (max(scale, 1e-6) * len(outputs)**0.5)
        changed.append(signs.to(out).mul_(2).sub_(1).mul_(factor))
    return changed


