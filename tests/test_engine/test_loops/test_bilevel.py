"""The bilevel loop against the algorithm written out by hand."""

import math

import mmdet.engine  # noqa: F401
import mmpretrain.models  # noqa: F401
import pytest
import torch
from mmcv.transforms import Compose
from mmengine.config import ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import DATASETS, MODELS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from mmpretrain.structures import DataSample
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmkcr.core import NonFiniteError

SGD = dict(optimizer=dict(type='SGD', lr=0.1))
CONSTRUCTOR = dict(constructor='mmkcr.SearchOptimWrapperConstructor')
SAMPLES, BATCH = 40, 4  # 28 samples or 7 batches for the weights, 12 for the gates


@MODELS.register_module(force=True)
class BilevelToy(BaseModel):
    """A linear model with a gate on each input."""

    def __init__(self, with_cp=False):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.alpha = nn.Parameter(torch.tensor([0.5, -0.5, 1.]))
        self.with_cp = with_cp

    def gate_parameters(self):
        return [self.alpha]

    def forward(self, inputs, target, mode='tensor'):
        def run(inputs):
            return self.linear(inputs * torch.sigmoid(self.alpha))

        inputs = inputs.clone().requires_grad_(self.with_cp)
        output = checkpoint(run, inputs, use_reentrant=True) if self.with_cp else run(inputs)
        return dict(loss_fit=(output[:, 0] - target).square().mean(), size=self.alpha.sum())


@MODELS.register_module(force=True)
class NoGates(BilevelToy):
    def gate_parameters(self):
        return []


@DATASETS.register_module(force=True)
class BilevelData(BaseDataset):
    def load_data_list(self):
        values = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
        return [dict(inputs=row[:3].tolist(), target=float(row[3])) for row in values]

    def prepare_data(self, index):
        info = self.get_data_info(index)
        return dict(inputs=torch.tensor(info['inputs']), target=torch.tensor(info['target']))


@DATASETS.register_module(force=True)
class BilevelImages(BilevelData):
    """Images of noise with labels."""

    def prepare_data(self, index):
        image = torch.randint(256, (3, 16, 16), generator=torch.Generator().manual_seed(index))
        return dict(inputs=image.byte(), data_samples=DataSample().set_gt_label(index % 5))


@DATASETS.register_module(force=True)
class BilevelPipes(BilevelData):
    """The target tells whether the transforms were switched."""

    def prepare_data(self, index):
        return dict(super().prepare_data(index),
                    target=torch.tensor(float(isinstance(self.pipeline, Compose))))


class Record(Hook):
    """Keeps what hooks see."""

    def __init__(self):
        self.outputs = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.outputs.append({name: float(value) for name, value in outputs.items()})


def loader(dataset='BilevelData', batch_size=BATCH, sampler='DefaultSampler',
           collate='default_collate', num_workers=0, **changes):
    """Of epochs, or of another sampler; changes are the data set's."""
    return dict(dataset=dict(type=dataset, **changes), batch_size=batch_size,
                num_workers=num_workers, persistent_workers=num_workers > 0,
                sampler=dict(type=sampler), collate_fn=dict(type=collate))


def scaled():
    """Optimizers with a loss scaler."""
    return dict(CONSTRUCTOR, **{name: dict(type='ScaledWrapper', **SGD)
                                for name in ('weights', 'architecture')})


def build(work_dir, accumulate=(1, 1), model=None, hooks=(), **changes):
    optimizers = {name: dict(optimizer=dict(type='SGD', lr=lr, momentum=0.9),
                             accumulative_counts=counts)
                  for name, lr, counts in zip(('weights', 'architecture'), (0.1, 0.3), accumulate)}
    config = dict(
        model=model or dict(type='BilevelToy'), work_dir=str(work_dir),
        train_dataloader=loader(),
        train_cfg=dict(type='mmkcr.BilevelTrainLoop', max_epochs=2),
        optim_wrapper=dict(constructor='mmkcr.SearchOptimWrapperConstructor', **optimizers),
        randomness=dict(seed=0), experiment_name=str(work_dir),
        custom_hooks=[dict(type='mmkcr.ExactResumeHook'), *hooks],
        default_hooks=dict(logger=None, timer=None, checkpoint=None))
    config.update(changes)
    return Runner(**config, default_scope='mmengine', cfg=ConfigDict(config))


def by_hand(loop, model, accumulate):
    """Algorithm 1 with gradients by ``torch.autograd.grad`` and two SGD optimizers."""
    parameters = dict(weights=list(model.linear.parameters()), architecture=[model.alpha])
    optimizers = {name: torch.optim.SGD(params, lr=lr, momentum=0.9) for (name, params), lr
                  in zip(parameters.items(), (0.1, 0.3))}
    counts = dict(zip(parameters, accumulate))
    total, done, pending, logs = 2 * len(loop.dataloader), 0, {}, []
    for epoch in range(2):
        for part in (loop.dataloader, loop.architecture_dataloader):
            part.batch_sampler.sampler.set_epoch(epoch)
        for batches in zip(loop.dataloader, loop.architecture_dataloader):
            done += 1
            log = {}
            for name, batch in reversed(list(zip(parameters, batches))):
                losses = model(**batch)
                prefix = '' if name == 'weights' else 'architecture/'
                log.update({prefix + key: float(value) for key, value in losses.items()})
                grads = torch.autograd.grad(losses['loss_fit'], parameters[name])
                pending[name] = pending.get(name, []) + [grads]
                if done % counts[name] == 0 or done == total:
                    for i, param in enumerate(parameters[name]):
                        param.grad = sum(g[i] for g in pending[name]) / len(pending[name])
                    optimizers[name].step()
                    pending[name] = []
            logs.append(log)
    return logs


@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('accumulate', [(1, 1), (2, 1), (1, 3), (2, 4)])
def test_equals_the_algorithm_by_hand(tmp_path, accumulate, with_cp):
    record = Record()
    runner = build(tmp_path, accumulate, dict(type='BilevelToy', with_cp=with_cp))
    runner.register_hook(record)
    reference = BilevelToy()
    reference.load_state_dict(runner.model.state_dict())
    runner.train()
    logs = by_hand(runner.train_loop, reference, accumulate)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(runner.model.state_dict()[name], value)
    assert len(record.outputs) == len(logs) == 14
    for output, log in zip(record.outputs, logs):
        assert {name: output[name] for name in log} == pytest.approx(log, rel=1e-4)


def test_parts_are_never_mixed(tmp_path):
    seen = {'dataloader': set(), 'architecture_dataloader': set()}
    runner = build(tmp_path)
    for name, rows in seen.items():
        for batch in getattr(runner.train_loop, name):
            rows |= {tuple(row.tolist()) for row in batch['inputs']}
    assert len(seen['dataloader']) == 28 and len(seen['architecture_dataloader']) == 12
    assert not seen['dataloader'] & seen['architecture_dataloader']
    # with a smaller batch the cycle is longer, and an epoch is still one pass of the weights' part
    assert len(runner.train_loop.dataloader) == len(runner.train_loop.architecture_dataloader) == 7


@pytest.mark.parametrize('workers', [0, 1])
def test_hooks_that_switch_transforms_reach_both_parts(tmp_path, workers):
    """Persistent workers of the gates' loader kept the old transforms to the end."""
    runner = build(tmp_path, hooks=[dict(type='mmdet.PipelineSwitchHook', switch_epoch=1,
                                         switch_pipeline=[])],
                   train_dataloader=loader('BilevelPipes', num_workers=workers),
                   train_cfg=dict(type='mmkcr.BilevelTrainLoop', max_epochs=3))
    seen, run_iter = [], runner.train_loop.run_iter

    def keep(idx, *batches):
        seen.append([batch['target'].unique().tolist() for batch in batches])
        run_iter(idx, *batches)

    runner.train_loop.run_iter = keep
    runner.train()
    assert seen == [[[0.], [0.]]] * 7 + [[[1.], [1.]]] * 14
    for part in (runner.train_loop.dataloader, runner.train_loop.architecture_dataloader):
        if workers:  # or the garbage collector waits for them, 5 s each
            part._iterator._shutdown_workers()


def test_schedules_clipping_and_averages(tmp_path):
    runner = build(
        tmp_path, hooks=[dict(type='EMAHook', momentum=0.5)],
        param_scheduler=dict(weights=[dict(type='MultiStepLR', milestones=[1], gamma=0.1)],
                             architecture=[dict(type='ConstantLR', factor=1.)]))
    runner.train()
    rates = {name: buffer.data[0].tolist() for name, buffer in
             runner.message_hub.log_scalars.items() if name.endswith('lr')}
    assert rates['train/weights.lr'] == pytest.approx([0.1] * 7 + [0.01] * 7)
    assert rates['train/architecture.lr'] == pytest.approx([0.3] * 14)
    assert 'train/architecture/loss' in runner.message_hub.log_scalars


@OPTIM_WRAPPERS.register_module(force=True)
class ScaledWrapper(OptimWrapper):
    """``AmpOptimWrapper`` with a scaler of the CPU, for which the host's asks for a GPU."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=4., growth_interval=1000)

    def backward(self, loss, **kwargs):
        self.loss_scaler.scale(loss).backward(**kwargs)
        self._inner_count += 1

    def step(self, **kwargs):
        self.loss_scaler.step(self.optimizer, **kwargs)
        self.loss_scaler.update()


class Overflow(Hook):
    """Makes the losses of some iterations infinite."""

    def __init__(self, iterations):
        self.iterations, self.states = iterations, []

    def before_train(self, runner):
        def overflow(module, args, loss):
            return loss * (float('inf') if runner.iter in self.iterations else 1)
        runner.model.architecture.head.loss_module.register_forward_hook(overflow)

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.states.append(torch.cat([p.detach().flatten() for p in runner.model.parameters()]))


def search_with_a_target(work_dir, hooks=(), **changes):
    """A search that ends far from its target."""
    backbone = dict(type='mmkcr.KCRVisionTransformer', img_size=16, patch_size=8,
                    gates=dict(type='mmkcr.GumbelChannelGate', min_size=4),
                    arch=dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48))
    model = dict(type='mmkcr.SearchModel', architecture=dict(
        type='mmpretrain.ImageClassifier', backbone=backbone,
        head=dict(type='mmpretrain.VisionTransformerClsHead', num_classes=5, in_channels=24,
                  loss=dict(type='mmpretrain.CrossEntropyLoss')),
        data_preprocessor=dict(type='mmpretrain.ClsDataPreprocessor', num_classes=5)),
        price=dict(type='mmkcr.MacsPrice', target='75%', weight=0.5, growth=0.1))
    return build(work_dir, model=model, hooks=hooks, train_dataloader=loader(
        'BilevelImages', collate='pseudo_collate'), **changes)


def test_the_weight_of_a_price_grows_once_an_iteration(tmp_path):
    """By the gates' step alone, and a resumed search goes on with it."""
    record, price = Record(), []
    runner = search_with_a_target(tmp_path / 'whole', default_hooks=dict(
        logger=None, timer=None, checkpoint=dict(type='CheckpointHook', interval=1)))
    runner.register_hook(record)
    runner.train()
    weight = 0.5
    target = 0.75 * runner.model.macs_model().dense / 1e9
    for outputs in record.outputs:
        weight += 0.1 * abs(math.log(outputs['architecture/macs_open'] / target))
        price.append(outputs['architecture/price_weight'])
        # what the weights' step logs is the same weight
        assert price[-1] == outputs['price_weight'] == pytest.approx(weight, rel=1e-5)
    assert len(price) == 14 and price[-1] > 0.8 and runner.model.price.training
    resumed = search_with_a_target(tmp_path / 'resumed', resume=True,
                                   load_from=str(tmp_path / 'whole/epoch_1.pth'))
    again = Record()
    resumed.register_hook(again)
    resumed.train()
    assert again.outputs == record.outputs[7:]
    assert torch.equal(resumed.model.price.weight, runner.model.price.weight)


@pytest.mark.parametrize('patience', [3, 1])
def test_steps_that_a_scaler_skips(tmp_path, patience):
    """A search goes on behind an overflow, as any run does, and for as long as any run does."""
    runner = search_with_a_target(
        tmp_path, optim_wrapper=scaled(),
        hooks=[dict(type='mmkcr.FiniteHook', patience=patience)])
    overflow = Overflow([3, 4, 9])
    runner.register_hook(overflow)
    if patience < 2:
        with pytest.raises(NonFiniteError, match='finite losses at iteration 5, found inf in'):
            runner.train()
        return
    runner.train()
    same = [torch.equal(*pair) for pair in zip(overflow.states, overflow.states[1:])]
    assert [i for i, skipped in enumerate(same) if skipped] == [3, 4, 9]
    assert overflow.states[-1].isfinite().all() and len(overflow.states) == 14
    for wrapper in runner.optim_wrapper.values():
        assert wrapper.loss_scaler.get_scale() == 0.5  # halved by each


def test_without_a_scaler_the_first_overflow_ends_a_search(tmp_path):
    runner = search_with_a_target(tmp_path)
    overflow = Overflow([3])
    runner.register_hook(overflow)
    with pytest.raises(NonFiniteError, match='finite losses and prices at iteration 4, found inf'):
        runner.train()
    # before any step
    assert torch.equal(overflow.states[-1], torch.cat([
        p.detach().flatten() for p in runner.model.parameters()]))


def test_a_gate_that_is_not_finite_ends_a_search_with_a_scaler(tmp_path):
    runner = search_with_a_target(tmp_path, optim_wrapper=scaled())
    runner.model.gate_parameters()[0].data[1] = float('nan')
    with pytest.raises(NonFiniteError, match='finite gates at iteration 1, found nan in'):
        runner.train()


def test_optimizers_hold_their_parameters_and_host_options_work(tmp_path):
    weights = dict(optimizer=dict(type='AdamW', lr=0.1, weight_decay=0.5), type='OptimWrapper',
                   clip_grad=dict(max_norm=1.), paramwise_cfg=dict(bias_decay_mult=0.))
    runner = build(tmp_path, optim_wrapper=dict(
        constructor='mmkcr.SearchOptimWrapperConstructor', weights=weights,
        architecture=dict(optimizer=dict(type='SGD', lr=0.1))))
    wrappers, model = runner.build_optim_wrapper(runner.optim_wrapper), runner.model
    groups = wrappers['weights'].optimizer.param_groups
    assert [(g['params'][0] is p, g['weight_decay']) for g, p in
            zip(groups, (model.linear.weight, model.linear.bias))] == [(True, 0.5), (True, 0.)]
    assert len(groups) == 2 and all(len(group['params']) == 1 for group in groups)
    (gates, ) = wrappers['architecture'].optimizer.param_groups
    assert len(gates['params']) == 1 and gates['params'][0] is model.alpha
    assert isinstance(wrappers, OptimWrapperDict) and wrappers['weights'].clip_grad_kwargs


@pytest.mark.parametrize('changes, message', [
    (dict(model=dict(type='NoGates')), 'model with gates .* found none in `NoGates`'),
    (dict(optim_wrapper=SGD), "the keys `weights` and `architecture` .* found \\['optimizer'\\]"),
    (dict(optim_wrapper=dict(CONSTRUCTOR, weights=SGD)), 'the keys `weights` and `architecture`'),
    (dict(train_cfg=dict(type='mmkcr.BilevelTrainLoop', max_epochs=1, architecture_fraction=1.)),
     r'within \(0, 1\), found 1.0'),
    (dict(train_dataloader=loader(batch_size=13)),
     'batch of 13 .* part of the architecture, found 12 of 40 samples'),
    (dict(train_dataloader=loader(sampler='InfiniteSampler')),
     'sampler of epochs .* found `InfiniteSampler`'),
])
def test_user_mistakes_end_before_training(tmp_path, changes, message):
    runner = build(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as error:
        runner.train()
    assert '\n' not in str(error.value)
    assert not isinstance(runner.optim_wrapper, OptimWrapper)


def test_constructor_refuses_options_of_neither_part(tmp_path):
    runner = build(tmp_path)
    with pytest.raises(ValueError, match='`paramwise_cfg` inside `optim_wrapper.weights`'):
        runner.build_optim_wrapper(dict(CONSTRUCTOR, weights=SGD, architecture=SGD,
                                        paramwise_cfg=dict(norm_decay_mult=0.)))
    with pytest.raises(ValueError, match=r"found \['gates', 'weights'\]"):
        runner.build_optim_wrapper(dict(CONSTRUCTOR, weights=SGD, gates=SGD))


@pytest.mark.skipif(not torch.cuda.is_available(), reason='mixed precision needs a GPU')
def test_mixed_precision(tmp_path):
    amp = dict(type='AmpOptimWrapper', loss_scale='dynamic', **SGD)
    runner = build(tmp_path, optim_wrapper=dict(CONSTRUCTOR, weights=amp, architecture=amp))
    before = {name: value.clone() for name, value in runner.model.state_dict().items()}
    runner.train()
    for name, value in runner.model.state_dict().items():
        assert value.isfinite().all() and not torch.equal(value, before[name]), name
