"""Export a subnet, or any model, to ONNX for a runtime, and compare it there with PyTorch.

Classifiers and segmentors give logits, a detector the maps of its neck. With
--end-to-end (through mmdeploy) a segmentor gives the class of every pixel, a detector its boxes,
labels and masks. --backbone exports the feature maps of the backbone alone. The batch is
dynamic. Height and width are fixed for a runtime, and dynamic for
`any`, where the backbone allows: ViT always, Swin with pad_small_map=True. Outputs are compared at
several batch sizes and image sizes; a file that differs is not written. Where the config's backbone
has a structure, the latency against the dense network, exported alike, is measured.

Examples:
    mmkcr export slim/config.py --out subnet.onnx
    mmkcr export timm::vit_small_patch16_224 CHECKPOINT --out dense.onnx
    mmkcr export CONFIG CHECKPOINT --runtime openvino
    mmkcr export DETECTOR CHECKPOINT --end-to-end --evaluate
    mmkcr export slim/config.py slim/subnet.pth --end-to-end \\
        --against dense.onnx
"""

import contextlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmkcr.apis.networks import is_named, load_network, named_folder
from mmkcr.cli.fields import Built, argument, check_named, read_shape, runs
from mmkcr.core.file_names import STRUCTURE
from mmkcr.deploy.export import ExportReport, export_onnx
from mmkcr.deploy.latency import PairTiming, measure_pair
from mmkcr.deploy.prepare import EXPORT_RUNTIMES, selection_forms
from mmkcr.models.tasks import find_task
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class ExportJob(Built):
    """Arguments of ``mmkcr export``."""

    config: str = argument('config of a deployment, retraining or dense model', positional=True)
    checkpoint: str | None = argument('its checkpoint (`load_from` of the config)',
                                      positional=True, nargs='?')
    pretrained: bool = argument('fetch the weights of a network of timm or transformers from a hub',
                                False)
    out: str | None = argument('(<config name>.onnx: beside a config with its structure.json, '
                               'else in the work_dir of the config, else in '
                               'work_dirs/<config name>)', metavar='FILE')
    backbone: bool = argument('the feature maps only', False)
    end_to_end: bool = argument('a whole segmentor, or detector with non-maximum suppression, for '
                                'ONNX Runtime', False)
    evaluate: bool = argument('with --end-to-end, compare metrics on the test set', False)
    against: str | None = argument('with --end-to-end, the file of another network: timed in '
                                   'turns', metavar='ONNX')
    runtime: str = argument('what the file is to be fast in; every file runs everywhere '
                            '(%(default)s)', 'any', choices=EXPORT_RUNTIMES)
    static_size: bool = argument('fix height and width', False, group='size')
    dynamic_size: bool = argument('leave them open', False, group='size')
    tolerance: float = argument('largest difference, relative to the largest output '
                                '(%(default)g)', 1e-4)
    repeats: int = argument('pairs to time against the dense network; 0: none (%(default)s)', 20)
    threads: int = argument('of the timing (%(default)s: by the CPU clock, else the wall clock)', 1)


def against_dense(args: ExportJob, config: Any, report: ExportReport,
                  shape: tuple[int, int, int]) -> PairTiming | None:
    """Time the file of a subnet in turns with a file of its dense network.

    Args:
        args (ExportJob): Arguments of the command: pairs, threads, runtime and part.
        config (Config | None): Config of the subnet; None of a network of timm or transformers.
        report (ExportReport): Its file.
        shape (tuple[int, int, int]): (C, H, W) of the timed image.

    Returns:
        PairTiming, optional: None where the config is dense, or no pairs are asked for.
    """
    if not args.repeats or config is None:
        return None
    from mmkcr.engine.build import backbone_config, build_model, dense_config
    if backbone_config(config).get('structure') is None:
        return None
    torch.manual_seed(0)
    dense = build_model(dense_config(config))
    dense = dense.backbone if args.backbone else dense
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'dense.onnx'
        export_onnx(dense, path, shape, report.dynamic_size, (1, ), runtime=args.runtime)
        return measure_pair(path, report.path, torch.randn(1, *shape), args.repeats, 3,
                            report.runtime, args.threads)


def report_end_to_end(path: str | Path, timing: PairTiming, against: str | None,
                      metrics: dict[str, tuple[float, float]]) -> None:
    """Print metrics and time of a whole detector or segmentor.

    Args:
        path (str | Path): Its ONNX file.
        timing (PairTiming): Times of ``against``, or of the file itself, and of the file.
        against (str | None): File of another network.
        metrics (dict): In PyTorch and in ONNX Runtime, by name; may be empty.
    """
    if metrics:
        print(format_table(('', 'PyTorch', 'ONNX Runtime'), [
            (name, *(f'{value:.4g}' for value in values)) for name, values in metrics.items()]))
    print(f'{path}: {timing.seconds[1] * 1e3:.4g} ms an image in `onnxruntime`; batch, height and '
          'width dynamic')
    if against:
        first, third = timing.quartiles
        print(f'{timing.ratio:.3f} of the time of the other file, in turns '
              f'({len(timing.dense)} pairs, quartiles {first:.3f} to {third:.3f})')


def file_beside(config: str) -> Path | None:
    """Path of the ONNX file beside a config that has its structure there; None for others."""
    path = Path(config)
    return path.with_suffix('.onnx') if path.with_name(STRUCTURE).is_file() else None


def default_file(args: ExportJob, config: Any) -> Path:
    """Path of the ONNX file without ``--out``; the config of a named network is None."""
    if config is None:
        folder = named_folder(args.config)
        return folder / f'{folder.name}.onnx'
    from mmkcr.engine.build import run_folder
    return file_beside(args.config) or \
        run_folder(config, args.config) / f'{Path(args.config).stem}.onnx'


@runs(ExportJob)
def main(args: ExportJob) -> None:
    """Export, compare and print; options that exclude each other are refused."""
    size = None if args.static_size == args.dynamic_size else args.dynamic_size
    if args.end_to_end and (args.backbone or args.static_size or args.runtime not in (
            'any', 'onnxruntime')) or (args.evaluate or args.against) and not args.end_to_end:
        raise ValueError('expected `--end-to-end` of a whole model for ONNX Runtime, with any '
                         'size, and `--evaluate` or `--against` with it, found another '
                         'combination')
    if is_named(args.config):
        check_named(args, ('backbone', 'cfg_options', 'end_to_end'))
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        network = load_network(args.config, args.checkpoint, read_shape(args), args.pretrained,
                               args.cfg_options)
        model, shape, config = network.model, network.shape, network.config
        if args.backbone:
            model = find_task(model).backbone
        out = args.out or default_file(args, config)
        if args.end_to_end:
            from mmkcr.deploy.end_to_end import export_end_to_end
            timing, metrics = export_end_to_end(config, model, out, shape, max(args.repeats, 1),
                                                args.evaluate, args.threads, args.against)
        else:
            report = export_onnx(model, out, shape, size, tolerance=args.tolerance,
                                 runtime=args.runtime)
            timing = against_dense(args, config, report, shape)
    if args.end_to_end:
        report_end_to_end(out, timing, args.against, metrics)
        return
    print(format_table(('input', 'difference from PyTorch'),
                       [('x'.join(map(str, key)), f'{error:.2g}')
                        for key, error in report.errors.items()]))
    if timing is not None:
        print(f'{timing.ratio:.3f} of the time of the dense network, at '
              f'{timing.macs_ratio:.3f} of its MACs, in `{report.runtime}`: batch 1, '
              f'{len(timing.dense)} pairs, threads {args.threads}')
        if timing.ratio > 1:
            print('warning: slower than the dense network; selections of channels: '
                  f'{selection_forms(model, args.runtime)}')
    if report.notice:
        print(f'notice: {report.notice}')
    size = 'dynamic' if report.dynamic_size else f'{shape[1]} x {shape[2]}'
    print(f'{report.path}: dynamic batch, height and width {size}')
