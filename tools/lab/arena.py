"""The arena: ways to make a network smaller, at equal MACs and equal total training.

Every method (:mod:`lab.arena_methods`) is a few stages of a study (:mod:`lab.study`) whose batches
add up to those of the dense network's training. A batch is one forward and backward pass, whether
it updates weights or gates. Methods share what they can: the dense network that is cut, and the
search of DCS.

A task is a folder of images with a training and a held-out part for every seed: the draw, the
first weights, the calibration images and the random units all follow the seed, so that differences
between methods are paired (:mod:`lab.arena_tasks`). Budgets are of the whole classifier, or of the
backbone of a dense task.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config
from torch import nn

from mmkcr.apis.compress_files import task_outputs
from mmkcr.apis.slim_files import write_subnet
from mmkcr.closed_form.batches import first_images
from mmkcr.closed_form.compression import CompressResult, compress
from mmkcr.closed_form.images import calibration_images
from mmkcr.closed_form.refit_structure import refit_structure
from mmkcr.core import atomic_write
from mmkcr.engine.build import (
    build_model,
    default_shape,
    load_config,
    load_weights,
)
from mmkcr.models.counting import count_parts
from mmkcr.models.tasks import is_dense_task
from .arena_methods import (
    BACKBONE,
    CONFIGS,
    METHODS,
    SITES,
    missing_configs,
)
from .arena_tasks import TASKS
from .compress_study import VARIANTS
from .study import Call
from .torch_pruning import torch_pruning_structure


def cut(call: Call) -> dict[str, Any]:
    """A call stage: cut a trained dense network by one of :data:`~lab.compress_study.VARIANTS`.

    Args:
        call (Call): With ``variant``, ``target`` (MACs) and optionally ``sites`` (hidden units and
            heads) and ``images`` of calibration (300).

    Returns:
        dict: ``kept`` units by site, ``macs`` and ``digests`` of the files.
    """
    model, content, batches = _dense(call, call.start.weights)
    result = compress(model, batches, call.arguments['target'],
                      call.arguments.get('sites', SITES), ordinary=False,
                      **_settings(call, model, batches),
                      **VARIANTS[call.arguments['variant']].options)
    return _written(call, result, content)


def prune(call: Call) -> dict[str, Any]:
    """A call stage: cut a trained dense network as Torch-Pruning does.

    Args:
        call (Call): With ``target`` (MACs), and optionally ``importance`` (``'magnitude'``, see
            :func:`~lab.torch_pruning.torch_pruning_structure`) and ``refit`` (``'none'``, see
            :class:`~mmkcr.closed_form.options.CompressOptions`).

    Returns:
        dict: As of :func:`cut`.
    """
    model, content, batches = _dense(call, call.start.weights)
    structure = torch_pruning_structure(model, SITES, call.arguments['target'], batches,
                                        call.arguments.get('importance', 'magnitude'))
    result = refit_structure(model, structure, batches,
                             refit=call.arguments.get('refit', 'none'),
                             **_settings(call, model, batches))
    return _written(call, result, content)


def _dense(call: Call, weights: str) -> tuple[nn.Module, dict[str, Any], list[Any]]:
    """The dense network, its checkpoint's content and calibration images one by one."""
    model = build_model(call.config)
    content = load_weights(model, weights)
    images = calibration_images(call.config, model, None, call.arguments.get('images', 300),
                                call.seed)
    return model, content, list(images.of_size(30))


def _settings(call: Call, model: nn.Module, batches: Sequence[Any]) -> dict[str, Any]:
    dense = is_dense_task(model)
    return dict(input_shape=default_shape(call.config, model), part='backbone' if dense else None,
                forward=task_outputs, held_out=first_images(batches, 30), logits=not dense,
                progress=False, seed=call.seed)


def _written(call: Call, result: CompressResult, content: Mapping[str, Any]) -> dict[str, Any]:
    write_subnet(result.model, result.structure, content.get('meta') or {}, call.folder)
    return dict(kept={name: site.kept for name, site in result.structure.sites.items()},
                macs=result.structure.macs)


def narrow_overrides(config: Config, macs: int) -> dict[str, Any]:
    """The narrower dense ViT or Swin that comes closest to a number of MACs from below.

    Of a ViT width and hidden width of the MLPs shrink; heads keep their channels and layers their
    number, and the hidden width stays within 3 and 5 times the width. Of a Swin the width
    shrinks, and with it the channels of its heads.

    Args:
        config (Config): Of the dense network.
        macs (int): Most MACs.

    Returns:
        dict: Config entries to overwrite.

    Raises:
        ValueError: No such network is within the budget.
    """
    arch = config.model.backbone.arch
    narrower = _narrow_swins(config, arch) if 'depths' in arch else _narrow_vits(config, arch, macs)
    for options in narrower:
        if _macs(config, options) <= macs:
            return options
    raise ValueError(f'expected a budget that a narrower network meets, found {macs} MACs')


def _narrow_swins(config: Config, arch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Narrower and narrower ones, below a head for all stages and one for the last."""
    for width in range(arch.embed_dims - 2, 0, -2):
        widths = [width * 2**stage for stage in range(len(arch.depths))]
        readers = {'model.neck.in_channels': widths} if 'neck' in config.model else {
            'model.decode_head.in_channels': widths,
            'model.auxiliary_head.in_channels': widths[-1]}
        yield {'model.backbone.arch': dict(arch, embed_dims=width), **readers}


def _classifier(arch: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of the classifier that a narrower Swin of a dense task begins with."""
    if 'depths' not in arch:
        return {}
    return {'model.backbone.arch': arch,
            'model.head.in_channels': arch['embed_dims'] * 2**(len(arch['depths']) - 1)}


def _narrow_vits(config: Config, arch: Mapping[str, Any], macs: int) -> Iterator[dict[str, Any]]:
    """The best one."""
    head = arch.embed_dims // arch.num_heads
    best: tuple[int, int, int] = (0, 0, 0)
    for heads in range(1, arch.num_heads + 1):
        width = head * heads
        low, high = (_macs(config, _narrow_vit(arch, width, hidden, heads))
                     for hidden in (3 * width, 5 * width))
        if low <= macs:  # MACs are linear in the hidden width
            hidden = min(5 * width, 3 * width + (macs - low) * 2 * width // (high - low))
            best = max(best, (low + (hidden - 3 * width) * (high - low) // (2 * width), heads,
                              hidden))
    if best[0]:
        yield _narrow_vit(arch, head * best[1], best[2], best[1])


def _narrow_vit(arch: Mapping[str, Any], width: int, hidden: int, heads: int) -> dict[str, Any]:
    return {'model.backbone.arch': dict(arch, embed_dims=width, num_heads=heads,
                                        feedforward_channels=hidden),
            'model.head.in_channels': width}


def _macs(config: Config, overrides: Mapping[str, Any] = {}) -> int:  # noqa: B006
    """MACs that budgets are of: of a classifier, or of a segmentor's backbone."""
    config = copy.deepcopy(config)
    config.merge_from_dict(dict(overrides))
    model = build_model(config)
    parts = count_parts(model, default_shape(config, model))
    return parts['backbone'] if is_dense_task(model) else sum(parts.values())


def arena_study(net: str, budget: float, methods: Sequence[str], task: str) -> dict[str, Any]:
    """The study of one budget.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
        budget (float): Share of the dense network's MACs.
        methods (Sequence[str]): Of :data:`METHODS`.
        task (str): Of :data:`TASKS`.

    Returns:
        dict: Content of a study file.

    Raises:
        ValueError: An unknown method or network, or a budget out of range.
    """
    unknown = sorted(set(methods) - set(METHODS))
    if unknown or not 0 < budget < 1:
        raise ValueError(f'expected methods among {list(METHODS)} and a budget within 0 and 1, '
                         f'found {unknown or budget}')
    file = CONFIGS / f'dense_{net}.py'
    if not file.is_file():
        raise ValueError(f'expected a network of {CONFIGS} as `--net`, found {net!r}')
    for name in methods:
        missing = missing_configs(net, name)
        if missing:
            raise ValueError(f'expected methods that {net} has configs for, found {name!r} without '
                             f'`{missing[0]}`')
    config, at = load_config(file), f'{round(100 * budget)}'
    macs = int(budget * _macs(config))
    stages: dict[str, Any] = dict(backbone=dict(train=BACKBONE),
                                  dense=dict(train='dense_{net}.py', start='backbone'),
                                  start=dict(train='start_{net}.py', start='backbone'))
    rows = dict(dense=dict(label='dense', config='dense_{net}.py', weights='dense'))
    for name in methods:
        method = METHODS[name]
        if budget < method.least:
            continue

        def own(text: str, name: str = name) -> str:
            text = text.replace('{method}', name)
            return text if text in ('start', '') else f'{at}-{text}'

        narrow = narrow_overrides(config, macs) if name == 'narrow' else {}
        classifier = _classifier(narrow.get('model.backbone.arch', {}))
        for stage, content in method.stages.items():
            content = _filled(content, dict(MACS=macs, NARROW=narrow, CLASSIFIER=classifier))
            content.update({key: own(content[key]) for key in ('start', 'slim') if key in content})
            stages[own(stage)] = content
        row = dict(config=method.deploy, label=method.label,
                   overrides={**narrow, **method.overrides})
        if method.before:
            rows[f'{at}-{name}-before'] = dict(row, weights=own(method.before))
        rows[f'{at}-{name}'] = dict(row, weights=own(method.after))
    if not (CONFIGS / BACKBONE.replace('{net}', net)).is_file():
        stages = _from_scratch(stages)
    for entry in (*stages.values(), *rows.values()):
        if 'slim' not in entry:
            entry['overrides'] = {**entry.get('overrides', {}), **TASKS[task].overrides}
    model = build_model(config)
    return dict(title=f'{TASKS[task].title}, {at} % of the MACs', configs=str(CONFIGS), nets=[net],
                input_shape=list(default_shape(config, model)), stages=stages, rows=rows,
                measures=['masks', 'backbone' if is_dense_task(model) else 'kernel'])


def _from_scratch(stages: Mapping[str, Any]) -> dict[str, Any]:
    """Without the stages that train a backbone, and without the starts from these."""
    gone = {name for name, stage in stages.items() if stage.get('train') == BACKBONE}
    return {name: {key: value for key, value in stage.items()
                   if key != 'start' or value not in gone}
            for name, stage in stages.items() if name not in gone}


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, Mapping):
        return {key: _filled(value, values) for key, value in node.items()}
    return copy.deepcopy(values.get(node, node)) if isinstance(node, str) else node


def write_study_file(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a study file; gives its path."""
    with atomic_write(path) as temporary:
        temporary.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path


def stages_of(content: Mapping[str, Any], row: str) -> Iterator[str]:
    """Stages whose training the network of a row has seen, the last one first."""
    name = content['rows'][row]['weights']
    while name:
        stage = content['stages'][name]
        yield name
        name = '' if stage.get('from_scratch') else stage.get('start', stage.get('slim', ''))


def batches_seen(content: Mapping[str, Any], row: str, results: Mapping[str, Any]) -> int:
    """Batches of training behind a row, from the records of the stages."""
    return sum(results[name].get('batches', 0) for name in stages_of(content, row))


def equal_batches(content: Mapping[str, Any], results: Mapping[str, Any]) -> int:
    """The batches of training that every retrained network of a study has seen.

    Args:
        content (dict): Of :func:`arena_study`.
        results (dict): Of its stages, by name.

    Raises:
        ValueError: They are not equal.
    """
    seen = {row: batches_seen(content, row, results) for row in content['rows']
            if not row.endswith('-before')}
    if len(set(seen.values())) != 1:
        raise ValueError(f'expected the same number of batches behind every method, found {seen}')
    return next(iter(seen.values()))
