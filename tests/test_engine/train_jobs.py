"""Runs training jobs for the tests of the engine, each in a process of its own.

    python train_jobs.py

reads a line of jobs at a time and writes one of their exit statuses. Every job is a dict:
``config`` (a file of this project) or ``kind`` (the name of a config below), ``data_root``,
``work_dir`` and optionally ``kill`` (SIGKILL, or the ``signal`` that is named, to the process and
its workers after that many iterations), ``kill_rename`` (SIGKILL in the place of the n-th renaming
of a file), ``kill_at`` (SIGKILL from outside so many seconds after the start), ``resume``,
``command`` (checked, resumed and started as by ``tools/train.py``), ``options`` (merged into the
config), ``precise`` (in fp64), ``buffers`` (each process writes those of its model to
``buffers_<rank>.pth``), ``processes`` (so many, and what is killed is all of them, or one after
which the launcher ends the others). Importing takes seconds, so processes are forked after that.
"""

# ruff: noqa: E402, I001  (no collector while importing; mmkcr comes before mmpretrain: it makes
# torchvision importable)
import gc

gc.disable()

import contextlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
from pathlib import Path

import mmkcr.registry  # noqa: F401  isort: skip  (before any host library)
mmkcr.prepare_hosts()  # beside transformers 5 mmpretrain does not import without it

import mmkcr.engine.registered  # noqa: F401
import mmpretrain.datasets  # noqa: F401
import mmpretrain.models  # noqa: F401
import mmseg.datasets  # noqa: F401
import mmseg.models  # noqa: F401
import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmpretrain.models import ClsDataPreprocessor, SelfSupDataPreprocessor

from mmkcr.cli import console, launch
from mmkcr.engine.build import load_config
from mmkcr.registry import MODELS

ARCH = dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64)


def move_data(node, old, new):
    """Replace a folder at the beginning of every path in a config, in place where there are dicts.

    Other folders whose names begin alike, as ``data/digitsx`` begins like ``data/digits``, stay.
    """
    if isinstance(node, dict):
        for key in list(node):
            node[key] = move_data(node[key], old, new)
    elif isinstance(node, (list, tuple)):
        return type(node)(move_data(item, old, new) for item in node)
    elif isinstance(node, str) and (node == old or node.startswith(f'{old}/')):
        return new + node[len(old):]
    return node


class Precise:
    """In fp64: of masks, which are steps, none may flip by the rounding of another batch size."""

    def forward(self, data, training=False):
        data = super().forward(data, training)
        inputs = data['inputs']
        return dict(data, inputs=[view.double() for view in inputs] if isinstance(inputs, list)
                    else inputs.double())


@MODELS.register_module()
class PreciseClsDataPreprocessor(Precise, ClsDataPreprocessor):
    """Of images."""


@MODELS.register_module()
class PreciseSelfSupDataPreprocessor(Precise, SelfSupDataPreprocessor):
    """Of views."""


class Kill(Hook):
    """Ends the process, or asks it to, as the system does."""

    priority = 'LOWEST'

    def __init__(self, after, name):
        self.after, self.signal = after, signal.Signals[name]

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.after:
            os.killpg(0, self.signal)


def model_config(**backbone):
    return dict(
        type='mmpretrain.ImageClassifier',
        backbone=dict(type='mmkcr.KCRVisionTransformer', arch=ARCH, img_size=32, patch_size=8,
                      out_type='avg_featmap', drop_path_rate=0.2, **backbone),
        head=dict(type='mmpretrain.LinearClsHead', num_classes=10, in_channels=32),
        data_preprocessor=dict(num_classes=10, mean=[128.] * 3, std=[64.] * 3, to_rgb=True))


def loader_config(root, split, augmentation, shuffle, num_workers):
    samples = 1437 if split == 'train' else 360
    return dict(
        batch_size=8, num_workers=num_workers, persistent_workers=num_workers > 0,
        sampler=dict(type='DefaultSampler', shuffle=shuffle),
        collate_fn=dict(type='default_collate'),
        dataset=dict(type='CustomDataset', data_root=root, data_prefix=split,
                     indices=list(range(0, samples, 20)),
                     pipeline=[dict(type='LoadImageFromFile'), *augmentation,
                               dict(type='PackInputs')]))


def base_config(root):
    augmentation = [
        dict(type='RandomResizedCrop', scale=32, crop_ratio_range=(0.5, 1.)),
        dict(type='RandomFlip', prob=0.5),
        dict(type='ColorJitter', brightness=0.4, contrast=0.4)]
    kcr = dict(type='mmkcr.KernelComplexityLoss', num_features=32)
    return dict(
        default_scope='mmpretrain',
        randomness=dict(seed=3),
        train_dataloader=loader_config(root, 'train', augmentation, True, 2),
        val_dataloader=loader_config(root, 'val', [], False, 0),
        val_cfg=dict(), val_evaluator=dict(type='Accuracy'),
        model=dict(type='mmkcr.RegularizedModel', regularizers=dict(kcr=kcr)),
        default_hooks=dict(logger=dict(type='LoggerHook', interval=1),
                           checkpoint=dict(type='CheckpointHook', interval=1)),
        custom_hooks=[
            dict(type='mmkcr.ExactResumeHook'),
            dict(type='EMAHook', momentum=0.1),
            dict(type='mmkcr.WarmupSwitchHook', begin=1),
            dict(type='mmkcr.NystromRefreshHook', interval=2, landmarks=24)],
        visualizer=dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]))


def search_config(root):
    config = base_config(root)
    adam = dict(type='AdamW', lr=1e-3, weight_decay=0.01)
    config['model'].update(
        type='mmkcr.SearchModel',
        architecture=model_config(gates=dict(type='mmkcr.GumbelChannelGate', min_size=4)))
    config['custom_hooks'].append(dict(type='mmkcr.TemperatureDecayHook'))
    config.update(
        train_cfg=dict(type='mmkcr.BilevelTrainLoop', max_epochs=4),
        optim_wrapper=dict(
            constructor='mmkcr.SearchOptimWrapperConstructor',
            weights=dict(optimizer=adam, paramwise_cfg=dict(norm_decay_mult=0.),
                         clip_grad=dict(max_norm=5.)),
            architecture=dict(optimizer=adam)),
        param_scheduler=dict(
            weights=[dict(type='CosineAnnealingLR', T_max=4, convert_to_iter_based=True)],
            architecture=[dict(type='ConstantLR', factor=1.)]))
    return config


def retrain_config(root):
    config = base_config(root)
    architecture = model_config()
    architecture['train_cfg'] = dict(augments=[dict(type='Mixup', alpha=0.8),
                                               dict(type='CutMix', alpha=1.)])
    architecture['head'].update(loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1,
                                          mode='original'), cal_acc=False)
    config['model']['architecture'] = architecture
    config.update(
        train_cfg=dict(by_epoch=True, max_epochs=4),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-3)),
        param_scheduler=[dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=5)])
    return config


def pruning_config(root):
    """9 iterations an epoch, an event every 3, all decided after 18 of 36."""
    config = base_config(root)
    architecture = model_config(gates=dict(type='mmkcr.BiMaskGate'))
    architecture['backbone']['type'] = 'mmkcr.OFBVisionTransformer'
    config['model'] = dict(
        type='mmkcr.MaskedSearchModel', architecture=architecture,
        reconstruction=dict(in_channels=32, patch_size=8, window=9),
        price=dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5, input_shape=(3, 32, 32)))
    config['train_dataloader'].update(num_workers=0, persistent_workers=False)
    config['custom_hooks'][2:] = [
        dict(type='mmkcr.LinearScheduleHook', attribute='importance_weight', start=0.99, end=0.1,
             share=0.2),
        dict(type='mmkcr.LinearScheduleHook', attribute='mask_ratio', start=0.01, end=0.25),
        dict(type='mmkcr.ProgressivePruningHook', interval=3)]
    config.update(
        train_cfg=dict(by_epoch=True, max_epochs=4),
        optim_wrapper=dict(
            constructor='mmkcr.JointOptimWrapperConstructor',
            optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.01),
            paramwise_cfg=dict(norm_decay_mult=0.), architecture=dict(lr=0.1)),
        param_scheduler=[dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=5)])
    return config


def swin_pruning_config(root):
    config = pruning_config(root)
    config['model']['architecture'].update(
        backbone=dict(type='mmkcr.OFBSwinTransformer', img_size=32, patch_size=2, window_size=4,
                      arch=dict(embed_dims=16, depths=[1, 1, 2], num_heads=[2, 2, 4]),
                      out_indices=(2, ), gates=dict(type='mmkcr.BiMaskGate')),
        neck=dict(type='mmpretrain.GlobalAveragePooling'),
        head=dict(type='mmpretrain.LinearClsHead', num_classes=10, in_channels=64))
    config['model']['reconstruction'].update(in_channels=64, token_channels=16)
    return config


def resnet_pruning_config(root):
    """The stem, which stays, has 7 % of the MACs (ResNet-50: 3 %): 17 % to 100 % can be reached."""
    config = pruning_config(root)
    config['model'].update(type='mmkcr.SearchModel')
    del config['model']['reconstruction'], config['custom_hooks'][3]
    config['model']['architecture'].update(
        backbone=dict(type='mmkcr.OFBResNet', depth=50, num_stages=2, strides=(1, 2),
                      dilations=(1, 1), base_channels=16, stem_channels=4, out_indices=(1, ),
                      gates=dict(type='mmkcr.BiMaskGate')),
        neck=dict(type='mmpretrain.GlobalAveragePooling'),
        head=dict(type='mmpretrain.LinearClsHead', num_classes=10, in_channels=128))
    return config


def by_iteration(config, **train_cfg):
    config['custom_hooks'][2].update(begin=4, by_epoch=False)
    config['custom_hooks'][3].update(interval=7, by_epoch=False)
    config['train_dataloader']['sampler'] = dict(type='InfiniteSampler')
    config.update(train_cfg=dict(max_iters=26, val_interval=10, **train_cfg),
                  log_processor=dict(by_epoch=False))
    config['default_hooks']['checkpoint'].update(by_epoch=False, interval=5, max_keep_ckpts=1)
    return config


def iterations_config(root):
    config = by_iteration(retrain_config(root), by_epoch=False)
    # gradients are pending when a checkpoint is written
    config['optim_wrapper']['accumulative_counts'] = 2
    return config


def iterated_search_config(root):
    config = by_iteration(search_config(root), type='mmkcr.IterBilevelTrainLoop')
    config['custom_hooks'][4].update(interval=3, by_epoch=False)
    config['param_scheduler']['weights'][0].update(T_max=26, by_epoch=False,
                                                   convert_to_iter_based=False)
    return config


def file_config(job):
    """A config of this project on the data of the test, from random weights."""
    config = load_config(Path(__file__).parents[2] / job['config'])
    move_data(config._cfg_dict, 'data/digits', job['data_root'])
    config.model.get('architecture', config.model).backbone.init_cfg = config.load_from = None
    for loader in filter(None, (config.get(f'{part}_dataloader')
                                for part in ('train', 'val', 'test'))):
        loader.update(num_workers=0, persistent_workers=False)
    return config


def segment_search_config(root):
    """The shipped search on a segmentor with 8 scenes for the weights and 4 for the gates."""
    config = file_config(dict(
        config='configs/kcr/segmentation/kcr-upernet_swin-mini_search_1xb8_digit-scenes.py',
        data_root=root))
    config.merge_from_dict({
        'train_dataloader.batch_size': 2, 'train_dataloader.dataset.indices': 12,
        'val_dataloader.dataset.indices': 2, 'randomness.seed': 3,
        'train_cfg.max_iters': 14, 'train_cfg.val_interval': 6,
        'default_hooks.logger.interval': 1, 'default_hooks.checkpoint.interval': 5,
        'custom_hooks.0.interval': 3, 'custom_hooks.1.begin': 4,
        'custom_hooks.2': dict(interval=7, landmarks=6),
        'visualizer.vis_backends': [dict(type='LocalVisBackend')]})
    config.custom_hooks.append(dict(type='EMAHook', momentum=0.1))
    return config._cfg_dict


def train(job):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if job.get('precise') else torch.float32)
    config = file_config(job) if 'config' in job else Config(
        globals()[f'{job["kind"]}_config'](job['data_root']))
    if job.get('precise'):
        kind = config.data_preprocessor.get('type', 'ClsDataPreprocessor')
        config.data_preprocessor.type = f'mmkcr.Precise{kind}'
    config.merge_from_dict(job.get('options', {}))
    config.work_dir, config.resume = job['work_dir'], job.get('resume', False)
    if 'command' in job:
        config.launcher = 'pytorch' if 'RANK' in os.environ else 'none'
    elif 'RANK' in os.environ:
        torch.distributed.init_process_group('gloo')
        config.launcher = 'pytorch'
        config.model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None,
                                        broadcast_buffers=False,
                                        find_unused_parameters=config.get(
                                            'find_unused_parameters', False))
    if 'kill_rename' in job:
        kill_in_rename(job['kill_rename'])
    if 'command' in job:
        runner = start(config, job)
    else:
        runner = Runner.from_cfg(config)
        add_kill(runner, job)
        runner.train()
    if job.get('buffers'):
        buffers = dict(getattr(runner.model, 'module', runner.model).named_buffers())
        torch.save(buffers, f'{job["work_dir"]}/buffers_{os.environ.get("RANK", 0)}.pth')


def run_words(job):
    """Run ``python FILE ...`` or ``mmkcr ...`` as a shell would."""
    for number, path in enumerate((os.devnull, f'{job["work_dir"]}/stdout.txt')):
        os.dup2(os.open(path, os.O_CREAT | (os.O_WRONLY if number else os.O_RDONLY)), number)
    torch.set_num_threads(1)
    os.chdir(job['cwd'])
    program, *sys.argv = job['words']
    try:
        if program == 'mmkcr':
            sys.argv.insert(0, program)
            console.main()
        else:
            sys.path.insert(0, str(Path(sys.argv[0]).parent.resolve()))
            runpy.run_path(sys.argv[0], run_name='__main__')
    finally:
        sys.stdout.flush(), sys.stderr.flush()


def add_kill(runner, job):
    """Let a run end itself where the job says so."""
    if 'kill' in job:
        runner.register_hook(Kill(job['kill'], job.get('signal', 'SIGKILL')))
    return runner


def start(config, job):
    """Train as ``tools/train.py``, with ``--resume`` if the job says so."""
    if config.resume:
        launch.resume_latest(config)
    build = launch.build_runner
    launch.build_runner = lambda config: add_kill(build(config), job)
    try:
        return launch.start_training(config)
    finally:
        launch.build_runner = build


def kill_in_rename(number):
    replace, calls = os.replace, []

    def replace_or_die(*args):
        calls.append(args)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*args)

    os.replace = replace_or_die


def hasten():
    """Leave away what takes most of a run of seconds.

    That is a config's layout, a list of versions, and, with every data set, what the collector
    has to look through.
    """
    import mmdet.datasets
    import mmdet.models
    import mmengine.runner.runner as host
    from yapf.yapflib import yapf_api
    yapf_api.FormatCode = lambda text, **_: (text, True)
    host.collect_env = dict
    assert mmdet.models and mmdet.datasets
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)  # rarely of all objects
    gc.enable()


def in_child(job):
    """Run a job in processes of its own; the exit status of the first that ended otherwise."""
    Path(job['work_dir']).mkdir(parents=True, exist_ok=True)
    number, group = job.get('processes', 1), 0
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    for rank in range(number):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, group)
            if number > 1:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(number),
                                  MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
            _child(job)
        group = group or pid
        with contextlib.suppress(OSError):  # by whichever comes first
            os.setpgid(pid, group)
    timer = threading.Timer(job.get('kill_at', 0), _kill_group, [group])
    if 'kill_at' in job:
        timer.start()
    statuses = []
    for _ in range(number):
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(-group, 0)[1]))
        if statuses[-1] not in (0, 128 + signal.SIGTERM):
            _kill_group(group)
    timer.cancel()
    return next((status for status in statuses if status), 0)


def _kill_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _child(job):
    log = os.open(f'{job["work_dir"]}/output.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    random.seed(), np.random.seed()  # as a process has it that was not forked
    try:
        run_words(job) if 'words' in job else train(job)
        os._exit(0)
    except SystemExit as ended:
        os._exit(ended.code or 0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)


if __name__ == '__main__':
    hasten()
    for line in sys.stdin:
        print(json.dumps([in_child(job) for job in json.loads(line)]), flush=True)
