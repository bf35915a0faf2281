"""The depth of the backbone at which a parameter lies."""

from collections.abc import Callable, Iterator

from torch import nn

from mmkcr.models.search_space import SearchSpace


def layer_depth(model: nn.Module) -> Callable[[str], tuple[int, int]]:
    """Depths of a model's parameters by their names.

    Depth 0 is the stem with the backbone's own parameters (position tables, tokens). Then every
    block has its own depth; the last depth is everything behind the blocks. Blocks are counted by
    the backbone's ``get_layer_depth`` if it has one (mmpretrain's Swin, ViT and others), otherwise
    they are the items of its lists and sequences of modules, such as the stages of a ResNet. A
    layer has the same depth in the dense model, the supernet and the subnet.

    Args:
        model (nn.Module): A backbone, a task model, or a wrapper around one.

    Returns:
        Callable: Takes a parameter's name; returns its depth and the number of depths.

    Raises:
        ValueError: The backbone has no blocks.
    """
    prefix, backbone = _find_backbone(model)
    try:
        inside, layers = backbone.get_layer_depth, backbone.get_layer_depth('')[1]
    except (AttributeError, NotImplementedError):  # mmpretrain's ResNet knows that of 50 layers
        inside, layers = _count_blocks(backbone)

    def depth(name: str) -> tuple[int, int]:
        if not name.startswith(prefix):
            return layers - 1, layers
        local = name[len(prefix):]
        return inside(local) if '.' in local else (0, layers)  # no dot: the backbone's own

    return depth


def _find_backbone(model: nn.Module) -> tuple[str, nn.Module]:
    """Prefix of its parameters' names, and the backbone."""
    modules = dict(model.named_modules())
    paths = [name for name, module in modules.items()
             if isinstance(getattr(module, 'search_space', None), SearchSpace)]
    paths += [name for name in modules if name.split('.')[-1] == 'backbone']
    name = paths[0] if paths else ''  # the model is the backbone itself
    return f'{name}.' if name else '', modules[name]


def _count_blocks(backbone: nn.Module) -> tuple[Callable[[str], tuple[int, int]], int]:
    """Depths by the order of modules, for a backbone without ``get_layer_depth``.

    The first module is the stem. A module between blocks belongs to the block
    before it, and one behind all blocks to what follows the backbone.
    """
    depths, blocks, behind = {}, 0, []
    for index, (name, child) in enumerate(backbone.named_children()):
        if index > 0 and _is_container(child):
            for path in _blocks(child, name):
                blocks, behind = blocks + 1, []
                depths[path] = blocks
        else:
            depths[name] = blocks
            behind.append(name)
    if blocks == 0:
        raise ValueError('expected a backbone with blocks in a `ModuleList` or `Sequential`, or '
                         f'with `get_layer_depth`, found `{type(backbone).__name__}`')
    depths.update(dict.fromkeys(behind, blocks + 1))

    def inside(name: str) -> tuple[int, int]:
        depth = next(depth for path, depth in depths.items() if name.startswith(f'{path}.'))
        return depth, blocks + 2

    return inside, blocks + 2


def _blocks(module: nn.Module, path: str) -> Iterator[str]:
    """Paths of the modules in nested containers."""
    if not _is_container(module):
        yield path
        return
    for name, child in module.named_children():
        yield from _blocks(child, f'{path}.{name}')


def _is_container(module: nn.Module) -> bool:
    """Whether a module only holds others: a list, or a sequence such as a stage of a ResNet."""
    return isinstance(module, (nn.ModuleList, nn.Sequential)) and \
        type(module).forward in (nn.Module.forward, nn.Sequential.forward)
