"""Statistics of a network's inner activations over calibration images (SPEC 9).

A *reader* is a layer whose inputs are the units of a site: the output projection of an MLP or of
an attention, or a layer that reads the channels of a stream. Closed-form slimming needs only two
things: the moments of the readers' inputs, and the sensitivity of the network's outputs to the
readers' outputs.
"""

import math
from contextlib import ExitStack, contextmanager
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import unfold_patches
from .sites.base import HostSite

Forward = Callable[[nn.Module, Any], Any]


class Reader(NamedTuple):
    """A layer that reads the units of a site.

    Args:
        path (str): Path of the layer, from the host.
        inner (int): Consecutive input channels of one unit.
        span (tuple[int, int]): The site's range among the input channels of the dense layer.
        repeats (int): How often the sequence of all units occurs in that range. Defaults to 1.
    """

    path: str
    inner: int = 1
    span: Tuple[int, int] = (0, 0)
    repeats: int = 1

    def each(self, layer: nn.Module) -> int:
        """Columns of the weight matrix that belong to one unit."""
        return self.repeats * self.inner * taps(layer)

    def of_units(self, layer: nn.Module, units: Tensor, total: int) -> Tensor:
        """Columns of the given of ``total`` units, relative to :meth:`columns`, (n, each)."""
        inner = self.inner * taps(layer)
        # a repeat holds all units one after the other, so repeats are total * inner columns apart
        blocks = torch.arange(self.repeats, device=units.device) * total * inner
        places = torch.arange(inner, device=units.device)
        # (n, 1, 1) + (repeats, 1) + (inner,) -> (n, repeats, inner)
        return (units[:, None, None] * inner + blocks[:, None] + places).flatten(1)

    def columns(self, layer: nn.Module) -> slice:
        """The site's part of the columns of :func:`weight_matrix`."""
        return slice(*(place * taps(layer) for place in self.span))


def readers(site: HostSite) -> List[Reader]:
    """The layers whose input channels are a site's units."""
    paths = {module: path for path, module in site.host.named_modules()}
    return [Reader(paths[axis.module], axis.inner, axis.span, axis.repeats)
            for axis in site.axes() if axis.name == 'weight' and _reads(axis.module, axis.dim)]


def _reads(layer: nn.Module, dim: int) -> bool:
    """Whether a dimension of a layer's weight is that of its inputs."""
    if isinstance(layer, nn.ConvTranspose2d):  # a refit needs patches that do not overlap
        return dim == 0 and layer.kernel_size == layer.stride and set(layer.padding) == {0}
    return dim == 1 and isinstance(layer, (nn.Linear, nn.Conv2d))


def ordering_readers(site: HostSite) -> List[Reader]:
    """The readers whose inputs have the most common number of columns per unit.

    Units are ordered by these readers alone. The loss at each size is measured with all readers.
    """
    found = readers(site)
    forms = [reader.each(site.module(reader.path)) for reader in found]
    # of two that are as common, the smaller form
    most = max(forms, key=lambda form: (forms.count(form), -form))
    return [reader for reader, form in zip(found, forms) if form == most]


def taps(layer: nn.Module) -> int:
    """Columns of a weight matrix per input channel: 1, or the area of the kernel."""
    return layer.weight[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1


def weight_matrix(layer: nn.Module) -> Tensor:
    """A layer's weight as the matrix of :func:`input_rows` and :func:`output_rows`."""
    weight = layer.weight.detach()
    # transposed weight (in, out, kh, kw) -> (out kh kw, in); else (out, in) or (out, in kh kw)
    return weight.flatten(1).T if isinstance(layer, nn.ConvTranspose2d) else weight.flatten(1)


def set_weights(layer: nn.Module, matrix: Tensor, bias: Tensor) -> None:
    """Give a layer another matrix, see :func:`weight_matrix`, and another bias if it has one."""
    transposed = isinstance(layer, nn.ConvTranspose2d)
    layer.weight.data.copy_((matrix.T if transposed else matrix).reshape(layer.weight.shape))
    if layer.bias is not None:
        # matrix rows of a transposed convolution are (out, taps), but its bias is one per channel
        layer.bias.data.copy_(bias.view(len(layer.bias), -1).mean(1))


def input_rows(layer: nn.Module, x: Tensor) -> Tensor:
    """Inputs of a linear layer or convolution as rows (n, features) of one matrix product."""
    if isinstance(layer, nn.ConvTranspose2d):
        return x.movedim(1, -1).flatten(0, -2)
    if not isinstance(layer, nn.Conv2d):
        return x.flatten(0, -2)
    if layer.kernel_size == (1, 1) and layer.stride == (1, 1):
        return x.movedim(1, -1).flatten(0, -2)
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != 'zeros':  # unfolding pads with zeros only
        mode = 'constant' if layer.padding_mode == 'zeros' else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), 0
    return unfold_patches(x, layer.kernel_size, layer.stride, padding, layer.dilation)


def output_rows(layer: nn.Module, out: Tensor) -> Tensor:
    """Outputs of a linear layer or convolution as rows (n, outputs)."""
    if isinstance(layer, nn.ConvTranspose2d):  # the patch that one input gives
        return unfold_patches(out, layer.kernel_size, layer.stride)
    return out.movedim(1, -1).flatten(0, -2) if isinstance(layer, nn.Conv2d) else out.flatten(0, -2)


def output_energy(layer: nn.Module, inputs: Moments) -> Tensor:
    """Mean squares of a layer's outputs ``W x + b``, from the moments of x, (m,), fp64.

    Args:
        layer (nn.Module): A linear layer or convolution.
        inputs (Moments): Of its :func:`input_rows`.
    """
    weight = weight_matrix(layer).to(inputs.mean)
    means = weight @ inputs.mean
    if layer.bias is not None:
        means = means + layer.bias.detach().to(means)
    # E (w x + b)^2 = w C w^T + (w E x + b)^2
    return (weight @ inputs.covariance * weight).sum(1) + means.square()


def pick(rows: int, most: int, generator: torch.Generator) -> Optional[Tensor]:
    """At most ``most`` of some rows, at random; None for all."""
    if rows <= most:
        return None
    return torch.randperm(rows, generator=generator)[:most]


def rows_of_a_batch(most: int, inputs: int, enough: float, batches: int) -> int:
    """Rows of a batch that enter the moments: fewer for wide layers, as a row costs inputs^2.

    Args:
        most (int): Upper limit, for layers of up to 256 inputs.
        inputs (int): Input features of the layer.
        enough (float): Rows that suffice in all. They are spread over ``batches``.
        batches (int): Number of batches that are run in any case.
    """
    if not batches or math.isinf(enough):
        return most
    return min(most, max(math.ceil(enough / batches), most * 256 // inputs))


def rows_of_inputs(model: nn.Module, batch: Any, forward: Forward,
                   layers: Mapping[str, nn.Module], most: int) -> Dict[str, int]:
    """Rows per batch that enter the moments of each layer, at most ``most`` per call, by name."""
    counts = dict.fromkeys(layers, 0)

    def counting(name: str) -> Callable:
        def count(layer: nn.Module, args: tuple, _: Tensor) -> None:
            counts[name] += min(len(input_rows(layer, args[0])), most)
        return count

    with ExitStack() as stack, torch.no_grad():
        for name, layer in layers.items():
            stack.callback(layer.register_forward_hook(counting(name)).remove)
        forward(model, batch)
    return counts


class ReaderMoments:
    """Moments of a reader's inputs, and of the gradients with respect to its outputs.

    ``inputs`` are the moments of the inputs and ``gradients`` those of the outputs' gradients.
    ``positions`` is the mean number of rows per image.

    Args:
        layer (nn.Module): The reader.
        name (str): For messages.
        rows (int): Maximum number of rows per batch that are taken in.
        sensitive (bool): Also collect the gradients of the outputs.
        enough (float): Rows per input feature after which no more are taken in. Defaults to
            infinity.
        least (int): Minimum number of batches, whatever the number of rows: neighbours within an
            image are much alike. Defaults to 0.
        least_backward (int): Minimum number of batches with gradients. Defaults to 0.
    """

    def __init__(self, layer: nn.Module, name: str, rows: int, sensitive: bool,
                 enough: float = math.inf, least: int = 0, least_backward: int = 0) -> None:
        outputs, inputs = weight_matrix(layer).shape
        device = layer.weight.device
        self.layer, self.most, self.least = layer, enough * inputs, least
        self.most_gradients, self.least_backward = enough * outputs, least_backward
        self.rows = rows_of_a_batch(rows, inputs, self.most, least)
        self.complete, self._seen, self._images = False, 0, 0
        self.inputs = Moments(inputs, device=device, name=name)
        self.gradients = Moments(outputs, device=device, name=name) if sensitive else None
        self._batches, self._generator = 0, torch.Generator().manual_seed(0)

    def hook(self, _: nn.Module, args: tuple, out: Tensor) -> None:
        """Forward hook of the layer."""
        if self.complete:
            return
        rows = input_rows(self.layer, args[0].detach())
        self._seen += len(rows)
        chosen = pick(len(rows), self.rows, self._generator)
        self.inputs.add(_chosen(rows, chosen))
        if self.gradients is not None and out.requires_grad:
            # the same rows as of the inputs, so that both moments are of the same positions
            out.register_hook(lambda gradient: self._gradient(gradient, chosen))

    @property
    def positions(self) -> float:
        """Mean number of rows per image, summed over all calls of the layer."""
        return self._seen / max(self._images, 1)

    @property
    def wants_gradients(self) -> bool:
        """Whether the next batch is to be run backward."""
        return self.gradients is not None and not self.complete and (
            self._batches < self.least_backward or self.gradients.count < self.most_gradients)

    def end_batch(self, images: int) -> None:
        """Count a batch, and stop collecting once there are enough rows."""
        if self.complete or not self._seen:
            return
        self._batches += 1
        self._images += images
        self.complete = self._batches >= self.least and self.inputs.count >= self.most

    def _gradient(self, gradient: Tensor, chosen: Optional[Tensor]) -> None:
        self.gradients.add(_chosen(output_rows(self.layer, gradient), chosen))


def _chosen(rows: Tensor, chosen: Optional[Tensor]) -> Tensor:
    return rows if chosen is None else rows[chosen.to(rows.device)]


def collect(model: nn.Module, batches: Iterable[Any], forward: Forward,
            layers: Mapping[str, nn.Module], rows: int = 4096,
            logits: Optional[bool] = None, seed: int = 0,
            enough: float = math.inf, least: int = 0,
            others: Optional[Mapping[str, nn.Module]] = None,
            least_backward: Optional[int] = None) -> Dict[str, ReaderMoments]:
    """Moments of some readers over calibration batches.

    Unless ``logits`` is None, batches are also run backward from a random projection of the
    outputs. The second moments F of the gradients then tell by how much an error dy of a reader's
    output changes the network's outputs z: ``E |dz|^2 = positions * tr(F cov(dy))``. No label is
    read.

    Args:
        model (nn.Module): In eval mode.
        batches (Iterable): What ``forward`` takes.
        forward (Callable): Takes model and batch. Returns a tensor, or tensors in nested tuples or
            lists.
        layers (Mapping[str, nn.Module]): Readers by name.
        rows (int): Maximum number of rows per batch and reader. Defaults to 4096.
        logits (bool, optional): Whether the outputs are class scores (B, C). If so, their error is
            measured as a Kullback-Leibler divergence, otherwise relative to the outputs' size.
            Defaults to None: no gradients.
        seed (int): Seed of the random projections. Defaults to 0.
        enough (float): Rows per input feature after which a reader takes in no more. Once all
            readers have enough, no further batch is run. Defaults to infinity.
        least (int): Batches that are run in any case. Defaults to 0.
        others (Mapping[str, nn.Module], optional): Layers by name of which only the inputs are
            needed. Defaults to none.
        least_backward (int, optional): Batches that are run backward in any case. Further ones
            are only run forward once all readers have ``enough`` gradients per output. Defaults
            to None: ``least``.

    Returns:
        dict[str, ReaderMoments]: By name.
    """
    sensitive = logits is not None
    # gradients are collected only for `layers`
    both = {**layers, **(others or {})}
    found = {name: ReaderMoments(layer, name, rows, sensitive and name in layers, enough, least,
                                 least if least_backward is None else least_backward)
             for name, layer in both.items()}
    generator, runs = torch.Generator().manual_seed(seed), _FirstRuns()
    with ExitStack() as stack:
        if sensitive:
            # before the readers' hooks, which run later and so see outputs that require gradients
            stack.enter_context(_gradients_of_activations(model, layers.values()))
        for name, layer in both.items():
            hook = runs.hook(found[name].hook)
            stack.callback(layer.register_forward_hook(hook).remove)
        for batch in batches:
            backward = any(moments.wants_gradients for moments in found.values())
            with torch.set_grad_enabled(backward):
                runs.start(backward)
                outputs = flat_tensors(forward(model, batch))
                if backward:
                    runs.backward(_projected(outputs, logits, generator))
            for moments in found.values():
                moments.end_batch(_images_of(batch, outputs))
            # images that no reader needs are not even run
            if all(moments.complete for moments in found.values()):
                break
    return found


def _images_of(batch: Any, outputs: Sequence[Tensor]) -> int:
    """Number of images in a batch; if only ``forward`` knows it, the length of the last output."""
    if isinstance(batch, Mapping) and isinstance(batch.get('inputs'), Tensor):
        batch = batch['inputs']
    return len(batch) if isinstance(batch, Tensor) else len(outputs[-1]) if outputs else 1


class WeightChange(NamedTuple):
    """Trial changes of a layer's weights: its outputs change by ``delta (x - mean)``.

    Args:
        layer (nn.Module): A reader, or another layer with weights.
        mean (Tensor): Mean of x, (d,).
        deltas (Tensor): Changes of the weights, (tries, m, d).
        rows (Callable): Takes layer and input, returns x as rows (n, d). Defaults to the inputs.
        outputs (slice): Which m of the layer's outputs change. Defaults to all.
    """

    layer: nn.Module
    mean: Tensor
    deltas: Tensor
    rows: Callable[[nn.Module, Tensor], Tensor] = input_rows
    outputs: slice = slice(None)


#: Images whose effects are computed at a time.
_IMAGES = 4


def output_changes(model: nn.Module, batches: Iterable[Any], forward: Forward,
                   changes: Mapping[str, Sequence[WeightChange]], logits: bool,
                   seed: int = 0) -> Dict[str, Tensor]:
    """First-order effect of weight changes on a network's outputs.

    The errors of a reader's outputs at the positions of one image are correlated, most of all
    behind attention, so their effects add up. Let S be the sum, over the image's positions, of
    ``gradient x^T``, with the gradient of a random projection of the outputs. Then
    ``dz = <delta, S>`` for every image, and squares are taken only after that sum. (Moments of
    errors and gradients alone would treat positions as independent.)

    Args:
        model (nn.Module): In eval mode.
        batches (Iterable): What ``forward`` takes.
        forward (Callable): Takes model and batch.
        changes (Mapping[str, Sequence[WeightChange]]): By name, the changes that are made together.
        logits (bool): As in :func:`collect`.
        seed (int): Seed of the random projections. Defaults to 0.

    Returns:
        dict[str, Tensor]: Mean squares over images, (tries,), fp64, in the unit of the gradients
        of :func:`collect`.
    """
    generator = torch.Generator().manual_seed(seed)
    # per try; all changes of a name have equally many
    sums = {name: torch.zeros(len(tried[0].deltas), dtype=torch.float64)
            for name, tried in changes.items()}
    images = 0
    for batch in batches:
        with ExitStack() as stack:
            # by (name, place): [x, gradients] of every call
            caught: Dict[Any, List[List[Tensor]]] = {}
            runs = _FirstRuns()
            stack.enter_context(_gradients_of_activations(
                model, [change.layer for tried in changes.values() for change in tried]))
            for name, tried in changes.items():
                for place, change in enumerate(tried):
                    handle = change.layer.register_forward_hook(
                        runs.hook(_catcher(caught, (name, place), change.rows)))
                    stack.callback(handle.remove)
            with torch.enable_grad():
                outputs = flat_tensors(forward(model, batch))
                count = _images_of(batch, outputs)
                runs.backward(_projected(outputs, logits, generator))
        for name, tried in changes.items():
            # changes made together, and calls of one layer, add up in dz before it is squared
            moved = sum(_moved(change, *call, count) for place, change in enumerate(tried)
                        for call in caught[name, place])
            sums[name] += moved.square().sum(0)
        images += count
    return {name: total / max(images, 1) for name, total in sums.items()}


def _catcher(caught: Dict[Any, List[List[Tensor]]], key: Any, rows: Callable) -> Callable:
    """Make a forward hook that stores a layer's inputs and output gradients as rows, per call."""
    def catch(layer: nn.Module, args: tuple, out: Tensor) -> None:
        call = [rows(layer, args[0].detach())]
        out.register_hook(lambda gradient: call.append(output_rows(layer, gradient)))
        caught.setdefault(key, []).append(call)

    return catch


class _FirstRuns:
    """Forward hooks that leave out what activation checkpointing runs again.

    It runs layers again in the backward pass. Before, one form ran them without gradients, the
    other with them. Of both runs the first with gradients counts.
    """

    def __init__(self) -> None:
        self._again, self._backward, self._seen = False, True, set()

    def start(self, backward: bool) -> None:
        """Announce a forward, and whether it is run backward: otherwise nothing runs again."""
        self._backward = backward

    def hook(self, hook: Callable) -> Callable:
        """The hook without the further runs."""
        def call(layer: nn.Module, *rest: Any) -> None:
            if not self._backward:
                hook(layer, *rest)
            elif torch.is_grad_enabled() and not (self._again and layer in self._seen):
                self._seen.update(() if self._again else (layer, ))
                hook(layer, *rest)

        return call

    def backward(self, value: Tensor) -> None:
        """The backward pass of a forward that called the hooks."""
        self._again = True
        value.backward()
        self._again, self._seen = False, set()


def _moved(change: WeightChange, rows: Tensor, gradients: Tensor, images: int) -> Tensor:
    """``<delta, S>`` for every image and try, (images, tries), fp64.

    Rows that do not divide evenly into images (such as regions) count as one image.
    """
    images = images if len(rows) % images == 0 else 1
    # autocast gives gradients and inputs of different precision
    dtype = torch.promote_types(torch.promote_types(rows.dtype, gradients.dtype), torch.float32)
    rows, gradients = rows.to(dtype), gradients.to(dtype)
    deltas = change.deltas.to(rows).flatten(1)  # (tries, m d)
    rows = (rows - change.mean.to(rows)).view(images, -1, rows.shape[-1])
    gradients = gradients[:, change.outputs].unflatten(0, (images, -1))
    # S = sum over positions of gradient x^T, (m, n) @ (n, d), of a few images at a time: the
    # deltas are read once for them
    seen = rows.new_empty(_IMAGES, gradients.shape[-1], rows.shape[-1])
    with torch.autocast(rows.device.type, enabled=False):
        return torch.cat([torch.bmm(some.mT, row, out=seen[:len(row)]).flatten(1) @ deltas.T
                          for some, row in zip(gradients.split(_IMAGES), rows.split(_IMAGES))
                          ]).double().cpu()


@contextmanager
def _gradients_of_activations(model: nn.Module, layers: Iterable[nn.Module]) -> Iterator[None]:
    """Within the block, activations have gradients and parameters have none.

    Some layers may not depend on the images, such as those that read a decoder's first queries.
    Their outputs become copies of leaves that require gradients: hosts may work on them in place.
    """
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    first = next(module for module in model.modules()
                 if isinstance(module, (nn.Conv2d, nn.Linear)))
    for parameter in wanted:
        parameter.requires_grad_(False)
    handles = [layer.register_forward_hook(
        lambda _, __, out: out.requires_grad_().clone()
        if torch.is_grad_enabled() and not out.requires_grad else out)
        # the first layer's output starts the graph: no parameter and no image requires a gradient
        for layer in {first: None, **dict.fromkeys(layers)}]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, before in wanted.items():
            parameter.requires_grad_(before)


def _projected(outputs: List[Tensor], logits: bool, generator: torch.Generator) -> Tensor:
    """A scalar whose gradients have, in expectation, the outputs' sensitivity as second moments.

    Images do not interact in eval mode, so the sum over a batch gives each image its own gradient.
    """
    if logits:
        scores = outputs[-1].float()
        chances = scores.detach().softmax(-1)
        drawn = torch.multinomial(chances.cpu(), 1, generator=generator).to(scores.device)
        # gradient onehot(y) - p with y ~ p: its second moment diag(p) - p p^T is the Fisher matrix
        # of the softmax, so E (g . dz)^2 = dz^T F dz, twice the divergence KL to second order
        return (scores * (torch.zeros_like(scores).scatter_(1, drawn, 1.) - chances)).sum()
    total = 0.
    for out in outputs:
        # the squares of a map would overflow in half precision
        out = out.to(torch.promote_types(out.dtype, torch.float32))
        energy = out.detach().flatten(1).square().sum(1).mean().clamp(min=1e-12).sqrt()
        # random signs s have E s s^T = I: E (s . dz)^2 / energy^2 is the squared relative error
        signs = torch.randint(0, 2, out.shape, generator=generator).to(out) * 2 - 1
        total = total + (out * signs).sum() / energy
    # the mean over outputs, not the sum
    return total / len(outputs)**0.5


def flat_tensors(outputs: Any, floating: bool = True) -> List[Tensor]:
    """The tensors in nested tuples, lists and dicts, in their order.

    Args:
        outputs (Any): Of a model.
        floating (bool): Only those of floating point. Defaults to True.
    """
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() or not floating else []
    if isinstance(outputs, (str, bytes)):  # a character is a text again
        return []
    if isinstance(outputs, Mapping):
        outputs = outputs.values()
    if hasattr(outputs, 'to_tuple'):  # of Hugging Face
        outputs = outputs.to_tuple()
    if isinstance(outputs, (list, tuple)) or hasattr(outputs, '__iter__'):
        return [tensor for part in outputs for tensor in flat_tensors(part, floating)]
    return []
