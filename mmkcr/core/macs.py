"""Multiply-accumulates: counted, and as a differentiable function of the gates.

mmpretrain's and the papers' tables call MACs FLOPs: half of the floating point operations
of every matrix product and convolution, attention products included.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .forward import eval_mode
from .products import BytesModel, ParamsModel, ProductsModel, Sides, added_layers
from .sites import Cost, Site


class MacsReport(NamedTuple):
    """MACs of one forward; only modules with matrix products appear."""

    total: int  # of the whole model
    modules: dict[str, int]  # by module path, with all that a module calls
    operators: dict[str, int]  # by operator name
    own: dict[str, int]  # by the path of the innermost running module; '' is the model itself


def count_forward_macs(model: nn.Module, forward: Callable[[], Any]) -> MacsReport:
    """Count the MACs of a call that runs a model once, in eval mode and without gradients.

    The count depends on shapes alone. So matrix products, convolutions and interpolation are not
    computed; their outputs are zeros. Products with vectors, ``nn.Bilinear`` and recurrent layers
    count as well. Operators without a matrix product count nothing (elementwise and outer products,
    sums, sampling), nor does a product of sparse tensors or in an operator of another library.
    Attributes and buffers of the model's modules are restored afterwards.
    """
    paths = {module: path for path, module in model.named_modules()}
    # modules may keep what they derive from the size, such as tables of rotary positions: of zeros
    kept = [(module, dict(module.__dict__), dict(module._buffers)) for module in paths]
    # hosts with frozen stages freeze them again, gates too, when they leave the eval mode
    trained = [parameter for module in paths for parameter in module._parameters.values()
               if parameter is not None and parameter.requires_grad]
    counter = _Counter(paths)
    try:
        # the counter knows matrix products, but not every device's fused attention, nor the fast
        # path of `nn.MultiheadAttention`
        with eval_mode(model), torch.no_grad(), without_fast_path(), \
                sdpa_kernel(SDPBackend.MATH), counter:
            forward()
    finally:
        counter.close()
        for module, attributes, buffers in kept:
            for current, before in ((module.__dict__, attributes), (module._buffers, buffers)):
                current.clear()
                current.update(before)
        for parameter in trained:
            parameter.requires_grad_(True)
    return counter.report()


def _multiplied(*operands: Tensor, out_val: Any = None, **_: Any) -> int:
    """FLOPs of (bias or not), (..., M, K) or (K,), then (..., K, N) or (K,)."""
    left, right = operands[-2:]
    return 2 * left.numel() * (right.shape[-1] if right.ndim > 1 else 1)


def _trilinear(*args: Any, out_val: Any = None, **_: Any) -> int:
    """FLOPs of `nn.Bilinear`: terms of the sum over the inputs, expanded by dimensions of 1."""
    shapes = []
    for value, dims in zip(args[:3], args[3:6]):
        for dim in dims:
            value = value.unsqueeze(dim)
        shapes.append(value.shape)
    return 2 * math.prod(torch.broadcast_shapes(*shapes))


def _recurrent(inputs: Tensor, *args: Any, out_val: Any = None, **_: Any) -> int:
    """FLOPs of recurrent layers: at every position all their matrices, of inputs and states."""
    first = args[0]  # a list of the weights; or singly, where each layer is an operator
    weights = first if isinstance(first, (list, tuple)) else args[:2]
    positions = inputs.numel() // inputs.shape[-1]
    return 2 * positions * sum(weight.numel() for weight in weights if weight.ndim == 2)


aten = torch.ops.aten

#: FLOPs of matrix products, for which the function of PyTorch's counter takes longer.
_MATRICES = dict.fromkeys((aten.mm, aten.addmm, aten.bmm, aten.baddbmm), _multiplied)

#: The product in a sum, whose shape is the sum's: of sums PyTorch infers shapes slowly.
_PRODUCTS = {aten.addmm: aten.mm.default, aten.baddbmm: aten.bmm.default}

#: Interpolation, which is no product, takes longer than all else in some networks. One channel
#: tells the shape.
_BY_CHANNEL = (aten.grid_sampler_2d, aten.grid_sampler_3d, aten.upsample_bilinear2d,
               aten.upsample_bicubic2d)

#: FLOPs of further products, which are computed, by the operator's name.
_FURTHER = {**dict.fromkeys(('dot', 'vdot', 'mv', 'addmv', 'addbmm', '_int_mm'), _multiplied),
            '_trilinear': _trilinear}


class _Rule(NamedTuple):
    """How an operator is counted."""

    flops: Callable[..., int] | None  # None if it is no product
    is_inferred: bool  # or computed
    is_composite: bool  # it consists of other operators, as a linear layer for inference


@functools.lru_cache(maxsize=None)
def _find_rule(operator: Any) -> _Rule:
    """The rule of an operator; each library of recurrent layers has an operator of its own."""
    packet = operator._overloadpacket
    known = _MATRICES.get(packet) or flop_registry.get(packet)
    space, _, name = operator.name().partition('.')[0].partition('::')
    further = None
    if space == 'aten':
        further = _recurrent if name.endswith(('rnn_layer', '_rnn')) else _FURTHER.get(name)
    flops = known or further
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        operator.name(), torch._C.DispatchKey.CompositeImplicitAutograd)
    inferred = known is not None or packet in _BY_CHANNEL
    return _Rule(flops, inferred, flops is None and composite)


class _Form(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: Any) -> Any:
        """The form of a tensor, a tuple in the place of a list, and any other value itself."""
        if isinstance(value, Tensor):
            return cls(value.shape, value.stride(), value.dtype)
        return tuple(value) if isinstance(value, list) else value

    def make(self, device: Any) -> Tensor:
        """A tensor of this form, whose values are not set."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


def _infer(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Form:
    """Form of the result of an operator, which is not computed."""
    packet = operator._overloadpacket
    if packet in _BY_CHANNEL:
        first = operator(args[0][:, :1], *args[1:], **kwargs)
        all_channels = first.new_empty((*args[0].shape[:2], *first.shape[2:]), device='meta')
        return _Form.of(all_channels)
    if packet in _PRODUCTS:
        out = _infer(_PRODUCTS[packet], args[1:], {})
        args[0].expand(out.shape)  # or it is refused
        return out
    named = tuple((name, _Form.of(value)) for name, value in kwargs.items())
    return _infer_form(operator, tuple(map(_Form.of, args)), named)


@functools.lru_cache(maxsize=4096)
def _infer_form(operator: Any, forms: tuple[Any, ...], named: tuple[Any, ...]) -> _Form:
    """Form of a result on the device ``meta``; blocks of a network ask for the same ones again."""
    def value_of(form: Any) -> Any:
        return form.make('meta') if isinstance(form, _Form) else form

    return _Form.of(operator(*map(value_of, forms),
                             **{name: value_of(form) for name, form in named}))


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Within the block ``nn.MultiheadAttention`` is no single operator, which few others know."""
    fast = torch.backends.mha
    before = fast.get_fastpath_enabled()
    fast.set_fastpath_enabled(False)
    try:
        yield
    finally:
        fast.set_fastpath_enabled(before)


class _Counter(TorchDispatchMode):
    """Counts products by the running module of a model.

    Results of products and of interpolation are zeros.
    PyTorch's own counter takes twice the time: it enters a mode for every operator.

    Args:
        paths (Mapping[nn.Module, str]): Path of every module; that of the model itself is ``''``.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether its compiler is told to skip every operator: nothing is compiled here."""
        return False

    def __init__(self, paths: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self._paths = paths
        self._running = ['']  # stack of module paths, the innermost last
        self._operators: Counter[str] = Counter()
        self._stacks: Counter[tuple[str, ...]] = Counter()
        # for all modules at once: two hooks for each take as long as its operators
        self._handles = [register_module_forward_pre_hook(self._enter),
                         register_module_forward_hook(self._leave)]

    def _enter(self, module: nn.Module, *_: Any) -> None:
        if self._paths.get(module):
            self._running.append(self._paths[module])

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._paths.get(module):
            self._running.pop()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def report(self) -> MacsReport:
        """A count of MACs; a MAC is two FLOPs."""
        own: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        for running, flops in self._stacks.items():
            own[running[-1]] += flops
            for path in set(running[1:]):  # a module includes what it calls
                modules[path] += flops
        return MacsReport(sum(self._operators.values()) // 2, *(
            {name: flops // 2 for name, flops in counts.items()}
            for counts in (modules, self._operators, own)))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        rule = _find_rule(func)
        if rule.is_composite:
            with self:
                return func.decompose(*args, **kwargs)
        if rule.is_inferred:
            device = next(value.device for value in args if isinstance(value, Tensor))
            out = _infer(func, args, kwargs).make(device).zero_()
        else:
            out = func(*args, **kwargs)
        if rule.flops is not None:
            flops = rule.flops(*args, **kwargs, out_val=out)
            self._operators[str(func._overloadpacket)] += flops
            self._stacks[tuple(self._running)] += flops
        return out


def count_params(model: nn.Module) -> int:
    """Number of parameters, without buffers."""
    return sum(parameter.numel() for parameter in model.parameters())


class MacsModel(ProductsModel):
    """MACs of the subnet as a closed form of the sizes of its sites.

    One forward counts every module as it is. The MACs of a layer are proportional to the sides of
    its weight, and those of an attention product to the channels of all heads. Hence the sites'
    axes determine the count, see :class:`ProductsModel`. Integers give exactly that of the built
    subnet, and an expectation is exact if choices are independent and no site occurs twice in a
    product. ``dense`` is the count at full sizes without the layers that a method adds and that the
    dense parent lacks. ``added`` is the count of these layers.

    Args:
        model (nn.Module): The supernet or dense host, or a task model around it.
        root (nn.Module): The host network: ``model`` or a descendant of it.
        sites (Mapping[str, Site]): See :class:`ProductsModel`; all must be reached.
        forward (Callable): Runs ``model`` once on a batch of one.
    """

    def __init__(self, model: nn.Module, root: nn.Module, sites: Mapping[str, Site],
                 forward: Callable[[], Any]) -> None:
        super().__init__(sites)
        self.model = model
        if not self.sites:
            raise ValueError('expected a backbone with sites, found none in '
                             f'`{root.__class__.__name__}`')
        self.shapes: dict[str, tuple[int, ...]] = {}
        with ExitStack() as stack:
            for name, site in self.sites.items():
                handle = site.owner.register_forward_pre_hook(
                    functools.partial(self._record, name), with_kwargs=True)
                stack.callback(handle.remove)
                if site.gate is not None:  # open gates, and the old state restored afterwards
                    stack.callback(setattr, site.gate, 'held_open', site.gate.held_open)
                    site.gate.held_open = True
            report = count_forward_macs(model, forward)
        missed = sorted(set(self.sites) - set(self.shapes))
        if missed:
            raise ValueError(f'expected the forward to reach every site, found that site '
                             f'`{missed[0]}` was not')
        self.fixed = report.total
        self._add_products(report.own, root)
        self.added = sum(report.modules.get(name, 0) for name in added_layers(model))
        self.dense = self({name: site.total for name, site in self.sites.items()}) - self.added

    def _record(self, name: str, _: nn.Module, inputs: tuple[Any, ...],
                named: dict[str, Any]) -> None:
        given = (value for value in (*inputs, *named.values()) if isinstance(value, Tensor))
        self.shapes[name] = tuple(next(given).shape)

    def _add_products(self, by_module: Mapping[str, int], root: nn.Module) -> None:
        """Take all products that sites change out of the constant, and add a term for each."""
        paths = {module: path for path, module in self.model.named_modules()}
        # other parameters have no products (a norm's weight has none: 0 MACs)
        sides_of = self._sides(lambda axis: paths[axis.module] if axis.name == 'weight' else None)
        products = [(by_module.get(path, 0), sides) for path, sides in sides_of.items()]
        for name in self._forms:  # they stand for all products of their modules
            below = f'{paths[self.sites[name].owner]}.'
            self.fixed -= sum(macs for path, macs in by_module.items()
                              if f'{path}.'.startswith(below))
        attention: dict[tuple[str, str], Sides] = {}
        for name, site in self.sites.items():
            for path, parts in () if name in self._forms else site.products().items():
                for part in parts:
                    attention.setdefault((paths[root.get_submodule(path)], part), {})[name] = (
                        site.present, [(name, site.present)])
        # the two products have equal MACs
        products += [(by_module.get(path, 0) // 2, sides) for (path, _), sides in attention.items()]
        for macs, sides in products:
            self.fixed -= macs
            self._add(macs, sides)

    def site_macs(self, name: str, sizes: Mapping[str, Cost]) -> Cost:
        """MACs of all products that a site's size changes, at the sizes of all sites."""
        form_macs = self._form(name, sizes[name]) if name in self._forms else 0
        return form_macs + sum(self._term(names, sizes) for names in self.terms if name in names)

    def _form(self, name: str, size: Cost) -> Cost:
        return self.sites[name].macs(size, self.shapes[name])


#: Costs that can be counted, so that a budget of them needs no table of latencies.
COUNTED = {cls.name: cls for cls in (MacsModel, ParamsModel, BytesModel)}
