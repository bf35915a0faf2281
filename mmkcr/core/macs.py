"""Multiply-accumulates: counted, and as a differentiable function of the gates.

MACs are what mmpretrain's and the papers' tables call FLOPs: half of the
floating point operations of every matrix product and convolution, attention
products included.
"""

import math
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from .added import added_layers
from .cost import CostModel
from .sites import Cost, Site


class MacsReport(NamedTuple):
    """MACs of one forward.

    Args:
        total (int): Of the whole model.
        modules (dict[str, int]): By module path; a module includes its
            children. Only modules that do matrix products appear.
        operators (dict[str, int]): By operator name.
        own (dict[str, int]): By the path of the innermost module that runs: without children, and
            without modules of other places that it calls. '' is the model itself.
    """

    total: int
    modules: Dict[str, int]
    operators: Dict[str, int]
    own: Dict[str, int]


def count_forward_macs(model: nn.Module, forward: Callable[[], Any]) -> MacsReport:
    """Count the MACs of a forward call, in eval mode and without gradients.

    A count is a function of shapes: matrix products and convolutions are not computed, their
    outputs are zeros.

    Args:
        model (nn.Module): Its mode is restored afterwards.
        forward (Callable): Runs ``model`` once.

    Returns:
        MacsReport: The counts.
    """
    modes = {module: module.training for module in model.modules()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in trained:  # the counter's tracker fails on one that a module is called with
        parameter.requires_grad_(False)
    counter = FlopCounterMode(display=False)
    call, products = _Call(model, forward), _ShapesOnly(model)
    try:
        # the counter knows matrix products, and not every device's fused attention
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), products, counter:
            call()
    finally:
        products.close()
        for module, mode in modes.items():
            module.training = mode
        for parameter in trained:
            parameter.requires_grad_(True)
    by_module = {name: sum(ops.values()) // 2 for name, ops in counter.get_flop_counts().items()}
    by_operator = {str(op): flops // 2
                   for op, flops in counter.get_flop_counts().get('Global', {}).items()}
    prefix = f'{type(call).__name__}.model.'
    modules = {name[len(prefix):]: macs for name, macs in by_module.items()
               if name.startswith(prefix)}
    return MacsReport(counter.get_total_flops() // 2, modules, by_operator, products.own)


class _ShapesOnly(TorchDispatchMode):
    """Gives zeros in the place of products: their shapes are what is counted.

    Args:
        model (nn.Module): Whose modules the products are counted by.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.own: Dict[str, int] = {}
        self._running = ['']
        self._handles = []
        for path, module in model.named_modules():
            if path:
                self._handles += [
                    module.register_forward_pre_hook(
                        lambda *_, path=path: self._running.append(path), prepend=True),
                    module.register_forward_hook(lambda *_: self._left())]

    def _left(self) -> None:
        self._running.pop()

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        kwargs = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None:
            return func(*args, **kwargs)
        device = next(value.device for value in args if isinstance(value, Tensor))
        shapes = [value.to('meta') if isinstance(value, Tensor) else value for value in args]
        out = torch.zeros_like(func(*shapes, **kwargs), device=device)
        macs = count(*args, **kwargs, out_val=out) // 2
        self.own[self._running[-1]] = self.own.get(self._running[-1], 0) + macs
        return out


class _Call(nn.Module):
    """Names the modules of a model from the model on, whatever of it a forward calls first."""

    def __init__(self, model: nn.Module, forward: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self._run = model, forward

    def forward(self) -> None:
        """Run the model once."""
        self._run()


def count_params(model: nn.Module) -> int:
    """Number of parameters, without buffers."""
    return sum(parameter.numel() for parameter in model.parameters())


class Term(NamedTuple):
    """MACs that are proportional to the sizes of some sites.

    Args:
        macs (int): At the sites' full sizes.
        sites (tuple[str, ...]): A site counts once for each axis of a product that it lies along.
    """

    macs: int
    sites: Tuple[str, ...]


class MacsModel(CostModel):
    """MACs of the subnet as a closed form of the sizes of its sites.

    One forward gives the count of every module as it is. The MACs of a linear layer or a
    convolution are positions times the sides of its weight, so they are proportional to the size
    of every site that lies along a side; those of an attention product are proportional to the
    width that it sums over. So the sites' axes say all: ``macs = sum_i m_i prod_s (k_s / K_s)``
    over modules i and the sites s along them, k_s of K_s units kept. A kind whose cost is no such
    product (operators in the place of heads) gives a closed form of its own.

    Calling the object with integers gives exactly the count of the built subnet, with tensors a
    differentiable expectation (exact where choices are independent and no site meets itself in a
    product). A supernet that was sliced while it trains keeps the formula.

    Args:
        model (nn.Module): The supernet or dense host, or a task model around it.
        root (nn.Module): The host network; ``model`` or a descendant of it.
        sites (Mapping[str, Site]): Its sites by name: those with gates, or all of a dense host.
        forward (Callable): Runs ``model`` once on a batch of one.

    ``dense`` is the count of the full sizes without the layers that a method adds and that the
    dense parent lacks; ``added`` is the count of these.

    Raises:
        ValueError: There is no site, or one that the forward does not reach.
    """

    def __init__(self, model: nn.Module, root: nn.Module, sites: Mapping[str, Site],
                 forward: Callable[[], Any]) -> None:
        self.model, self.sites = model, dict(sites)
        if not self.sites:
            raise ValueError('expected a backbone with sites, found none in '
                             f'`{root.__class__.__name__}`')
        self.shapes: Dict[str, Tuple[int, ...]] = {}
        with ExitStack() as stack:
            for name, site in self.sites.items():
                handle = site.owner.register_forward_pre_hook(self._recorder(name),
                                                              with_kwargs=True)
                stack.callback(handle.remove)
                if site.gate is not None:
                    stack.callback(setattr, site.gate, 'held_open', site.gate.held_open)
                    site.gate.held_open = True
            report = count_forward_macs(model, forward)
        missed = sorted(set(self.sites) - set(self.shapes))
        if missed:
            raise ValueError(f'expected the forward to reach every site, found that site '
                             f'`{missed[0]}` was not')
        own = _below(report.own, model, root)
        # a list: the order of a sum of floats decides its last bits, and that of a set of names is
        # another one in every process
        self._forms = [name for name, site in self.sites.items() if site.has_own_macs]
        self.terms, variable = self._terms(own, root)
        self.fixed = report.total - variable
        self.added = sum(report.modules.get(name, 0) for name in added_layers(model))
        self.dense = self({name: site.total for name, site in self.sites.items()}) - self.added

    def _recorder(self, name: str) -> Callable:
        def record(_: nn.Module, inputs: Tuple[Tensor, ...], named: Dict[str, Any]) -> None:
            given = (value for value in (*inputs, *named.values()) if isinstance(value, Tensor))
            self.shapes[name] = tuple(next(given).shape)

        return record

    def _terms(self, own: Mapping[str, int], root: nn.Module) -> Tuple[List[Term], int]:
        """MACs at full sizes of all that sites change, and what they are now in all."""
        paths = {module: path for path, module in root.named_modules()}
        along: Dict[Tuple[str, str], List[str]] = {}  # sites by module path and part
        segments: Dict[str, List[Tuple[str, int, int]]] = {}  # of an axis of several sites
        for name, site in self.sites.items():
            if name in self._forms:
                continue
            for axis in site.axes():
                if axis.name != 'weight':
                    continue
                path = paths[axis.module]
                if axis.before is None:
                    along.setdefault((path, ''), []).append(name)
                else:
                    start, end = axis.span
                    segments.setdefault(path, []).append(
                        (name, end - start, axis.value.shape[axis.dim]))
            for path, parts in site.products().items():
                for part in parts:
                    along.setdefault((path, part), []).append(name)
        merged: Dict[Tuple[str, ...], int] = {}
        variable = 0
        for path in segments:
            along.setdefault((path, ''), [])
        for (path, part), names in along.items():
            macs = own.get(path, 0) // (2 if part else 1)
            variable += macs
            others = [] if part else segments.get(path, [])
            shares = [([*names, name], macs * size // length) for name, size, length in others]
            shares.append((names, macs - sum(share for _, share in shares)))
            for sites, share in shares:
                for name in sites:  # a supernet may have been sliced already
                    share = share * self.sites[name].total // self.sites[name].present
                key = tuple(sorted(sites))
                merged[key] = merged.get(key, 0) + share
        for name in self._forms:
            path = self.sites[name].path
            variable += sum(macs for other, macs in own.items()
                            if other == path or other.startswith(f'{path}.'))
        return [Term(macs, names) for names, macs in merged.items()], variable

    def site_macs(self, name: str, sizes: Mapping[str, Cost]) -> Cost:
        """MACs of everything that a site changes.

        Args:
            name (str): The site.
            sizes (Mapping[str, int | Tensor]): Kept units of all sites.
        """
        own = self._form(name, sizes) if name in self._forms else 0
        return own + sum(self._term(term, sizes) for term in self.terms if name in term.sites)

    def _form(self, name: str, sizes: Mapping[str, Cost]) -> Cost:
        return self.sites[name].macs(sizes[name], self.shapes[name])

    def _term(self, term: Term, sizes: Mapping[str, Cost]) -> Cost:
        macs, names = term
        if all(isinstance(sizes[name], int) for name in names):
            full = math.prod(self.sites[name].total for name in names)
            return macs * math.prod(sizes[name] for name in names) // full  # exact
        for name in names:
            macs = macs * (sizes[name] / self.sites[name].total)
        return macs

    def __call__(self, sizes: Mapping[str, Cost]) -> Cost:
        """MACs of the whole model.

        Args:
            sizes (Mapping[str, int | Tensor]): Kept units of every site.

        Returns:
            int | Tensor: A count for integers, a differentiable scalar for tensors.
        """
        return (self.fixed + sum(self._term(term, sizes) for term in self.terms)
                + sum(self._form(name, sizes) for name in self._forms))


def _below(own: Mapping[str, int], model: nn.Module, root: nn.Module) -> Dict[str, int]:
    """MACs of modules below ``root``, by path from it."""
    start = next(name for name, module in model.named_modules() if module is root)
    start = f'{start}.' if start else ''
    return {name[len(start):]: macs for name, macs in own.items() if name.startswith(start)}
