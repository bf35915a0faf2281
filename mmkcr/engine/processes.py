"""Processes of a run: joining processes that a launcher has started, ending workers of loaders."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.runner.base_loop import BaseLoop

from mmkcr.engine.resume.batches import loaders_of

#: Variables that each launcher sets, in PyTorch's order, and the command that starts processes.
_VARIABLES = dict(
    pytorch=('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT'),
    slurm=('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID', 'SLURM_NODELIST'),
    mpi=('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK',
         'MASTER_ADDR'))
_STARTED_BY = dict(pytorch='torchrun', slurm='srun', mpi='mpirun')


def prepare_launcher(config: Config) -> None:
    """Prepare a config for its ``launcher``, in place; without a GPU, join the processes by gloo.

    The Runner joins processes itself, but only with GPUs.

    Raises:
        ValueError: A variable of the launcher is missing, or a process has no GPU of its own.
    """
    if config.launcher == 'none':
        return
    variables = _read_variables(config.launcher)
    if torch.cuda.is_available():
        if int(variables['LOCAL_RANK']) >= torch.cuda.device_count():
            raise ValueError('expected a GPU for each process of a node, found '
                             f'{torch.cuda.device_count()} for process {variables["LOCAL_RANK"]}')
        # the Runner wraps the model for this GPU, but joins MPI's processes without setting it
        os.environ['LOCAL_RANK'] = variables['LOCAL_RANK']
        return
    os.environ.update(variables)
    torch.distributed.init_process_group('gloo')
    # MMEngine's default wrapper, but without `device_ids`, which name a GPU
    wrapper = config.get('model_wrapper_cfg') or dict(
        type='MMDistributedDataParallel', broadcast_buffers=False,
        find_unused_parameters=config.get('find_unused_parameters', False))
    config.model_wrapper_cfg = dict(wrapper, device_ids=None)


def is_first_process(launcher: str) -> bool:
    """Whether this process is the only one of ``--launcher``, or the one that writes files."""
    names = _VARIABLES.get(launcher)
    return names is None or os.environ.get(names[0], '0') == '0'


def _read_variables(launcher: str) -> dict[str, str]:
    """Translate a launcher's variables to PyTorch's."""
    names = _VARIABLES[launcher]
    for name in names:
        if not os.environ.get(name):
            raise ValueError(f'expected the environment variable `{name}` for `--launcher '
                             f'{launcher}`, found it unset: start the processes by '
                             f'`{_STARTED_BY[launcher]}`, or set it')
    variables = {ours: os.environ[name] for ours, name in zip(_VARIABLES['pytorch'], names[:3])}
    variables['MASTER_PORT'] = os.environ.get('MASTER_PORT', '29500')  # the host's default
    variables['MASTER_ADDR'] = os.environ.get('MASTER_ADDR') or _first_host()
    return variables


def _first_host() -> str:
    nodes = os.environ['SLURM_NODELIST']
    try:
        return subprocess.check_output(['scontrol', 'show', 'hostnames', nodes], text=True,
                                       stderr=subprocess.DEVNULL).split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise ValueError(f'expected the hosts of `SLURM_NODELIST={nodes}` from `scontrol show '
                         f'hostnames`, found none; set MASTER_ADDR ({error})') from error


@contextmanager
def no_workers_left(runner: Runner) -> Iterator[None]:
    """End the workers of a run's loaders with the block, whatever ends it.

    PyTorch ends persistent workers when the last reference to their iterator goes. A runner and its
    loops refer to each other, so that comes too late, and five seconds a worker are lost. The
    loaders start new ones when they are iterated again.
    """
    try:
        yield
    finally:
        for loop in (value for value in vars(runner).values() if isinstance(value, BaseLoop)):
            for loader in loaders_of(loop).values():
                if loader._iterator is not None:
                    loader._iterator._shutdown_workers()
                    loader._iterator = None
