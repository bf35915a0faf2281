"""Registries of scope ``mmkcr``, children of MMEngine's.

Inside a config of mmpretrain, mmdet or mmseg a module of this package is named
with its scope, as in ``type='mmkcr.KCRSwinTransformer'``, beside
``custom_imports=dict(imports=['mmkcr'])``. MMEngine imports this module when it meets the scope.
"""

from mmengine import registry as root
from mmengine.registry import Registry


def _child(name: str, parent: Registry, *locations: str) -> Registry:
    modules = [f'mmkcr.{location}' for location in (*locations, 'methods.registered')]
    return Registry(name, parent=parent, scope='mmkcr', locations=modules)


MODELS = _child('model', root.MODELS, 'models.registered')
HOOKS = _child('hook', root.HOOKS, 'engine.registered')
RUNNERS = _child('runner', root.RUNNERS, 'engine.registered')
LOOPS = _child('loop', root.LOOPS)
OPTIM_WRAPPER_CONSTRUCTORS = _child('optimizer wrapper constructor',
                                    root.OPTIM_WRAPPER_CONSTRUCTORS, 'engine.registered')
DATASETS = _child('dataset', root.DATASETS, 'datasets')
DATA_SAMPLERS = _child('data sampler', root.DATA_SAMPLERS, 'datasets')
TRANSFORMS = _child('transform', root.TRANSFORMS, 'datasets')
METRICS = _child('metric', root.METRICS)
