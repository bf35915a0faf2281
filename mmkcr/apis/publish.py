"""A trained model as one file: weights, structure and metadata, nothing of its training."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmkcr.apis.slim_files import provenance, relative, subnet_name
from mmkcr.core import atomic_write, count_params
from mmkcr.core.file_names import CONFIG, FINETUNE
from mmkcr.engine.build import build_model, find_weights, load_config, load_weights
from mmkcr.models.loading import load_task, weights_of
from mmkcr.models.tasks import find_task, search_spaces
from mmkcr.safe_load import is_address, read_checkpoint


class Published(NamedTuple):
    """Result of publishing."""

    path: Path  # named after the first 8 digits of the file's SHA-256
    meta: dict[str, Any]  # including `structure`
    bytes: dict[str, int]  # of `checkpoint` and `published` file


def publish(config: str | Path, checkpoint: str | Path | None = None,
            out: str | Path | None = None, name: str | None = None,
            options: Mapping[str, Any] | None = None, half: bool = False) -> Published:
    """Write the model of a checkpoint to ``<out>/<name>-<hash>.pth``.

    The file holds the task model's ``state_dict`` and a ``meta`` of plain values: classes,
    structure, parameters and provenance. Optimizer, schedules, logs, the second set of
    weights of an average and the state of regularisers are left out. Any reader that runs no code
    accepts it (``torch.load(..., weights_only=True)``), and so does
    ``backbone=dict(structure='<the file>')``.

    Args:
        config (str | Path): Config of the model: deployment, retraining or dense.
        checkpoint (str | Path, optional): Defaults to None: ``load_from`` of the config.
        out (str | Path, optional): Folder. Defaults to None: the checkpoint's folder, or the
            current folder for an address.
        name (str, optional): Beginning of the file's name. Defaults to None: the name of the
            config; in a folder that ``compress`` wrote, the name of the dense network's config with
            the share of the MACs.
        options (dict, optional): Config entries to overwrite, by dotted path. Defaults to None.
        half (bool): Store weights with at least two dimensions in 16 bits; the model that loads
            them computes in its own precision. Defaults to False.

    Returns:
        Published: The file and its content; equal models with equal metadata give equal files.

    Raises:
        FileNotFoundError: Config or checkpoint is missing.
        ValueError: They do not belong together, or belong to a search.
    """
    cfg = load_config(config, options)
    checkpoint = find_weights(cfg, checkpoint and str(checkpoint), str(config))
    model = build_model(cfg)
    task = find_task(model)
    content = load_weights(model, checkpoint)
    spaces = search_spaces(task)
    if any(space.gates() for space in spaces):
        raise ValueError('expected the config of a deployment or retraining, found '
                         f'`{config}` of a search: slim its checkpoint first')
    structure = next((space.structure for space in spaces if space.structure is not None), None)
    meta = dict(
        model=type(task).__name__,
        structure=structure and structure.to_dict(),
        params=count_params(task),
        dataset_meta=_plain((content.get('meta') or {}).get('dataset_meta')),
        config=relative(config),
        provenance=provenance(cfg, config, checkpoint, content))
    state = {key: _stored(value, half) for key, value in task.state_dict().items()}
    # in memory first, as the file's name depends on its content
    buffer = io.BytesIO()
    torch.save(dict(state_dict=state, meta=meta), buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    if name is None:
        name = Path(config).stem
        # `compress` writes files of these names for every network
        if structure is not None and Path(config).name in (CONFIG, FINETUNE):
            name = subnet_name(structure) or name
    file = None if is_address(checkpoint) else Path(checkpoint).expanduser()
    before = file.stat().st_size if file else sum(
        value.nbytes for value in content.get('state_dict', content).values())
    path = Path(out or (file.parent if file else '')) / f'{name}-{digest[:8]}.pth'
    with atomic_write(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())
        # read back before the rename: a file that does not load is never published
        load_task(model, weights_of(read_checkpoint(temporary), model, str(path)), str(path))
    return Published(path, meta, dict(checkpoint=before, published=path.stat().st_size))


def _stored(value: Tensor, half: bool) -> Tensor:
    value = value.detach().cpu()
    if half and value.dim() > 1 and value.is_floating_point():
        value = value.half()
    return value.clone().contiguous()


def _plain(value: Any) -> Any:
    """The metadata of a data set as plain values of JSON."""
    return json.loads(json.dumps(value, default=lambda other: (
        other.tolist() if isinstance(other, (np.generic, np.ndarray)) else str(other))))
