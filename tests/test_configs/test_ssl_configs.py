"""Every config of self-supervised training is built; those of the digits take a step."""

import re
from pathlib import Path

import pytest
import torch
from config_files import CONFIGS, first_losses
from mmengine.registry import init_default_scope
from mmengine.runner import Runner, save_checkpoint

from lab.model_zoo import uninitialized
from mmkcr.apis import slim
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import find_task, momentum_copies, search_space
from mmkcr.registry import MODELS

SSL = [path for path in CONFIGS if path.startswith('configs/kcr/ssl/')]
DIGITS = [path for path in SSL if path.endswith('digits.py')]
VIT_MINI = dict(type='mmpretrain.MoCoV3ViT', img_size=32, patch_size=8, arch=dict(
    embed_dims=96, num_layers=4, num_heads=4, feedforward_channels=384))


def stage_of(path):
    return re.match(r'kcr-(?:moco|moca)-([a-z]+)_', Path(path).stem)[1]


@pytest.fixture(scope='module')
def slimmed(tmp_path_factory):
    """Structure and weights of half of the channels, as slimming writes them."""
    init_default_scope('mmpretrain')
    backbone = MODELS.build(dict(
        type='mmkcr.Searchable', backbone=VIT_MINI, sites=['mlp_channels'],
        gates=dict(type='mmkcr.GumbelChannelGate')))
    for gate in backbone.search_space.gates().values():
        gate.alpha.data[::2] = -1.
    subnet, structure = slim(backbone, input_shape=(3, 32, 32))
    folder = tmp_path_factory.mktemp('slim')
    structure.save(folder / 'structure.json')
    state = {f'backbone.{name}': value for name, value in subnet.state_dict().items()}
    save_checkpoint(dict(state_dict=state), str(folder / 'epoch_100.pth'))
    return folder


def test_found():
    stages = {path: stage_of(path) for path in SSL}
    assert len(SSL) == 15 and len(DIGITS) == 6
    assert set(stages.values()) == {'dense', 'search', 'pretrain', 'linear', 'finetune'}


@pytest.mark.parametrize('path', DIGITS, ids=lambda path: Path(path).stem)
def test_digits_take_a_step(path, load, slimmed, digits, tmp_path):
    stage, config = stage_of(path), load(path)
    config.work_dir, config.experiment_name, config.log_level = str(tmp_path), stage, 'ERROR'
    for part in ('train', 'val', 'test'):
        loader = config.get(f'{part}_dataloader')
        if loader is not None:
            loader.update(num_workers=0, persistent_workers=False)
            loader.dataset.data_root = str(digits)
            if 'indices' not in loader.dataset:
                loader.dataset.indices = 100
                loader.batch_size = min(loader.batch_size, 16)
    backbone = config.model.get('architecture', config.model).backbone
    if 'structure' in backbone:
        assert backbone.structure.endswith('/slim/structure.json')
        backbone.structure = str(slimmed / 'structure.json')
    if stage in ('linear', 'finetune'):
        assert backbone.backbone.init_cfg.checkpoint.endswith('/epoch_100.pth')
        backbone.backbone.init_cfg.checkpoint = str(slimmed / 'epoch_100.pth')
    runner = Runner.from_cfg(config)
    model = runner.model
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    state = search_space(model).state_name()
    assert state == dict(search='supernet', dense='dense').get(stage, 'subnet')
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


BASE = [f'configs/kcr/ssl/kcr-{stage}.py' for stage in (
    'moco-pretrain_vit-base_16xb256_in1k', 'moco-finetune_vit-base_8xb64_in1k',
    'moca-finetune_vit-base_8xb64_in1k')]


@pytest.mark.parametrize('path', BASE, ids=lambda path: Path(path).stem)
def test_vit_base_is_built(path, load):
    config, stage = load(path), stage_of(path)
    backbone = config.model.get('architecture', config.model).backbone
    # which stands in for that of a search
    backbone.structure = 'configs/structures/kcr-search_vit-base_8xb64_in1k-100.json'
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
    model = config.model.get('architecture', config.model)
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


def test_a_teacher_that_is_no_average_is_refused(tmp_path):
    with pytest.raises(ValueError, match='one searchable backbone .* in `CAE`, found 2'):
        host_search(tmp_path, 'cae/cae_beit-base-p16_8xb256-amp-coslr-300e_in1k.py')
