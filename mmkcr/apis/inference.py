"""Models of this package by name or config, the hosts' inferencers on them, and its files."""

from copy import deepcopy
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import mmengine
from mmengine.config import Config

from mmkcr.engine.build import find_weights, load_config, set_structure
from mmkcr.hosts import prepare_hosts
from mmkcr.models.loading import load_task, weights_of
from mmkcr.safe_load import read_checkpoint

#: Folder of the trained networks in the package; tools/model_zoo/release.py writes it.
ZOO = 'tools/model_zoo/trained'
#: The class of each library's inferencer, in its module `apis`.
INFERENCERS = dict(mmpretrain='ImageClassificationInferencer', mmdet='DetInferencer',
                   mmseg='MMSegInferencer')


def list_models(pattern: str = '*') -> list[str]:
    """Names of this package's models, from its metafiles, that match a pattern of file names."""
    return [name for name in model_index() if fnmatch(name, pattern)]


def model_config(model: str | Path) -> Config:
    """The config of a model.

    The hosts accept it in place of a name, which they look up among their own:
    ``DetInferencer(model_config(name), weights)``, ``mmpretrain.get_model(model_config(name))``.

    Args:
        model (str | Path): A name of :func:`list_models`, a config file or a ``library::path``.

    Raises:
        FileNotFoundError: None of these.
    """
    entry = model_index().get(str(model), {})
    path = entry.get('Config', model)
    if '::' not in str(path) and not Path(path).is_file():
        raise FileNotFoundError(f'expected a config file or a model of `mmkcr.apis.list_models()`, '
                                f'found `{model}`')
    return load_config(path, entry.get('Options'))


def inferencer(model: str | Path | Config, weights: str | None = None,
               structure: str | None = None, device: str = 'cpu', **kwargs: Any) -> Any:
    """The host's inferencer for a model: mmpretrain's, mmdet's or mmseg's.

    The class follows from the config's ``default_scope``. The hosts load the fitting part
    of a checkpoint; here a checkpoint that does not fit completely is refused.

    Args:
        model (str | Path | Config): See :func:`model_config`.
        weights (str, optional): Checkpoint. Defaults to None: the weights in the package
            (``mmkcr zoo`` lists the models with weights), or the config's ``load_from``.
        structure (str, optional): Structure file. Defaults to None: the config's.
        device (str): Where it runs. Defaults to ``'cpu'``.
        **kwargs: Arguments of the host's class.

    Returns:
        BaseInferencer: Takes images, by path or as arrays (H, W, 3) in BGR.

    Raises:
        FileNotFoundError: No such config or checkpoint.
        ValueError: A checkpoint of another model, a config of another library, or no weights.

    Examples:
        >>> detect = inferencer('kcr-mask-rcnn_swin-mini_slim_1xb8_digit-scenes', 'epoch_8.pth')
        >>> detect('scene.png', out_dir='pictures')
    """
    prepare_hosts()
    config = deepcopy(model) if isinstance(model, Config) else model_config(model)
    if structure is not None:
        set_structure(config, structure)
    scope = config.get('default_scope')
    if scope not in INFERENCERS:
        raise ValueError('expected a config of mmpretrain, mmdet or mmseg for inference, found '
                         f'`default_scope = {scope!r}`')
    if weights is None and not isinstance(model, Config):
        weights = model_index().get(str(model), {}).get('Weights')
    weights = find_weights(config, weights, str(config.filename or model))
    checkpoint = read_checkpoint(weights)  # refused here, in one sentence
    cls = getattr(import_module(f'{scope}.apis'), INFERENCERS[scope])
    built = cls(config, weights, device=device, **kwargs)
    # once more and strictly: the host has loaded what fits
    load_task(built.model, weights_of(checkpoint, built.model, weights), weights)
    return built


def model_index() -> dict[str, dict[str, Any]]:
    """Entries of this package's metafiles, and its trained networks, by the models' names.

    Returns:
        dict[str, dict]: ``Config`` is a path that can be opened, ``Options`` are entries of it that
        ``--cfg-options`` changes, if any, ``Metadata`` holds sizes and data, ``Results`` the
        metrics that were measured here, or None. For networks that come with the package
        ``Weights`` is a path, too.
    """
    root = shipped_root()
    metafiles = mmengine.load(root / 'model-index.yml')['Import']
    entries = {entry['Name']: {**entry, 'Config': str(root / entry['Config'])}
               for path in metafiles for entry in mmengine.load(root / path)['Models']}
    rows = root / ZOO / 'models.json'
    for row in mmengine.load(rows)['models'] if rows.is_file() else ():
        entries[row['name']] = dict(
            Name=row['name'], Config=str(root / ZOO / f'{row["name"]}.py'),
            Weights=str(root / ZOO / row['files'][0]),
            Metadata={'FLOPs': row['macs'], 'Parameters': row['params'],
                      'Training Data': row['data']},
            Results=[dict(Metrics=row['results'])])
    return entries


def shipped_root() -> Path:
    """Folder of ``configs/``, ``tools/`` and ``model-index.yml``: the clone, or ``mmkcr/.mim``."""
    package = Path(__file__).parents[1]
    clone = package.parent
    return clone if (clone / 'model-index.yml').is_file() else package / '.mim'


def sample_image() -> str:
    """Path of a handwritten digit, a three, for the networks that come with the package."""
    return str(shipped_root() / 'tools/model_zoo/digit.png')
