"""Learning rates that fall from the head to the stem, and parameters without weight decay."""

from collections.abc import Callable, Iterator
from typing import Any

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from mmkcr.core import BaseGate
from mmkcr.models.search_space import SearchSpace
from mmkcr.registry import OPTIM_WRAPPER_CONSTRUCTORS

_NO_DECAY = ('norm_decay_mult', 'bias_decay_mult', 'flat_decay_mult')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Layer-wise learning rates, and no weight decay on norms, biases, tables and tokens.

    For any backbone, dense, as a supernet (also as the part ``weights`` of a search) or as a
    subnet. A parameter at depth l of L (:func:`layer_depth`) learns at
    ``lr * layer_decay_rate ** (L - 1 - l)``, gates at the full rate. All of MMEngine's
    ``paramwise_cfg`` is supported, but one-dimensional parameters do not decay unless it says so.
    Additional keys:

    - ``layer_decay_rate`` (float): Within (0, 1]. Defaults to 1.
    - ``table_decay_mult`` (float): Factor on the weight decay of position tables and tokens, which
      is every parameter of more than one dimension that is no ``weight``. Defaults to 0.

    Raises:
        ValueError: The optimizer has no ``lr`` or ``weight_decay``, or a rate is outside (0, 1].
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        optimizer = optim_wrapper_cfg.get('optimizer') or {}
        missing = [key for key in ('lr', 'weight_decay') if optimizer.get(key) is None]
        if missing:
            raise ValueError(f'expected `{missing[0]}` of the optimizer for rates by layer, found '
                             f'the keys {sorted(optimizer)}')
        settings = {**dict.fromkeys(_NO_DECAY, 0.), **(paramwise_cfg or {})}
        self.layer_decay_rate = settings.pop('layer_decay_rate', 1.)
        self.table_decay_mult = settings.pop('table_decay_mult', 0.)
        if not 0 < self.layer_decay_rate <= 1:
            raise ValueError('expected `layer_decay_rate` within (0, 1], found '
                             f'`{self.layer_decay_rate}`')
        super().__init__(optim_wrapper_cfg, settings)

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '',
                   **kwargs: Any) -> None:
        """Add the parameters of a module to ``params``; at the root, regroup them by layer.

        Arguments are those of MMEngine's constructor.
        """
        super().add_params(params, module, prefix=prefix, **kwargs)
        if not prefix:
            params[:] = self._by_layer(params, module)

    def _by_layer(self, params: list[dict], model: nn.Module) -> list[dict]:
        names = {id(param): name for name, param in model.named_parameters()}
        depth, groups = layer_depth(model), {}
        gates = {id(param) for module in model.modules() if isinstance(module, BaseGate)
                 for param in module.parameters()}
        for group in params:
            # MMEngine's constructor makes one group per parameter: join those with equal settings
            param, = group.pop('params')
            name = names[id(param)]
            place, depths = depth(name)
            if id(param) in gates:  # a choice among layers needs equal rates in all of them
                place = depths - 1
            table = param.ndim > 1 and not name.endswith('weight')
            decay = self.base_wd * (self.table_decay_mult if table else 1.)
            scale = self.layer_decay_rate**(depths - 1 - place)
            settings = {**group, 'lr': group.get('lr', self.base_lr) * scale, 'lr_scale': scale,
                        'layer_id': place, 'weight_decay': group.get('weight_decay', decay)}
            # repr, as settings such as betas may not be hashable
            key = tuple(sorted((key, repr(value)) for key, value in settings.items()))
            groups.setdefault(key, dict(settings, params=[]))['params'].append(param)
        groups = sorted(groups.values(), key=lambda group: group['layer_id'])
        for group in groups:
            print_log('layer {layer_id}: lr={lr:.3g}, weight_decay={weight_decay:.3g}, '
                      '{count} parameters'.format(count=len(group['params']), **group),
                      logger='current')
        return groups


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
