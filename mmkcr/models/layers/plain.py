"""Layers of ours as graphs of torch's own operators, which pickle and script without us."""

from importlib import import_module
from typing import Any, Optional

import torch.nn.functional as F
from torch import Tensor, fx, nn

from .norms import SlicedLayerNorm
from .selection import Put, Take
from .sized_attention import Sized

#: Annotations of arguments that TorchScript reads, in the form that a graph can be pickled with.
_TYPES = {Tensor | None: Optional[Tensor], tuple[int, int]: list[int], bool: bool}  # noqa: UP045
#: Modules with classes of layers that become graphs; the last one imports mmpretrain.
_HOMES = ('selection', 'norms', 'sized_attention', 'mmpretrain_attention')


class _Tracer(fx.Tracer):
    """Records layers of ours down to the layers of others; buffers are read, not written in."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not _is_ours(m)


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith('mmkcr.')


def make_plain(model: nn.Module) -> None:
    """Replace selections, sliced norms and attention by modules of torch that compute the same.

    Attention stays if its fused kernel drops weights in training: a graph has one mode.

    Args:
        model (nn.Module): Changed in place; its ``state_dict`` stays.
    """
    for path, module in list(model.named_modules()):
        if isinstance(module, (Take, Put, SlicedLayerNorm, Sized)):
            graph = _recorded(module)
            if graph is not None:
                model.set_submodule(path, _plain(module, graph))


def make_ours(model: nn.Module) -> None:
    """Undo :func:`make_plain`.

    Args:
        model (nn.Module): Changed in place.
    """
    for path, module in list(model.named_modules()):
        held = module._modules.get('held')
        if isinstance(module, fx.GraphModule) and hasattr(held, 'layer'):
            model.set_submodule(path, _restored(module, held))


def _recorded(layer: nn.Module) -> fx.Graph | None:
    """What a layer computes; None if its mode matters."""
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
    # what a graph does not use is lost when it is copied, and its buffers come back as persistent
    # ones; those of a child that it calls do not
    layer.held = _held(layer, {node.target for node in graph.nodes if node.op == 'call_module'})
    x, *others = graph.nodes
    last = [node for node in graph.nodes if node.op == 'placeholder'][-1]
    with graph.inserting_after(last):
        called = graph.call_module('held', (x, ))
    for node in others:
        node.replace_input_with(x, called)
        owner, _, name = str(node.target).rpartition('.')
        if node.op == 'get_attr' and name in layer.get_submodule(owner)._non_persistent_buffers_set:
            node.target = f'held.{node.target}'
    return fx.GraphModule(layer, graph, type(layer).__name__)


def _held(layer: nn.Module, called: set[str]) -> nn.Identity:
    """What restores a layer beside the parts that its graph uses."""
    held = nn.Identity()
    vars(held).update(_settings(layer), layer=type(layer).__name__, absent=tuple(
        name for name, value in layer._parameters.items() if value is None))
    for name, value in layer._buffers.items():
        if value is None or name in layer._non_persistent_buffers_set:
            held.register_buffer(name, value, persistent=False)
    for name, child in layer.named_children():
        if _is_ours(child):
            held.add_module(name, _held(child, set()))
        elif name not in called and not child.state_dict():
            held.add_module(name, child)
    return held


def _restored(module: nn.Module, held: nn.Identity) -> nn.Module:
    settings = _settings(held)
    name, absent = settings.pop('layer'), settings.pop('absent')
    homes = (import_module(f'.{home}', __package__) for home in _HOMES)
    cls = next(getattr(home, name) for home in homes if hasattr(home, name))
    layer = cls.__new__(cls)
    nn.Module.__init__(layer)
    vars(layer).update(settings)
    for name in absent:
        layer.register_parameter(name, None)
    for name, value in module._parameters.items():
        layer.register_parameter(name, value)
    for owner in (module, held):
        for name, value in owner._buffers.items():
            layer.register_buffer(name, value, persistent=owner is module)
        for name, child in owner._modules.items():
            if hasattr(child, 'layer') and hasattr(child, 'absent') and owner is held:
                layer.add_module(name, _restored(nn.Module(), child))
            elif name != 'held':
                layer.add_module(name, child)
    return layer


def _settings(module: nn.Module) -> dict[str, Any]:
    """Plain attributes: sizes, flags and the mode."""
    return {name: value for name, value in vars(module).items()
            if isinstance(value, (bool, int, float, str, tuple)) and not name.startswith('_')}
