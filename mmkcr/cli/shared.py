"""Fields that several commands have, and what they are checked for."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config

from mmkcr.cli.command import CFG_OPTIONS, TARGETS, TRUST
from mmkcr.cli.fields import argument
from mmkcr.deploy.latency_table import DEFAULTS
from mmkcr.deploy.runtimes import RUNTIMES
from mmkcr.engine.build import image_shape, run_folder

_WHICH = 'of --target-latency; default: that of the given table, else'


@dataclass(frozen=True)
class Configured:
    """A command that reads a config."""

    cfg_options: dict | None = argument(CFG_OPTIONS)


@dataclass(frozen=True)
class Shaped:
    """A command about images of one size."""

    shape: list[int] | None = argument(
        'height and width of the image, or one number for both; default: that of the config',
        metavar='N')


def given_shape(job: Shaped) -> tuple[int, int, int] | None:
    """(3, H, W) of ``--shape``, if it was given."""
    return image_shape(job.shape) if job.shape else None


@dataclass(frozen=True)
class Trusting:
    """A command that reads checkpoints."""

    trust_checkpoint: bool = argument(TRUST, False)


@dataclass(frozen=True)
class Timed:
    """A command with a target of time, of a table that was measured."""

    latency_table: str | None = argument(
        'of `mmkcr latency-table`, for --target-latency (default: where that writes it for this '
        'machine and the next three)', metavar='FILE')
    runtime: str | None = argument(f'{_WHICH} {DEFAULTS["runtime"]}', choices=RUNTIMES)
    threads: int | None = argument(f'{_WHICH} {DEFAULTS["threads"]}')
    batch: int | None = argument(f'{_WHICH} {DEFAULTS["batch"]}')
    force_table: bool = argument('take a table of another machine', False)


def target(cost: str, example: str, more: str = '', **settings: Any) -> Any:
    """A field for the most of a cost, with an example such as ``'12.6G'`` in its help."""
    return argument(f"most {TARGETS[f'target_{cost}'].noun}: {example}, 0.6 or 60%% of the dense "
                    f"model's{more}", metavar='TARGET', **{'group': 'target', **settings})


def chosen_target(job: Any) -> tuple[type, Any]:
    """The class of the cost that a target was given for, and the target(s).

    What is about the table of a target of time is refused without this target.
    """
    for name in Timed.__dataclass_fields__:
        if getattr(job, name) not in (None, False) and job.target_latency is None:
            raise ValueError(f'expected `--target-latency` with `--{name.replace("_", "-")}`, '
                             'found none')
    for name, cls in TARGETS.items():
        if getattr(job, name) is not None:
            return cls, getattr(job, name)
    return TARGETS['target_macs'], None


@dataclass(frozen=True)
class Running(Configured, Trusting):
    """A command that builds a Runner, with the flags that mmpretrain's two commands share."""

    work_dir: str | None = argument(
        'folder for logs and results (that of the config, else work_dirs/<config name>)')
    amp: bool = argument('automatic mixed precision', False)
    no_pin_memory: bool = argument('do not pin the memory of batches', False)
    launcher: str = argument('job launcher (%(default)s)', 'none',
                             choices=['none', 'pytorch', 'slurm', 'mpi'])
    local_rank: int = argument('set by older launchers (%(default)s)', 0, names=('--local_rank', ))


def apply_running(config: Config, job: Running) -> None:
    """Put launcher and work directory into the config, in place."""
    os.environ.setdefault('LOCAL_RANK', str(job.local_rank))
    config.launcher = job.launcher
    config.work_dir = str(job.work_dir or run_folder(config, job.config))
    if job.amp and not torch.cuda.is_available():
        raise ValueError('expected a GPU for `--amp`, found none')
