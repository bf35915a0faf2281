"""Running a network repeatedly over the same images, each time from a later block on."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.core.forward import Reached, flat_tensors, stop_after
from .batches import images_of
from .options import Forward
from .readers import output_rows


class Replay(nn.Module):
    """Stand-in for a block whose outputs are known; it has the block's attributes.

    Args:
        block (nn.Module): The block.
        outputs (list): Its outputs for every batch.
        cursor (list[int]): Index of the current batch, shared by all stand-ins of a network.
    """

    def __init__(self, block: nn.Module, outputs: list[Any], cursor: list[int]) -> None:
        super().__init__()
        self.outputs, self.cursor = outputs, cursor
        self._block = (block, )  # no child: its parameters are those of the block itself

    def __getattr__(self, name: str) -> Any:
        """Attributes that the host reads off a block, such as its width."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__['_block'][0], name)

    def forward(self, *_: Any, **__: Any) -> Any:
        """Outputs for the current batch, copied because later layers may work in place.

        The expanded values of earlier blocks are not copied: nobody uses them.
        """
        return _mapped(self.outputs[self.cursor[0]], lambda tensor: tensor.clone()
                       if tensor.is_contiguous() else tensor)


class ResumableForward:
    """Runs a network repeatedly over the same batches, each time only the block that is entered.

    While block 3 is entered, blocks 0 to 2 are replaced by stand-ins (:class:`Replay`)::

        images    block 0   block 1   block 2            block 3          block 4
        (shapes   (NaN of   (NaN of   (its recorded      (runs; inputs    (not reached by a
         alone)    shape)    shape)    outputs)           are recorded)    run within block 3)

    A run that ends within block 3 calls it with its recorded inputs. Any other run calls the whole
    model; the stand-ins cost nothing. The NaN tell whether that is right: if any reaches block 3,
    it reads more than the output of block 2 (parallel blocks, a residual sum outside of them). Then
    all stand-ins are removed and everything is computed, as where records take too much memory.

    Args:
        model (nn.Module): Restored by :meth:`close`.
        host (nn.Module): Its backbone; paths of blocks start here.
        batches (Sequence): What ``forward`` takes.
        forward (Callable): Takes model and batch.
        most_bytes (int): Limit for each of the inputs and the outputs of a block that are kept.
            Defaults to 2 GiB.
    """

    def __init__(self, model: nn.Module, host: nn.Module, batches: Any, forward: Forward,
                 most_bytes: int = 2**31) -> None:
        self.model, self.host, self.batches, self.forward = model, host, batches, forward
        self.most_bytes = most_bytes
        self._counts: list[int] = []  # images of the batches
        self._cursor, self._replaced, self._last = [0], [], None
        self._shapes: dict[int, Any] = {}
        self._calls: dict[nn.Module, int] | None = None
        self._leave()

    def _leave(self) -> None:
        """Forget the entered block."""
        self._block: str | None = None
        self._inputs: list[tuple[tuple, dict]] | None = None  # of the block, by batch
        self._wanted: tuple[str, ...] = ()
        self._outputs: dict[str, list[Any] | None] = {}

    def module(self, path: str) -> nn.Module:
        """A module by its path in the host, or by ``/`` and its path in the model."""
        return self.model.get_submodule(path[1:]) if path.startswith('/') else \
            self.host.get_submodule(path)

    def images(self, batch: int) -> range:
        """Numbers of a batch's images among all."""
        while len(self._counts) <= batch:
            self._counts.append(images_of(self.batches[len(self._counts)]))
        first = sum(self._counts[:batch])
        return range(first, first + self._counts[batch])

    def run(self, batch: int, last: nn.Module | None = None) -> Any:
        """Run one batch without gradients, up to the last call of ``last``."""
        self._cursor[0] = batch
        with torch.no_grad(), stop_after(last, 1 if last is None else self.calls(last)):
            if self._inputs is not None:
                block = self.host.get_submodule(self._block)
                if any(module is last for module in block.modules()):
                    # copies, as hosts may work in place
                    args, named = _mapped(self._inputs[batch], torch.clone)
                    return block(*args, **named)
            if self._last is not None and batch not in self._shapes:
                # behind a finished block only the shapes of the images matter
                self._shapes[batch] = _unknown(self.batches[batch])
            return self.forward(self.model, self.batches[batch] if self._last is None else
                                self._shapes[batch])

    def calls(self, module: nn.Module) -> int:
        """How often a forward calls a module; a part shared by several levels runs for each."""
        if self._calls is None:
            counts: dict[nn.Module, int] = {}
            with ExitStack() as stack, torch.no_grad():
                for layer in self.model.modules():
                    handle = layer.register_forward_hook(
                        lambda layer, *_: counts.__setitem__(layer, counts.get(layer, 0) + 1))
                    stack.callback(handle.remove)
                self._cursor[0] = 0
                self.forward(self.model, self.batches[0])
            self._calls = counts
        return self._calls.get(module, 1)

    def enter(self, block: str, wanted: Sequence[str] = ()) -> None:
        """Go on to a block; the one before is finished and changes no more.

        Within most backbones a block's output is all that the next block reads. A neck or a head
        reads several outputs of the backbone, so there the outputs of the whole part are kept.

        Args:
            block (str): Path in the host. Blocks are entered in the order of the forward.
            wanted (Sequence[str]): Paths of modules whose outputs are asked for as well
                (:meth:`outputs`): one pass then gives all of them. Defaults to ().
        """
        before, inputs = self._block, self._inputs
        if before is not None:
            parts = [path.partition('.')[0] for path in (before, block)]
            bare = not isinstance(getattr(self.host, 'backbone', None), nn.Module)
            if bare or parts == ['backbone', 'backbone']:
                known = self._finish(before, block)
                # in most networks the next block gets the block's output, and the block's other
                # arguments (masks, sizes of maps) once more; its inputs in the first batch tell
                following = None
                if known is not None and inputs and inputs[0][0] and \
                        isinstance(known[0][0], Tensor):
                    following = [((out, *args[1:]), named)
                                 for (args, named), out in zip(inputs, known[0])]
                inputs = following if following and _equal(tuple(known[1]), following[0]) else None
            else:
                inputs = None
                if parts[0] != parts[1]:
                    self.close()
                    self._finish(parts[0], block)
        self._leave()
        inputs = inputs or (self._inputs_of(block) if self._once(block) else None)
        self._block, self._inputs = block, inputs
        # what is not within the block may run behind it
        self._wanted = tuple(path for path in wanted if f'{path}.'.startswith(f'{block}.'))

    def outputs(self, path: str) -> list[Any] | None:
        """Outputs of a module for every batch, as the weights are at the first call.

        They are cached until the next block is entered.

        Returns:
            list, optional: None if they do not fit in memory, or if a forward does not call the
            module once.
        """
        if path not in self._outputs:
            # outputs that are wanted come with those of the block
            together = (self._block, *self._wanted)
            self._outputs.update(self._record(together if path in together else (path, )))
        return self._outputs[path]

    def _once(self, path: str) -> bool:
        """Whether a forward calls a module, and no more than once."""
        module = self.module(path)
        return self.calls(module) == 1 and module in self._calls

    def _record(self, paths: Sequence[str]) -> dict[str, list[Any] | None]:
        """Outputs of a module, the first of the paths, and of others within it."""
        nothing = dict.fromkeys(paths)
        found: dict[str, list[Any]] = {path: [] for path in paths if self._once(path)}
        if paths[0] not in found:
            return nothing
        with ExitStack() as stack:
            for path, outputs in found.items():
                stack.callback(self.module(path).register_forward_hook(
                    lambda _, __, out, outputs=outputs: outputs.append(_kept(out))).remove)
            for batch in range(len(self.batches)):
                self.run(batch, self.module(paths[0]))
                if not self._fits(list(found.values()), batch + 1):
                    return nothing
        return {**nothing, **found}

    def _fits(self, found: Any, batches: int) -> bool:
        """Whether as much as was found in some batches may be kept of all batches."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in flat_tensors(found))
        return size * len(self.batches) <= self.most_bytes * batches

    def _finish(self, path: str, following: str) -> tuple[list[Any], list[Any]] | None:
        """Keep the outputs of a block, if they fit, and run from there on, if that is all.

        Returns:
            tuple, optional: If the next block needs nothing else of what is before it, the
            outputs, and what that block gets in the first batch.
        """
        outputs = self.outputs(path)
        if outputs is None:
            self.close()
            return None
        self._leave()
        if self._last is not None:
            # the previous stand-in is read by no one now; its shapes are enough
            self._last.outputs = [_unknown(out) for out in self._last.outputs]
        parent, _, name = path.rpartition('.')
        block = self.host.get_submodule(path)
        self._last = Replay(block, outputs, self._cursor)
        self._replaced.append((self.host.get_submodule(parent), name, block, self._last))
        setattr(self.host.get_submodule(parent), name, self._last)
        found = self._input_of(following, 0)
        if self._inputs_are_true(following, found):
            return outputs, found
        self.close()
        return None

    def _inputs_are_true(self, path: str, found: list[Any]) -> bool:
        """Whether the inputs of a block behind stand-ins are those of the network without any.

        Args:
            path (str): The block.
            found (list): Its inputs in the first batch, behind the stand-ins.
        """
        values = flat_tensors(found)
        if not values or any(tensor.isnan().any() for tensor in values):
            return False
        discrete = _discrete(found)
        if not discrete:
            return True
        # masks and indices do not show whether they were computed from NaN
        with self._whole():
            expected = _discrete(self._input_of(path, 0))
        return len(discrete) == len(expected) and all(map(torch.equal, discrete, expected))

    def _input_of(self, path: str, batch: int) -> list[Any]:
        """What a block gets in a batch: positional and named arguments; [] if it is not called."""
        block, inputs = self.host.get_submodule(path), []

        def catch(_: nn.Module, args: tuple, named: dict) -> None:
            inputs.extend([_kept(args), _kept(named)])
            raise Reached

        handle = block.register_forward_pre_hook(catch, with_kwargs=True)
        try:
            with suppress(Reached):
                self.run(batch, block)
        finally:
            handle.remove()
        return inputs

    def _inputs_of(self, path: str) -> list[tuple[tuple, dict]] | None:
        """What a block gets in all batches, or None if that does not fit in memory."""
        inputs: list[tuple[tuple, dict]] = []
        for batch in range(len(self.batches)):
            found = self._input_of(path, batch)
            inputs.append(tuple(found))
            if not found or not self._fits(inputs, batch + 1):
                return None
        return inputs if self._alone(path, inputs) else None

    def _alone(self, path: str, inputs: list[tuple[tuple, dict]]) -> bool:
        """Whether a block needs nothing but its inputs where these differ in size.

        A host may leave on a block what it is to know of the current image.
        """
        shapes = [[tensor.shape for tensor in flat_tensors(found)] for found in inputs]
        if all(found == shapes[0] for found in shapes):
            return True
        block = self.host.get_submodule(path)
        expected = caught(self, 0, {path: block}, block)[path][0][1]
        args, named = _mapped(inputs[0], torch.clone)
        other = next(number for number, found in enumerate(shapes) if found != shapes[0])
        self.run(other, block)
        with torch.no_grad():
            return _equal(block(*args, **named), expected)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Within the block all stand-ins are away."""
        last, self._last = self._last, None
        for parent, name, block, _ in self._replaced:
            setattr(parent, name, block)
        try:
            yield
        finally:
            self._last = last
            for parent, name, _, stand_in in self._replaced:
                setattr(parent, name, stand_in)

    def close(self) -> None:
        """Put the blocks back."""
        for parent, name, block, _ in self._replaced:
            setattr(parent, name, block)
        self._replaced, self._last = [], None
        self._shapes.clear()
        self._leave()


def _kept(out: Any) -> Any:
    """Copies, because many hosts run an activation in place behind a layer."""
    return _mapped(out, lambda tensor: tensor.detach().clone())


def _equal(one: Any, other: Any) -> bool:
    """Whether two nests of tensors and other values are the same."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return one is other or bool(one == other)


def _unknown(out: Any) -> Any:
    """NaN in place of all floating point values; one element in memory, whatever the shape.

    Masks, indices and sizes stay: hosts hand them on to all blocks.
    """
    return _mapped(out, lambda tensor: tensor.new_full((), float('nan')).expand(tensor.shape)
                   if tensor.is_floating_point() else tensor)


def _discrete(out: Any) -> list[Tensor]:
    """The tensors that hold no floating point values."""
    found: list[Tensor] = []
    _mapped(out, lambda tensor: None if tensor.is_floating_point() else found.append(tensor))
    return found


def _mapped(out: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(out, Tensor):
        return function(out)
    if type(out) in (tuple, list):
        return type(out)(_mapped(part, function) for part in out)
    if type(out) is dict:
        return {key: _mapped(part, function) for key, part in out.items()}
    return out


Calls = list[tuple[Tensor, Any]]


def caught(run: ResumableForward, batch: int, modules: Mapping[str, nn.Module],
           last: nn.Module) -> dict[str, Calls]:
    """Inputs and outputs of some modules in one forward up to ``last``, one pair per call.

    Only the first positional input is recorded. All tensors are copies: many hosts run an
    activation in place behind a layer, which would change the layer's recorded outputs.

    Args:
        run (ResumableForward): The network.
        batch (int): Index of the batch.
        modules (Mapping[str, nn.Module]): By name.
        last (nn.Module): The last of them.
    """
    found: dict[str, Calls] = {}
    # may run a counting forward of its own, so it comes before the hooks
    run.calls(last)  # it may need a forward, which no hook is to see
    with ExitStack() as stack:
        for name, module in modules.items():
            handle = module.register_forward_hook(
                lambda _, args, out, name=name: found.setdefault(name, []).append(
                    _mapped((args[0] if args else None, out), torch.clone)))
            stack.callback(handle.remove)
        run.run(batch, last)
    return found


def block_rows(layer: nn.Module, out: Any, chosen: Tensor | None = None) -> Tensor:
    """A block's output as rows, in the layout of one of its layers' outputs."""
    return output_rows(layer, flat_tensors(out)[0], chosen)


def norms_behind(run: ResumableForward, layers: Iterable[str]) -> dict[str, str]:
    """Batch norms that take the outputs of layers without a bias, by the layer's path.

    The mean of such a norm can take what the layer has no bias for. It is found by experiment, with
    one batch: the norm's input *is* the layer's output, and neither is called again.

    Args:
        run (ResumableForward): The network, in evaluation mode.
        layers (Iterable[str]): Paths of layers, see :meth:`ResumableForward.module`.
    """
    bare = {path: layer for path in layers if (layer := run.module(path)).bias is None}
    inside = {module: path for path, module in run.host.named_modules()}
    norms = {inside.get(module, f'/{path}'): module for path, module in run.model.named_modules()
             if isinstance(module, _BatchNorm) and module.running_mean is not None}
    if not (bare and norms):
        return {}
    calls: Counter = Counter()
    last, found = [None, None], {}  # path of the layer that was called last, and its output

    def layer_ran(path: str, out: Tensor) -> None:
        calls[path] += 1
        last[:] = path, out

    def norm_runs(path: str, x: Tensor) -> None:
        calls[path] += 1
        if x is last[1]:
            found[last[0]] = path

    with ExitStack() as stack:
        for path, layer in bare.items():
            stack.callback(layer.register_forward_hook(
                lambda _, __, out, path=path: layer_ran(path, out)).remove)
        for path, norm in norms.items():
            stack.callback(norm.register_forward_pre_hook(
                lambda _, args, path=path: norm_runs(path, args[0])).remove)
        run.run(0)
    # not across the host's border: what is refitted is stored by the host's paths
    return {path: norm for path, norm in found.items() if calls[path] == calls[norm] == 1 and
            path.startswith('/') == norm.startswith('/')}


def added_last(run: ResumableForward, block: str, path: str) -> Tensor | None:
    """Factor per channel with which a layer's outputs enter its block's outputs, or None.

    It is found by experiment: the layer's outputs are shifted at random, and the change of the
    block's outputs is compared with the shift. None means that the relation is not such a factor.

    Args:
        run (ResumableForward): The network, of which one batch is run.
        block (str): Path of the block.
        path (str): Path of the layer, within it.

    Returns:
        Tensor, optional: The factors, (outputs,); 1 except with layer scale.
    """
    module, layer = run.host.get_submodule(block), run.module(path)
    if module is layer or isinstance(layer, nn.ConvTranspose2d):
        return None
    known = [run.outputs(name) for name in (block, path)]
    if None in known:  # a layer that is shared, or not reached; or outputs that do not fit
        before = caught(run, 0, {'block': module, 'layer': layer}, module)
        if [len(before.get(name, ())) for name in ('block', 'layer')] != [1, 1]:
            return None
        known = [[out for _, out in before[name]] for name in ('block', 'layer')]
    rows, out = block_rows(layer, known[0][0]), known[1][0]
    # as large as the outputs themselves, so that rounding does not matter
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
    # least squares per channel, change = factor * step; then what it leaves unexplained
    factors = (change * step).sum(0) / step.square().sum(0).clamp(min=1e-30)
    rest = (change - factors * step).square().sum().sqrt()
    exact = rest <= 1e-3 * change.square().sum().sqrt()
    # callers divide by the factors, so none may vanish
    return factors.to(out) if exact and factors.abs().min() > 1e-6 * factors.abs().max() else None
