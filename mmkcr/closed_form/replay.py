"""Running a network repeatedly over its images, each time from a later block on."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.core.forward import Reached, flat_tensors, stop_after
from .batches import number_batches
from .options import Forward
from .readers import output_rows


class ResumableForward:
    """Runs a network repeatedly over its batches, each time only the block that is entered.

    While block 3 is entered, blocks 0 to 2 give known outputs instead of computing them::

        images    block 0   block 1   block 2            block 3          block 4
        (shapes   (NaN of   (NaN of   (its recorded      (runs; inputs    (not reached by a
         alone)    shape)    shape)    outputs)           are recorded)    run within block 3)

    A run that ends within block 3 calls it with its recorded inputs. Any other run calls the whole
    model. The NaN tell whether that is right: if any reaches block 3, it reads more than the output
    of block 2 (parallel blocks, a residual sum outside of them). Then all blocks compute again, as
    where records take more than ``most_bytes``, for inputs and for outputs of a block.

    The model is in eval mode, and restored by :meth:`close`.

    Args:
        model (nn.Module): The network.
        host (nn.Module): The part of it at which paths of blocks start.
        batches (Sequence): Batches of images.
        forward (Callable): Takes the model and a batch; returns the outputs.
        most_bytes (int): Most memory for the inputs of a block, and for its outputs. Defaults to
            2 GiB.
    """

    def __init__(self, model: nn.Module, host: nn.Module, batches: Any, forward: Forward,
                 most_bytes: int = 2**31) -> None:
        self.model, self.host, self.batches, self.forward = model, host, batches, forward
        self.most_bytes, self._batch, self._block = most_bytes, 0, ''
        self._inputs: list[tuple] | None = None  # of the block, by batch
        self._outputs: list[dict[str, list[Any]]] = []  # by batch, then by path, one for each call
        self._known: dict[nn.Module, list[Any]] = {}  # of finished blocks, outputs by batch
        self._own: dict[nn.Module, Any] = {}  # a `forward` that is the block's own
        self._all_compute = False
        self._shapes: dict[int, Any] = {}  # batches without their values
        #: How often a forward calls a module; a part shared by several levels runs for each.
        self.calls: Counter = Counter()
        with ExitStack() as stack:
            for module in model.modules():
                stack.enter_context(module.register_forward_hook(
                    lambda module, *_: self.calls.update([module])))
            self.run(0)

    @cached_property
    def images(self) -> list[range]:
        """Numbers of each batch's images among all."""
        return [images for _, images in number_batches(self.batches)]

    def run(self, batch: int, last: nn.Module | None = None) -> Any:
        """Run one batch without gradients, up to the last call of ``last``."""
        self._batch = batch
        with torch.no_grad(), stop_after(last, max(self.calls[last], 1)):
            if self._inputs is not None:
                block = self.host.get_submodule(self._block)
                if any(module is last for module in block.modules()):
                    args, named = _copy_tensors(self._inputs[batch])
                    return block(*args, **named)
            if not self._known or self._all_compute:
                return self.forward(self.model, self.batches[batch])
            if batch not in self._shapes:
                self._shapes[batch] = _hide_values(self.batches[batch])
            return self.forward(self.model, self._shapes[batch])

    def enter(self, block: str) -> None:
        """Go on to a block, in the order of the forward; earlier blocks change no more.

        Within most backbones a block's output is all that the next block reads. A neck or a head
        reads several outputs of the backbone, so there the outputs of the whole part are kept.
        """
        before, part, following = self._block, *(
            path.partition('.')[0] for path in (self._block, block))
        if before and (part == following == 'backbone' or not isinstance(
                getattr(self.host, 'backbone', None), nn.Module)):
            self._finish(before)
        elif before and part != following:
            self.close()
            self._finish(part)
        self._inputs, self._outputs = None, []
        if self._known and not self._reads_known_outputs(block):
            self.close()
        self._block, self._inputs = block, self._inputs_of(block)

    def once(self, path: str) -> bool:
        """Whether a forward calls a module of the host, and no more than once."""
        return self.calls[self.host.get_submodule(path)] == 1

    def outputs_of(self, batch: int, paths: Sequence[str]) -> dict[str, list[Any]]:
        """Outputs of some modules in a batch, one for each call; the last of them ends the run."""
        known = self._outputs[batch] if self._outputs else {}
        if all(known.get(path) for path in paths):
            return known
        return {path: [out for _, out in calls]
                for path, calls in catch_calls(self, batch, paths).items()}

    def record(self, paths: Sequence[str]) -> None:
        """Keep the outputs of some modules in all batches, of the weights now, if they fit."""
        called = [path for path in paths if self.calls[self.host.get_submodule(path)]]
        if called:
            self._outputs = self._of_all_batches(lambda batch: self.outputs_of(batch, called)) or []

    def _finish(self, path: str) -> None:
        """Let a block give its present outputs from now on, if they can be recorded."""
        if self.once(path) and not self._outputs:
            self.record([path])
        if not (self.once(path) and self._outputs):
            self.close()
            return
        for last in [*self._known][-1:]:  # read by no one now; the shapes are enough
            self._known[last] = _hide_values(self._known[last])
        block = self.host.get_submodule(path)
        compute = block.forward
        self._known[block] = [outputs[path][0] for outputs in self._outputs]
        self._own[block] = vars(block).get('forward')

        def give(*args: Any, **named: Any) -> Any:
            """The known output of the batch, in place of the block's forward."""
            if self._all_compute:
                return compute(*args, **named)
            return _copy_tensors(self._known[block][self._batch])

        block.forward = give

    def _of_all_batches(self, record: Callable[[int], Any]) -> list[Any] | None:
        """Records of all batches, in order; None if they do not fit in memory."""
        content: list[Any] = []
        size = 0  # a sum over all records would grow with the square of their number
        for batch in range(len(self.batches)):
            content.append(record(batch))
            size += sum(tensor.nbytes for tensor in flat_tensors(content[-1]))
            if size * len(self.batches) > self.most_bytes * len(content):
                return None
        return content

    def _reads_known_outputs(self, block: str) -> bool:
        """Whether a block's inputs in the first batch are right, as if all blocks compute."""
        given = self._input_of(block, 0)
        tensors = flat_tensors(given, floating=False)
        if all(tensor.is_floating_point() for tensor in tensors):
            return bool(tensors) and not any(tensor.isnan().any() for tensor in tensors)
        # masks and indices do not show whether they were computed from NaN
        self._all_compute = True
        expected = self._input_of(block, 0)
        self._all_compute = False
        return _equal(given, expected)

    def _input_of(self, path: str, batch: int) -> tuple:
        """Positional and named arguments of a block in a batch; () if it is not called."""
        block, inputs = self.host.get_submodule(path), []

        def catch(_: nn.Module, *given: Any) -> None:
            """Take the arguments of a call, and end the run."""
            inputs.extend(_copy_tensors(given))
            raise Reached

        with block.register_forward_pre_hook(catch, with_kwargs=True):
            self.run(batch, block)
        return tuple(inputs)

    def _inputs_of(self, path: str) -> list[tuple] | None:
        """Arguments of a block in all batches; None if they are of no use, or do not fit."""
        inputs = self._of_all_batches(
            lambda batch: self._input_of(path, batch)) if self.once(path) else None
        return inputs if inputs and self._alone(path, inputs) else None

    def _alone(self, path: str, inputs: list[tuple]) -> bool:
        """Whether a block needs nothing but its inputs where these differ in size.

        A host may leave notes on the current image in a block.
        """
        shapes = [[tensor.shape for tensor in flat_tensors(given)] for given in inputs]
        others = [batch for batch, shape in enumerate(shapes) if shape != shapes[0]]
        if not others:
            return True
        block, expected = self.host.get_submodule(path), self.outputs_of(0, [path])[path][0]
        args, named = _copy_tensors(inputs[0])
        self.run(others[0], block)
        with torch.no_grad():
            return _equal(block(*args, **named), expected)

    def close(self) -> None:
        """Have all blocks compute."""
        for block, forward in self._own.items():
            del block.forward  # the class has its own
            if forward is not None:  # `accelerate` puts one there
                block.forward = forward
        self._known, self._own, self._shapes, self._all_compute = {}, {}, {}, False
        self._block, self._inputs, self._outputs = '', None, []


def map_tensors(out: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A nest of tuples, lists and dicts with a function's result in place of each tensor."""
    if isinstance(out, Tensor):
        return function(out)
    if type(out) in (tuple, list):
        return type(out)(map_tensors(part, function) for part in out)
    if type(out) is dict:
        return {key: map_tensors(part, function) for key, part in out.items()}
    return out


def _copy_tensors(out: Any) -> Any:
    """Copies, because many hosts run an activation in place behind a layer."""
    return map_tensors(out, lambda tensor: tensor.detach().clone())


def _equal(one: Any, other: Any) -> bool:
    """Whether two nests have equal tensors."""
    one, other = (flat_tensors(nest, floating=False) for nest in (one, other))
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _hide_values(out: Any) -> Any:
    """NaN in place of all floating point values; one element in memory, whatever the shape.

    Masks, indices and sizes stay: hosts hand them on to all blocks.
    """
    return map_tensors(out, lambda tensor: tensor.new_full((), float('nan')).expand(tensor.shape)
                       if tensor.is_floating_point() else tensor)


def catch_calls(run: ResumableForward, batch: int, paths: Sequence[str]) -> dict[str, list[tuple]]:
    """Record the calls of some modules in one forward, which ends behind the last module.

    Args:
        run (ResumableForward): The network and its batches.
        batch (int): Number of the batch.
        paths (Sequence[str]): Paths of the modules from the host.

    Returns:
        dict[str, list[tuple]]: By path, for each call, the first positional input and the output.
        All tensors are copies.
    """
    calls: dict[str, list[tuple]] = {path: [] for path in paths}
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(run.host.get_submodule(path).register_forward_hook(
                lambda _, args, out, path=path: calls[path].append(
                    _copy_tensors((args[0] if args else None, out)))))
        run.run(batch, run.host.get_submodule(paths[-1]))
    return calls


def block_rows(layer: nn.Module, out: Any, chosen: Tensor | None = None) -> Tensor:
    """A block's output as rows, in the layout of one of its layers' outputs.

    Args:
        layer (nn.Module): The layer.
        out (Any): Output of the block; its first tensor counts.
        chosen (Tensor, optional): Numbers of the rows, (n,). Defaults to None: all.
    """
    return output_rows(layer, flat_tensors(out)[0], chosen)


def norms_behind(run: ResumableForward, layers: Iterable[str]) -> dict[str, str]:
    """Paths of the batch norms that take the outputs of layers without a bias, by layer.

    The mean of the norm can take the bias that the layer lacks. The norm is found by experiment,
    with one batch: its input *is* the layer's output, and neither is called again.
    """
    bare = {path: layer for path in layers if (layer := run.host.get_submodule(path)).bias is None}
    norms = {path: module for path, module in run.host.named_modules()
             if isinstance(module, _BatchNorm) and module.running_mean is not None}
    if not (bare and norms):
        return {}
    last, followers = [None, None], {}  # path of the layer that was called last, and its output

    def layer_ran(path: str, _: nn.Module, __: tuple, out: Tensor) -> None:
        """Note the path of a layer and its output ``out``."""
        last[:] = path, out

    def norm_runs(path: str, _: nn.Module, args: tuple) -> None:
        """Note the path of a norm if its ``args`` are the output of the last layer."""
        if args[0] is last[1]:
            followers[last[0]] = path

    with ExitStack() as stack:
        for path, layer in bare.items():
            stack.enter_context(layer.register_forward_hook(partial(layer_ran, path)))
        for path, norm in norms.items():
            stack.enter_context(norm.register_forward_pre_hook(partial(norm_runs, path)))
        run.run(0)
    return {path: norm for path, norm in followers.items() if run.once(path) and run.once(norm)}


def output_factors(run: ResumableForward, block: str, path: str) -> Tensor | None:
    """Factors (outputs,) of a layer's outputs in its block's outputs; 1 except with layer scale.

    They are found by experiment: the layer's outputs are shifted at random, and the change of the
    block's outputs is compared with the shift. None: the change is no multiple of the shift.

    Args:
        run (ResumableForward): The network, with the block entered.
        block (str): Path of the block.
        path (str): Path of the layer.
    """
    layer = run.host.get_submodule(path)
    if path == block or isinstance(layer, nn.ConvTranspose2d):
        return None
    before = catch_calls(run, 0, [path, block])
    if [len(calls) for calls in before.values()] != [1, 1]:
        return None  # a layer that is shared, or not reached
    rows, out = block_rows(layer, before[block][0][1]), before[path][0][1]
    # as large as the outputs themselves, so that rounding does not matter
    step = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out) * out.std()
    with layer.register_forward_hook(lambda _, __, out: out + step):
        moved = catch_calls(run, 0, [block])[block][0][1]
    step = output_rows(layer, step)
    if rows.shape != step.shape:
        return None
    change = (block_rows(layer, moved) - rows).double()
    step = step.double()
    # least squares per channel, change = factor * step; then the unexplained rest
    factors = (change * step).sum(0) / step.square().sum(0).clamp(min=1e-30)
    rest = (change - factors * step).square().sum().sqrt()
    exact = rest <= 1e-3 * change.square().sum().sqrt()
    # callers divide by the factors, so none may vanish
    return factors.to(out) if exact and factors.abs().min() > 1e-6 * factors.abs().max() else None
