"""``mmkcr compress`` of a config: from files to files."""

import copy
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from mmkcr.apis.compress_files import (
    CompressTask,
    build_task,
    check_distillation,
    compress_files,
    distil_files,
    forget_distillation,
    int8_files,
    refit_files,
)
from mmkcr.apis.saved import load
from mmkcr.apis.slim_files import SubnetFiles, shorten_training, write_finetune_config
from mmkcr.cli.compress_job import CompressJob, check_targets, name_targets
from mmkcr.cli.fields import check_file, find_target, read_shape
from mmkcr.cli.launch import latest_checkpoint, resume_latest, start_training
from mmkcr.cli.slim import print_files
from mmkcr.closed_form.options import check_kinds
from mmkcr.core.file_names import CONFIG, SUBNET
from mmkcr.core.processes import count_processes, find_rank
from mmkcr.datasets.data_check import check_data_folders
from mmkcr.deploy.file_bench import AGREEMENTS, DeployedFile, find_measure
from mmkcr.deploy.int8 import require_quantizer
from mmkcr.deploy.latency_table import find_table
from mmkcr.deploy.tensor_model import run_by_file
from mmkcr.distillation.options import read_length
from mmkcr.engine.build import load_config
from mmkcr.engine.processes import no_workers_left
from mmkcr.safe_load import read_checkpoint
from mmkcr.visualization import format_table


def next_steps(files: SubnetFiles) -> str:
    """The commands that a user may run with the written files, in a sentence."""
    config, weights = (shlex.quote(str(files.folder / name)) for name in (CONFIG, SUBNET))
    hint = ''
    if files.parts and files.structure.provenance.get('asked', {}).get('scope') == 'backbone':
        dense, slim = (sum(macs) for macs in zip(*files.parts.values()))
        hint = f'The whole model went to {slim / dense:.1%} of its MACs: `--scope model` cuts ' \
            'neck and heads, too. '
    return (f'{hint}Next: `mmkcr test {config} {weights}`, `mmkcr export {config} {weights}`, '
            f'`mmkcr latency {config}` (against the dense network), or `--finetune LENGTH` in this '
            'call.')


def evaluate(config: Any, checkpoint: str | None, work_dir: str, onnx: Path | None = None,
             runtime: str = 'onnxruntime') -> dict[str, float]:
    """Metrics of a model, or of its exported file, on the test set of its config: numbers alone.

    Args:
        config (Config): Config of the model; it is not changed.
        checkpoint (str | None): Its weights; None: ``load_from`` of the config.
        work_dir (str): Work directory of the test.
        onnx (Path, optional): Exported file that runs in place of the model. Defaults to None.
        runtime (str): Runtime of the file. Defaults to ``'onnxruntime'``.
    """
    config = copy.deepcopy(config)
    config.update(work_dir=work_dir, resume=False, launcher='none',
                  load_from=checkpoint or config.load_from)
    runner = Runner.from_cfg(config)
    if onnx is not None:
        run_by_file(runner.model, onnx, runtime)
    with no_workers_left(runner):
        return {name: value for name, value in runner.test().items() if isinstance(value, Real)}


def begin(files: SubnetFiles, step: str) -> None:
    """Begin a step anew, without the checkpoints of an earlier call's step."""
    if not files.progress.has_begun(step):
        (files.folder / step / 'last_checkpoint').unlink(missing_ok=True)
        files.progress.begin(step)


def finetune(dense: Config, args: CompressJob, files: SubnetFiles) -> str:
    """Fine-tune a compressed network, or go on with its fine-tuning.

    Args:
        dense (Config): Config of the dense network, which teaches.
        args (CompressJob): Arguments of the command: checkpoint and length.
        files (SubnetFiles): The compressed network.

    Returns:
        str: The last checkpoint.
    """
    path = write_finetune_config(dense, args.checkpoint, files.structure, files.folder,
                                 args.finetune)
    config = load_config(path, compressed=False)
    config.work_dir, config.launcher = str(files.folder / 'finetune'), 'none'
    begin(files, 'finetune')
    if (files.folder / 'finetune/last_checkpoint').is_file():  # written with every checkpoint
        go_on_tuning(config)
    start_training(config)
    return latest_checkpoint(config.work_dir)


def go_on_tuning(config: Config) -> None:
    """Have a fine-tuning go on; if its checkpoint cannot be read, it begins anew."""
    try:
        resume_latest(config)
        read_checkpoint(config.load_from if config.resume else config.work_dir)
    except (ValueError, FileNotFoundError) as error:
        logging.getLogger('mmkcr').warning('%s: the fine-tuning begins anew.', error)
        config.resume, config.load_from = False, None


def compress_targets(args: CompressJob, task: CompressTask,
                     later: Mapping[str, Any]) -> Iterator[SubnetFiles]:
    """The networks of all targets, the smallest first: an unreachable target is refused first.

    Args:
        args (CompressJob): Arguments of the command.
        task (CompressTask): The dense network and its images.
        later (Mapping): Steps that follow, by option; they are part of the progress.
    """
    if args.structure is not None:
        yield refit_files(task, args.structure, later)
        return
    cost, _ = find_target(args)
    table = task.options.latency_table
    options = replace(task.options, cost='macs' if table else cost.name)
    for name, most in name_targets(args):
        files = compress_files(task, replace(options, target=most), task.folder / name, later)
        # one calibration serves all
        options = replace(options, profiles=options.profiles or files.folder)
        yield files


def file_table(files: Sequence[DeployedFile], metrics: Sequence[dict[str, float]]) -> str:
    """The files of ``--int8`` side by side, with their metrics if there are any."""
    names = [*metrics[0]] if metrics else []
    measure = find_measure(files[0].agreement)
    heads = [AGREEMENTS[measure].heading] if measure else []
    rows = []
    for place, file in enumerate(files):
        of_file = [f'{metrics[place][name]:.4g}' for name in names]
        agrees = [f'{AGREEMENTS[measure].scale * file.agreement[measure]:.4g}'] if measure else []
        rows.append((file.path.name, f'{file.bytes / 1e6:.2f}', f'{file.ratio:.3f}',
                     f'{file.agreement["error"]:.1%}', *agrees, *of_file))
    table = format_table(('file', 'MB', 'time over dense fp32, batch 1', 'difference from dense',
                          *heads, *names), rows)
    return '\n'.join([table, *slower_files(files)])


def slower_files(files: Sequence[DeployedFile]) -> list[str]:
    """A warning for each int8 file that takes more time than its fp32 file."""
    times = {file.name: file.ratio for file in files}
    return [f'warning: `{file.path.name}` takes {file.ratio / times[fp32]:.2f} of the time of the '
            'fp32 file on this machine: int8 makes it smaller, not faster'
            for file in files if (fp32 := file.name.removesuffix(' int8')) != file.name
            and file.ratio > times[fp32]]


def finish(args: CompressJob, task: CompressTask, files: SubnetFiles,
           metrics: list[dict[str, float]]) -> None:
    """Distil, quantise, fine-tune and evaluate a compressed network as asked, and print.

    Args:
        args (CompressJob): Arguments of the command.
        task (CompressTask): The dense network and its images.
        files (SubnetFiles): The compressed network.
        metrics (list[dict]): Metrics of the dense network, which an empty list gets.
    """
    folder, deployed, tuned, measured, of_files = files.folder, [], [], [], []
    if args.distil is not None:
        print(distil_files(task, folder, args.distil, later=True))
    if args.int8 is not None:
        deployed = int8_files(task, load(folder), folder, args.int8)
    if args.finetune is not None:
        tuned = [finetune(task.config, args, files)]
    if args.evaluate:
        run = partial(evaluate, work_dir=str(folder / 'evaluate'))
        config = load_config(folder / CONFIG)
        networks = dict(dense=(task.config, args.checkpoint), slim=(config, None))
        if not metrics:
            metrics.append(run(*networks['dense']))
        measured = [*metrics, *(run(config, checkpoint) for checkpoint in (None, *tuned))]
        try:
            of_files = [run(*networks[file.name.split()[0]], onnx=file.path, runtime=args.int8)
                        for file in deployed]
        except ValueError as error:  # they have one size, test images may have others
            print(f'The files of `--int8` were not evaluated: {error}')
    print_files(files, measured)
    if deployed:
        print(file_table(deployed, of_files))
    written = (folder / SUBNET).stat().st_mtime_ns
    if earlier := [path.name for path in sorted(folder.glob('slim_*.onnx'))
                   if path.stat().st_mtime_ns < written]:
        print(f'Of an earlier network: {", ".join(earlier)}.')
    print(f'Wrote {folder / CONFIG} with structure and weights beside it')
    print(next_steps(files))
    for checkpoint in tuned:
        print(f'Wrote {checkpoint}, which {folder / CONFIG} takes too')


def check_first(args: CompressJob) -> None:
    """Refuse missing data and packages and unfit configs before anything is compressed."""
    check_file(args.structure, 'a structure')
    check_kinds(args.sites or ())
    check_targets(args)
    for name in ('sites', 'divisor', 'uniform', 'profiles', 'scope'):
        if args.structure is not None and getattr(args, name) != getattr(CompressJob, name):
            raise ValueError(f'expected `--{name}` with a budget, found it with `--structure`, '
                             'which says what is kept')
    dense = load_config(args.config, args.cfg_options)
    if args.finetune is not None:
        shorten_training(dense, args.finetune)
    for key in ('test_cfg', 'test_dataloader', 'test_evaluator') if args.evaluate else ():
        if dense.get(key) is None:
            raise ValueError(f'expected a config with `{key}` for `--evaluate`, found '
                             f'`{args.config}` without')
    read = dict(train_dataloader=args.calibration is None or args.finetune is not None,
                val_dataloader=args.finetune is not None, test_dataloader=args.evaluate)
    check_data_folders(dense, [name for name, needed in read.items() if needed])
    if args.int8 is not None:
        require_quantizer(args.int8)
    if args.distil is not None:
        read_length(args.distil)


def check_alone(args: CompressJob) -> None:
    """Refuse, in one of several processes, steps for which the others would wait too long."""
    for name in ('distil', 'finetune', 'evaluate', 'int8'):
        if getattr(args, name):
            raise ValueError(f'expected nothing but a compression in {count_processes()} '
                             f'processes, found `--{name}`: take this step in one process')


def compress_config(args: CompressJob) -> None:
    """Compress the network of a config as a user asked; write and print.

    Args:
        args (CompressJob): Arguments of the command.

    Raises:
        FileNotFoundError, ImportError, ValueError: Files, packages or options that do not fit.
    """
    check_first(args)
    if count_processes() > 1:
        check_alone(args)
    # what follows, evaluation included, does not compress again if it is killed
    later = {name: getattr(args, name) for name in ('finetune', 'distil')}
    task = build_task(replace(args, latency_table=find_table(args),
                              input_shape=read_shape(args)))
    if args.distil is not None:
        check_distillation(task, args.distil)
    finished, metrics, rows = [], [], []
    for files in compress_targets(args, task, later):
        if find_rank() > 0:
            continue
        finish(args, task, files, metrics)
        finished.append(files.progress)
        structure = files.structure
        macs, error = structure.macs, structure.provenance['agreement']['error']
        rows.append((files.folder.name, f'{macs["subnet"] / macs["dense"]:.1%}',
                     f'{structure.params["subnet"] / 1e6:.4g}', f'{error:.1%}'))
    if len(rows) > 1:
        print(format_table(('folder', 'MACs', 'parameters (M)', 'outputs differ by'), rows))
    for progress in finished:  # until here a repeated call would go on from it
        progress.remove()
        forget_distillation(progress.folder.parent)
