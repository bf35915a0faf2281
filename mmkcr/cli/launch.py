"""Steps that training and testing share: from config and arguments to a Runner."""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmkcr.cli.fields import Running, check_file
from mmkcr.core import NonFiniteError, locked
from mmkcr.datasets.data_check import check_data_folders
from mmkcr.engine.build import drop_idle_workers, run_folder
from mmkcr.engine.processes import is_first_process, no_workers_left, prepare_launcher
from mmkcr.hosts import UnreadableImageError
from mmkcr.methods.search.price import MacsPrice
from mmkcr.methods.search.refresh import RefreshHook
from mmkcr.methods.search.search_model import SearchModel
from mmkcr.models.tasks import search_spaces, unwrap
from mmkcr.registry import HOOKS
from mmkcr.safe_load import is_address

_NUMBERED = re.compile(r'(epoch|iter)_\d+\.pth')


def set_dataloader_defaults(config: Config, fields: Sequence[str], **settings: Any) -> None:
    """Give data loaders the settings that mmpretrain's commands give them, in place.

    Args:
        config (Config): Config with data loaders.
        fields (Sequence[str]): Names of the data loaders.
        **settings (bool): ``pin_memory``, ``persistent_workers``: True is a default, False
            overrides the config's value. Without a GPU nothing is pinned.
    """
    settings['pin_memory'] = settings['pin_memory'] and torch.cuda.is_available()
    refused = {key: False for key, value in settings.items() if not value}
    if config.get('default_scope') == 'mmpretrain':  # mmdet and mmseg keep batches as lists
        settings['collate_fn'] = dict(type='default_collate')
    for field in fields:
        if config.get(field) is not None:
            config[field] = ConfigDict({**deepcopy(settings), **config[field], **refused})
    drop_idle_workers(config)


def resume_latest(config: Config) -> None:
    """Make a run resume from the latest checkpoint of its work directory, if there is one.

    Otherwise it begins from ``load_from``, if the config has it. So a batch system that restarts
    jobs can always start a run with ``--resume``.
    """
    checkpoint = latest_checkpoint(config.work_dir)
    config.resume = checkpoint is not None
    if config.resume:
        config.load_from = checkpoint


def latest_checkpoint(work_dir: str) -> str | None:
    """The checkpoint named by ``last_checkpoint``, or else the checkpoint of the highest number.

    After the work directory was moved, its own file of the name is taken.
    """
    folder = Path(work_dir)
    pointer = folder / 'last_checkpoint'
    named = pointer.read_text().strip() if pointer.is_file() else ''
    if is_address(named):
        return named
    numbered = sorted((path for path in folder.glob('*.pth') if _NUMBERED.fullmatch(path.name)),
                      key=lambda path: int(path.stem.rpartition('_')[2]))
    places = [Path(named), folder / Path(named).name, *numbered[-1:]]
    return next((str(path) for path in places if path.is_file()), None)


def build_runner(config: Config) -> Runner:
    """Build the runner; without a GPU, processes communicate by gloo."""
    prepare_launcher(config)
    runner = RUNNERS.build(config) if 'runner_type' in config else Runner.from_cfg(config)
    refuse_gates_without_search(unwrap(runner.model))
    return runner


def start_training(config: Config) -> Runner:
    """Check a complete config, build its runner and train.

    Raises:
        FileNotFoundError: The config names data or a checkpoint that are missing. Nothing is
            written then.
        ValueError: The config has no training, or a training without steps. Nothing is written
            then.
    """
    if config.get('train_cfg') is None:
        raise ValueError('expected a config with a `train_cfg`, found '
                         f'`{config.filename or config.work_dir}` without')
    for key in ('max_epochs', 'max_iters'):
        length = config.train_cfg.get(key)
        if length is not None and not (isinstance(length, int) and length >= 1):
            raise ValueError(f'expected `train_cfg.{key}` of at least 1, found {length!r}')
    check_file(config.get('load_from'), 'a checkpoint')
    check_data_folders(config, ('train_dataloader', 'val_dataloader'))
    # checks above write nothing; from here on MMEngine makes files
    guards = ('CheckpointGuardHook', 'ClassCheckHook', 'FiniteHook')
    with one_run(config, *(dict(type=f'mmkcr.{name}') for name in guards)) as runner:
        runner.train()
    return runner


def refuse_gates_without_search(model: nn.Module) -> None:
    """Refuse a supernet without a price: all its gates would stay open."""
    gated = next((space for space in search_spaces(model) if space.gates()), None)
    if gated is not None and not isinstance(model, SearchModel):
        raise ValueError(f'expected `gates` of `{gated.type_name}` in an `mmkcr.SearchModel`, '
                         f'found `{type(model).__name__}`: write model = dict(type='
                         '"mmkcr.SearchModel", architecture=<your model>), or let `mmkcr init '
                         'CONFIG` write it')


class StartHook(Hook):
    """Records that the first batch has arrived, so that all settings are valid."""

    priority = 'LOWEST'
    started = False

    def before_train(self, runner: Runner) -> None:
        """Refuse a model that would fail in a batch; the checkpoint is loaded by now.

        Raises:
            ValueError: A regulariser without its state, or a target that the gates cannot meet.
        """
        model = unwrap(runner.model)
        # regularisers whose state no hook computes and no checkpoint has
        refreshed = {hook.loss for hook in runner.hooks if isinstance(hook, RefreshHook)}
        for name, loss in getattr(model, 'regularizers', {}).items():
            if name not in refreshed and not getattr(loss, 'ready', True):
                hook = getattr(loss, 'hook', '')
                scope = 'mmkcr.' * (hook in HOOKS.module_dict)
                wanted = f"`dict(type='{scope}{hook}', loss='{name}')`" if hook else \
                    'a hook that computes the state'
                raise ValueError(f'expected {wanted} in `custom_hooks`, or a checkpoint with the '
                                 f'state of `{type(loss).__name__}` in `load_from`, found neither')
        price = getattr(model, 'price', None)
        # without a shape the MACs are counted for the first batch, and the target is checked there
        if isinstance(price, MacsPrice) and None not in (price.target, price.input_shape):
            price.check_target(model.macs_model())

    def _before_iter(self, *args: Any, **kwargs: Any) -> None:
        self.started = True


@contextmanager
def one_run(config: Config, *hooks: Hook | dict, alone: bool = True) -> Iterator[Runner]:
    """Lock a work directory and build its runner; restore the folder if nothing begins.

    MMEngine creates folders and files before it builds the parts of a config. If the run fails
    before its first batch, the copy of the config is restored or removed; the log stays, with the
    reason in it, and so does everything else. After that, values that are not finite, unreadable
    images and full disks are still reported in one sentence.

    Args:
        config (Config): A complete config.
        *hooks (Hook | dict): Hooks that are registered.
        alone (bool): Refuse a folder that another run writes to. Defaults to True.

    Raises:
        RuntimeError: An error of the code after the first batch, whose traceback a command shows.
        ValueError: Settings that a host library refuses, unreadable samples, values that are not
            finite, or a full disk.
    """
    start, first = StartHook(), is_first_process(config.launcher)
    copied = config.filename and Path(config.work_dir, Path(config.filename).name)
    with locked(config.work_dir) if first and alone else nullcontext():
        before = copied.read_bytes() if copied and copied.is_file() else None
        try:
            runner = build_runner(config)
            for hook in (start, *hooks):
                runner.register_hook(hook)
            with no_workers_left(runner):
                yield runner
        except Exception as error:
            message = str(error)
            if first and not start.started:
                for handler in MMLogger.get_current_instance().handlers:
                    # directly: levels and filters must not drop it, nor is it for the terminal
                    if isinstance(handler, logging.FileHandler):
                        handler.emit(logging.makeLogRecord(dict(
                            name='mmengine', levelno=logging.ERROR, levelname='ERROR',
                            msg=f'The run did not start: {message}')))
                if before is not None:
                    copied.write_bytes(before)
                elif copied:
                    copied.unlink(missing_ok=True)
            if isinstance(error, UnreadableImageError) or \
                    not start.started and 'Original Traceback' in message:  # of a worker
                raise ValueError('expected samples that can be loaded, found one that cannot: '
                                 f'{message.strip().splitlines()[-1]}') from error
            if start.started:
                reported = isinstance(error, (NonFiniteError, OSError))
                kind = ValueError if reported else RuntimeError
                raise kind(f'the run stopped: {message}') from error
            if isinstance(error, (AssertionError, RuntimeError)):  # how hosts refuse bad settings
                raise ValueError(message or 'a host library refused the config') from error
            raise


def apply_running(config: Config, job: Running) -> None:
    """Put launcher and work directory into the config, in place.

    Raises:
        ValueError: Mixed precision without a GPU.
    """
    os.environ.setdefault('LOCAL_RANK', str(job.local_rank))
    config.launcher = job.launcher
    config.work_dir = str(job.work_dir or run_folder(config, job.config))
    if job.amp and not torch.cuda.is_available():
        raise ValueError('expected a GPU for `--amp`, found none')
