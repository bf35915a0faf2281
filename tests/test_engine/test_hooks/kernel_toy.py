"""A tiny task, its data and its Runner."""

import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS, TRANSFORMS, DefaultScope
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn

import mmkcr  # noqa: F401
from mmkcr.methods.search.refresh import RefreshHook

WIDTH, CLASSES = 6, 3


@MODELS.register_module(force=True)
class ToyTask(BaseModel):
    """A linear backbone and head; dropout shows whether features are taken in eval mode."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, WIDTH), nn.Dropout(0.5))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        scores = self.head(self.backbone(torch.stack(inputs)))
        if mode == 'tensor':
            return scores
        labels = torch.tensor([int(sample.gt_label) for sample in data_samples])
        if mode == 'loss':
            return dict(loss=nn.functional.cross_entropy(scores, labels))
        for sample, score in zip(data_samples, scores.softmax(1)):
            sample.set_field(score, 'pred_score')
        return data_samples


@TRANSFORMS.register_module(force=True)
class PackToy:
    """Packs a sample; with ``noise`` it draws from the global random state."""

    def __init__(self, noise=0.):
        self.noise = noise

    def __call__(self, results):
        generator = torch.Generator().manual_seed(results['sample_idx'])
        inputs = torch.randn(4, generator=generator) * torch.arange(1., 5.)
        sample = BaseDataElement(metainfo=dict(sample_idx=results['sample_idx']))
        sample.set_field(torch.tensor([results['gt_label']]), 'gt_label')
        return dict(inputs=inputs + self.noise * torch.randn(4), data_samples=sample)


@DATASETS.register_module(force=True)
class ToyData(BaseDataset):
    """``size`` seeded vectors."""

    METAINFO = dict(classes=('a', 'b', 'c'))

    def __init__(self, size, pipeline):
        self.size = size
        super().__init__(pipeline=pipeline, serialize_data=False)

    def load_data_list(self):
        return [dict(gt_label=i % CLASSES) for i in range(self.size)]


@METRICS.register_module(force=True)
class KeepSamples(BaseMetric):
    """Collects every sample's feature and score the ordinary way."""

    default_prefix = 'toy'

    def process(self, data_batch, data_samples):
        self.results += [(s['features'], s['pred_score'], s['gt_label']) for s in data_samples]

    def compute_metrics(self, results):
        self.kept = [torch.stack(list(column)) for column in zip(*results)]
        return dict(count=len(results))


class Watch(Hook):
    """Keeps what ``look(runner, outputs)`` says in every training iteration, with its epoch."""

    def __init__(self, look):
        self.look, self.seen = look, []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.seen.append((runner.epoch, self.look(runner, outputs)))


def make_config(work_dir, hooks=(), **overrides):
    """A run of three epochs on 24 samples; overrides replace top-level entries."""
    def loader(size, noise=0., shuffle=False):
        return dict(batch_size=4, num_workers=0,
                    sampler=dict(type='DefaultSampler', shuffle=shuffle),
                    dataset=dict(type='ToyData', size=size,
                                 pipeline=[dict(type='PackToy', noise=noise)]))

    config = dict(
        model=dict(type='mmkcr.RegularizedModel', architecture=dict(type='ToyTask'),
                   regularizers=dict(kcr=dict(type='mmkcr.KernelComplexityLoss',
                                              num_features=WIDTH, rank_ratio=0.5))),
        train_dataloader=loader(24, noise=5., shuffle=True),
        val_dataloader=loader(13),
        val_evaluator=[dict(type='KeepSamples'),
                       dict(type='mmkcr.KernelComplexityMetric', landmark_ratio=0.6)],
        val_cfg=dict(),
        train_cfg=dict(by_epoch=True, max_epochs=3, val_interval=3),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        custom_hooks=[dict(type='mmkcr.FeatureTapHook'), *hooks],
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1)),
        randomness=dict(seed=3), work_dir=str(work_dir), log_level='ERROR', visualizer=None,
        default_scope='mmengine')
    config.update(overrides)
    return Config(config)


def make_runner(work_dir, name, **overrides):
    """Builds the Runner; the name must be unique within the process."""
    DefaultScope._instance_dict.clear()
    return Runner.from_cfg(Config(dict(make_config(work_dir, **overrides), experiment_name=name)))


def both():
    """Overrides: both regularisers with their hooks, on parts of the samples."""
    model = make_config('x').model
    model.regularizers.ib = dict(type='mmkcr.InformationBottleneckLoss', num_features=WIDTH,
                                 num_classes=CLASSES, weight=2., input_features=4)
    metrics = make_config('x').val_evaluator
    metrics.append(dict(type='mmkcr.InformationBottleneckMetric', num_classes=CLASSES))
    hooks = [dict(type='mmkcr.NystromRefreshHook', interval=2, landmarks=15),
             dict(type='mmkcr.InformationBottleneckHook', samples=17)]
    return dict(model=model, val_evaluator=metrics, hooks=hooks)


def refresh_only(runner):
    """The Runner, whose refresh hooks ran on the weights as built, without a training step."""
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    for hook in runner.hooks:
        if isinstance(hook, RefreshHook):
            hook.before_train(runner)
            hook.before_train_epoch(runner)
    return runner


def eval_features(runner, size=24):
    """Features of the first training vectors without noise or dropout, by hand; and the vectors."""
    pack = PackToy()
    inputs = torch.stack([pack(dict(sample_idx=i, gt_label=0))['inputs'] for i in range(size)])
    with torch.no_grad():
        return runner.model.architecture.backbone[0](inputs), inputs
