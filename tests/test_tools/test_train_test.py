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
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmkcr.cli import test as testing
from mmkcr.cli import train as training
from mmkcr.core import locked
from mmkcr.engine.build import load_config
from mmkcr.engine.processes import prepare_launcher

TOOLS = Path(__file__).parents[2] / 'tools'

ONE_EPOCH = ('--cfg-options', 'train_cfg.max_epochs=1')


@pytest.fixture(scope='module')
def run(load_tool, forget_runs):
    """``run('train', *args)``, as in a process of its own."""
    def run(name, *args):
        forget_runs()
        load_tool(name).main([str(arg) for arg in args])
    return run


@pytest.fixture(scope='module')
def train(run, config_path):
    """``train(folder, *options)``: a run in a folder."""
    return lambda folder, *words: run('train', config_path, '--work-dir', folder, *words)


@pytest.fixture(scope='module')
def config_path(dense_training, tmp_path_factory):
    """A complete config of a tiny model on a few digits."""
    config = dense_training()
    config.model = dict(type='mmkcr.RegularizedModel', architecture=config.model)
    config.optim_wrapper.optimizer = dict(type='SGD', lr=0.1)
    config.train_cfg.max_epochs = 2
    config.custom_hooks = [config.default_hooks.pop('exact_resume')]
    config.pop('auto_scale_lr')
    for part, indices in dict(train=range(0, 1437, 60), val=range(0, 360, 30),
                              test=range(0, 360, 30)).items():
        loader = config[f'{part}_dataloader']
        loader.pop('persistent_workers', None)
        loader.update(batch_size=8, num_workers=0)
        loader.dataset.indices = list(indices)
    path = tmp_path_factory.mktemp('tools') / 'tiny.py'
    config.dump(path)
    return str(path)


@pytest.fixture(scope='module')
def once(train, tmp_path_factory):
    """Work directory of one epoch, which tests read."""
    folder = tmp_path_factory.mktemp('once')
    train(folder, *ONE_EPOCH)
    return folder


@pytest.fixture
def trained(once, tmp_path):
    """The same to write to."""
    shutil.copytree(once, tmp_path / 'run')
    (tmp_path / 'run/last_checkpoint').write_text(str(tmp_path / 'run/epoch_1.pth'))
    return tmp_path / 'run'


@pytest.fixture(scope='module')
def whole(train, tmp_path_factory):
    """Weights of an unbroken run."""
    folder = tmp_path_factory.mktemp('whole')
    train(folder)
    return weights(folder)


def weights(folder):
    path = Path((folder / 'last_checkpoint').read_text())
    return torch.load(path, weights_only=False)['state_dict']


def assert_equal(one, two):
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_no_worker_is_left(train, run, config_path, tmp_path):
    """A process that pins memory waits five seconds for each when it ends."""
    before = set(multiprocessing.active_children())
    options = [*ONE_EPOCH, *(
        f'{name}_dataloader.{option}' for name in ('train', 'val', 'test')
        for option in ('num_workers=1', 'persistent_workers=True'))]
    train(tmp_path / 'run', *options)
    assert set(multiprocessing.active_children()) == before
    run('test', config_path, tmp_path / 'run/epoch_1.pth', '--work-dir', tmp_path, *options)
    assert set(multiprocessing.active_children()) == before
    with pytest.raises(SystemExit):
        train(tmp_path / 'fails', *options, 'optim_wrapper.optimizer.lr=1e30')
    assert set(multiprocessing.active_children()) == before


def test_train_resume_test(train, run, config_path, trained, tmp_path):
    train(trained, '--resume')
    assert (trained / 'last_checkpoint').read_text().endswith('epoch_2.pth')
    metrics, predictions = tmp_path / 'metrics.json', tmp_path / 'predictions.pkl'
    args = [config_path, trained / 'epoch_2.pth', '--work-dir', tmp_path / 'test']
    run('test', *args, '--out', metrics, '--out-item', 'metrics')
    run('test', *args, '--out', predictions)
    samples = pickle.loads(predictions.read_bytes())
    right = [int(sample['pred_label']) == int(sample['gt_label']) for sample in samples]
    assert len(right) == 12
    top1 = json.loads(metrics.read_text())['accuracy/top1']
    assert top1 == pytest.approx(100 * sum(right) / 12, abs=1e-4)
    # views that are augmented have metrics too
    run('test', *args, '--tta', '--out', metrics, '--out-item', 'metrics')
    assert 0 <= json.loads(metrics.read_text())['accuracy/top1'] <= 100


def test_a_slip_in_an_option(config_path, refused):
    """MMEngine would add an entry that nobody reads."""
    for option, near in (('train_cgf.max_epochs=1', 'train_cfg'), ('loadfrom=a', 'load_from')):
        line = refused('train', config_path, '--cfg-options', option)
        assert f'found `{re.split("[.=]", option)[0]}`; did you mean `{near}`?' in line


def test_options_that_a_config_does_not_have(config_path):
    options = dict(load_from='a', my_root='b', auto_scale_lr=dict(enable=True))
    config = load_config(config_path, options)
    assert {name: config[name] for name in options} == options


def test_resume_with_another_config(train, config_path, trained, refused):
    """What makes another run is refused before anything is written; the rest is named."""
    before = sorted(trained.glob('*.p*'))
    line = refused('train', config_path, '--work-dir', trained, '--resume', '--cfg-options',
                   'model.architecture.head.cal_acc=True')
    assert '`model.architecture.head.cal_acc` was not there and is True, and 0 more' in line
    assert sorted(trained.glob('*.p*')) == before
    train(trained, '--resume', '--cfg-options', 'optim_wrapper.optimizer.lr=0.5')
    # the epochs too: the first run was told of one
    named = {line.split('another config: ')[1] for path in trained.glob('*/*.log')
             for line in path.read_text().splitlines() if 'another config: ' in line}
    assert named == {
        '`train_cfg.max_epochs` was 1 and is 2: the run does not go on as it would have.',
        "`optim_wrapper.optimizer.lr` was 0.1 and is 0.5: the checkpoint's is used."}


def test_check_of_what_a_config_expects(run, config_path, once, tmp_path, capsys):
    """Which it is: `test_what_was_not_expected_is_told` in test_engine/test_build.py."""
    args = [once / 'epoch_1.pth', '--work-dir', tmp_path / 'test']
    for name, expected in dict(met=(50., 50.), missed=(-9., 1.)).items():
        (tmp_path / f'{name}.py').write_text(
            f'_base_ = {config_path!r}\nexpected = {{"accuracy/top1": {expected}}}\n')
    run('test', tmp_path / 'met.py', *args, '--check')
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run('test', tmp_path / 'missed.py', *args, '--check')
    assert ended.value.code == 1
    assert 'error: expected `accuracy/top1` of -9.0 +/- 1.0, found' in capsys.readouterr().err


def test_resume_before_the_first_checkpoint_begins_from_load_from(train, once, tmp_path):
    """As a batch system does it, which starts every job with ``--resume``."""
    start = [*ONE_EPOCH, f'load_from={once / "epoch_1.pth"}']
    train(tmp_path / 'begun', *start)
    train(tmp_path / 'resumed', '--resume', *start)
    begun, scratch = weights(tmp_path / 'begun'), weights(once)
    assert_equal(begun, weights(tmp_path / 'resumed'))
    assert not all(torch.equal(value, scratch[name]) for name, value in begun.items())


@pytest.mark.parametrize('change', ['moved', 'no_pointer', 'broken_pointer', 'given'])
def test_resume_finds_the_latest_checkpoint(train, trained, whole, tmp_path, change):
    """Or takes the given one; then all is as in an unbroken run."""
    folder, words = tmp_path / 'other' if change in ('moved', 'given') else trained, []
    if change == 'moved':
        shutil.move(trained, folder)
    elif change == 'no_pointer':
        (folder / 'last_checkpoint').unlink()
        shutil.copy(folder / 'epoch_1.pth', folder / 'mine.pth')
    elif change == 'broken_pointer':
        (folder / 'last_checkpoint').write_text(str(folder / 'epoch_7.pth'))
    else:
        words = [trained / 'epoch_1.pth', '--no-validate']
    train(folder, '--resume', *words)
    assert_equal(whole, weights(folder))


def test_told_to_end(train, whole, tmp_path, monkeypatch):
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
        train(folder, '--resume')
    assert ended.value.code == 143 and len(steps) == 2
    assert (folder / 'last_checkpoint').read_text() == str(folder / 'preempted.pth')
    train(folder, '--resume')
    assert_equal(whole, weights(folder))
    assert not (folder / 'preempted.pth').exists()


@pytest.mark.parametrize('name, args, message', [
    ('train', ['{config}', '--auto-scale-lr'], 'expected `auto_scale_lr = dict(base_batch_size'),
    ('train', ['{config}', '--cfg-options', 'train_cfg=None'], 'with a `train_cfg`, found'),
    ('train', ['{config}', '--cfg-options', 'train_dataloader.dataset.data_root=nowhere'],
     'expected the data of `train_dataloader` in the folder `nowhere`'),
    ('train', ['{config}', '--cfg-options', 'model.architecture.backbone.arch=vit-unknown'],
     'vit-unknown'),
    ('train', ['{config}', '--cfg-options', 'model.architecture.backbone.typo=1'], 'typo'),
    ('train', ['{config}', '--cfg-options', 'model.type=Nothing'], 'Nothing is not in the'),
    ('train', ['{config}', '--cfg-options', 'train_dataloader.dataset.type=Nothing'],
     'Nothing is not in the'),
    ('train', ['{config}', '--cfg-options', 'load_from=no/such.pth'],
     'a checkpoint at `no/such.pth`, found none'),
    ('train', ['{config}', '--cfg-options',
               'model.architecture.backbone.structure=no/such.json'],
     'a structure file at `no/such.json`, found none'),
    ('train', ['{config}', '--cfg-options', 'train_cfg.type=mmkcr.BilevelTrainLoop'],
     '`by_epoch`'),
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
    ('train', ['{config}', '--amp'], 'expected a GPU for `--amp`, found none'),
    ('test', ['{config}', 'x.pth', '--amp'], 'expected a GPU for `--amp`, found none'),
])
def test_mistakes_are_one_sentence_and_leave_nothing(refused, config_path, name, args, message,
                                                     monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    line = refused(name, *(arg.replace('{config}', config_path) for arg in args))
    assert message in line


def test_checkpoint_that_does_not_fit(train, refused, config_path, once, tmp_path):
    """A head of other classes is fine to start from."""
    for change, message in (
            (lambda state: state.pop('head.fc.weight'), '1 missing (head.fc.weight)'),
            (lambda state: state.update({'head.fc.bias': torch.zeros(3)}),
             '1 mis-shaped (head.fc.bias [3] for [10])')):
        checkpoint = torch.load(once / 'epoch_1.pth', weights_only=False)
        change(checkpoint['state_dict'])
        torch.save(checkpoint, tmp_path / 'other.pth')
        assert message in refused('test', config_path, tmp_path / 'other.pth')
        assert message in refused('train', config_path, '--resume', tmp_path / 'other.pth')
    train(tmp_path / 'fine', *ONE_EPOCH, f'load_from={tmp_path / "other.pth"}')
    assert (tmp_path / 'fine/epoch_1.pth').is_file()


def test_earlier_runs_survive_a_mistake(train, trained):
    before = {path: path.is_file() and path.read_bytes() for path in trained.rglob('*')}
    time.sleep(1)  # a start's folder is named by its second
    with pytest.raises(SystemExit):
        train(trained, '--cfg-options', 'model.type=Nothing')
    after = {path: path.is_file() and path.read_bytes() for path in trained.rglob('*')}
    assert before.items() <= after.items()
    (log, ) = (path for path in after.keys() - before.keys() if path.suffix == '.log')
    assert all(words in log.read_text() for words in (
        'mmengine - ERROR', 'The run did not start: ', 'Nothing'))
    new = after.keys() - before.keys()
    (own, ) = {trained / path.relative_to(trained).parts[0] for path in new}
    assert own in new and own.is_dir()  # the folder of that start alone


def test_a_run_of_another_process_in_the_folder(config_path, trained, refused):
    """What it writes meanwhile stays, and it is named."""
    with locked(trained):
        line = refused('train', config_path, '--work-dir', trained, '--resume')
    assert f'found that process {os.getpid()} of' in line and str(trained) in line


def test_errors_within_the_run_keep_their_traceback_and_logs(train, tmp_path, monkeypatch):
    from mmkcr.methods.search.regularized import RegularizedModel
    monkeypatch.setattr(RegularizedModel, 'parse_losses',
                        lambda *_: (_ for _ in ()).throw(ValueError('a bug')))
    with pytest.raises(RuntimeError, match='the run stopped: a bug'):
        train(tmp_path / 'run')
    assert list((tmp_path / 'run').glob('*/*.log'))


@pytest.mark.parametrize('scope', ['mmpretrain', 'mmdet', 'mmseg'])
def test_flags_in_every_task(config_path, scope, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    config = Config.fromfile(config_path)
    config.default_scope, config.auto_scale_lr = scope, dict(base_batch_size=8)
    config.visualizer, config.train_dataloader.num_workers = dict(type='Visualizer'), 2
    part = dict(optimizer=dict(type='SGD', lr=0.1))
    config.optim_wrapper = dict(constructor='mmkcr.SearchOptimWrapperConstructor',
                                weights=part, architecture=part)
    merged = training.training_config(config.copy(), training.main.parser().parse_args(
        [config_path, '--amp', '--auto-scale-lr', '--no-pin-memory']))
    parts = [merged.optim_wrapper[name] for name in ('weights', 'architecture')]
    assert all((p.type, p.loss_scale) == ('AmpOptimWrapper', 'dynamic') for p in parts)
    assert 'type' not in merged.optim_wrapper and merged.auto_scale_lr.enable
    loader = merged.train_dataloader
    assert (loader.pin_memory, loader.persistent_workers) == (False, True)
    assert not merged.val_dataloader.persistent_workers  # it has no workers
    assert ('collate_fn' in loader) == (scope == 'mmpretrain')
    merged = testing.testing_config(config.copy(), testing.main.parser().parse_args(
        [config_path, 'x.pth', '--amp', '--show-dir', 'shown', '--interval', '3']))
    hook = merged.default_hooks.visualization
    assert merged.test_cfg.fp16 and hook.interval == 3 and merged.load_from == 'x.pth'
    assert dict(mmpretrain=hook.get('out_dir'), mmdet=hook.get('test_out_dir'),
                mmseg=merged.visualizer.get('save_dir'))[scope] == 'shown'
    assert hook.enable if scope == 'mmpretrain' else hook.draw


def test_flags_are_those_of_mmpretrain():
    import mmpretrain
    folder = Path(mmpretrain.__file__).parent / '.mim/tools'
    for name, module in dict(train=training, test=testing).items():
        known = set(module.main.parser()._option_string_actions)
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
    # a requeued job gives its tasks their processors
    for given, count in ((dict(SLURM_CPUS_PER_TASK='5'), 5), ({}, 1)):
        run = run_script('requeue', 'train.py', **fake('srun'), **given)
        assert words_of(run)[0] == f'--cpus-per-task={count}'


def test_arguments_of_several_nodes(fake, tmp_path):
    """And processes have time to save."""
    words = words_of(run_script(
        'dist_train', 'a b.py', '4', '--resume', **fake('python'), NNODES='3', NODE_RANK='2',
        MASTER_ADDR='first', PORT='12345'))
    assert {'--nnodes=3', '--node_rank=2', '--master_addr=first', '--master_port=12345',
            '--nproc_per_node=4'} <= set(words)
    assert words[-4:] == ['a b.py', '--resume', '--launcher', 'pytorch']
    (tmp_path / 'python').write_text('#!/bin/sh\necho $TORCH_ELASTIC_SHUTDOWN_TIMEOUT\n')
    for given, seconds in (({}, 120), (dict(GRACE='300'), 300),
                           (dict(TORCH_ELASTIC_SHUTDOWN_TIMEOUT='9'), 9)):
        run = run_script('dist_train', 'a.py', '2', PATH=f'{tmp_path}:/usr/bin:/bin', **given)
        assert run.stdout.split() == [str(seconds)]


def test_a_requeued_job_has_no_resume_of_its_own(fake, tmp_path):
    def run(*words):
        return run_script('slurm_train', 'debug', 'name', 'a.py', str(tmp_path / 'work'), *words,
                          **fake('sbatch'), REQUEUE='1')

    for resume in (['--resume'], ['--resume', 'a.pth'], ['--resume=a.pth']):
        refused = run(*resume)
        (line, ) = refused.stderr.splitlines()
        assert refused.returncode == 2 and f'found `{resume[0]}`' in line and 'load_from=' in line
        assert not (tmp_path / 'work').exists()
    assert words_of(run('--amp'))[-2:] == ['--amp', '--resume']


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
    ('pytorch', {}, '`RANK` for `--launcher pytorch`, found it unset: start .* by `torchrun`'),
    ('slurm', {}, '`SLURM_PROCID` for `--launcher slurm`, found it unset: start .* by `srun`'),
    ('mpi', {}, '`OMPI_COMM_WORLD_RANK` for `--launcher mpi`, found it unset'),
    ('mpi', dict(OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_SIZE='1',
                 OMPI_COMM_WORLD_LOCAL_RANK='0'), '`MASTER_ADDR` for `--launcher mpi`, found it')])
def test_launcher_without_its_variables(refused, config_path, monkeypatch, launcher, environment,
                                        message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert re.search(message, refused('train', config_path, '--launcher', launcher))


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
    prepare_launcher(Config(dict(launcher=launcher)))
    assert os.environ['LOCAL_RANK'] == '1'
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    with pytest.raises(ValueError, match='a GPU for each process of a node, found 1'):
        prepare_launcher(Config(dict(launcher=launcher)))
