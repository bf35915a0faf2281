"""tools/train.py, tools/test.py and the scripts that launch them."""

import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from mmkcr.core import locked
from mmkcr.engine.build import load_config
from mmkcr.engine.processes import join_processes

TOOLS = Path(__file__).parents[2] / 'tools'

CONFIG = """
default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmkcr'])
randomness = dict(seed=0)
data_preprocessor = dict(mean=[127.] * 3, std=[60.] * 3, num_classes=10)
model = dict(
    type='mmkcr.RegularizedModel', architecture=dict(
        type='mmpretrain.ImageClassifier',
        backbone=dict(type='mmkcr.KCRVisionTransformer', img_size=32, patch_size=8,
                      out_type='avg_featmap', arch=dict(
                          embed_dims=8, num_layers=1, num_heads=2, feedforward_channels=16)),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=8)))
pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=8, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_root='{root}', data_prefix='train',
                 indices=list(range(0, 1437, 60)), pipeline=pipeline))
val_dataloader = dict(
    batch_size=8, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CustomDataset', data_root='{root}', data_prefix='val',
                 indices=list(range(0, 360, 30)), pipeline=pipeline))
test_dataloader = val_dataloader
val_evaluator = test_evaluator = dict(type='Accuracy')
train_cfg = dict(by_epoch=True, max_epochs=2)
val_cfg = test_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(visualization=dict(type='VisualizationHook'))
custom_hooks = [dict(type='mmkcr.ExactResumeHook')]
"""


@pytest.fixture(scope='module')
def tools():
    """Both commands as modules."""

    def load(name):
        module = import_module(f'mmkcr.cli.{name}')
        return SimpleNamespace(main=in_own_process(module.main), parser=module.main.parser,
                               config=getattr(module, f'{name}ing_config'))

    def in_own_process(main):
        def run(argv):  # what MMEngine keeps by name and second is for one run a process
            for manager in (DefaultScope, MessageHub, MMLogger, Visualizer):
                manager._instance_dict.clear()
            return main(argv)
        return run

    return {name: load(name) for name in ('train', 'test')}


@pytest.fixture(scope='module')
def config_path(small_digits, tmp_path_factory):
    """A complete config of a tiny model on the digits."""
    path = tmp_path_factory.mktemp('tools') / 'tiny.py'
    path.write_text(CONFIG.replace('{root}', str(small_digits)))
    return str(path)


@pytest.fixture
def trained(tools, config_path, tmp_path):
    """Work directory of one epoch."""
    tools['train'].main([config_path, '--work-dir', str(tmp_path / 'run'), '--cfg-options',
                         'train_cfg.max_epochs=1'])
    return tmp_path / 'run'


@pytest.fixture(scope='module')
def whole(tools, config_path, tmp_path_factory):
    """Weights of an unbroken run."""
    folder = tmp_path_factory.mktemp('whole')
    tools['train'].main([config_path, '--work-dir', str(folder)])
    return weights(folder)


def test_no_worker_is_left(tools, config_path, tmp_path):
    """A process that pins memory waits five seconds for each when it ends."""
    before, run = set(multiprocessing.active_children()), tmp_path / 'run'
    options = ['--cfg-options', 'train_cfg.max_epochs=1', *(
        f'{name}_dataloader.{option}' for name in ('train', 'val', 'test')
        for option in ('num_workers=1', 'persistent_workers=True'))]
    tools['train'].main([config_path, '--work-dir', str(run), *options])
    assert set(multiprocessing.active_children()) == before
    tools['test'].main([config_path, str(run / 'epoch_1.pth'), *options])
    assert set(multiprocessing.active_children()) == before
    with pytest.raises(SystemExit):
        tools['train'].main([config_path, '--work-dir', str(tmp_path / 'fails'), *options,
                             'optim_wrapper.optimizer.lr=1e30'])
    assert set(multiprocessing.active_children()) == before


@pytest.fixture
def refused(tools, capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; gives its one sentence; logs alone are left behind."""

    def run(name, *args):
        folder = tmp_path / 'empty'
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            tools[name].main(list(args))
        assert ended.value.code == 1
        assert not [path for path in folder.rglob('*') if path.is_file() and not re.search(
            r'/\d{8}_\d{6}/', str(path))]
        (line, ) = [line for line in capsys.readouterr().err.splitlines()
                    if line.startswith('error: ')]
        return line

    return run


def test_train_resume_test(tools, config_path, trained, tmp_path):
    tools['train'].main([config_path, '--work-dir', str(trained), '--resume'])
    assert (trained / 'last_checkpoint').read_text().endswith('epoch_2.pth')
    metrics, predictions = tmp_path / 'metrics.json', tmp_path / 'predictions.pkl'
    args = [config_path, str(trained / 'epoch_2.pth'), '--work-dir', str(tmp_path / 'test')]
    tools['test'].main([*args, '--out', str(metrics), '--out-item', 'metrics'])
    tools['test'].main([*args, '--out', str(predictions)])
    samples = pickle.loads(predictions.read_bytes())
    right = [int(sample['pred_label']) == int(sample['gt_label']) for sample in samples]
    assert len(right) == 12
    assert json.loads(metrics.read_text())['accuracy/top1'] == pytest.approx(
        100 * sum(right) / 12, abs=1e-4)


@pytest.mark.parametrize('option, near', [
    ('train_cgf.max_epochs=1', 'train_cfg'), ('modle.head.topk=1', 'model'),
    ('loadfrom=a', 'load_from'),
    ('optimwrapper.optimizer.lr=1', 'optim_wrapper')])
def test_a_slip_in_an_option(config_path, refused, option, near):
    """MMEngine would add an entry that nobody reads."""
    line = refused('train', config_path, '--cfg-options', option)
    assert f'found `{option.split(".")[0].split("=")[0]}`; did you mean `{near}`?' in line


def test_options_that_a_config_does_not_have(config_path):
    options = dict(load_from='a', my_root='b', auto_scale_lr=dict(enable=True))
    config = load_config(config_path, options)
    assert {name: config[name] for name in options} == options


def test_resume_with_another_config(tools, config_path, trained, refused):
    """What makes another run is refused before anything is written; the rest is named."""
    before = sorted(trained.rglob('*'))
    line = refused('train', config_path, '--work-dir', str(trained), '--resume', '--cfg-options',
                   'model.architecture.head.cal_acc=True')
    assert '`model.architecture.head.cal_acc` was not there and is True, and 0 more' in line
    assert sorted(trained.glob('*.p*')) == [path for path in before if path.parent == trained
                                            and path.suffix.startswith('.p')]
    tools['train'].main([config_path, '--work-dir', str(trained), '--resume', '--cfg-options',
                         'optim_wrapper.optimizer.lr=0.5'])
    # the epochs too: the first run was told of one
    named = {line.split('another config: ')[1] for path in trained.glob('*/*.log')
             for line in path.read_text().splitlines() if 'another config: ' in line}
    assert named == {
        '`train_cfg.max_epochs` was 1 and is 2: the run does not go on as it would have.',
        "`optim_wrapper.optimizer.lr` was 0.1 and is 0.5: the checkpoint's is used."}


def test_check_of_what_a_config_expects(tools, config_path, trained, tmp_path, capsys):
    metrics, tests = tmp_path / 'metrics.json', {}
    args = [str(trained / 'epoch_1.pth'), '--work-dir', str(tmp_path / 'test')]
    tools['test'].main([config_path, *args, '--out', str(metrics), '--out-item', 'metrics'])
    top1 = json.loads(metrics.read_text())['accuracy/top1']
    for name, value in (('met', top1 + 0.9), ('missed', top1 + 1.1)):
        tests[name] = tmp_path / f'{name}.py'
        tests[name].write_text(
            f'_base_ = {config_path!r}\nexpected = {{"accuracy/top1": ({value}, 1.)}}\n')
    tools['test'].main([str(tests['met']), *args, '--check'])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        tools['test'].main([str(tests['missed']), *args, '--check'])
    assert ended.value.code == 1
    assert f'error: expected `accuracy/top1` of {top1 + 1.1} +/- 1.0, found' in \
        capsys.readouterr().err


def test_rates_by_layer(tools, config_path, rates_by_layer, scales_of, tmp_path):
    flags = rates_by_layer(0.5)
    tools['train'].main([config_path, '--work-dir', str(tmp_path), *flags, 'train_cfg.max_epochs=1',
                         'optim_wrapper.optimizer.weight_decay=0.1'])
    checkpoint = torch.load(tmp_path / 'epoch_1.pth', weights_only=False)
    assert scales_of(checkpoint) == {1., 0.5, 0.25}  # head, block, stem


def test_resumed_from_a_file_and_unbroken_are_equal(tools, config_path, trained, whole, tmp_path):
    tools['train'].main([config_path, '--work-dir', str(tmp_path / 'other'), '--resume',
                         str(trained / 'epoch_1.pth'), '--no-validate'])
    resumed = weights(tmp_path / 'other')
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def weights(folder):
    path = Path((folder / 'last_checkpoint').read_text())
    return torch.load(path, weights_only=False)['state_dict']


def test_resume_before_the_first_checkpoint_begins_from_load_from(tools, config_path, trained,
                                                                  tmp_path):
    """As a batch system does it, which starts every job with ``--resume``."""
    start = ['--cfg-options', f'load_from={trained / "epoch_1.pth"}', 'train_cfg.max_epochs=1']
    tools['train'].main([config_path, '--work-dir', str(tmp_path / 'begun'), *start])
    tools['train'].main([config_path, '--work-dir', str(tmp_path / 'resumed'), '--resume', *start])
    begun, resumed = weights(tmp_path / 'begun'), weights(tmp_path / 'resumed')
    assert all(torch.equal(value, resumed[name]) for name, value in begun.items())
    tools['train'].main([config_path, '--work-dir', str(tmp_path / 'scratch'), '--cfg-options',
                         'train_cfg.max_epochs=1'])
    scratch = weights(tmp_path / 'scratch')
    assert not all(torch.equal(value, scratch[name]) for name, value in begun.items())


@pytest.mark.parametrize('change', ['moved', 'no_pointer', 'broken_pointer'])
def test_resume_finds_the_latest_checkpoint(tools, config_path, trained, whole, tmp_path, change):
    folder = tmp_path / 'other' if change == 'moved' else trained
    if change == 'moved':
        shutil.move(trained, folder)
    elif change == 'no_pointer':
        (folder / 'last_checkpoint').unlink()
        shutil.copy(folder / 'epoch_1.pth', folder / 'mine.pth')
    else:
        (folder / 'last_checkpoint').write_text(str(folder / 'epoch_7.pth'))
    tools['train'].main([config_path, '--work-dir', str(folder), '--resume'])
    resumed = weights(folder)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_told_to_end(tools, config_path, whole, tmp_path, monkeypatch):
    """A run that gets SIGTERM saves within the epoch, and ends with 143; then it goes on."""
    folder = tmp_path / 'told'
    from mmkcr.methods.search.regularized import RegularizedModel
    step, steps = RegularizedModel.train_step, []

    def train_step(*args, **kwargs):
        steps.append(args)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*args, **kwargs)

    monkeypatch.setattr(RegularizedModel, 'train_step', train_step)
    with pytest.raises(SystemExit) as ended:
        tools['train'].main([config_path, '--work-dir', str(folder), '--resume'])
    assert ended.value.code == 143 and len(steps) == 2
    assert (folder / 'last_checkpoint').read_text() == str(folder / 'preempted.pth')
    tools['train'].main([config_path, '--work-dir', str(folder), '--resume'])
    resumed = weights(folder)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    assert not (folder / 'preempted.pth').exists()


@pytest.mark.parametrize('name, args, message', [
    ('train', ['missing.py'], 'expected a config file at `missing.py`, found none'),
    ('train', ['{config}', '--resume', 'missing.pth'],
     'expected a checkpoint at `missing.pth`, found none'),
    ('train', ['{config}', '--auto-scale-lr'], 'expected `auto_scale_lr = dict(base_batch_size'),
    ('train', ['{config}', '--cfg-options', 'train_cfg=None'], 'with a `train_cfg`, found'),
    ('train', ['{config}', '--cfg-options', 'train_dataloader.dataset.data_root=nowhere'],
     'expected the data of `train_dataloader` in the folder `nowhere`'),
    ('train', ['{config}', '--cfg-options', 'model.architecture.backbone.arch=vit-unknown'],
     'vit-unknown'),
    ('train', ['{config}', '--cfg-options', 'model.architecture.backbone.typo=1'], 'typo'),
    ('train', ['{config}', '--cfg-options', 'model.type=Nothing'], 'Nothing is not in the'),
    ('train', ['{config}', '--cfg-options', 'train_cfg.type=mmkcr.BilevelTrainLoop'],
     '`by_epoch`'),
    ('train', ['{config}', '--cfg-options', 'optim_wrapper.type=Nothing'], 'Nothing is not in'),
    ('train', ['{config}', '--cfg-options', 'custom_hooks.0.type=mmkcr.WarmupSwitchHook'],
     'expected one of the regularizers [] of RegularizedModel, found `kcr`'),
    ('test', ['{config}', 'missing.pth'], 'expected a checkpoint at `missing.pth`, found none'),
    ('test', ['{config}', 'x.pth', '--check'], 'expected metrics in `expected` of the config'),
    ('test', ['{config}', 'x.pth', '--out-item', 'metrics'], 'expected `--out` with the file'),
    ('test', ['{config}', 'x.pth', '--out', 'x.json'], 'expected a .pkl file for predictions'),
    ('test', ['{config}', 'x.pth', '--out', 'x.txt', '--out-item', 'metrics'],
     'expected a .json file for metrics, found `--out x.txt`'),
    ('test', ['{config}', 'x.pth', '--runtime', 'onnxruntime'], 'expected `--onnx` with the file'),
    ('test', ['{config}', 'x.pth', '--show-dir', 'x', '--cfg-options',
              'default_hooks.visualization=None'], 'expected a checkpoint at `x.pth`'),
])
def test_mistakes_are_one_sentence_and_leave_nothing(refused, config_path, name, args, message):
    line = refused(name, *(arg.replace('{config}', config_path) for arg in args))
    assert message in line


def test_broken_image(refused, config_path, tmp_path):
    for label in range(10):
        folder = tmp_path / 'broken/train' / str(label)
        folder.mkdir(parents=True)
        (folder / 'x.png').write_bytes(b'no image')
    (tmp_path / 'broken/val').mkdir()
    line = refused('train', config_path, '--no-validate', '--cfg-options',
                   f'train_dataloader.dataset.data_root={tmp_path / "broken"}',
                   'train_dataloader.num_workers=1', 'train_dataloader.dataset.indices=10')
    assert line.startswith('error: expected samples that can be loaded, found one that cannot: ')
    assert 'Traceback' not in line


@pytest.mark.skipif(torch.cuda.is_available(), reason='needs a machine without a GPU')
@pytest.mark.parametrize('name', ['train', 'test'])
def test_mixed_precision_needs_a_gpu(refused, config_path, name):
    line = refused(name, config_path, *['x.pth'] * (name == 'test'), '--amp')
    assert line == 'error: expected a GPU for `--amp`, found none'


@pytest.mark.parametrize('change, message', [
    (lambda state: state.pop('head.fc.weight'), 'found none of its entry `head.fc.weight`'),
    (lambda state: state.update({'head.fc.bias': torch.zeros(3)}),
     'found `head.fc.bias` of shape [3], not [10]'),
])
def test_checkpoint_that_does_not_fit(refused, config_path, trained, tmp_path, change, message):
    checkpoint = torch.load(trained / 'epoch_1.pth', weights_only=False)
    change(checkpoint['state_dict'])
    torch.save(checkpoint, tmp_path / 'other.pth')
    assert message in refused('test', config_path, str(tmp_path / 'other.pth'))
    assert message in refused('train', config_path, '--resume', str(tmp_path / 'other.pth'))


def test_head_of_other_classes_is_fine_to_start_from(tools, config_path, trained, tmp_path):
    checkpoint = torch.load(trained / 'epoch_1.pth', weights_only=False)
    checkpoint['state_dict']['head.fc.bias'] = torch.zeros(3)
    torch.save(checkpoint, tmp_path / 'other.pth')
    tools['train'].main([config_path, '--work-dir', str(tmp_path / 'fine'), '--cfg-options',
                         f'load_from={tmp_path / "other.pth"}', 'train_cfg.max_epochs=1'])
    assert (tmp_path / 'fine/epoch_1.pth').is_file()


def test_earlier_runs_survive_a_mistake(tools, config_path, trained):
    before = {path: path.is_file() and path.read_bytes() for path in trained.rglob('*')}
    time.sleep(1)  # a start's folder is named by its second
    with pytest.raises(SystemExit):
        tools['train'].main([config_path, '--work-dir', str(trained), '--cfg-options',
                             'model.type=Nothing'])
    after = {path: path.is_file() and path.read_bytes() for path in trained.rglob('*')}
    assert before.items() <= after.items()
    (log, ) = (path for path in after.keys() - before.keys() if path.suffix == '.log')
    assert 'The run did not start: ' in log.read_text() and 'Nothing' in log.read_text()
    new = after.keys() - before.keys()
    (own, ) = {trained / path.relative_to(trained).parts[0] for path in new}
    assert own in new and own.is_dir()  # the folder of that start alone


def test_a_run_of_another_process_in_the_folder(tools, config_path, trained, refused):
    """What it writes meanwhile stays, and it is named."""
    with locked(trained):
        line = refused('train', config_path, '--work-dir', str(trained), '--resume')
    assert f'found that process {os.getpid()} of' in line and str(trained) in line


def test_errors_within_the_run_keep_their_traceback_and_logs(tools, config_path, tmp_path,
                                                             monkeypatch):
    from mmkcr.methods.search.regularized import RegularizedModel
    monkeypatch.setattr(RegularizedModel, 'parse_losses',
                        lambda *_: (_ for _ in ()).throw(ValueError('a bug')))
    with pytest.raises(RuntimeError, match='the run stopped: a bug'):
        tools['train'].main([config_path, '--work-dir', str(tmp_path / 'run')])
    assert list((tmp_path / 'run').glob('*/*.log'))


@pytest.mark.parametrize('scope', ['mmpretrain', 'mmdet', 'mmseg'])
def test_flags_in_every_task(tools, config_path, scope, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    config = Config.fromfile(config_path)
    config.default_scope, config.auto_scale_lr = scope, dict(base_batch_size=8)
    config.visualizer, config.train_dataloader.num_workers = dict(type='Visualizer'), 2
    part = dict(optimizer=dict(type='SGD', lr=0.1))
    config.optim_wrapper = dict(constructor='mmkcr.SearchOptimWrapperConstructor',
                                weights=part, architecture=part)
    parse = tools['train'].parser().parse_args
    merged = tools['train'].config(config.copy(), parse(
        [config_path, '--amp', '--auto-scale-lr', '--no-pin-memory']))
    parts = [merged.optim_wrapper[name] for name in ('weights', 'architecture')]
    assert all((p.type, p.loss_scale) == ('AmpOptimWrapper', 'dynamic') for p in parts)
    assert 'type' not in merged.optim_wrapper and merged.auto_scale_lr.enable
    loader = merged.train_dataloader
    assert (loader.pin_memory, loader.persistent_workers) == (False, True)
    assert not merged.val_dataloader.persistent_workers  # it has no workers
    assert ('collate_fn' in loader) == (scope == 'mmpretrain')
    merged = tools['test'].config(config.copy(), tools['test'].parser().parse_args(
        [config_path, 'x.pth', '--amp', '--show-dir', 'shown', '--interval', '3']))
    hook = merged.default_hooks.visualization
    assert merged.test_cfg.fp16 and hook.interval == 3 and merged.load_from == 'x.pth'
    assert dict(mmpretrain=hook.get('out_dir'), mmdet=hook.get('test_out_dir'),
                mmseg=merged.visualizer.get('save_dir'))[scope] == 'shown'
    assert hook.enable if scope == 'mmpretrain' else hook.draw


def test_time_augmentation(tools, config_path, trained, tmp_path):
    out = tmp_path / 'metrics.json'
    tools['test'].main([config_path, str(trained / 'epoch_1.pth'), '--tta', '--out', str(out),
                        '--out-item', 'metrics', '--work-dir', str(tmp_path / 'tta')])
    assert 0 <= json.loads(out.read_text())['accuracy/top1'] <= 100


def test_flags_are_those_of_mmpretrain(tools):
    import mmpretrain
    folder = Path(mmpretrain.__file__).parent / '.mim/tools'
    for name in ('train', 'test'):
        known = set(tools[name].parser()._option_string_actions)
        text = (folder / f'{name}.py').read_text()
        theirs = {word.strip("',") for word in text.split() if word.startswith("'--")}
        assert len(theirs) >= 9 and theirs <= known


@pytest.mark.long  # tests/slurm starts two in every suite
def test_two_processes(config_path, tmp_path):
    environment = dict(os.environ, PORT='29731', OMP_NUM_THREADS='1',
                       PATH=f'{Path(sys.executable).parent}:{os.environ["PATH"]}')
    run = subprocess.run(
        ['bash', str(TOOLS / 'dist_train.sh'), config_path, '2',
         '--work-dir', str(tmp_path / 'a b'), '--cfg-options', 'train_cfg.max_epochs=1'],
        env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert (tmp_path / 'a b/epoch_1.pth').is_file()


@pytest.mark.parametrize('script', ['dist_train', 'dist_test', 'slurm_train', 'slurm_test'])
def test_scripts(script):
    path = str(TOOLS / f'{script}.sh')
    assert subprocess.run(['bash', '-n', path]).returncode == 0
    usage = subprocess.run(['bash', path], capture_output=True, text=True)
    assert usage.returncode == 2 and f'usage: bash {path}' in usage.stderr


@pytest.fixture
def fake(tmp_path):
    """``fake(name)``: environment with a program of that name that prints its arguments."""

    def make(name):
        (tmp_path / name).write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\n')
        (tmp_path / name).chmod(0o755)
        return dict(PATH=f'{tmp_path}:/usr/bin:/bin')

    return make


def run_script(name, *args, **environment):
    return subprocess.run([shutil.which('bash'), str(TOOLS / f'{name}.sh'), *args], env=environment,
                          capture_output=True, text=True)


def words_of(run):
    assert run.returncode == 0, run.stderr
    return [line[1:-1] for line in run.stdout.splitlines()]


def test_slurm_arguments(fake):
    words = words_of(run_script(
        'slurm_test', 'part', 'job', 'a b.py', 'c.pth', '--out', 'd e', **fake('srun'), GPUS='4',
        SRUN_ARGS='--time=1 --exclusive'))
    assert words[:2] == ['-p', 'part']
    assert {'--job-name=job', '--ntasks=4', '--gres=gpu:8', '--ntasks-per-node=8',
            '--cpus-per-task=5', '--time=1', '--exclusive'} <= set(words)
    assert words[-5:] == ['a b.py', 'c.pth', '--out', 'd e', '--launcher=slurm']


def test_arguments_of_several_nodes(fake):
    words = words_of(run_script(
        'dist_train', 'a b.py', '4', '--resume', **fake('python'), NNODES='3', NODE_RANK='2',
        MASTER_ADDR='first', PORT='12345'))
    assert {'--nnodes=3', '--node_rank=2', '--master_addr=first', '--master_port=12345',
            '--nproc_per_node=4'} <= set(words)
    assert words[-4:] == ['a b.py', '--resume', '--launcher', 'pytorch']


@pytest.mark.parametrize(('given', 'seconds'), [
    ({}, 120), (dict(GRACE='300'), 300), (dict(TORCH_ELASTIC_SHUTDOWN_TIMEOUT='9'), 9)])
def test_processes_have_time_to_save(fake, tmp_path, given, seconds):
    environment = fake('python')
    (tmp_path / 'python').write_text('#!/bin/sh\necho $TORCH_ELASTIC_SHUTDOWN_TIMEOUT\n')
    run = run_script('dist_train', 'a.py', '2', **environment, **given)
    assert run.stdout.split() == [str(seconds)]


def test_a_requeued_job_gives_its_tasks_their_processors(fake, tmp_path):
    for given, count in ((dict(SLURM_CPUS_PER_TASK='5'), 5), ({}, 1)):
        run = run_script('requeue', 'train.py', **fake('srun'), **given)
        assert words_of(run)[0] == f'--cpus-per-task={count}'


@pytest.mark.parametrize('resume', [['--resume'], ['--resume', 'a.pth'], ['--resume=a.pth']])
def test_a_requeued_job_has_no_resume_of_its_own(fake, tmp_path, resume):
    run = run_script('slurm_train', 'debug', 'name', 'a.py', str(tmp_path / 'work'), *resume,
                     **fake('sbatch'), REQUEUE='1')
    (line, ) = run.stderr.splitlines()
    assert run.returncode == 2 and f'found `{resume[0]}`' in line and 'load_from=' in line
    assert not (tmp_path / 'work').exists()
    run = run_script('slurm_train', 'debug', 'name', 'a.py', str(tmp_path / 'work'), '--amp',
                     **fake('sbatch'), REQUEUE='1')
    assert words_of(run)[-2:] == ['--amp', '--resume']


@pytest.mark.parametrize(('script', 'environment', 'message'), [
    ('dist_train', dict(NNODES='2'), 'NODE_RANK in the environment for NNODES=2, found it unset'),
    ('dist_test', dict(NNODES='2', NODE_RANK='1'), 'expected MASTER_ADDR in the environment'),
    ('dist_train', dict(NNODES='2', NODE_RANK='2', MASTER_ADDR='a'), 'below NNODES=2, found `2`'),
    ('dist_train', dict(PORT='http'), 'a whole number as PORT, found `http`'),
    ('dist_train', dict(GRACE='soon'), 'a whole number as GRACE, found `soon`'),
    ('slurm_train', dict(GPUS='two'), 'a whole number as GPUS, found `two`'),
    ('slurm_test', dict(PATH='only dirname'), '`srun` on the PATH, found none')])
def test_launcher_variables(fake, tmp_path, script, environment, message):
    if 'PATH' in environment:
        (tmp_path / 'dirname').symlink_to(shutil.which('dirname'))
        environment = dict(PATH=str(tmp_path))
    else:
        environment = {**fake('srun'), **environment}
    run = run_script(script, *'2 2 2 2'.split(), **environment)
    (line, ) = run.stderr.splitlines()
    assert run.returncode == 2 and line.startswith('error: expected') and message in line


@pytest.mark.parametrize(('launcher', 'environment', 'message'), [
    ('pytorch', {}, '`RANK` for `--launcher pytorch` (set by `torchrun`'),
    ('slurm', {}, '`SLURM_PROCID` for `--launcher slurm` (set by `srun`'),
    ('slurm', dict(SLURM_PROCID='0', SLURM_NTASKS='x', SLURM_LOCALID='0', SLURM_NODELIST='a'),
     'a whole number in the environment variable `SLURM_NTASKS`, found `x`'),
    ('mpi', {}, '`OMPI_COMM_WORLD_RANK` for `--launcher mpi` (set by `mpirun`'),
    ('mpi', dict(OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_SIZE='1',
                 OMPI_COMM_WORLD_LOCAL_RANK='0'), '`MASTER_ADDR` for `--launcher mpi` (to be set')])
def test_launcher_without_its_variables(refused, config_path, monkeypatch, launcher, environment,
                                        message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = refused('train', config_path, '--launcher', launcher)
    assert message in line and 'found' in line


@pytest.mark.parametrize(('launcher', 'names'), [
    ('pytorch', ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')),
    ('slurm', ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID')),
    ('mpi', ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'))])
def test_a_process_has_the_gpu_of_its_place_on_the_node(monkeypatch, launcher, names):
    """Of three, on nodes of two: the Runner wraps the model for `LOCAL_RANK`."""
    monkeypatch.setenv('LOCAL_RANK', '0')  # what `--local_rank` leaves
    for name, value in zip(names, '321'):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('MASTER_ADDR', 'first')
    monkeypatch.setenv('MASTER_PORT', '1')
    monkeypatch.setenv('SLURM_NODELIST', 'first')
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    join_processes(Config(dict(launcher=launcher)))
    assert os.environ['LOCAL_RANK'] == '1'
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    with pytest.raises(ValueError, match='a GPU for each process of a node, found 1'):
        join_processes(Config(dict(launcher=launcher)))
