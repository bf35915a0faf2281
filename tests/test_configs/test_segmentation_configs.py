"""Every segmentation config is built, and takes a training step on images of the true shape."""

from contextlib import nullcontext
from unittest import mock

import config_files as runs
import pytest
from config_files import CONFIGS, ROOT
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmseg.datasets import ADE20KDataset

from lab.model_zoo import uninitialized
from long_form import every_nth
from mmkcr.engine.build import load_config
from mmkcr.engine.compressed_config import expand_compression
from mmkcr.models.tasks import find_backbone, find_task

SEGMENTATION = [path for path in CONFIGS if path.startswith('configs/kcr/segmentation/')]
ADE20K = [path for path in SEGMENTATION if '_ade20k' in path]


def crop_of(path):
    """Side of the crops of ADE20K: 512, or 640 for the number that the paper quotes."""
    return 640 if '640x640' in path else 512


def test_found():
    assert len(SEGMENTATION) == 8 and len(ADE20K) == 5
    for arch in ('tiny', 'base'):
        assert {runs.stage_of(path) for path in ADE20K if arch in path} == {'dense', None}


@pytest.mark.parametrize('path', every_nth(2, SEGMENTATION))
def test_builds_and_takes_a_step(path, prepared):
    stage = runs.stage_of(path)
    runner = runs.build(prepared(path), uninitialized if path in ADE20K else nullcontext)
    task, backbone = find_task(runner.model), find_backbone(runner.model)
    classes = runner.train_dataloader.dataset.metainfo['classes']
    assert {task.decode_head.num_classes, task.auxiliary_head.num_classes} == {len(classes)} == {
        len(ADE20KDataset.METAINFO['classes']) if path in ADE20K else 10}
    runs.check_state(path, runner.model)
    assert type(runner.model).__name__ == ('SearchModel' if stage == 'search' else
                                           'EncoderDecoder')
    initial = backbone.init_cfg or {}
    assert (initial.get('type') == 'Pretrained') == (stage != 'slim')
    runs.check_run(runner)
    names = [type(hook).__name__ for hook in runner.hooks]
    assert names.count('ExactResumeHook') == 1
    for name in ('TemperatureDecayHook', 'WarmupSwitchHook', 'NystromRefreshHook'):
        assert names.count(name) == (stage == 'search')
    step_without_numbers(path, runner, len(classes))


def no_accuracy(pred, *_, **__):
    return pred.new_zeros(1)  # it selects pixels by value, and takes no part in the gradient


def step_without_numbers(path, runner, classes):
    """For ADE20K on the meta device, where tensors have shapes and operators take no time.

    A batch of the config's size in crops of the config's size reaches the loss
    and the optimizers, and every trainable parameter gets a gradient.
    """
    model = revert_sync_batchnorm(runner.model).train()
    size = tuple(find_task(model).data_preprocessor.size)
    assert size == ((crop_of(path), ) * 2 if path in ADE20K else (128, 128))
    data = model.data_preprocessor(
        runs.label_maps(size, classes, runner.train_dataloader.batch_size), training=True)
    assert data['inputs'].shape[2:] == size
    device = 'meta' if path in ADE20K else 'cpu'  # losses over labelled pixels count these
    model.to(device)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.cfg.optim_wrapper)
    with mock.patch('mmseg.models.decode_heads.decode_head.accuracy', no_accuracy):
        losses = model(data['inputs'].to(device), [s.to(device) for s in data['data_samples']],
                       mode='loss')
    assert ('loss_price' in losses) == (runs.stage_of(path) == 'search')
    assert 'loss_kcr' not in losses  # off in the warm-up; on in the step with numbers below
    parse = BaseModel.parse_losses if device == 'meta' else type(model).parse_losses
    parse(model, losses)[0].backward()  # without a look whether they are finite
    missing = [name for name, parameter in model.named_parameters()
               if parameter.requires_grad and parameter.grad is None]
    assert not missing
    for wrapper in runs.wrappers_of(runner):
        wrapper.step()


@pytest.mark.parametrize('path', [path for path in ADE20K if runs.stage_of(path) != 'search'])
def test_settings_of_the_paper(path, load):
    """The paper: 160k, batch 16, AdamW 6e-5, 0.01, 1500 of warm-up then linear, and the rest."""
    config = load(path)
    assert config.train_cfg.type == 'IterBasedTrainLoop' and config.train_cfg.max_iters == 160000
    assert config.train_dataloader.batch_size * 8 == config.auto_scale_lr.base_batch_size == 16
    optimizer = config.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', 6e-5, 0.01)
    warmup, decay = config.param_scheduler
    assert (warmup.type, warmup.by_epoch, warmup.begin, warmup.end) == ('LinearLR', False, 0, 1500)
    assert (decay.type, decay.power, decay.begin, decay.end, decay.eta_min, decay.by_epoch) == (
        'PolyLR', 1., 1500, 160000, 0., False)
    steps = {step.type: step for step in config.train_dataloader.dataset.pipeline}
    assert steps['RandomResize'].ratio_range == (0.5, 2.0) and 'PhotoMetricDistortion' in steps
    assert steps['RandomFlip'].prob == 0.5
    assert steps['RandomCrop'].crop_size == (crop_of(path), ) * 2
    # the number of 640 x 640 is that of Liu et al., whose rate is 0.3
    backbone = config.model.backbone.get('backbone', config.model.backbone)
    assert backbone.drop_path_rate == (0.3 if crop_of(path) == 640 else 0.2)
    scales, flips = config.tta_pipeline[-1].transforms[:2]
    assert [scale.scale_factor for scale in scales] == [0.5, 0.75, 1., 1.25, 1.5, 1.75]
    assert [flip.prob for flip in flips] == [0., 1.]
    assert config.tta_model.type == 'SegTTAModel'


@pytest.mark.parametrize(('arch', 'stage'), [('tiny', 'search'), ('base', 'kcr')])
def test_a_step_with_numbers(arch, stage, prepared):
    """On small crops, with narrower heads; the step above has the config's crops."""
    variant = '_dense' if stage == 'search' else ''
    path = f'configs/kcr/segmentation/kcr-upernet_swin-{arch}{variant}_8xb2_ade20k.py'
    config = prepared(path)
    if stage == 'search':  # on the task itself: the dense config, a method base and a target
        base = load_config(ROOT / 'configs/_base_/methods/kcr_search.py', compressed=False)
        config.compression = dict(base.compression, sites='own', target='80%')
        config = expand_compression(config)
    task = runs.task_of(config)
    task.decode_head.channels = task.auxiliary_head.channels = 16
    if stage == 'search':
        config.model.price.input_shape = (3, 128, 128)
    runner = runs.build(config, uninitialized if path in ADE20K else nullcontext)
    model = runs.ready_to_train(runner)
    for pool in find_task(model).decode_head.psp_modules:
        pool.eval()  # a norm over a batch of one pooled pixel
    find_task(model).data_preprocessor.size = (128, 128)
    losses = runs.backward(model, runs.label_maps((128, 128), 150, 1))
    assert ('loss_kcr' in losses) == ('loss_price' in losses) == (stage == 'search')
    runs.check_steps(runner)
