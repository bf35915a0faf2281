"""Fixtures of the whole suite."""

import fcntl
import functools
import gc
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

# where the environment forbids to keep compiled modules, every process would compile anew: seconds
sys.dont_write_bytecode = False
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
gc.disable()  # until all is imported


def _checked_alone(text, **_):
    """MMEngine lays out a run's config at its start and for every checkpoint: seconds each."""
    compile(text, 'config', 'exec')  # as the layout does, it refuses what is no Python
    return text, False


def pytest_configure(config):
    """Import the hosts where tests run, which takes seconds: workers wait for what starts them.

    No ``conftest.py`` imports PyTorch or a host, except within a fixture.
    """
    if config.getoption('dist', 'no') != 'no' and not hasattr(config, 'workerinput'):
        return
    import torch
    from yapf.yapflib import yapf_api

    from mmkcr.hosts import ensure_torchvision, prepare_hosts

    ensure_torchvision()  # before any host library
    prepare_hosts()  # tests read `mmkcr::` bases, as commands do
    torch.set_num_threads(1)
    for devices in (torch.cuda, torch.xpu, torch.mtia):
        if not devices.is_available():  # each seed would keep three stacks for them, in 2 ms
            devices.manual_seed_all = lambda seed: None
    yapf_api.FormatCode = _checked_alone

#: Files that take or wait longest, in that order: begun last, they would run alone at the end.
LONGEST = [f'tests/{name}.py' for name in (
    'test_engine/test_resume/test_exact_resume', 'test_tools/test_compress_tool',
    'slurm/test_slurm', 'test_models/test_sites/test_coverage', 'test_tools/test_retrained',
    'test_closed_form/test_compression', 'test_end_to_end/test_hosts_tools',
    'test_models/test_sites/test_plain', 'test_project/test_wheel', 'test_project/test_commands',
    'test_models/test_whole/test_compress_whole', 'test_tools/test_train_test',
    'test_configs/test_ofb_configs', 'test_distillation/test_run', 'test_closed_form/test_given',
    'test_deploy/test_export', 'test_apis/test_ordinary', 'test_configs/test_detection_configs',
    'test_deploy/test_shipped_graphs', 'test_tools/test_wrong_inputs', 'test_tools/test_init',
    'test_tools/test_stopped_runs', 'test_tools/test_dense_tools', 'test_project/test_docs')]


def pytest_collection_modifyitems(items):
    """Begin with the longest files; of the others, and of tests within a file, the order stays."""
    if not os.environ.get('MMKCR_LONG_TESTS'):
        for item in items:
            if item.get_closest_marker('long'):
                item.add_marker(pytest.mark.skip(reason='MMKCR_LONG_TESTS is not set'))
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.split('::')[0], len(ranks)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests that share a server go to one worker: each server imports for seconds.

    They are jobs that are forked from :func:`servers`, and programs from :func:`after_torch`.
    """
    from xdist.scheduler import LoadFileScheduling

    @functools.cache
    def scope_of(file):
        if file.startswith(('tests/test_engine/', 'tests/faults/')):
            return 'servers'
        uses = 'after_torch' in (config.rootpath / file).read_text()
        return 'after_torch' if uses else file

    class ServersOnce(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return scope_of(super()._split_scope(nodeid))

    return ServersOnce(config, log) if config.getoption('dist') == 'loadfile' else None


def pytest_collection_finish():
    """Every dataset calls the collector: spare it a second for what imports and tests hold."""
    gc.freeze()  # without a collection, which takes a second, too
    gc.set_threshold(700, 10, 100)  # rarely of all objects: `_freed` does it as memory grows
    gc.enable()


_GROWTH = 2**29  # bytes
_resident = [0]


def _resident_bytes():
    return int(Path('/proc/self/statm').read_text().split()[1]) * 4096


@pytest.fixture(autouse=True)
def _freed():
    """Models are circles of references, whose tensors Python's collector does not count."""
    yield
    if _resident_bytes() > _resident[0] + _GROWTH:
        gc.collect()
        _resident[0] = _resident_bytes()


def _subclasses(parent):
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)


@pytest.fixture(autouse=True)
def _isolated():
    """Seeded, on one thread, without what a Runner leaves behind under its name.

    A Runner's name ends with the second it was built in: two tests that name theirs alike
    within one second would share them, and the second would log into the first one's folder.
    """
    import torch
    from mmengine.utils import ManagerMixin
    torch.manual_seed(0)
    if torch.get_num_threads() > 1:  # as some commands leave it: threads that wait take a core
        torch.set_num_threads(1)
    logging.getLogger('mmengine').setLevel(logging.WARNING)
    yield
    # as a run that failed leaves it: a process that a test starts would not be told to end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for manager in _subclasses(ManagerMixin):  # loggers, hubs, scopes, visualizers of every host
        manager._instance_dict.clear()


#: Runs programs in copies of a process that has imported PyTorch with its compiler, which
#: torchvision imports within two seconds, and what the hosts import of other libraries.
AFTER_TORCH = """
import json, os, sys, traceback
import cv2, matplotlib.pyplot, scipy.optimize, scipy.stats, sklearn.metrics
import torch._dynamo, torch.distributed.fsdp
for line in sys.stdin:
    code, folder, output = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), 1), os.dup2(1, 2)
        try:
            exec(code, dict(__name__='__main__'))
            status = 0
        except SystemExit as ended:
            status = int(bool(ended.code))
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope='session')
def after_torch(tmp_path_factory):
    """``after_torch(code, folder)``: what a program printed, which ended without an error."""
    output = tmp_path_factory.mktemp('after_torch') / 'output.txt'
    with subprocess.Popen([sys.executable, '-c', AFTER_TORCH], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as server:
        def run(code, folder=os.curdir):
            output.unlink(missing_ok=True)
            print(json.dumps([code, str(folder), str(output)]), file=server.stdin, flush=True)
            status = server.stdout.readline().strip()
            assert status == '0', output.read_text()[-2000:]
            return output.read_text()

        yield run
        server.kill()  # a forked process that lives may hold its input open


@pytest.fixture(scope='session')
def two_processes(tmp_path_factory):
    """``two_processes(function)``: what ``function(rank)`` gives in two processes of one group."""
    import torch
    folder, fork = tmp_path_factory.mktemp('two_processes'), multiprocessing.get_context('fork')

    def run(function):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            address = f'tcp://127.0.0.1:{free.getsockname()[1]}'

        def job(rank):
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')
            torch.distributed.init_process_group('gloo', address, timedelta(seconds=60), 2, rank)
            torch.save(function(rank), folder / f'{rank}.pth')
            torch.distributed.destroy_process_group()

        jobs = [fork.Process(target=job, args=(rank, )) for rank in (0, 1)]
        for process in jobs:
            process.start()
        for process in jobs:
            process.join(120)
        assert [process.exitcode for process in jobs] == [0, 0]
        return [torch.load(folder / f'{rank}.pth') for rank in (0, 1)]

    return run


@pytest.fixture(scope='session')
def servers():
    """Two processes that have imported everything, with different orders of hashed strings."""
    from campaign import Servers
    with Servers(2) as servers:
        yield servers


@pytest.fixture(scope='session')
def digits_options():
    """Few scenes, everything else as by default."""
    from lab.digits import DigitsOptions
    return DigitsOptions(train_scenes=10, val_scenes=10)


@pytest.fixture(scope='session')
def written_digits(tmp_path_factory):
    """``written_digits(options)``: a folder with the digits that tests read and do not alter.

    Written once for all workers.
    """
    from lab.digits import write_digits
    root = tmp_path_factory.getbasetemp()
    root = root.parent if 'PYTEST_XDIST_WORKER' in os.environ else root

    def written(options):
        folder = root / f'digits_{options.train_scenes}_{options.val_scenes}'
        with open(f'{folder}.lock', 'w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_digits(folder / 'digits', options)
        return folder / 'digits'

    return written


@pytest.fixture(scope='session')
def digits_root(written_digits, digits_options):
    """The digits and few scenes."""
    return written_digits(digits_options)
