"""Layers of ours as graphs of torch's own operators, which pickle and script without us."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor, fx, nn

from .norms import SlicedLayerNorm
from .selection import Put, Take
from .sized_attention import Sized

#: Annotations of arguments that TorchScript reads, in the form that a graph can be pickled with.
_TYPES = {Tensor | None: Optional[Tensor], tuple[int, int]: list[int], bool: bool}  # noqa: UP045


class _Tracer(fx.Tracer):
    """Records layers of ours down to the layers of others; buffers are read, not written in."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not _is_ours(m)


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith('mmkcr.')


def make_plain(model: nn.Module) -> None:
    """Replace selections, sliced norms and attention by modules of torch that compute the same.

    Attention stays if its fused kernel drops weights in training: a graph has one mode. The model
    is changed in place; its ``state_dict`` stays.
    """
    for path, module in list(model.named_modules()):
        if isinstance(module, (Take, Put, SlicedLayerNorm, Sized)):
            graph = _record_graph(module)
            if graph is not None:
                model.set_submodule(path, _plain(module, graph))


def make_ours(model: nn.Module) -> None:
    """Undo :func:`make_plain`, in place, for selections and norms, which have other forms."""
    for path, module in list(model.named_modules()):
        held = module._modules.get('held')
        if not isinstance(module, fx.GraphModule) or not hasattr(held, 'layer'):
            continue
        if held.layer == 'SlicedLayerNorm':
            norm = nn.LayerNorm(held.total, held.eps, elementwise_affine=False)
            norm.weight, norm.bias = (getattr(module, name, None) for name in ('weight', 'bias'))
            layer = SlicedLayerNorm.convert_from(norm, held.kept)
        else:
            layer = dict(Take=Take, Put=Put)[held.layer](held.kept, held.total, held.dim)
        model.set_submodule(path, layer.train(module.training))


def _record_graph(layer: nn.Module) -> fx.Graph | None:
    """Graph of a layer; None if its mode matters."""
    mode, layer.training = layer.training, True
    graph = _Tracer().trace(layer)
    layer.training = mode
    graph._tracer_cls = None  # which a pickle would name
    for node in graph.nodes:
        node.type = _TYPES.get(node.type)
        if node.target is F.scaled_dot_product_attention and \
                (*node.args[4:5], node.kwargs.get('dropout_p', 0.))[0]:
            return None
    return graph


def _plain(layer: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    # from a copy of a graph its buffers come back as persistent ones, and what it does not use is
    # lost; a child that it calls stays as it is
    layer.held = held = nn.Identity().train(layer.training)
    targets = {}
    for path, part in layer.named_modules():
        for name in part._non_persistent_buffers_set if _is_ours(part) else ():
            target = f'{path}.{name}'.lstrip('.')
            targets[target] = f'held.{target.replace(".", "_")}'
            held.register_buffer(target.replace('.', '_'), getattr(part, name), persistent=False)
    if not isinstance(layer, Sized):
        vars(held).update({name: getattr(layer, name) for name in ('total', 'dim', 'eps')
                           if hasattr(layer, name)}, layer=type(layer).__name__)
    x, *others = graph.nodes
    last = [node for node in graph.nodes if node.op == 'placeholder'][-1]
    with graph.inserting_after(last):
        called = graph.call_module('held', (x, ))
    for node in others:
        node.replace_input_with(x, called)
        if node.op == 'get_attr':
            node.target = targets.get(node.target, node.target)
    return fx.GraphModule(layer, graph, type(layer).__name__)
