"""The few lines beside a user's own config that ``mmkcr init`` writes."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from mmkcr.closed_form.options import DEFAULT_SITES, default_kinds
from mmkcr.core import atomic_write, select_units
from mmkcr.engine.build import build_model, default_shape, load_config, read_config, run_folder
from mmkcr.engine.compressed_config import run_length
from mmkcr.models.building import is_pure_python
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


def init_config(config: str | Path, method: str = 'kcr', stage: str = 'search',
                target: str = '70%', out: str | Path | None = None,
                force: bool = False, search: str | None = None,
                part: str | None = None) -> Path:
    """Write a config that adds a method to a host's config.

    The host is built with random weights, to check that it has the layers of the method and that
    they can meet the target. The arguments are those of ``mmkcr init``, see its ``--help``.

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
    if is_pure_python(cfg.filename):
        raise ValueError(f'expected a config that others may name in `_base_`, found `{config}` in '
                         "MMEngine's pure Python style: write it as an ordinary one by `python -c "
                         '"from mmkcr.engine.build import load_config; '
                         f'load_config(\'{config}\').dump(\'plain_{stem}.py\')"`')
    model = _dense_model(cfg, config)
    name = Path(out).stem if out else _name(method, stage, stem)
    path = Path(out) if out else Path(f'{name}.py')
    if path.suffix != '.py':
        raise ValueError(f'expected a `.py` file to write a config to, found `{path}`')
    if search is not None and stage != 'retrain':
        raise ValueError(f"expected a `search` with the stage 'retrain', found it with {stage!r}")
    if path.exists() and not force:
        raise FileExistsError(f'expected no file at `{path}`, found one (`--force` overwrites)')
    base = f'mmkcr::_base_/methods/{method}_{stage}.py'
    if stage == 'compress':
        kinds, folder = default_kinds(model.backbone), f'{run_folder(cfg, config)}/compress'
        if not kinds:
            raise ValueError(_does_not_fit(model.backbone, 'compress', DEFAULT_SITES))
        lines: dict[str, Any] = dict(sites=kinds)
    else:
        kinds = read_config(base).compression.sites
        folder = f"work_dirs/{search or _name(method, 'search', stem)}/slim"
        lines = {}
        if getattr(getattr(model.backbone, 'search_space', None), 'method', None) == method:
            lines['sites'] = 'own'
        elif any(why_not(model.backbone, kind) for kind in kinds):
            raise ValueError(_does_not_fit(model.backbone, method, kinds))
    if stage != 'search':
        lines.update(structure=f'{folder}/structure.json', weights=f'{folder}/subnet.pth')
    elif method == 'dwconv':  # half of the blocks
        lines['gates'] = dict(count=max(1, len(find_sites(model.backbone, kinds)) // 2))
    else:
        lines['target'] = target
        if part == 'backbone' or part is None and is_dense_task(model):
            lines['part'] = 'backbone'
    length, by_epoch = run_length(cfg)
    named = config if '::' in str(config) else os.path.relpath(config, path.parent)
    text = _TEMPLATES[stage].format(
        method=method, given=config, config=named, base=base, target=target,
        file=shlex.quote(str(path)), name=shlex.quote(name),
        searched=f' --search {shlex.quote(name)}' if out else '',
        last=f'{"epoch" if by_epoch else "iter"}_{length}',
        # dwconv has chosen a number of blocks, and Once for Both has met its budget in the search
        budget='' if method in ('dwconv', 'ofb') else f' --target-macs {target} --divisor 8')
    text += f'compression = {_dict_text(lines)}\n'
    if 'weights' in lines and cfg.get('load_from') is not None:
        text += 'load_from = None  # else these weights of the dense model come first\n'
    # else the host's run would be overwritten, and resumed
    for key, value in (('work_dir', f'work_dirs/{name}'), ('resume', False)):
        if cfg.get(key):
            text += f'{key} = {value!r}\n'
    with atomic_write(path) as temporary:
        temporary.write_text(text)
        if 'target' in lines:  # one that the gates cannot meet is refused, with their range
            built = load_config(temporary)
            model = build_model(built)
            cost = model.price.cost_model(model.macs_model(default_shape(built, model)))
            select_units(model.gates(), cost, cost.parse_target(model.price.target))
    return path


def _name(method: str, stage: str, stem: str) -> str:
    return f'compress_{stem}' if stage == 'compress' else f'{method}-{stage}_{stem}'


def _dict_text(content: dict[str, Any]) -> str:
    """A dict as it is written in a config."""
    entries = [f'{key}={_dict_text(value) if isinstance(value, dict) else repr(value)}'
               for key, value in content.items()]
    line = f'dict({", ".join(entries)})'
    return line if len(line) < 80 else 'dict(\n    ' + ',\n    '.join(entries) + ')'


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


def _does_not_fit(host: nn.Module, method: str, kinds: Sequence[str]) -> str:
    """Error message: why a method does not fit, and what does."""
    reasons = '; '.join(f'`{kind}`: {reason}' for kind in kinds
                        if (reason := why_not(host, kind)))
    fitting = [f'--method {other}' for other in METHODS if other != method and not any(
        why_not(host, kind) for kind in
        read_config(f'mmkcr::_base_/methods/{other}_search.py').compression.sites)]
    if method != 'compress' and default_kinds(host):
        fitting.append('--stage compress')
    instead = f': take {" or ".join(f"`{word}`" for word in fitting)}' if fitting else ''
    return (f'expected a backbone with the sites {list(kinds)} for `{method}`, found '
            f'`{type(host).__name__}` ({reasons}){instead}')
