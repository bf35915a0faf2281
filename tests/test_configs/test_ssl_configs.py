"""Every config of self-supervised training is built; those of the digits take a step."""

from contextlib import nullcontext

import pytest
import torch
from config_files import CONFIGS, build, check_state, first_losses, stage_of, task_of
from mmengine.runner import save_checkpoint

from lab.model_zoo import uninitialized
from mmkcr.apis import slim
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import find_task, momentum_copies, search_space

SSL = [path for path in CONFIGS if path.startswith('configs/kcr/ssl/')]
DIGITS = [path for path in SSL if path.endswith('digits.py')]


def test_found():
    stages = {path: stage_of(path) for path in SSL}
    assert len(SSL) == 15 and len(DIGITS) == 6
    assert set(stages.values()) == {'dense', 'search', 'pretrain', 'linear', 'finetune'}


@pytest.mark.parametrize('path', DIGITS)
def test_digits_take_a_step(path, prepared):
    stage, config = stage_of(path), prepared(path)
    loader = config.train_dataloader
    if 'indices' not in loader.dataset:
        loader.dataset.indices = 100
        loader.batch_size = min(loader.batch_size, 16)
    backbone = task_of(config).backbone
    if stage in ('linear', 'finetune'):
        initial = backbone.backbone.pop('init_cfg')  # they arrive in the test below
        assert initial.checkpoint.endswith('/epoch_100.pth')
    runner = build(config, nullcontext)
    model = runner.model
    check_state(path, model)
    kinds = dict(search='SearchModel', pretrain='RegularizedModel', dense='MoCoV3')
    assert type(model).__name__ == kinds.get(stage, 'ImageClassifier')
    model.init_weights()
    losses = first_losses(runner)
    assert runner.train_dataloader.batch_size == (32 if stage in ('linear', 'finetune') else 16)
    assert ('loss_token' in losses) == ('moca' in path)
    assert ('loss_kcr' in losses) == (stage in ('search', 'pretrain'))
    if stage == 'linear':
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        assert {name.split('.')[0] for name in trained} == {'head'}
        assert len(runner.train_dataloader.dataset) == 103


@pytest.mark.parametrize('stage', ['finetune', 'linear'])
def test_a_network_of_moca_is_fine_tuned(stage, load, tmp_path):
    """By the documented options: its slimmed weights arrive."""
    model = build_model(load('configs/kcr/ssl/kcr-moca-search_vit-mini_1xb128_digits.py'))
    subnet, structure = slim(model, 0.8, input_shape=(3, 32, 32))
    structure.save(tmp_path / 'structure.json')
    save_checkpoint(dict(state_dict=subnet.state_dict()), str(tmp_path / 'subnet.pth'))
    config = load_config(f'configs/kcr/ssl/kcr-moco-{stage}_vit-mini_1xb32_digits.py', {
        'model.backbone.init_cfg.checkpoint': str(tmp_path / 'subnet.pth'),
        'compression.structure': str(tmp_path / 'structure.json')})
    tuned = build_model(config)
    tuned.init_weights()
    for name, value in tuned.backbone.layers.state_dict().items():
        torch.testing.assert_close(value, subnet.backbone.layers.state_dict()[name])


@pytest.mark.parametrize('path', [f'configs/kcr/ssl/kcr-{stage}.py' for stage in (
    'moco-pretrain_vit-base_16xb256_in1k', 'moco-finetune_vit-base_8xb64_in1k',
    'moca-finetune_vit-base_8xb64_in1k')])
def test_vit_base_is_built(path, load, put_structure):
    config, stage = put_structure(load(path)), stage_of(path)
    with uninitialized():
        model = build_model(config)
    assert len(momentum_copies(find_task(model))) == (stage == 'pretrain')
    kept = [len(site.kept) for site in search_space(model).structure.sites.values()]
    assert len(kept) == 12 and max(kept) < 768
    names = {hook['type'].split('.')[-1]: hook for hook in config.get('custom_hooks') or []}
    assert ('NystromRefreshHook' in names) == (stage == 'pretrain')
    if stage == 'pretrain':
        assert names['WarmupSwitchHook']['begin'] == 90
        assert names['NystromRefreshHook']['interval'] == 30
        assert torch.equal(model.regularizers.kcr.basis, torch.zeros(768, 154))


def test_the_search_for_vit_base(load):
    config = load('configs/kcr/ssl/kcr-moco-search_vit-base_16xb256_in1k.py')
    assert config.model.type == 'mmkcr.SearchModel' and config.model.price.target == '14.5G'
    assert config.model.architecture.backbone.backbone.type == 'mmpretrain.MoCoV3ViT'
    assert config.train_cfg.type == 'mmkcr.BilevelTrainLoop' and config.train_cfg.max_epochs == 300
    assert config.optim_wrapper.weights.type == config.optim_wrapper.architecture.type \
        == 'AmpOptimWrapper'


@pytest.mark.parametrize('path, epochs, task', [
    ('kcr-moco-linear_vit-base_8xb128_in1k', 90, 'ImageClassifier'),
    ('kcr-moco-linear_vit-small_8xb128_in1k', 90, 'ImageClassifier'),
    ('kcr-moca-finetune_vit-base_8xb64_in1k', 150, 'ImageClassifier'),
    ('kcr-moco-pretrain_vit-small_16xb256_in1k', 300, 'MoCoV3'),
    ('kcr-moca-pretrain_vit-base_32xb64_in1k', 200, 'mmkcr.MOCA')])
def test_the_others_are_subnets_in_the_hosts_recipes(path, epochs, task, load):
    config = load(f'configs/kcr/ssl/{path}.py')
    model = task_of(config)
    assert model.type == task and config.train_cfg.max_epochs == epochs
    arch = 'small' if 'small' in path else 'base'
    assert f'kcr-search_vit-{arch}_8xb64_in1k-100/slim' in model.backbone.structure
    if stage_of(path) in ('linear', 'finetune'):
        host = model.backbone.backbone
        batch = '32xb64' if 'moca' in path else '16xb256'
        assert f'{path[:8]}-pretrain_vit-{arch}_{batch}' in host.init_cfg.checkpoint
        assert host.get('frozen_stages') == (12 if 'linear' in path else None)
    else:
        hooks = {hook['type']: hook for hook in config.custom_hooks}
        assert hooks['mmkcr.WarmupSwitchHook']['begin'] == 0.3 * epochs


def host_search(tmp_path, host, **compression):
    file = tmp_path / 'host.py'
    file.write_text(f"_base_ = ['mmpretrain::{host}', 'mmkcr::_base_/methods/kcr_search.py']\n"
                    f'compression = {compression}\n')
    with uninitialized():
        return build_model(load_config(file))


def test_configs_of_mmpretrain_are_searched(tmp_path):
    model = host_search(tmp_path, 'mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py',
                        target='80%', feature_layer='backbone.ln1')
    assert len(model.gates()) == 12 and model.regularizers.kcr.num_features == 768
    model = host_search(tmp_path, 'mocov2/mocov2_resnet50_8xb32-coslr-200e_in1k.py',
                        sites=['mlp_hidden'], regularizers=None)
    assert len(model.gates()) == 32 and len(momentum_copies(model)) == 1
