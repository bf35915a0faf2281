"""What `compression` leaves as the config has it, and what is merged over the wrapped model."""

from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop

from mmkcr.engine.build import load_config
from mmkcr.engine.compressed_config import expand_compression

METHODS = Path(__file__).parents[2] / 'configs/_base_/methods'


@pytest.fixture
def config():
    """A classifier of this package beside the method base of a search; nothing is built."""
    base = load_config(METHODS / 'kcr_search.py', compressed=False)
    base.merge_from_dict(dict(
        model=dict(type='ImageClassifier', head=dict(in_channels=32),
                   backbone=dict(type='mmkcr.KCRVisionTransformer', arch='base', img_size=64)),
        default_scope='mmpretrain', optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-3)),
        train_cfg=dict(by_epoch=True, max_epochs=20), compression=dict(sites='own')))
    return base


def test_own_sites(config):
    model = expand_compression(config).model
    backbone = model.architecture.backbone
    assert (model.type, backbone.type) == ('mmkcr.SearchModel', 'mmkcr.KCRVisionTransformer')
    assert backbone.gates.type == 'mmkcr.GumbelChannelGate' and 'sites' not in backbone
    assert model.price.input_shape == (3, 64, 64)


def test_own_sites_of_another_librarys_backbone(config):
    config.model.backbone.type = 'VisionTransformer'
    with pytest.raises(ValueError, match='expected a backbone of this package.*VisionTransformer'):
        expand_compression(config)


def test_hooks_of_a_type_are_not_doubled(config):
    config.custom_hooks = [dict(type='mmkcr.WarmupSwitchHook', begin=3)]
    hooks = expand_compression(config).custom_hooks
    assert [hook.type.split('.')[-1] for hook in hooks] == [
        'WarmupSwitchHook', 'TemperatureDecayHook', 'NystromRefreshHook']
    assert hooks[0].begin == 3 and hooks[2].interval == 3  # 15 % of 20 epochs


@pytest.mark.parametrize('length, begins', [
    (1, [0, 0, 0, 1]), (2, [1, 1, 1, 2]), (3, [1, 1, 2, 3]), (4, [1, 2, 3, 4]),
    (20, [6, 9, 18, 20])])
@pytest.mark.parametrize('unit', ['max_epochs', 'max_iters'])
def test_what_begins_at_a_share_has_at_least_the_last_epoch(config, unit, length, begins):
    """From 4 epochs on by rounding alone; the whole of a run is none of it, as it says."""
    config.train_cfg = {unit: length}
    for share, begin in zip(('30%', '45%', '90%', '100%'), begins):
        config.compression.hooks = [
            dict(type='mmkcr.WarmupSwitchHook', begin=share),
            dict(type='mmkcr.NystromRefreshHook', interval='15%')]
        switch, refresh = expand_compression(config).custom_hooks
        assert (switch.begin, refresh.interval) == (begin, max(1, round(0.15 * length)))
        assert switch.get('by_epoch', True) == (unit == 'max_epochs')


def test_keys_that_the_loop_does_not_know_are_refused(config):
    """They were dropped, so that a mistyped `max_epochs` trained the config's number."""
    config.train_cfg.max_epoch = 1
    train = expand_compression(config).train_cfg
    train.update(type=EpochBasedTrainLoop)  # which ours is, once it has split the data
    del train['architecture_fraction'], train['split_seed']
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_epoch'"):
        LOOPS.build(dict(train, runner=None, dataloader=None))


def test_optimizers_that_are_split_stay(config):
    split = dict(constructor='mmkcr.SearchOptimWrapperConstructor',
                 weights=dict(optimizer=dict(type='SGD', lr=0.1)),
                 architecture=dict(optimizer=dict(type='SGD', lr=0.2)))
    config.optim_wrapper = split
    found = expand_compression(config)
    assert found.optim_wrapper.to_dict() == split and found.train_cfg.max_epochs == 20
    config.optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
    assert set(expand_compression(config).optim_wrapper) == {
        'constructor', 'weights', 'architecture'}


def test_wrapper_with_arguments(config):
    config.compression.wrapper = dict(type='mmkcr.MaskedSearchModel', reconstruction=None)
    model = expand_compression(config).model
    assert (model.type, model.reconstruction) == ('mmkcr.MaskedSearchModel', None)


def test_entries_of_the_wrapper_are_merged_last(config):
    """Options of configs that wrapped the model themselves: 0.1's, and those of studies."""
    config.merge_from_dict({
        'model.price.weight': 0.7, 'model.regularizers.kcr.weight': 1.5,
        'model.architecture.backbone.gates.init': 0.5, 'model.architecture.head.in_channels': 8})
    model = expand_compression(config).model
    assert (model.price.weight, model.regularizers.kcr.weight) == (0.7, 1.5)
    backbone, head = model.architecture.backbone, model.architecture.head
    assert (backbone.gates.type, backbone.gates.init) == ('mmkcr.GumbelChannelGate', 0.5)
    assert head.in_channels == 8 and 'price' not in model.architecture


def test_the_given_config_is_left_as_it_is(config):
    before = Config(config._cfg_dict.to_dict())
    expand_compression(config)
    assert config.to_dict() == before.to_dict()


@pytest.mark.parametrize('given, found', [
    (dict(), dict(load_from='subnet.pth', resume=False)),
    # a command's checkpoint, to test or to go on from
    (dict(load_from='epoch_2.pth'), dict(load_from='epoch_2.pth', resume=False)),
    (dict(load_from='epoch_2.pth', resume=True), dict(load_from='epoch_2.pth', resume=True)),
    # the hosts' `--resume`, with a checkpoint in the work directory and without
    (dict(resume=True, work_dir='run'), dict(load_from=None, resume=True)),
    (dict(resume=True, work_dir='new'), dict(load_from='subnet.pth', resume=False))])
def test_what_a_run_starts_from(config, given, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'last_checkpoint').write_text('run/epoch_1.pth')
    config.compression.weights = 'subnet.pth'
    config.merge_from_dict(given)
    config = expand_compression(config)
    assert dict(load_from=config.get('load_from'), resume=config.get('resume', False)) == found


def test_a_backbone_with_a_scope_of_its_own(config):
    """As MMEngine notes it in what is taken over from a base of another library."""
    config.default_scope = 'mmdet'
    config.compression.sites = ['mlp_hidden']
    config.model.backbone = dict(type='ConvNeXt', _scope_='mmpretrain')
    found = expand_compression(config).model.architecture.backbone
    assert found.backbone.type == 'mmpretrain.ConvNeXt' and '_scope_' not in found.backbone
