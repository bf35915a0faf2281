"""The configs' settings are those of the KCR paper."""

import re
from pathlib import Path

import pytest
import torch
from config_files import CONFIGS, ROOT, rows_of, search_of, task_of
from mmengine.optim import OptimWrapper
from mmengine.registry import PARAM_SCHEDULERS, init_default_scope

from mmkcr.engine.build import load_config
from mmkcr.registry import HOOKS

ARCHS = ('vit-small', 'vit-base', 'swin-tiny', 'swin-base')
WIDTH = {'vit-small': 384, 'vit-base': 768, 'swin-tiny': 768, 'swin-base': 1024,
         'efficientvit-b1': 256}
FEATURES = {**WIDTH, 'efficientvit-b1': 1600}  # that the classifier reads
ARCH_NAME = {'vit-small': 'deit-small', 'vit-base': 'base', 'swin-tiny': 'tiny',
             'swin-base': 'base', 'efficientvit-b1': 'b1'}
IMAGENET = [path for path in CONFIGS if Path(path).parts[1] == 'kcr' and Path(path).parts[2] in (
    'search', 'retrain', 'transfer')]


def arch_of(path):
    return Path(path).stem.split('_')[1]


def hook(config, name):
    found = [h for h in config.custom_hooks if h.type.split('.')[-1] == name]
    assert len(found) == 1
    return found[0]


def learning_rates(schedulers, lr, epochs, length=10):
    """The rate of every iteration."""
    init_default_scope('mmpretrain')
    optimizer = OptimWrapper(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr))
    built = [PARAM_SCHEDULERS.build(dict(cfg), default_args=dict(
        optimizer=optimizer, epoch_length=length)) for cfg in schedulers]
    rates = []
    for _ in range(epochs * length):
        rates.append(optimizer.get_lr()['lr'][0])
        optimizer.step()
        for scheduler in built:
            scheduler.step()
    return rates


@pytest.mark.parametrize('path', IMAGENET)
def test_everywhere(path, load):
    config, arch = load(path), arch_of(path)
    task = task_of(config)
    assert task.backbone.arch == ARCH_NAME[arch]
    assert task.head.in_channels == WIDTH[arch]
    assert task.head.loss.type == 'CrossEntropyLoss'
    assert task.get('train_cfg') is None  # no mixup
    kcr = config.model.get('regularizers', {}).get('kcr')
    assert kcr is None or (kcr.num_features == FEATURES[arch] and kcr.rank_ratio == 0.2)
    # batch 512, random resized crop and flip
    assert config.train_dataloader.batch_size == 64 and '_8xb64_' in path
    assert config.auto_scale_lr.base_batch_size == 512
    dataset = config.train_dataloader.dataset
    types = [step.type for step in dataset.get('dataset', dataset).pipeline]
    assert types == ['LoadImageFromFile', 'RandomResizedCrop', 'RandomFlip', 'PackInputs']
    if '/transfer/' not in path:  # every validation measures the complexity of the head's inputs
        assert [metric.type for metric in config.val_evaluator] == [
            'Accuracy', 'mmkcr.KernelComplexityMetric']
        assert config.test_evaluator.type == 'Accuracy'
        assert dict(hook(config, 'FeatureTapHook')) == dict(type='mmkcr.FeatureTapHook')


SEARCHES = [path for path in IMAGENET if '/search/' in path]


@pytest.mark.parametrize('path', SEARCHES)
def test_search(path, load):
    config = load(path)
    for part in ('train', 'val', 'test'):
        subset = config[f'{part}_dataloader'].dataset
        assert (subset.type, subset.num_classes, subset.seed) == ('mmkcr.ClassSubset', 100, 0)
    assert config.model.architecture.head.num_classes == 100
    loop = config.train_cfg
    assert (loop.type, loop.max_epochs, loop.architecture_fraction) == (
        'mmkcr.BilevelTrainLoop', 200, 0.3)
    adam = dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999))
    assert config.optim_wrapper.weights.optimizer == dict(adam, weight_decay=0.01)
    gates = config.optim_wrapper.architecture.optimizer
    assert {key: gates[key] for key in adam} == adam
    temperature = hook(config, 'TemperatureDecayHook')
    assert (temperature.initial, temperature.decay) == (4.5, 0.95)
    name = Path(path).stem
    assert config.model.price.weight == 0.2
    assert ('kcr' in config.model.regularizers) == ('_v1_' not in name)
    if '_v1_' not in name:
        assert config.model.regularizers.kcr.weight == 0.2
        assert hook(config, 'WarmupSwitchHook').begin == 90
        refresh = hook(config, 'NystromRefreshHook')
        assert (refresh.interval, refresh.landmarks) == (30, 50000)


def scaled_back(schedulers, lr, epochs):
    """With --auto-scale-lr the whole schedule is scaled, its end too."""
    return pytest.approx([8 * rate for rate in learning_rates(schedulers, lr / 8, epochs)])


def test_search_rate_falls_from_1e3_to_1e4(load):
    weights, architecture = load(SEARCHES[0]).param_scheduler.values()
    rates = learning_rates(weights, 1e-3, 200)
    assert rates[0] == pytest.approx(1e-3) and rates[-1] == pytest.approx(1e-4, rel=1e-3)
    assert rates == sorted(rates, reverse=True)
    assert rates[1000] == pytest.approx(5.5e-4, rel=1e-2)
    assert rates == learning_rates(architecture, 1e-3, 200) == scaled_back(weights, 1e-3, 200)


RETRAINS = [path for path in IMAGENET if '/retrain/' in path]
DENSE = {name for name in rows_of('kcr', 'retrain') if '_dense_' in name}
ROWS = {name: row for name, row in rows_of('kcr', 'retrain').items() if name not in DENSE}


def test_retrained_rows():
    """Rows of tables 11 and 13, and the settings of v1, are options beside a config."""
    options = {f'kcr-retrain_swin-base_{variant}_8xb64_in1k' for variant in (
        'eta01', 'eta03', 'eta04', 'eta05', 'lambda04', 'lambda06', 'lambda08', 'v1')}
    assert set(ROWS) == options | {Path(path).stem for path in RETRAINS}
    assert {arch_of(name) for name in DENSE} == {*ARCHS, 'efficientvit-b1'}
    assert {f'kcr-retrain_{arch}_8xb64_in1k' for arch in ARCHS} < set(ROWS)


@pytest.mark.parametrize('name', ROWS)
def test_retrain(name):
    config = load_config(*ROWS[name])
    assert config.optim_wrapper.optimizer == dict(
        type='AdamW', lr=2e-3, betas=(0.9, 0.999), weight_decay=0.01)
    assert config.train_cfg.max_epochs == 300
    assert config.train_dataloader.dataset.type == 'ImageNet'
    assert 'EMAHook' in [h.type for h in config.custom_hooks]
    if '_no-kcr_' in name:
        assert not config.model.regularizers
        assert [h.type for h in config.custom_hooks] == ['EMAHook', 'mmkcr.FeatureTapHook']
        return
    eta = re.search(r'_eta0(\d)_', name)  # table 11
    weight = int(eta[1]) / 10 if eta else 1. if '_v1_' in name else 0.2
    assert config.model.regularizers.kcr.weight == weight
    assert hook(config, 'WarmupSwitchHook').begin == 90
    refresh = HOOKS.build(hook(config, 'NystromRefreshHook'))
    refresh.dataset = range(1281167)  # ImageNet's training set
    assert refresh.interval == 30
    assert len(refresh._draw(0)) == (100000 if '_v1_' in name else 50000)


def test_retrain_rate_warms_up_to_2e3_and_falls_to_2e4(load):
    schedulers = load(RETRAINS[0]).param_scheduler
    rates = learning_rates(schedulers, 2e-3, 300)
    assert rates[0] == pytest.approx(2e-4) and rates[-1] == pytest.approx(2e-4, rel=1e-3)
    assert max(rates) == pytest.approx(2e-3) and 49 <= rates.index(max(rates)) <= 51
    assert rates[:50] == sorted(rates[:50]) and rates[50:] == sorted(rates[50:], reverse=True)
    assert rates == scaled_back(schedulers, 2e-3, 300)


@pytest.mark.parametrize('data, classes', [('flowers102', 102), ('pets', 37), ('cars', 196)])
def test_transfer(data, classes, load):
    path, = [path for path in IMAGENET if path.endswith(f'_{data}.py')]
    config = load(path)
    assert dict(config.optim_wrapper.optimizer) == dict(type='Adam', lr=1e-5)
    assert config.get('param_scheduler') is None and config.train_cfg.max_epochs == 50
    assert config.model.head.num_classes == classes
    checkpoint = config.model.backbone.init_cfg.checkpoint
    assert any(Path(path).stem == Path(checkpoint).parent.name for path in RETRAINS)


@pytest.mark.parametrize('path', [path for path in CONFIGS if '/digits/' in path])
def test_digits_are_validated_by_the_accuracy_alone(path, load):
    config = load(path)
    assert 'KernelComplexityMetric' not in str(config.get('val_evaluator'))
    assert 'FeatureTapHook' not in str(config.get('custom_hooks'))


@pytest.mark.parametrize('number, macs', [(4, '9.7G'), (6, '7.8G'), (8, '6.0G')])
def test_lambda_is_an_argument_of_the_search(number, macs):
    """The retraining's header says how the subnets of table 13 are searched and retrained."""
    path = 'configs/kcr/retrain/kcr-retrain_swin-base_8xb64_in1k.py'
    header = (ROOT / path).read_text().partition('_base_')[0]
    assert f'0.{number}' in header and macs in header
    option = re.search(r'--cfg-options (compression\S+)=0.4', header)
    config = load_config(ROOT / search_of('kcr-search_swin-base_lambda04_8xb64_in1k-100'),
                         {option[1]: number / 10})
    assert config.model.price.weight == number / 10
    assert 'RUN=work_dirs/kcr-search_swin-base_lambda04_8xb64_in1k-100\n' in header
    assert '--cfg-options compression.structure=$RUN/slim/structure.json\n' in header


def test_retraining_without_its_wrapper_is_an_ordinary_classifier():
    config = load_config(ROOT / 'configs/kcr/retrain/kcr-retrain_swin-tiny_8xb64_in1k.py',
                         {'compression.wrapper': None, 'compression.structure': 'other.json'})
    assert config.model.type == 'ImageClassifier'
    assert config.model.backbone.structure == 'other.json'


@pytest.mark.parametrize('name', ROWS)
def test_subnet_is_that_of_the_matching_search(name, load):
    config = load_config(*ROWS[name])
    search = Path(config.model.architecture.backbone.structure).parts[1]
    own = load(search_of(search))
    assert own.model.architecture.backbone.arch == config.model.architecture.backbone.arch
    for variant in ('v1', 'lambda04', 'lambda06', 'lambda08'):
        assert (f'_{variant}_' in search) == (f'_{variant}_' in name)
