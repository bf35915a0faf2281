"""A run killed, or told to end, and resumed is the unbroken run, bit for bit."""

import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import mmdet.models  # noqa: F401
import numpy as np
import pytest
import torch
from mmdet.models.data_preprocessors import BatchSyncRandomResize
from mmdet.models.layers import DropBlock
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict
from mmengine.evaluator import BaseMetric
from mmengine.hooks import CheckpointHook, EarlyStoppingHook
from mmengine.model import BaseModel
from mmengine.registry import METRICS, MODELS
from mmengine.runner import find_latest_checkpoint
from mmengine.structures import InstanceData

from long_form import few
from mmkcr.engine.registered import AtomicCheckpointHook, ExactResumeHook
from mmkcr.engine.resume.checkpoints import STATUS, AtomicLocalBackend
from mmkcr.engine.resume.exact_resume import own_state, set_own_state
from mmkcr.safe_load import read_checkpoint

TOLD = dict(signal='SIGTERM', left='preempted.pth')
ALONE = {'train_dataloader.num_workers': 0, 'train_dataloader.persistent_workers': False}
SHORT = {**ALONE, 'train_cfg.max_iters': 9, 'train_cfg.val_interval': 4,
         'default_hooks.checkpoint.interval': 3, 'default_hooks.checkpoint.max_keep_ckpts': 1,
         'default_hooks.checkpoint.save_best': 'accuracy/top1'}
TWO = {**ALONE, 'optim_wrapper.accumulative_counts': 3, 'train_cfg.max_iters': 12,
       'default_hooks.checkpoint.interval': 5, 'train_dataloader.batch_size': 4}
LOGGED = {'default_hooks.logger.interval': 1, 'train_cfg.val_interval': 1,
          'visualizer.vis_backends': [dict(type='LocalVisBackend')]}
SCENES = {'train_dataloader.dataset.indices': list(range(6)), 'train_dataloader.batch_size': 2,
          'val_dataloader.dataset.indices': list(range(2)), 'train_cfg.max_epochs': 2, **LOGGED}


def scenes(config, *logged):
    """A detector's shipped search, which goes on from its first epoch."""
    return dict(config=f'configs/{config}_1xb8_digit-scenes.py', options=SCENES,
                logged=['train/macs', *logged])


def masked(stage, logged=(), **end):
    """DCS's shipped runs on few digits, with averages: masks on queries and keys."""
    options = {
        'train_dataloader.dataset.indices': list(range(0, 1437, 30)),
        'train_dataloader.batch_size': 8, 'val_dataloader.dataset.indices': list(range(0, 360, 30)),
        'train_cfg.max_epochs': 3, 'default_hooks.ema': dict(type='EMAHook', momentum=0.1),
        **LOGGED}
    if stage == 'retrain':  # of all channels, as before a search
        options.update({'model.architecture.backbone.structure': None, 'custom_hooks.1.begin': 1,
                        'model.architecture.backbone.outputs': False})
    return dict(end, config=f'configs/dcs/digits/dcs-{stage}_efficientvit-mini_1xb64_digits.py',
                options=options, logged=['val/accuracy/top1', *logged],
                moved='gate.alpha' if stage == 'search' else 'mask.bias')


#: Jobs, and how they are broken: the iteration after which a signal comes, SIGKILL if no other is
#: named; what is left then; what is logged. `tests/faults` has more.
CASES = few(dict(
    # within an epoch, and not on a checkpoint
    search=dict(kill=22), retrain=dict(kill=22), iterations=dict(kill=18),
    iterated_search=dict(kill=18),
    masked_search=masked('search', kill=11),
    masked_retrain=masked('retrain', kill=14, logged=['train/loss_ib']),
    pruning=dict(kill=15, options={'custom_hooks.4.eta': 0.95}),
    segment_search=dict(kill=9, logged=['train/loss_price', 'train/temperature']),
    # told to end within an epoch of 5 (search) or 9; where gradients are waiting, also in two
    # processes, which agree on the iteration; at the end of an epoch, also of two loaders without
    # workers, which draw no batch in advance
    told_search=dict(TOLD, kind='search', kill=13),
    told_iterations=dict(TOLD, kind='iterations', kill=17),
    told_two=dict(TOLD, kind='iterations', kill=7, options=TWO, processes=2),
    told_pruning=dict(TOLD, kind='pruning', kill=14),
    told_epoch=dict(TOLD, kind='retrain', kill=18),
    told_search_epoch=dict(TOLD, kind='search', kill=10, workers=0),
    # while it saves. Renamings: checkpoint 3 and its pointer, best of 4, checkpoint 4 and its
    # pointer, checkpoint 6 and its pointer, ...
    **{f'renaming_{number}': dict(kind='iterations', options=SHORT, kill_rename=number, left=left)
       for number, left in {2: None, 3: 'iter_3.pth', 4: 'iter_3.pth', 7: 'iter_4.pth'}.items()},
    kcr=scenes('kcr/detection/kcr-mask-rcnn_swin-mini_search', 'train/loss_mask', 'train/loss_kcr',
               'train/loss_price', 'train/architecture/loss', 'val/coco/segm_mAP'),
    dcs=scenes('dcs/detection/dcs-ssdlite_mobilevit-mini_search', 'train/loss_cls',
               'train/loss_price', 'train/architecture/loss', 'val/coco/bbox_mAP'),
    ofb=scenes('ofb/detection/ofb-mask-rcnn_swin-mini_search', 'train/loss_mask',
               'val/coco/segm_mAP')),
    'masked_retrain', 'pruning', 'segment_search', 'told_iterations', 'told_two',
    'renaming_3', 'kcr', 'ofb')


@pytest.fixture(scope='module', params=CASES)
def runs(request, finished, run_jobs, tmp_path_factory):
    """A case, and the work directories of an unbroken run and of a broken and resumed one."""
    case, broken = CASES[request.param], tmp_path_factory.mktemp('broken')
    job = {key: case[key] for key in ('config', 'kind', 'options', 'processes') if key in case}
    if 'config' not in job:
        job.setdefault('kind', request.param)
    end = {key: case[key] for key in ('kill', 'signal', 'kill_rename') if key in case}
    whole, options = finished(job), job.get('options', {})
    jobs = [dict(job, work_dir=str(broken), **end),
            # the resumed half has other workers, which must not matter
            dict(job, work_dir=str(broken), resume=True, options={
                'train_dataloader.num_workers': case.get('workers', 1),
                'train_dataloader.persistent_workers': False, **options})]
    if end:
        assert run_jobs(jobs[:1]) == [STATUS if 'signal' in end else -signal.SIGKILL]
        left = find_latest_checkpoint(str(broken))
        assert 'left' not in case or (left and Path(left).name) == case['left']
        meta = left and torch.load(left, weights_only=False)['meta']
        assert 'signal' not in end or meta['iter'] == end['kill']
    else:
        jobs[1]['options']['load_from'] = f'{whole}/epoch_1.pth'
    assert run_jobs(jobs[1:], server=1) == [0]
    return request.param, whole, broken


def test_resumed_run_is_the_unbroken_one(runs, same_runs, moved):
    """What was compared was trained, too; what was saved on the way has gone."""
    name, whole, broken = runs
    case = CASES[name]
    checkpoint, values = same_runs(whole, broken)
    assert {'train/loss', *case.get('logged', ())} <= values.keys()
    if 'signal' in case:
        assert {path.name for path in whole.glob('*.pth')} == {
            path.name for path in broken.glob('*.pth')}
    state, kind = checkpoint['state_dict'], case.get('kind', name)
    if 'config' in case:
        assert moved(state, case.get('moved', 'gate.alpha')) >= 4
        if 'train/loss_ib' in values:
            assert state['regularizers.ib.refresh_step'] == 2
            assert {f'regularizers.ib.{name}' for name in ('centroids', 'log_q')} <= state.keys()
        return
    if kind == 'pruning':
        return
    segments = kind == 'segment_search'
    assert {'train/loss_kcr', 'val/mIoU' if segments else 'val/accuracy/top1'} <= values.keys()
    assert moved(state, 'alpha') == (0 if 'search' not in kind else 4 if segments else 2)
    assert 'regularizers.kcr.basis' in state
    assert not segments or state['regularizers.kcr.basis_epoch'] == 13


def test_written_logs(runs):
    """What the resumed run writes to its log is what the unbroken one wrote."""
    name, *folders = runs
    unbroken, resumed = map(_log_lines, folders)
    assert len(resumed) > 2
    if not {'kill', 'kill_rename'} & {*CASES[name]}:  # the unbroken one wrote the first epoch alone
        unbroken = {key: line for key, line in unbroken.items() if key in resumed}
    assert unbroken == resumed
    heads, again = map(_heads, folders)
    if {'kill', 'signal'} & {*CASES[name]}:
        assert len(heads) > 2 and heads == again  # of the broken run and of the resumed one
    else:
        assert again and again <= heads


def test_only_what_is_asked_for_is_kept(finished):
    files = {path.name for path in finished(dict(kind='iterations', options=SHORT)).glob('*.pt*')}
    assert 'iter_9.pth' in files and len(files) == 2
    assert [name for name in files if name.startswith('best_')]


def test_old_content_stays_until_the_new_is_complete(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    AtomicLocalBackend().put(b'old', path)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, 'fsync', interrupted)
    with pytest.raises(KeyboardInterrupt):
        AtomicLocalBackend().put(b'new', path)
    assert path.read_bytes() == b'old'


def test_plain_checkpoint_hook_becomes_atomic_and_others_stay():
    class Own(CheckpointHook):
        pass

    hooks = [CheckpointHook(), Own()]
    ExactResumeHook().before_run(SimpleNamespace(hooks=hooks, register_hook=hooks.append))
    assert [type(hook) for hook in hooks[:2]] == [AtomicCheckpointHook, Own]


@pytest.mark.parametrize('apart', few((False, True), True))
def test_without_a_seed_in_the_config(apart, finished, same_runs):
    """A seed that the run drew for itself is as good, samplers' own seeds included."""
    # with `apart` samplers draw seeds of their own
    job = dict(kind='search', options={
        **ALONE, 'randomness.seed': None, 'train_cfg.max_epochs': 2,
        'randomness.diff_rank_seed': apart})
    first = finished(job)
    same_runs(first, finished(dict(job, resume=True, options={
        **job['options'], 'load_from': f'{first}/epoch_1.pth'})))


@MODELS.register_module(force=True)
class Resized(BaseModel):
    """Sees images at a side that changes every three iterations; a part of its map is dropped."""

    def __init__(self):
        super().__init__()
        self.scale, self.seen = torch.nn.Parameter(torch.ones(())), []
        self.resize = BatchSyncRandomResize((32, 320), interval=3, size_divisor=32)
        self.drop = DropBlock(drop_prob=0.5, block_size=3, warmup_iters=20)

    def forward(self, inputs, data_samples, mode):
        if mode == 'predict':
            return [{}]
        samples = [DetDataSample(metainfo=dict(img_shape=(64, 64), pad_shape=(64, 64)),
                                 gt_instances=InstanceData(bboxes=torch.rand(1, 4)))] * len(inputs)
        images = self.drop(self.resize(torch.ones(len(inputs), 3, 64, 64), samples)[0])
        self.seen.append((tuple(images.shape), images.mean().item()))
        return dict(loss=(images * self.scale).square().mean())


@METRICS.register_module(force=True)
class Constant(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        return dict(score=np.float64(1))


def test_what_hosts_remember_outside_of_a_state_dict(build, tmp_path):
    """A random size of images, the warm-up of DropBlock, and how long early stopping waited."""
    def run(name, **changes):
        stopping = dict(type='EarlyStoppingHook', monitor='score', rule='greater', patience=3)
        runner = build(tmp_path / name, model=dict(type='Resized'),
                       val_evaluator=dict(type='Constant'),
                       custom_hooks=[dict(type='mmkcr.ExactResumeHook'), stopping],
                       train_cfg=dict(by_epoch=True, max_epochs=9), **changes)
        runner.train()
        return runner

    whole = run('whole')
    assert whole.epoch == 4 and len({shape for shape, _ in whole.model.seen}) > 3
    for epoch in (1, 2, 3, 4):
        again = run(f'after{epoch}', resume=True,
                    load_from=str(tmp_path / f'whole/epoch_{epoch}.pth'))
        assert again.epoch == 4 and again.model.seen == whole.model.seen[6 * epoch:]


def test_histories_of_a_dynamic_head_pass_through_a_checkpoint(tmp_path):
    """As plain values, which are read without running code."""
    def runner():
        assigner = dict(type='mmdet.MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.5,
                        min_pos_iou=0.5)
        head = MODELS.build(dict(
            type='mmdet.DynamicRoIHead',
            bbox_roi_extractor=dict(type='mmdet.SingleRoIExtractor', out_channels=8,
                                    roi_layer=dict(type='RoIAlign', output_size=2),
                                    featmap_strides=[4]),
            bbox_head=dict(type='mmdet.Shared2FCBBoxHead', in_channels=8, fc_out_channels=8,
                           roi_feat_size=2, num_classes=2,
                           bbox_coder=dict(type='mmdet.DeltaXYWHBBoxCoder'),
                           loss_cls=dict(type='mmdet.CrossEntropyLoss'),
                           loss_bbox=dict(type='mmdet.SmoothL1Loss')),
            train_cfg=ConfigDict(assigner=assigner, sampler=dict(
                type='mmdet.RandomSampler', num=8, pos_fraction=0.5),
                dynamic_rcnn=dict(iou_topk=1, beta_topk=1, initial_iou=0.4, initial_beta=1.,
                                  update_iter_interval=2)),
            test_cfg=None))
        hooks = [EarlyStoppingHook(monitor='score', rule=rule) for rule in ('greater', 'less')]
        model = torch.nn.Sequential(torch.nn.Linear(1, 1), head)
        return SimpleNamespace(model=model, hooks=hooks)

    one, two = runner(), runner()
    head = one.model[1]
    head.iou_history, head.beta_history = [np.float64(0.625), np.float64(0.75)], [0.25]
    head.update_hyperparameters()
    head.iou_history.append(np.float64(0.5))
    one.hooks[1].best_score, one.hooks[1].wait_count = np.float32(0.5), 2
    torch.save(dict(state_dict=one.model.state_dict(), hosts=[own_state(one)]),
               tmp_path / 'a.pth')
    (state, ) = read_checkpoint(tmp_path / 'a.pth')['hosts']
    set_own_state(two, state)
    other = two.model[1]
    assert (other.iou_history, other.beta_history) == ([0.5], [])
    assert other.bbox_assigner.pos_iou_thr == other.bbox_assigner.neg_iou_thr == 0.6875
    assert other.bbox_assigner.min_pos_iou == 0.6875 and other.bbox_head.loss_bbox.beta == 0.25
    assert [(hook.wait_count, hook.best_score) for hook in two.hooks] == [
        (0, -float('inf')), (2, 0.5)]
    other.iou_history.append(1.)
    assert len(state) == 10 and own_state(one) == state
    two.model[1].bbox_assigner = None  # of a head without `train_cfg`
    assert len(own_state(two)) == 7


def _log_lines(work_dir):
    """Lines of scalars.json by step; later runs overwrite what they repeat."""
    lines = {}
    for path in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        for line in map(json.loads, path.read_text().splitlines()):
            kind = 'train' if 'loss' in line else 'val'
            lines[kind, line['step']] = {name: value for name, value in line.items()
                                         if name not in ('time', 'data_time', 'memory')}
    return lines


def _heads(work_dir):
    """The epoch and batch, or the iteration, in front of each training line of the text logs."""
    text = ''.join(path.read_text() for path in Path(work_dir).glob('*/*.log'))
    return set(re.findall(r'(?:Epoch|Iter)\(train\).*?\d+/\d+\]', text))
