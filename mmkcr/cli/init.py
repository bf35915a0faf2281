"""Write the few lines beside your own config that search, retrain or fine-tune a smaller model.

Your config stays as it is: the new file inherits from it and adds `compression`. Methods: kcr
(channels of the MLPs), dcs (the same, with masks on queries and keys), ofb (heads and hidden
units, pruned while it trains), dwconv (blocks whose attention becomes a convolution).

Examples:
    mmkcr init mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py --target-macs 70%
    mmkcr init my_config.py --method ofb --stage search
    mmkcr init my_config.py --method ofb --stage retrain
    mmkcr init my_config.py --stage compress
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from mmkcr.cli.fields import argument, runs
from mmkcr.closed_form.options import DEFAULT_SITES, default_kinds
from mmkcr.core import atomic_write, select_units
from mmkcr.core.file_names import STRUCTURE, SUBNET
from mmkcr.engine.build import (
    build_model,
    default_shape,
    is_pure_python,
    load_config,
    read_config,
    run_folder,
)
from mmkcr.engine.compressed_config import run_length
from mmkcr.models.sites import find_sites, why_not
from mmkcr.models.tasks import is_dense_task

METHODS = ('kcr', 'dcs', 'ofb', 'dwconv')
STAGES = ('search', 'retrain', 'compress')

_TEMPLATES = dict(
    search="""# {method} search on {given}, written by `mmkcr init`.
#   mmkcr search {file}
#   mmkcr slim {file} work_dirs/{name}/{last}.pth{budget}
#   mmkcr init {given} --method {method} --stage retrain{searched}
_base_ = [{config!r}, {base!r}]
""",
    retrain="""# Retraining of what the {method} search on {given} left, written by `mmkcr init`.
#   mmkcr train {file}
#   mmkcr test {file} work_dirs/{name}/{last}.pth
_base_ = [{config!r}, {base!r}]
""",
    compress="""# Fine-tuning of what `mmkcr compress` left of {given}, written by `mmkcr init`.
#   mmkcr compress {given} CHECKPOINT --target-macs {target}
#   mmkcr train {file}
_base_ = [{config!r}]
runner_type = 'mmkcr.CompressionRunner'
""")


@dataclass(frozen=True)
class InitJob:
    """Arguments of ``mmkcr init``."""

    config: str = argument('your config, a file or library::path', positional=True)
    method: str = argument('(%(default)s)', 'kcr', choices=METHODS)
    stage: str = argument('compress: fine-tuning of what `compress` left, of no method '
                          '(%(default)s)', 'search', choices=STAGES)
    target_macs: str = argument('MACs that a search aims at: 12.6G, 450M, 0.7 or 70%% of the dense '
                                'model (%(default)s)', '70%', metavar='TARGET')
    part: str | None = argument('what the target is about (backbone of a detector or segmentor, '
                                'else model)', choices=('model', 'backbone'))
    out: str | None = argument('file to write (<method>-<stage>_<name>.py)', metavar='FILE')
    search: str | None = argument('of the search that a retraining follows '
                                  '(<method>-search_<name>)', metavar='NAME')
    force: bool = argument('overwrite a file that is there', False)


def init_config(config: str | Path, method: str = 'kcr', stage: str = 'search',
                target: str = '70%', out: str | Path | None = None,
                force: bool = False, search: str | None = None,
                part: str | None = None) -> Path:
    """Write a config that adds a method to a host's config.

    The host is built with random weights, to check that it has the layers of the method and that
    they can meet the target.

    Args:
        config (str | Path): Config of a dense task model, a file or library::path.
        method (str): One of :data:`METHODS`. Defaults to ``'kcr'``.
        stage (str): One of :data:`STAGES`. Defaults to ``'search'``.
        target (str): MACs that a search aims at: an amount, or a share of the dense model's.
            Defaults to 70 %.
        out (str | Path, optional): File to write. Defaults to None: ``<method>-<stage>_<name>.py``
            in the current folder.
        force (bool): Overwrite an existing file. Defaults to False.
        search (str, optional): Name of the search that a retraining follows. Defaults to None:
            ``<method>-search_<name>``.
        part (str, optional): ``'model'`` or ``'backbone'``, which the target counts. Defaults to
            None: the backbone of detectors and segmentors, else the model.

    Returns:
        Path: The written file.

    Raises:
        FileExistsError: The file exists.
        FileNotFoundError: There is no such config.
        ValueError: It is not the config of an ordinary task model, its backbone does not have
            the layers of the method or cannot meet the target, or ``out`` is no ``.py`` file.
            Nothing is written then.
    """
    if method not in METHODS or stage not in STAGES:
        raise ValueError(f'expected a method of {METHODS} and a stage of {STAGES}, found '
                         f'{method!r} and {stage!r}')
    cfg, stem = read_config(config), Path(str(config)).stem
    _refuse_pure_python(cfg, config, stem)
    name = f'compress_{stem}' if stage == 'compress' else f'{method}-{stage}_{stem}'
    path = Path(out or f'{name}.py')
    if '\n' in f'{config}{path}{search}':  # which would end a comment
        raise ValueError(f'expected names without line breaks, found {str(config)!r} and '
                         f'{str(path)!r}')
    if path.suffix != '.py':
        raise ValueError(f'expected a `.py` file to write a config to, found `{path}`')
    if search is not None and stage != 'retrain':
        raise ValueError(f"expected a `search` with the stage 'retrain', found it with {stage!r}")
    if path.exists() and not force:
        raise FileExistsError(f'expected no file at `{path}`, found one (`--force` overwrites)')
    model = _dense_model(cfg, config)
    lines = _sites_entries(model.backbone, method, stage)
    if stage == 'search':
        lines += _search_entries(model, method, target, part)
    else:
        before = f'{run_folder(cfg, config)}/compress' if stage == 'compress' else \
            f'work_dirs/{search or f"{method}-search_{stem}"}/slim'
        lines += [f'structure={f"{before}/{STRUCTURE}"!r}', f'weights={f"{before}/{SUBNET}"!r}']
    header = _header(cfg, config, path, method, stage, target, named=bool(out))
    with atomic_write(path) as temporary:
        temporary.write_text(header + _settings(cfg, lines, stage, path), encoding='utf8')
        if stage == 'search' and method != 'dwconv':  # which has no target
            _check_target(temporary)
    return path


def _refuse_pure_python(cfg: Config, config: str | Path, stem: str) -> None:
    """Refuse a config that no ordinary one can inherit from; the error has the remedy."""
    if is_pure_python(cfg.filename):
        plain = ('from mmkcr.engine.build import load_config; '
                 f'load_config({str(config)!r}).dump({f"plain_{stem}.py"!r})')
        raise ValueError(f'expected a config that others may name in `_base_`, found `{config}` in '
                         "MMEngine's pure Python style: write it as an ordinary one by `python -c "
                         f'{shlex.quote(plain)}`')


def _sites_entries(backbone: nn.Module, method: str, stage: str) -> list[str]:
    """The ``sites`` of a compression; a backbone without the layers of the method is refused."""
    if stage == 'compress':
        kinds = default_kinds(backbone)
        if not kinds:
            raise ValueError(_does_not_fit(backbone, 'compress', DEFAULT_SITES))
        return [f'sites={kinds!r}']
    if getattr(getattr(backbone, 'search_space', None), 'method', None) == method:
        return ["sites='own'"]
    kinds = _kinds(method)
    if any(why_not(backbone, kind) for kind in kinds):
        raise ValueError(_does_not_fit(backbone, method, kinds))
    return []


def _search_entries(model: nn.Module, method: str, target: str, part: str | None) -> list[str]:
    """Entries of a search: its target, or the number of blocks that dwconv replaces."""
    if method == 'dwconv':
        blocks = find_sites(model.backbone, _kinds(method))
        return [f'gates=dict(count={max(1, len(blocks) // 2)})']
    of_backbone = part == 'backbone' or part is None and is_dense_task(model)
    return [f'target={target!r}', *(["part='backbone'"] if of_backbone else [])]


def _header(cfg: Config, config: str | Path, path: Path, method: str, stage: str, target: str,
            named: bool) -> str:
    """First lines of the new config: the commands that follow, and ``_base_``.

    Args:
        cfg (Config): Config of the dense model.
        config (str | Path): Its file or library::path.
        path (Path): File that is written.
        method, stage, target (str): See :func:`init_config`.
        named (bool): Whether the user named the file; a retraining then needs the name.
    """
    length, by_epoch = run_length(cfg)
    # dwconv has chosen a number of blocks, and Once for Both has met its budget in the search
    budget = '' if method in ('dwconv', 'ofb') else f' --target-macs {target} --divisor 8'
    inherited = config if '::' in str(config) else os.path.relpath(config, path.parent)
    searched = f' --search {shlex.quote(path.stem)}' if named else ''
    return _TEMPLATES[stage].format(
        method=method, given=shlex.quote(str(config)), target=target, budget=budget,
        base=f'mmkcr::_base_/methods/{method}_{stage}.py',
        config=inherited, file=shlex.quote(str(path)), name=shlex.quote(path.stem),
        searched=searched, last=f'{"epoch" if by_epoch else "iter"}_{length}')


def _settings(cfg: Config, lines: Sequence[str], stage: str, path: Path) -> str:
    """The ``compression`` of these lines, and entries of the dense config that it replaces."""
    begin, between = ('', ', ') if sum(map(len, lines)) < 70 else ('\n    ', ',\n    ')
    text = f'compression = dict({begin}{between.join(lines)})\n'
    if stage != 'search' and cfg.get('load_from') is not None:
        text += 'load_from = None  # else these weights of the dense model come first\n'
    # else the host's run would be overwritten, and resumed
    for key, value in (('work_dir', f'work_dirs/{path.stem}'), ('resume', False)):
        if cfg.get(key):
            text += f'{key} = {value!r}\n'
    return text


def _check_target(path: Path) -> None:
    """Build the search of a config; a target that its gates cannot meet is refused."""
    built = load_config(path)
    model = build_model(built)
    cost = model.price.cost_model(model.macs_model(default_shape(built, model)))
    # the error has the range that the gates can meet
    select_units(model.gates(), cost, cost.parse_target(model.price.target))


def _dense_model(cfg: Config, config: str | Path) -> nn.Module:
    """The task model of a config that has no compression, gates or structure yet."""
    model = cfg.get('model') or {}
    if cfg.get('compression') is not None or 'architecture' in model or \
            {'gates', 'structure'} & {*model, *(model.get('backbone') or ())}:
        raise ValueError(f'expected the config of a dense model, found `{config}` with a '
                         'compression, a search wrapper, `gates` or a `structure` in it already')
    if 'backbone' not in model:
        raise ValueError(f'expected a `model` with a `backbone` in `{config}`, found the keys '
                         f'{sorted(model or cfg.keys())}')
    return build_model(cfg)


def _kinds(method: str) -> list[Any]:
    """Kinds of site that a method searches, from its base config."""
    return read_config(f'mmkcr::_base_/methods/{method}_search.py').compression.sites


def _does_not_fit(host: nn.Module, method: str, kinds: Sequence[str]) -> str:
    """Error message: why a method does not fit, and the methods that fit."""
    reasons = '; '.join(f'`{kind}`: {reason}' for kind in kinds if (reason := why_not(host, kind)))
    fitting = [f'`--method {other}`' for other in METHODS if other != method
               and not any(why_not(host, kind) for kind in _kinds(other))]
    if method != 'compress' and default_kinds(host):
        fitting.append('`--stage compress`')
    instead = f': take {" or ".join(fitting)}' if fitting else ''
    return (f'expected a backbone with the sites {list(kinds)} for `{method}`, found '
            f'`{type(host).__name__}` ({reasons}){instead}')


@runs(InitJob)
def main(args: InitJob) -> None:
    """Check the backbone, write and print."""
    path = init_config(args.config, args.method, args.stage, args.target_macs, args.out,
                       args.force, args.search, args.part)
    print(path.read_text(encoding='utf8'), end='')
    print(f'Wrote {path}')
