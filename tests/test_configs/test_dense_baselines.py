"""The dense baselines of the tables are options: the same recipe, and the host's own network."""

import copy
import functools
import json
from pathlib import Path

import pytest
import torch
from config_files import MODELS_OF, ROOT, task_of
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from lab.model_zoo import uninitialized
from long_form import every_nth
from mmkcr.engine.build import load_config
from mmkcr.engine.compressed_config import CompressionRunner, add_scope
from mmkcr.methods.dcs.qk_mask import QKMask
from mmkcr.methods.search.teachers import DistillationLoss
from mmkcr.models.counting import macs_report
from mmkcr.models.tasks import find_task
from mmkcr.registry import MODELS

TABLES = ('kcr', 'dcs', 'ofb')
# options that make a row dense; variants such as another eta have others
ROWS = {model['Name']: model for method in TABLES for model in MODELS_OF[method]
        if 'Options' in model and 'dense' in model['Name']}

#: The hosts' networks, by the name in a row; MACs do not depend on the number of heads, in which
#: MoCo v3's small ViT differs.
VIT = dict(type='mmpretrain.VisionTransformer', img_size=224, patch_size=16)
HOSTS = {
    'vit-small': dict(VIT, arch='deit-small'), 'deit-small': dict(VIT, arch='deit-small'),
    'vit-base': dict(VIT, arch='base'), 'deit-base': dict(VIT, arch='deit-base'),
    'swin-tiny': dict(type='mmpretrain.SwinTransformer', arch='tiny'),
    'swin-base': dict(type='mmpretrain.SwinTransformer', arch='base'),
    'efficientvit-b1': dict(type='mmkcr.EfficientViT', arch='b1'),
    'mobilevit-small': dict(type='mmpretrain.MobileViT', arch='small'),
    'mobilevit-xsmall': dict(type='mmpretrain.MobileViT', arch='x_small'),
    'resnet50': dict(type='mmpretrain.ResNet', depth=50),
    'flava': dict(type='mmkcr.FlavaImageEncoder', img_size=224)}

#: Of a config, everything but the network, what it starts from, and the method's hooks.
RECIPE = ('optim_wrapper', 'param_scheduler', 'train_cfg', 'val_cfg', 'test_cfg',
          'train_dataloader', 'val_dataloader', 'test_dataloader', 'val_evaluator',
          'test_evaluator', 'data_preprocessor', 'auto_scale_lr', 'randomness', 'default_hooks',
          'env_cfg')
METHOD_HOOKS = {'mmkcr.WarmupSwitchHook', 'mmkcr.NystromRefreshHook', 'mmkcr.GateNoiseHook',
                'mmkcr.InformationBottleneckHook'}


def test_every_table_has_its_baseline():
    """Each folder with compressed rows of a big data set has dense ones, of each network in it."""
    for method in TABLES:
        nets = {}
        for model in MODELS_OF[method]:
            folder, name = Path(model['Config']).parts[2], model['Name']
            if folder in ('digits', 'search') or 'digit' in name or '-search_' in name or \
                    '_search_' in name:
                continue  # a search starts as the dense network, and is no result
            nets.setdefault((folder, model['Metadata']['Training Data'], name.split('_')[1]), []
                            ).append('dense' in name)
        assert len(nets) > 5
        missing = [key for key, dense in nets.items() if not any(dense)]
        assert not missing, method
    assert len(ROWS) == 33 and not any(model['Results'] for model in ROWS.values())


@pytest.mark.parametrize('name', ROWS)
def test_recipe_is_that_of_the_compressed_partner(name):
    path, options = ROOT / ROWS[name]['Config'], ROWS[name]['Options']
    dense, partner = load_config(path, options), load_config(path)
    for config in (dense, partner):  # which alone a host's config lacks, and changes no step
        config.default_hooks.pop('exact_resume', None)
    for key in RECIPE:
        assert dense.get(key) == partner.get(key), key
    heads = {key for key in task_of(partner) if key not in ('backbone', 'type')}
    changed = {key for key in heads if task_of(dense).get(key) != task_of(partner)[key]}
    # a smaller network has narrower inputs of its heads
    assert changed <= ({'decode_head', 'auxiliary_head'} if 'deit-small' in name else set())
    hooks = [hook for hook in partner.get('custom_hooks') or [] if hook.type not in METHOD_HOOKS]
    assert list(dense.get('custom_hooks') or []) == hooks
    teachers = [config.model.get('regularizers', {}).get('kd') for config in (dense, partner)]
    assert teachers[0] == teachers[1]
    assert (teachers[0] is not None) == ('kd' in name.split('_')[2].split('-'))
    of_method = set(dense.model.get('regularizers', {})) - {'kd'}
    assert not of_method and 'structure' not in str(dense.model) or \
        task_of(dense).backbone.get('structure') is None
    # nothing that a search wrote; what it starts from is the host's, or a dense row's own run
    start = [task_of(dense).backbone.get('init_cfg'), dense.get('load_from'), dense.model]
    for text in ('-search_', '/slim/'):
        assert text not in str(start)
    for part in str(start).split("'"):
        if part.startswith('work_dirs/'):
            assert part.split('/')[1] in ROWS


@functools.cache
def backbone_macs(text):
    """At 3 x 224 x 224, which is enough to tell networks apart."""
    config = json.loads(text)
    init_default_scope('mmpretrain')
    with uninitialized():
        backbone = MODELS.build(config)
    backbone.eval()  # which gives no module in some of the hosts
    assert getattr(backbone, 'structure', None) is None
    assert not any(isinstance(module, QKMask) for module in backbone.modules())
    return macs_report(backbone, (3, 224, 224)).total


@pytest.mark.parametrize('name', every_nth(3, ROWS))
def test_network_is_the_hosts(name):
    config = load_config(ROOT / ROWS[name]['Config'], ROWS[name]['Options'])
    backbone = copy.deepcopy(add_scope(task_of(config).backbone, config)).to_dict()
    if 'flava' in name:
        pytest.importorskip('transformers')
    for where in (backbone, backbone.get('backbone', {})):
        where.pop('init_cfg', None)
    net = next(net for net in HOSTS if f'_{net}_' in name or f'-naive_{net}_' in name)
    ours, theirs = (backbone_macs(json.dumps(found, sort_keys=True, default=str))
                    for found in (backbone, HOSTS[net]))
    assert ours == theirs


BUILT = [name for name in ROWS if '/retrain/' in ROWS[name]['Config']
         or '/transfer/' in ROWS[name]['Config']]


@pytest.mark.parametrize('name', every_nth(3, BUILT))
def test_runs_without_the_method(name, prepared):
    """The runner is built; no hook looks for gates or terms that are not there."""
    config = prepared(ROWS[name]['Config'], ROWS[name]['Options'])
    with uninitialized():
        runner = CompressionRunner.from_cfg(config)
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    assert type(runner) is Runner
    task = find_task(runner.model)
    assert sum(p.numel() for p in task.parameters()) == ROWS[name]['Metadata']['Parameters']
    terms = [type(term) for term in getattr(runner.model, 'regularizers', {}).values()]
    assert terms == ([DistillationLoss] if 'kd' in name.split('_')[2].split('-') else [])
    for hook in runner.hooks:
        if type(hook).__module__.startswith('mmkcr.'):
            hook.before_train(runner)
    held = sum(p.numel() for group in runner.optim_wrapper.optimizer.param_groups
               for p in group['params'])
    assert held == sum(p.numel() for p in runner.model.parameters() if p.requires_grad)
    assert torch.is_grad_enabled()
