"""Test a model: evaluate a checkpoint on the test set of its config.

Examples:
    mmkcr test CONFIG CHECKPOINT
    mmkcr test CONFIG CHECKPOINT --out results.json --out-item metrics
    mmkcr test CONFIG CHECKPOINT --check
    mmkcr test CONFIG CHECKPOINT --onnx slim_openvino_int8.onnx --runtime openvino
    mmkcr test DCS_CONFIG CHECKPOINT --masks
"""

from dataclasses import dataclass
from typing import Any

import mmengine
from mmengine.config import Config, ConfigDict
from mmengine.evaluator import DumpResults
from mmengine.runner import Runner

from mmkcr.cli.fields import Running, argument, check_file, runs
from mmkcr.cli.launch import apply_running, one_run, set_dataloader_defaults
from mmkcr.datasets.data_check import check_data_folders
from mmkcr.deploy.runtimes import PACKAGES, require_runtime
from mmkcr.deploy.tensor_model import run_by_file
from mmkcr.engine.build import check_expected, find_weights, load_config, take_options
from mmkcr.engine.compressed_config import expand_compression
from mmkcr.engine.processes import is_first_process
from mmkcr.methods.dcs.qk_mask import MaskWatch, masks_held_open
from mmkcr.models.counting import tell_other_sizes
from mmkcr.visualization import format_table

PICKLES = '.pkl', '.pickle'


@dataclass(frozen=True)
class TestJob(Running):
    """Arguments of ``mmkcr test``."""

    __test__ = False  # nor is it a test of pytest's

    config: str = argument('config of the test', positional=True)
    checkpoint: str | None = argument('checkpoint of the model (`load_from` of the config)',
                                      positional=True, nargs='?')
    out: str | None = argument('file for predictions (.pkl) or metrics', metavar='FILE')
    out_item: str | None = argument('what to write to --out (pred)', choices=['metrics', 'pred'])
    check: bool = argument("fail if a metric is not what the config's `expected` says, value and "
                           'tolerance', False)
    show_dir: str | None = argument('folder for images of the predictions')
    show: bool = argument('show predictions in a window', False)
    interval: int = argument('show every n-th image (%(default)s)', 1)
    wait_time: float = argument('seconds that a window stays (%(default)s)', 2.)
    tta: bool = argument("test-time augmentation: the config's `tta_model` and `tta_pipeline`, for "
                         'a classifier by default flips', False)
    onnx: str | None = argument('exported file of this network that runs in its place; what comes '
                                'behind it stays in PyTorch', metavar='FILE')
    runtime: str | None = argument('of --onnx (onnxruntime)', choices=sorted(PACKAGES))
    masks: bool = argument(
        'of a network with masks on queries and keys (DCS): add the share of open entries and of '
        'constant channels in percent, on average and by layer, and the metrics of a second test '
        'with all masks forced open', False)


def testing_config(config: Config, args: TestJob) -> Config:
    """Put the arguments into the config; ``--tta`` replaces its ``compression`` by the model."""
    apply_running(config, args)
    config.load_from, config.resume = find_weights(config, args.checkpoint, args.config), False
    if args.amp:
        config.test_cfg.fp16 = True
    if args.show or args.show_dir is not None:
        _show_predictions(config, args)
    take_options(config, args.cfg_options or {})
    if args.tta:
        # what goes around the model goes around that which `compression` stands for
        config = expand_compression(config)
        _augment_tests(config)
    set_dataloader_defaults(config, ('test_dataloader', ), pin_memory=not args.no_pin_memory)
    return config


def _show_predictions(config: Config, args: TestJob) -> None:
    """Switch the visualisation hook of the task's library on, in place."""
    hook = (config.get('default_hooks') or {}).get('visualization')
    if hook is None:
        raise ValueError('expected `visualization` in the `default_hooks` of the config for '
                         '`--show` and `--show-dir`, found none')
    classifies = config.get('default_scope') == 'mmpretrain'
    hook.update({'enable' if classifies else 'draw': True}, show=args.show,
                wait_time=args.wait_time, interval=args.interval)
    if args.show_dir is not None and config.get('default_scope') == 'mmseg':
        config.visualizer.save_dir = args.show_dir
    elif args.show_dir is not None:
        hook['out_dir' if classifies else 'test_out_dir'] = args.show_dir


def _augment_tests(config: Config) -> None:
    """Wrap the model and the transforms for test-time augmentation, in place."""
    dataset = config.test_dataloader.dataset
    while 'pipeline' not in dataset:
        dataset = dataset.dataset
    if config.get('default_scope') == 'mmpretrain':
        config.setdefault('tta_model', ConfigDict(type='mmpretrain.AverageClsScoreTTA'))
        flips = [[dict(type='RandomFlip', prob=1.), dict(type='RandomFlip', prob=0.)],
                 [dataset.pipeline[-1]]]
        config.setdefault('tta_pipeline', [*dataset.pipeline[:-1],
                                           dict(type='TestTimeAug', transforms=flips)])
    missing = [key for key in ('tta_model', 'tta_pipeline') if key not in config]
    if missing:
        raise ValueError(f'expected `{missing[0]}` in the config for `--tta`, found none')
    config.model = ConfigDict(**config.tta_model, module=config.model)
    dataset.pipeline = config.tta_pipeline


def test_with_masks(runner: Runner) -> dict[str, Any]:
    """Test, and test again with all masks forced open, to see the effect of the masks.

    Metrics of the first test come with ``masks/open``, ``masks/always`` and ``masks/never`` in
    percent (means over the masks), also by layer as ``masks/<layer>/open``, and metrics of the
    second test as ``<name>_open``. Images that fill up the last batch of several processes
    count twice in the shares.
    """
    with MaskWatch(runner.model) as watch:
        metrics = dict(runner.test())
    layers = watch.table()
    rows = {**layers, 'mean': watch.means()}
    # predictions and pictures are of the network itself
    evaluator = runner.test_evaluator
    evaluator.metrics = [one for one in evaluator.metrics if not isinstance(one, DumpResults)]
    for drawing in runner.hooks:
        if type(drawing).__name__.endswith('VisualizationHook'):
            # of mmpretrain's, and of mmdet's and mmseg's
            drawing.enable = drawing.draw = False
    with masks_held_open(runner.model):
        metrics.update({f'{key}_open': value for key, value in runner.test_loop.run().items()})
    runner.logger.info('\n' + format_table(
        ('mask', 'open (%)', 'always open (%)', 'never open (%)'),
        [(layer, *(f'{value:.1f}' for value in shares.values()))
         for layer, shares in rows.items()]))
    metrics.update({f'masks/{key}': value for key, value in rows['mean'].items()})
    metrics.update({f'masks/{layer}/{key}': value for layer, shares in layers.items()
                    for key, value in shares.items()})
    return metrics


@runs(TestJob, quiet=False)
def main(args: TestJob) -> None:
    """Refuse options that do not fit each other or the config; then build and test."""
    if args.out is None and args.out_item is not None:
        raise ValueError('expected `--out` with the file to write beside `--out-item`, found none')
    if args.onnx is None and args.runtime is not None:
        raise ValueError('expected `--onnx` with the file to run beside `--runtime`, found none')
    if args.masks and args.onnx is not None:
        raise ValueError('expected `--masks` without `--onnx`, found both: masks are held open in '
                         'PyTorch')
    predictions = args.out is not None and args.out_item != 'metrics'
    what, suffixes = ('predictions', PICKLES) if predictions else \
        ('metrics', ('.json', '.yaml', '.yml', *PICKLES))
    if args.out is not None and not args.out.endswith(suffixes):
        raise ValueError(f'expected a {suffixes[0]} file for {what}, found `--out {args.out}`')
    config = load_config(args.config, compressed=False)
    if config.get('test_cfg') is None:
        raise ValueError(f'expected a config with a `test_cfg`, found `{args.config}` without')
    if args.check and not config.get('expected'):
        raise ValueError('expected metrics in `expected` of the config for `--check`, found none '
                         f'in `{args.config}`')
    config = testing_config(config, args)
    check_file(config.load_from, 'a checkpoint')
    if args.onnx is not None:
        require_runtime(args.runtime or 'onnxruntime')
        check_file(args.onnx, 'an exported file')
    check_data_folders(config, ('test_dataloader', ))
    guard = dict(type='mmkcr.CheckpointGuardHook', complete=True)
    with one_run(config, guard, dict(type='mmkcr.ClassCheckHook'), alone=False) as runner:
        tell_other_sizes(runner.model)
        if predictions:
            runner.test_evaluator.metrics.append(DumpResults(out_file_path=args.out))
        if args.onnx is not None:
            run_by_file(runner.model, args.onnx, args.runtime or 'onnxruntime')
        metrics = test_with_masks(runner) if args.masks else runner.test()
    if args.out and not predictions and is_first_process(config.launcher):
        mmengine.dump(metrics, args.out)
    outside = check_expected(config, metrics) if args.check else ()
    if outside:
        raise ValueError('; '.join(outside))
