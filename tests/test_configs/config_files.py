"""Where the configs are, and how a run of one is built, checked and trained for a step."""

import inspect
import re
from pathlib import Path

import numpy as np
import torch
import yaml
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import ConfigDict
from mmengine.dataset import Compose
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapperDict
from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import TRANSFORMS
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData
from mmpretrain.registry import DATASETS
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample
from torch.utils.data import Dataset

from lab.model_zoo import uninitialized
from mmkcr.methods.dcs.information_bottleneck import InformationBottleneckLoss
from mmkcr.methods.kcr.kernel_complexity import KernelComplexityLoss
from mmkcr.methods.search.refresh import RefreshHook
from mmkcr.methods.search.schedules import ScheduledHook, TemperatureDecayHook
from mmkcr.methods.search.teachers import DistillationLoss
from mmkcr.models.tasks import find_backbone, find_task, search_space

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / 'configs').rglob('*.py')
                 if '_base_' not in path.parts)

#: Images of every data set.
SAMPLES = dict(ImageNet=1281167, ClassSubset=126000, Flowers102=2040, OxfordIIITPet=3680,
               StanfordCars=8144, CocoDataset=118287,
               RepeatDataset=591435, ADE20KDataset=20210, BaseSegDataset=400,
               CIFAR10=50000, CIFAR100=50000, CityscapesDataset=2975)

#: Models of the metafiles by method.
MODELS_OF = {path.parent.name: yaml.safe_load(path.read_text())['Models']
             for path in sorted((ROOT / 'configs').glob('*/metafile.yml'))}


@DATASETS.register_module()
class StandIn(Dataset):
    """As long as the real data set, with its transforms, without its images."""

    def __init__(self, length, pipeline, classes=()):
        self.length, self.metainfo = length, dict(classes=tuple(classes))
        self.pipeline = Compose([TRANSFORMS.build(transform) for transform in pipeline])

    def __len__(self):
        return self.length

    def get_data_info(self, index):
        return dict(width=640, height=480)


def stand_in(cfg):
    """Check a data set's config, and replace it."""
    with ROOT_DATASETS.switch_scope_and_registry(None) as registry:  # of the config's scope
        cls = registry.get(cfg.type)
    assert cls is not None, f'unknown data set {cfg.type}'
    args = {key: value for key, value in cfg.items() if key not in ('type', '_scope_')}
    inspect.signature(cls.__init__).bind(None, **args)
    pipeline = stand_in(cfg.dataset).pipeline if 'dataset' in cfg else cfg.pipeline
    classes = (cfg.get('metainfo') or getattr(cls, 'METAINFO', {})).get('classes', ())
    return ConfigDict(type='mmpretrain.StandIn', length=SAMPLES[cls.__name__], pipeline=pipeline,
                      classes=classes)


def rows_of(method, folder):
    """Config and options of a metafile's models in a folder, as `load_config` takes them."""
    return {model['Name']: (ROOT / model['Config'], model.get('Options'))
            for model in MODELS_OF[method] if Path(model['Config']).parts[2] == folder}


def search_of(folder):
    """The config of a run's folder, whose name may have an argument: ``_lambda04_``, ``_900m_``."""
    plain = re.sub(r'_(lambda0\d|\d+m)(?=_)', '', folder)
    for name in (folder, plain):
        found = [path for path in CONFIGS if Path(path).stem == name]
        if found:
            return found[0]
    raise AssertionError(f'expected a config of the run `{folder}`, found none')


def task_of(config):
    """The task model in a config, within its wrapper or without one."""
    return config.model.get('architecture', config.model)


def transforms(config, part, name):
    """Transforms of a name in the pipeline of a part of the data."""
    dataset = config[f'{part}_dataloader'].dataset
    while 'pipeline' not in dataset:
        dataset = dataset.dataset
    return [step for step in dataset.pipeline if step.type == name]


def build(config, context=uninitialized):
    """A runner with its loops and optimizers, by default without values of weights."""
    with context():
        runner = Runner.from_cfg(config)
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.scale_lr(runner.optim_wrapper, dict(runner.auto_scale_lr, enable=True))
        if runner.param_schedulers is not None:
            runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
        if runner._val_loop is not None:
            runner._val_loop = runner.build_val_loop(runner._val_loop)
            runner._test_loop = runner.build_test_loop(runner._test_loop)
    return runner


STAGES = ('pretrain', 'dense', 'search', 'slim', 'replace', 'retrain', 'deploy', 'transfer',
          'finetune', 'linear')


def stage_of(path):
    """The stage in a config's name: behind the method, or behind the network of a dense task.

    Dense tasks whose subnet was searched on ImageNet have none.
    """
    first, _, second, *_ = Path(path).stem.split('_')
    return next((part for part in (first.rpartition('-')[2], second) if part in STAGES), None)


def check_state(path, model, **states):
    """The network is in the state of its stage, by default a subnet."""
    stage, space = stage_of(path), search_space(model)
    states = dict(search='supernet', dense='dense', **states)
    assert space.state_name() == states.get(stage, 'subnet')
    assert bool(space.gates()) == (stage == 'search')


def wrappers_of(runner):
    """The optimizers of weights and gates, or the one of both."""
    wrappers = runner.optim_wrapper
    return list(wrappers.values()) if isinstance(wrappers, OptimWrapperDict) else [wrappers]


def check_run(runner):
    """Each trained parameter is in one group of an optimizer; hooks refuse none of the settings."""
    held = [id(p) for wrapper in wrappers_of(runner) for group in wrapper.optimizer.param_groups
            for p in group['params']]
    assert sorted(held) == sorted(id(p) for p in runner.model.parameters() if p.requires_grad)
    for hook in runner.hooks:
        if isinstance(hook, ScheduledHook):  # landmarks above n, no gates, ...
            hook.before_train(runner)


def ready_to_train(runner):
    """The model with small weights and all terms.

    Norms, biases and gates are about one, and pass on much.
    """
    model = runner.model = revert_sync_batchnorm(runner.model).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.02)
    for term in model.modules():  # as after a refresh; a teacher without its checkpoint
        if isinstance(term, KernelComplexityLoss):
            width, rank = term.basis.shape
            term.set_basis(torch.eye(width)[:, :rank])
            term.active = True
        elif isinstance(term, InformationBottleneckLoss):
            term.refresh(torch.randn_like(term.centroids),
                         torch.randn_like(term.log_q).log_softmax(1))
            term.active = True
        elif isinstance(term, DistillationLoss):
            term.teacher.checkpoint = None
    return model


def backward(model, data):
    """Losses of a batch: their sum is finite, and every trained parameter has a gradient."""
    losses = model(**model.data_preprocessor(data, training=True), mode='loss')
    total, _ = model.parse_losses(losses)
    total.backward()
    assert torch.isfinite(total)
    assert not [name for name, param in model.named_parameters() if param.requires_grad
                and (param.grad is None or not param.grad.isfinite().all())]
    return losses


def first_losses(runner):
    """Losses of the first batch, with every term; see :func:`backward`."""
    for hook in runner.hooks:
        if isinstance(hook, (RefreshHook, TemperatureDecayHook)):
            hook.before_train(runner)
        if isinstance(hook, RefreshHook):
            hook.refresh(runner)
    MessageHub.get_current_instance().update_info('max_iters', 10)
    return backward(runner.model.train(), next(iter(runner.train_dataloader)))


def check_steps(runner):
    """The optimizers move the backbone."""
    first = next(find_backbone(runner.model).parameters())
    before = first.detach().clone()
    for wrapper in wrappers_of(runner):
        wrapper.step()
    assert not torch.equal(before, first)


def images(count, size):
    """Noise."""
    return list(torch.randint(0, 255, (count, 3, *size), dtype=torch.uint8))


def labelled():
    """A batch of the digits for a classifier, as the data loader gives it."""
    return dict(inputs=images(4, (32, 32)),
                data_samples=[DataSample().set_gt_label(label) for label in range(4)])


def label_maps(size, classes, count=2):
    """A batch for a segmentor, as the data loader gives it."""
    labels = torch.randint(0, classes, (1, *size))
    labels[..., :9] = 255
    return dict(inputs=images(count, size), data_samples=[
        SegDataSample(gt_sem_seg=PixelData(data=labels.clone()), metainfo=dict(img_shape=size))
        for _ in range(count)])


def objects(side, classes, masked, count=2):
    """A batch for a detector with two objects in every image, as the data loader gives it."""
    boxes = torch.tensor([[10., 12., 10. + side / 4, 12. + side / 3],
                          [side / 2, side / 2, side - 8., side - 10.]])
    masks = np.zeros((2, side, side), np.uint8)
    for mask, box in zip(masks, boxes.int().tolist()):
        mask[box[1]:box[3], box[0]:box[2]] = 1
    samples = []
    for _ in range(count):
        sample = DetDataSample(metainfo=dict(img_shape=(side, side), ori_shape=(side, side),
                                             scale_factor=(1., 1.)))
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([1, classes - 1]))
        if masked:
            sample.gt_instances.masks = BitmapMasks(masks, side, side)
        samples.append(sample)
    return dict(inputs=images(count, (side, side)), data_samples=samples)


def few_rois(model):
    """As the config says, with fewer proposals and regions of interest."""
    task = find_task(model)
    task.train_cfg.rpn_proposal.update(nms_pre=100, max_per_img=20)
    samplers = task.roi_head.bbox_sampler
    for sampler in samplers if isinstance(samplers, list) else [samplers]:
        sampler.num = 8
