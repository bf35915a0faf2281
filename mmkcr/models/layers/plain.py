"""Layers of ours as graphs of torch's own operators, which pickle and script without us."""

from typing import Any

from torch import fx, nn

from .norms import SlicedLayerNorm
from .selection import Put, Take

_CLASSES = dict(Take=Take, Put=Put, SlicedLayerNorm=SlicedLayerNorm)


def make_plain(model: nn.Module) -> None:
    """Replace selections and sliced norms by modules of torch that compute the same.

    Args:
        model (nn.Module): Changed in place; its ``state_dict`` stays.
    """
    for path, module in list(model.named_modules()):
        if type(module) in _CLASSES.values():
            model.set_submodule(path, _traced(module))


def make_ours(model: nn.Module) -> None:
    """Undo :func:`make_plain`.

    Args:
        model (nn.Module): Changed in place.
    """
    for path, module in list(model.named_modules()):
        held = module._modules.get('selection')
        if isinstance(module, fx.GraphModule) and hasattr(held, 'layer'):
            model.set_submodule(path, _restored(module, held))


def _traced(layer: nn.Module) -> fx.GraphModule:
    # a graph's own buffers come back as persistent ones when it is copied; a child's do not
    held = nn.Identity()
    held.register_buffer('kept', layer.kept, persistent=False)
    held.layer = type(layer).__name__
    vars(held).update(_settings(layer))
    graph = fx.Tracer().trace(layer)
    x, *others = graph.nodes
    with graph.inserting_after(x):
        called = graph.call_module('selection', (x, ))
    for node in others:
        node.replace_input_with(x, called)
        if node.op == 'get_attr' and node.target == 'kept':
            node.target = 'selection.kept'
    layer.selection = held
    return fx.GraphModule(layer, graph, held.layer)


def _restored(module: fx.GraphModule, held: nn.Identity) -> nn.Module:
    settings = _settings(held)
    cls = _CLASSES[settings.pop('layer')]
    layer = cls.__new__(cls)
    nn.Module.__init__(layer)
    vars(layer).update(settings)
    layer.register_buffer('kept', held.kept, persistent=False)
    if cls is SlicedLayerNorm:
        for name in ('weight', 'bias'):
            layer.register_parameter(name, getattr(module, name, None))
    return layer


def _settings(module: nn.Module) -> dict[str, Any]:
    """Plain attributes: sizes, flags and the mode."""
    return {name: value for name, value in vars(module).items()
            if isinstance(value, (bool, int, float, str, tuple)) and not name.startswith('_')}
