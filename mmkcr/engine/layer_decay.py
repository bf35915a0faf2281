"""Learning rates that fall from the head to the stem, and parameters without weight decay."""

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

    For a backbone with ``get_layer_depth`` (mmpretrain's ViT, Swin, ConvNeXt and others), in any
    task, dense, as a supernet (also as the part ``weights`` of a search) or as a subnet. A
    parameter at depth l of L learns at ``lr * layer_decay_rate ** (L - 1 - l)``, gates at the full
    rate. Depth 0 is the stem with position tables and tokens, every block has a depth of its own,
    and the last is everything behind the blocks. All of MMEngine's ``paramwise_cfg`` is supported,
    but one-dimensional parameters do not decay unless it says so. Additional keys:

    - ``layer_decay_rate`` (float): Within (0, 1]. Defaults to 1.
    - ``table_decay_mult`` (float): Factor on the weight decay of position tables and tokens, which
      is every parameter of more than one dimension that is no ``weight``. Defaults to 0.

    Raises:
        ValueError: The optimizer has no ``lr`` or ``weight_decay``, a rate is outside (0, 1], or
            the backbone does not know its depths.
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

        Args:
            params (list[dict]): Parameter groups, in place.
            module (nn.Module): Model, or a module of it.
            prefix (str): Path of the module. Defaults to '': the model.
            **kwargs: Further arguments of MMEngine's constructor.
        """
        super().add_params(params, module, prefix=prefix, **kwargs)
        if not prefix:
            params[:] = self._by_layer(params, module)

    def _by_layer(self, params: list[dict], model: nn.Module) -> list[dict]:
        names = {id(param): name for name, param in model.named_parameters()}
        prefix, backbone = _find_backbone(model)
        try:
            depths = backbone.get_layer_depth('')[1]
        except (AttributeError, NotImplementedError) as error:  # a ResNet knows that of 50 layers
            raise ValueError('expected a backbone with `get_layer_depth` for rates by layer, found '
                             f'`{type(backbone).__name__}`') from error
        groups = {}
        gates = {id(param) for module in model.modules() if isinstance(module, BaseGate)
                 for param in module.parameters()}
        for group in params:
            # MMEngine's constructor makes one group per parameter: join those with equal settings
            param, = group.pop('params')
            name = names[id(param)]
            # a choice among layers needs equal rates in all of them
            place, local = depths - 1, name[len(prefix):]
            if name.startswith(prefix) and id(param) not in gates:
                # no dot: the backbone's own
                place = backbone.get_layer_depth(local)[0] if '.' in local else 0
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


def _find_backbone(model: nn.Module) -> tuple[str, nn.Module]:
    """Prefix of its parameters' names, and the backbone."""
    modules = dict(model.named_modules())
    paths = [name for name, module in modules.items()
             if isinstance(getattr(module, 'search_space', None), SearchSpace)]
    paths += [name for name in modules if name.split('.')[-1] == 'backbone']
    name = paths[0] if paths else ''  # the model is the backbone itself
    return f'{name}.' if name else '', modules[name]
