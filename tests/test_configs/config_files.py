"""Where the configs are, and how a run of one is built."""

import re
from pathlib import Path

import yaml
from mmengine.runner import Runner

from lab.model_zoo import uninitialized

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / 'configs').rglob('*.py')
                 if '_base_' not in path.parts)


def rows_of(method, folder):
    """Models of a metafile whose config is in a folder, by their names.

    Several models of one config differ by the options of the metafile.

    Args:
        method (str): Of the metafile.
        folder (str): Below the method's.

    Returns:
        dict[str, tuple[Path, dict]]: Config and options, as `load_config` takes them.
    """
    models = yaml.safe_load((ROOT / f'configs/{method}/metafile.yml').read_text())['Models']
    return {model['Name']: (ROOT / model['Config'], model.get('Options'))
            for model in models if model['Config'].startswith(f'configs/{method}/{folder}/')}


def search_of(folder):
    """The search config whose run is in a folder of this name.

    Several runs of a config differ by an argument, which their folders' names have after the
    network's: ``kcr-search_swin-base_lambda04_...``, ``ofb-search_deit-small_900m_...``.
    """
    plain = re.sub(r'_(lambda0\d|\d+m)(?=_)', '', folder)
    for name in (folder, plain):
        found = [path for path in CONFIGS if Path(path).stem == name]
        if found:
            return found[0]
    raise AssertionError(f'expected a config of the run `{folder}`, found none')


def build(config, context=uninitialized):
    """A runner with its loops and optimizers, by default without values of weights."""
    with context():
        runner = Runner.from_cfg(config)
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.scale_lr(runner.optim_wrapper, dict(runner.auto_scale_lr, enable=True))
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
        runner._val_loop = runner.build_val_loop(runner._val_loop)
        runner._test_loop = runner.build_test_loop(runner._test_loop)
    return runner
