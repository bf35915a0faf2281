"""Statistics of a network's inner activations over calibration images (SPEC 9).

A *reader* is a layer whose inputs are the units of a site: the output projection of an MLP or an
attention, or what reads the channels of a stream. Everything that closed-form slimming needs is
the moments of the readers' inputs, and how much the network's outputs depend on theirs.
"""

import math
from contextlib import ExitStack, contextmanager, suppress
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
from torch import Tensor, nn

from mmkcr.core import Site
from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import unfold_patches

Forward = Callable[[nn.Module, Any], Any]


class Reader(NamedTuple):
    """A layer that reads the units of a site.

    Args:
        path (str): Of the layer, from the host.
        inner (int): Consecutive input channels of one unit.
        span (tuple[int, int]): Input channels, of the dense layer, that are the site's.
    """

    path: str
    inner: int = 1
    span: Tuple[int, int] = (0, 0)

    def columns(self, layer: nn.Module) -> slice:
        """The site's part of the columns of :func:`weight_matrix`."""
        return slice(*(place * taps(layer) for place in self.span))


def readers(site: Site) -> List[Reader]:
    """The layers whose input channels are a site's units."""
    paths = {module: path for path, module in site.host.named_modules()}
    return [Reader(paths[axis.module], axis.inner, axis.span) for axis in site.axes()
            if axis.name == 'weight' and _reads(axis.module, axis.dim)]


def _reads(layer: nn.Module, dim: int) -> bool:
    """Whether a dimension of a layer's weight is that of its inputs."""
    if isinstance(layer, nn.ConvTranspose2d):  # a refit needs patches that do not overlap
        return dim == 0 and layer.kernel_size == layer.stride and set(layer.padding) == {0}
    return dim == 1 and isinstance(layer, (nn.Linear, nn.Conv2d))


def ordering_readers(site: Site) -> List[Reader]:
    """Those readers whose inputs have one form, of the form that most have.

    The order of units is made from these; what sizes lose is measured with all.
    """
    found = readers(site)
    forms = [reader.inner * taps(site.host.get_submodule(reader.path)) for reader in found]
    most = max(forms, key=lambda form: (forms.count(form), -form))
    return [reader for reader, form in zip(found, forms) if form == most]


def taps(layer: nn.Module) -> int:
    """Entries of a weight's row for one input channel: 1, or the area of a kernel."""
    return layer.weight[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1


def weight_matrix(layer: nn.Module) -> Tensor:
    """A layer's weight as the matrix of :func:`input_rows` and :func:`output_rows`."""
    weight = layer.weight.detach()
    return weight.flatten(1).T if isinstance(layer, nn.ConvTranspose2d) else weight.flatten(1)


def set_weights(layer: nn.Module, matrix: Tensor, bias: Tensor) -> None:
    """Give a layer another matrix, see :func:`weight_matrix`, and another bias if it has one."""
    transposed = isinstance(layer, nn.ConvTranspose2d)
    layer.weight.data.copy_((matrix.T if transposed else matrix).reshape(layer.weight.shape))
    if layer.bias is not None:  # that of a transposed convolution is one for all its patch
        layer.bias.data.copy_(bias.view(len(layer.bias), -1).mean(1))


def input_rows(layer: nn.Module, x: Tensor) -> Tensor:
    """Inputs of a linear layer or convolution as rows (n, features) of one matrix product."""
    if isinstance(layer, nn.ConvTranspose2d):
        return x.movedim(1, -1).flatten(0, -2)
    if not isinstance(layer, nn.Conv2d):
        return x.flatten(0, -2)
    if layer.kernel_size == (1, 1) and layer.stride == (1, 1):
        return x.movedim(1, -1).flatten(0, -2)
    return unfold_patches(x, layer.kernel_size, layer.stride, layer.padding, layer.dilation)


def output_rows(layer: nn.Module, out: Tensor) -> Tensor:
    """Outputs of a linear layer or convolution as rows (n, outputs)."""
    if isinstance(layer, nn.ConvTranspose2d):  # the patch that one input gives
        return unfold_patches(out, layer.kernel_size, layer.stride)
    return out.movedim(1, -1).flatten(0, -2) if isinstance(layer, nn.Conv2d) else out.flatten(0, -2)


class _Reached(Exception):
    """Raised to leave a forward whose rest is not needed."""


@contextmanager
def stop_after(module: Optional[nn.Module], calls: int = 1) -> Iterator[None]:
    """Within the block a forward ends behind a call of ``module``; with None it runs through."""
    left = [calls]

    def leave(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise _Reached

    handle = module.register_forward_hook(leave) if module is not None else None
    try:
        with suppress(_Reached):
            yield
    finally:
        if handle is not None:
            handle.remove()


def pick(rows: int, most: int, generator: torch.Generator) -> Optional[Tensor]:
    """At most ``most`` of some rows, at random; None for all."""
    if rows <= most:
        return None
    return torch.randperm(rows, generator=generator)[:most]


def rows_of_a_batch(most: int, inputs: int, enough: float, batches: int) -> int:
    """Rows of a batch that moments take in: fewer of a wide layer, whose rows cost inputs^2.

    Args:
        most (int): For layers of up to 256 inputs.
        inputs (int): Of the layer.
        enough (float): Rows that are enough in all: so many come from ``batches``.
        batches (int): That are run in any case.
    """
    if not batches or math.isinf(enough):
        return most
    return min(most, max(math.ceil(enough / batches), most * 256 // inputs))


class ReaderMoments:
    """Moments of one reader: of its inputs, and of what its outputs do to the network's.

    ``inputs`` are the inputs' moments, ``gradients`` those of the outputs' gradients,
    ``output_energy`` the mean squares of the outputs, ``positions`` their number in an image.

    Args:
        layer (nn.Module): The reader.
        name (str): For messages.
        rows (int): Most rows of a batch that are taken in.
        sensitive (bool): Also collect the gradients of the outputs.
        enough (float): Rows for each input after which no more is taken in. Defaults to infinity.
        least (int): Batches that are taken in whatever the rows: neighbours in an image are much
            alike. Defaults to 0.
    """

    def __init__(self, layer: nn.Module, name: str, rows: int, sensitive: bool,
                 enough: float = math.inf, least: int = 0) -> None:
        outputs, inputs = weight_matrix(layer).shape
        device = layer.weight.device
        self.layer, self.most, self.least = layer, enough * inputs, least
        self.rows = rows_of_a_batch(rows, inputs, self.most, least)
        self.complete, self._seen, self._images = False, 0, 0
        self.inputs = Moments(inputs, device=device, name=name)
        self.output_energy = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.gradients = Moments(outputs, device=device, name=name) if sensitive else None
        self._batches, self._calls, self._generator = 0, 0, torch.Generator().manual_seed(0)

    def hook(self, _: nn.Module, args: tuple, out: Tensor) -> None:
        """Forward hook of the layer."""
        if self.complete:
            return
        rows = input_rows(self.layer, args[0].detach())
        self._seen += len(rows)
        chosen = pick(len(rows), self.rows, self._generator)
        self.inputs.add(_chosen(rows, chosen))
        energy = output_rows(self.layer, out.detach()).double().square().mean(0)
        self._calls += 1
        self.output_energy += (energy - self.output_energy) / self._calls
        if self.gradients is not None and out.requires_grad:
            out.register_hook(lambda gradient: self._gradient(gradient, chosen))

    @property
    def positions(self) -> float:
        """Rows of an image; a layer may be called several times."""
        return self._seen / max(self._images, 1)

    def end_batch(self, images: int) -> None:
        """Count a batch; look at no more of them once there are enough rows."""
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
            others: Optional[Mapping[str, nn.Module]] = None) -> Dict[str, ReaderMoments]:
    """Moments of some readers over calibration batches.

    With ``logits`` not None every batch is also run backward from a random projection of the
    outputs: the gradients' second moments F say by how much an error of a reader's output changes
    the network's, ``E |dz|^2 = positions * tr(F cov(dy))``. No label is read.

    Args:
        model (nn.Module): In eval mode.
        batches (Iterable): What ``forward`` takes.
        forward (Callable): Takes model and batch; gives tensors, in tuples or lists or alone.
        layers (Mapping[str, nn.Module]): Readers by name.
        rows (int): Most rows of a batch and reader. Defaults to 4096.
        logits (bool, optional): Whether the outputs are class scores (B, C): their error is then
            measured by Kullback and Leibler; else relative to the outputs. Defaults to None: no
            gradients.
        seed (int): Of the projections. Defaults to 0.
        enough (float): Rows for each input of a reader after which it takes in no more; when all
            readers have them, no further batch is run. Defaults to infinity.
        least (int): Batches that are run in any case. Defaults to 0.
        others (Mapping[str, nn.Module], optional): Layers by name whose inputs alone are wanted.
            Defaults to none.

    Returns:
        dict[str, ReaderMoments]: By name.
    """
    sensitive = logits is not None
    both = {**layers, **(others or {})}
    found = {name: ReaderMoments(layer, name, rows, sensitive and name in layers, enough, least)
             for name, layer in both.items()}
    generator = torch.Generator().manual_seed(seed)
    with ExitStack() as stack:
        if sensitive:
            stack.enter_context(_gradients_of_activations(model, layers.values()))
        for name, layer in both.items():
            handle = layer.register_forward_hook(found[name].hook)
            stack.callback(handle.remove)
        for batch in batches:
            with torch.set_grad_enabled(sensitive):
                outputs = flat_tensors(forward(model, batch))
                if sensitive:
                    _projected(outputs, logits, generator).backward()
            for moments in found.values():
                moments.end_batch(_images_of(batch, outputs))
            if all(moments.complete for moments in found.values()):
                break
    return found


def _images_of(batch: Any, outputs: Sequence[Tensor]) -> int:
    """Images of a batch; where only ``forward`` knows, the length of the last output."""
    if isinstance(batch, Mapping) and isinstance(batch.get('inputs'), Tensor):
        batch = batch['inputs']
    return len(batch) if isinstance(batch, Tensor) else len(outputs[-1]) if outputs else 1


class WeightChange(NamedTuple):
    """Changes of a reader's weights that are tried: its outputs change by ``delta (x - mean)``.

    Args:
        layer (nn.Module): The reader.
        mean (Tensor): Of its inputs, (d,).
        deltas (Tensor): Of the weights, (tries, m, d).
    """

    layer: nn.Module
    mean: Tensor
    deltas: Tensor


def output_changes(model: nn.Module, batches: Iterable[Any], forward: Forward,
                   changes: Mapping[str, Sequence[WeightChange]], logits: bool,
                   seed: int = 0) -> Dict[str, Tensor]:
    """By how much changes of weights change a network's outputs, to first order.

    The errors of a reader's outputs at the positions of one image are alike, most of all behind
    attention, so what they do adds up. With the gradient S of a random projection of the outputs,
    ``dz = <delta, S>`` for every image; S is summed over the image's positions before it is
    squared. (Moments of errors and gradients alone take positions as independent.)

    Args:
        model (nn.Module): In eval mode.
        batches (Iterable): What ``forward`` takes.
        forward (Callable): Takes model and batch.
        changes (Mapping[str, Sequence[WeightChange]]): What is changed together, by name.
        logits (bool): As in :func:`collect`.
        seed (int): Of the projections. Defaults to 0.

    Returns:
        dict[str, Tensor]: Mean squares over images, (tries,), fp64, in the unit of
        :func:`collect`'s gradients.
    """
    generator = torch.Generator().manual_seed(seed)
    sums = {name: torch.zeros(len(tried[0].deltas), dtype=torch.float64)
            for name, tried in changes.items()}
    images = 0
    for batch in batches:
        with ExitStack() as stack:
            caught: Dict[Any, List[List[Tensor]]] = {}
            stack.enter_context(_gradients_of_activations(
                model, [change.layer for tried in changes.values() for change in tried]))
            for name, tried in changes.items():
                for place, change in enumerate(tried):
                    handle = change.layer.register_forward_hook(
                        _catcher(caught, (name, place)))
                    stack.callback(handle.remove)
            with torch.enable_grad():
                outputs = flat_tensors(forward(model, batch))
                count = _images_of(batch, outputs)
                _projected(outputs, logits, generator).backward()
        for name, tried in changes.items():
            moved = sum(_moved(change, *call, count) for place, change in enumerate(tried)
                        for call in caught[name, place])
            sums[name] += moved.square().sum(0)
        images += count
    return {name: total / max(images, 1) for name, total in sums.items()}


def _catcher(caught: Dict[Any, List[List[Tensor]]], key: Any) -> Callable:
    """A hook that keeps inputs and outputs' gradients of a layer's calls as rows."""
    def catch(layer: nn.Module, args: tuple, out: Tensor) -> None:
        call = [input_rows(layer, args[0].detach())]
        out.register_hook(lambda gradient: call.append(output_rows(layer, gradient)))
        caught.setdefault(key, []).append(call)

    return catch


def _moved(change: WeightChange, rows: Tensor, gradients: Tensor, images: int) -> Tensor:
    """``<delta, S>`` of every image and try, (images, tries), fp64.

    Rows of regions that do not part into images count as one image.
    """
    images = images if len(rows) % images == 0 else 1
    deltas = change.deltas.to(rows).flatten(1)
    rows = (rows - change.mean.to(rows)).view(images, -1, rows.shape[-1])
    gradients = gradients.view(images, -1, gradients.shape[-1])
    return torch.stack([deltas @ (gradient.T @ row).flatten()
                        for gradient, row in zip(gradients, rows)]).double().cpu()


@contextmanager
def _gradients_of_activations(model: nn.Module, layers: Iterable[nn.Module]) -> Iterator[None]:
    """Within the block activations have gradients and parameters have none.

    Some of the layers may not depend on the images, such as those of the first queries.
    """
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    first = next(module for module in model.modules()
                 if isinstance(module, (nn.Conv2d, nn.Linear)))
    for parameter in wanted:
        parameter.requires_grad_(False)
    handles = [layer.register_forward_hook(
        lambda _, __, out: out if out.requires_grad else out.requires_grad_())
        for layer in {first: None, **dict.fromkeys(layers)}]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, before in wanted.items():
            parameter.requires_grad_(before)


def _projected(outputs: List[Tensor], logits: bool, generator: torch.Generator) -> Tensor:
    """A scalar whose gradients have the outputs' sensitivity as second moments."""
    if logits:
        scores = outputs[-1].float()
        chances = scores.detach().softmax(-1)
        drawn = torch.multinomial(chances.cpu(), 1, generator=generator).to(scores.device)
        return (scores * (torch.zeros_like(scores).scatter_(1, drawn, 1.) - chances)).sum()
    total = 0.
    for out in outputs:
        energy = out.detach().flatten(1).square().sum(1).mean().clamp(min=1e-12).sqrt()
        signs = torch.randint(0, 2, out.shape, generator=generator).to(out) * 2 - 1
        total = total + (out * signs).sum() / energy
    return total / len(outputs)**0.5


def flat_tensors(outputs: Any) -> List[Tensor]:
    """The floating point tensors in nested tuples, lists and dicts."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() else []
    if isinstance(outputs, Mapping):
        outputs = outputs.values()
    if hasattr(outputs, 'to_tuple'):  # of Hugging Face
        outputs = outputs.to_tuple()
    if isinstance(outputs, (list, tuple)) or hasattr(outputs, '__iter__'):
        return [tensor for part in outputs for tensor in flat_tensors(part)]
    return []


def block_of(path: str) -> str:
    """The block of a module: its path up to the last number in it, or the path itself."""
    parts = path.split('.')
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return '.'.join(parts[:numbers[-1] + 1]) if numbers else path


class Replay(nn.Module):
    """Stands in for a block whose outputs are known; has the block's attributes.

    Args:
        block (nn.Module): It.
        outputs (list): Of every batch.
        cursor (list[int]): The batch that runs, shared by all stand-ins of a network.
    """

    def __init__(self, block: nn.Module, outputs: List[Any], cursor: List[int]) -> None:
        super().__init__()
        self.outputs, self.cursor = outputs, cursor
        self._block = (block, )  # no child: its parameters are those of the block itself

    def __getattr__(self, name: str) -> Any:
        """What the host reads off a block beside its outputs."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__['_block'][0], name)

    def forward(self, *_: Any, **__: Any) -> Any:
        """The outputs of the batch that runs."""
        return self.outputs[self.cursor[0]]


class ResumableForward:
    """Runs a network over the same batches again and again, each time from a later block on.

    The outputs of the last finished block are kept in memory and replayed. Blocks before it are
    replaced by zeros of their outputs' shapes: what is computed from these is not used behind the
    finished block. Where the outputs would take too much memory, everything is computed anew.

    Args:
        model (nn.Module): Restored by :meth:`close`.
        host (nn.Module): Its backbone, from which blocks are named.
        batches (Sequence): What ``forward`` takes.
        forward (Callable): Takes model and batch.
        most_bytes (int): Of the outputs that are kept. Defaults to 2 GiB.
    """

    def __init__(self, model: nn.Module, host: nn.Module, batches: Any, forward: Forward,
                 most_bytes: int = 2**31) -> None:
        self.model, self.host, self.batches, self.forward = model, host, batches, forward
        self.most_bytes = most_bytes
        self._cursor, self._replaced, self._last = [0], [], None
        self._shapes: Dict[int, Any] = {}
        self._known: Dict[str, Optional[List[Any]]] = {}
        self._calls: Optional[Dict[nn.Module, int]] = None

    def run(self, batch: int, last: Optional[nn.Module] = None) -> Any:
        """Run one batch without gradients, up to the last call of ``last``."""
        self._cursor[0] = batch
        with torch.no_grad(), stop_after(last, 1 if last is None else self.calls(last)):
            return self.forward(self.model, self._input(batch))

    def calls(self, module: nn.Module) -> int:
        """How often a forward calls a module; a part of several levels is called for each."""
        if self._calls is None:
            counts: Dict[nn.Module, int] = {}
            with ExitStack() as stack, torch.no_grad():
                for layer in self.model.modules():
                    handle = layer.register_forward_hook(
                        lambda layer, *_: counts.__setitem__(layer, counts.get(layer, 0) + 1))
                    stack.callback(handle.remove)
                self._cursor[0] = 0
                self.forward(self.model, self.batches[0])
            self._calls = counts
        return self._calls.get(module, 1)

    def go_on(self, done: str, following: str) -> None:
        """Run from behind a block that is done, if what follows needs nothing before it.

        Within a backbone a block's output is all that the next one reads. A neck or a head reads
        several of the backbone's: then the whole part is kept, and each part alike.
        """
        parts = [path.partition('.')[0] for path in (done, following)]
        bare = not isinstance(getattr(self.host, 'backbone', None), nn.Module)
        if bare or parts == ['backbone', 'backbone']:
            self.finish(done)
        elif parts[0] != parts[1]:
            part = self.host.get_submodule(parts[0])
            if self.calls(part) == 1 and part in self._calls:
                self.close()
                self._shapes.clear()
                self.finish(parts[0])

    def _input(self, batch: int) -> Any:
        """A batch; behind a finished block its shapes are enough."""
        if self._last is None:
            return self.batches[batch]
        if batch not in self._shapes:
            self._shapes[batch] = _zeros_like(self.batches[batch])
        return self._shapes[batch]

    def outputs(self, path: str) -> Optional[List[Any]]:
        """Outputs of a block for every batch; None if they do not fit.

        They are kept until another block is asked for: the block must not change meanwhile.
        """
        if self.calls(self.host.get_submodule(path)) > 1:
            return None
        if path in self._known:
            return self._known[path]
        block, outputs = self.host.get_submodule(path), []
        self._known = {path: None}
        handle = block.register_forward_hook(lambda _, __, out: outputs.append(_detached(out)))
        try:
            for batch in range(len(self.batches)):
                self.run(batch, block)
                size = sum(tensor.numel() * tensor.element_size()
                           for tensor in flat_tensors(outputs[:1]))
                if size * len(self.batches) > self.most_bytes:
                    return None
        finally:
            handle.remove()
        self._known = {path: outputs}
        return outputs

    def finish(self, path: str) -> None:
        """Keep the outputs of a block, if they fit, and run from there on."""
        outputs = self.outputs(path)
        if outputs is None:
            return
        self._known = {}
        if self._last is not None:
            self._last.outputs = [_zeros_like(out) for out in self._last.outputs]
        parent, _, name = path.rpartition('.')
        block = self.host.get_submodule(path)
        self._last = Replay(block, outputs, self._cursor)
        self._replaced.append((self.host.get_submodule(parent), name, block))
        setattr(self.host.get_submodule(parent), name, self._last)

    def close(self) -> None:
        """Put the blocks back."""
        for parent, name, block in self._replaced:
            setattr(parent, name, block)
        self._replaced, self._last, self._known = [], None, {}


def _detached(out: Any) -> Any:
    return _mapped(out, lambda tensor: tensor.detach())


def _zeros_like(out: Any) -> Any:
    return _mapped(out, lambda tensor: tensor.new_zeros(()).expand(tensor.shape))


def _mapped(out: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(out, Tensor):
        return function(out)
    if type(out) in (tuple, list):
        return type(out)(_mapped(part, function) for part in out)
    if type(out) is dict:
        return {key: _mapped(part, function) for key, part in out.items()}
    return out


Calls = List[Tuple[Tensor, Any]]


def caught(run: ResumableForward, batch: int, modules: Mapping[str, nn.Module],
           last: nn.Module) -> Dict[str, Calls]:
    """First inputs and outputs of some modules in one forward up to ``last``, by call.

    An input that has a name is not seen.

    Args:
        run (ResumableForward): The network.
        batch (int): Which batch.
        modules (Mapping[str, nn.Module]): By name.
        last (nn.Module): The last of them.
    """
    found: Dict[str, Calls] = {}
    run.calls(last)  # it may need a forward, which no hook is to see
    with ExitStack() as stack:
        for name, module in modules.items():
            handle = module.register_forward_hook(
                lambda _, args, out, name=name: found.setdefault(name, []).append(
                    (args[0] if args else None, out)))
            stack.callback(handle.remove)
        run.run(batch, last)
    return found


def rows_in(layer: nn.Module, calls: Calls) -> Tensor:
    """Inputs of all calls of a layer as rows."""
    return torch.cat([input_rows(layer, x) for x, _ in calls])


def rows_out(layer: nn.Module, calls: Calls) -> Tensor:
    """Outputs of all calls of a layer as rows."""
    return torch.cat([output_rows(layer, out) for _, out in calls])


def block_rows(layer: nn.Module, out: Any) -> Tensor:
    """A block's output as rows, in the layout of one of its layers' outputs."""
    return output_rows(layer, flat_tensors(out)[0])


def added_last(run: ResumableForward, block: str, layer: nn.Module) -> Optional[Tensor]:
    """How a layer's outputs enter its block's: None if by more than a factor for each channel.

    It is tried: the outputs are moved at random, and the block's outputs looked at.

    Args:
        run (ResumableForward): The network, of which one batch is run.
        block (str): Path of the block.
        layer (nn.Module): Within it.

    Returns:
        Tensor, optional: The factors, (outputs,); 1 but for layer scale.
    """
    module = run.host.get_submodule(block)
    if module is layer:
        return None
    before = caught(run, 0, {'block': module, 'layer': layer}, module)
    if [len(before.get(name, ())) for name in ('block', 'layer')] != [1, 1] or \
            isinstance(layer, nn.ConvTranspose2d):
        return None
    rows, out = block_rows(layer, before['block'][0][1]), before['layer'][0][1]
    step = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out) * out.std()
    handle = layer.register_forward_hook(lambda _, __, found: found + step)
    try:
        moved = caught(run, 0, {'block': module}, module)['block'][0][1]
    finally:
        handle.remove()
    step = output_rows(layer, step)
    if rows.shape != step.shape:
        return None
    change = (block_rows(layer, moved) - rows).double()
    step = step.double()
    factors = (change * step).sum(0) / step.square().sum(0).clamp(min=1e-30)
    rest = (change - factors * step).square().sum().sqrt()
    exact = rest <= 1e-3 * change.square().sum().sqrt()
    return factors.to(out) if exact and factors.abs().min() > 1e-6 * factors.abs().max() else None
