"""Checkpoints of whole models as weights of a backbone: whole or not at all."""

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import KEPT, Structure, check_finite_state, digest
from mmkcr.safe_load import read_checkpoint
from .search_space import SearchSpace

BACKBONE = 'backbone.'
InitCfg = Mapping[str, Any] | list[Mapping[str, Any]] | None


def split_pretrained(init_cfg: InitCfg) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The arguments of ``Pretrained`` in an ``init_cfg`` of MMEngine, and the other initialisers.
    """
    from mmengine.model import PretrainedInit
    configs = [init_cfg] if isinstance(init_cfg, Mapping) else list(init_cfg or [])
    chosen = [config for config in configs if config['type'] in ('Pretrained', PretrainedInit)]
    arguments = {key: value for key, value in chosen[-1].items() if key != 'type'} if chosen \
        else None
    return arguments, [config for config in configs if config not in chosen]


def load_named(module: nn.Module, state: Mapping[str, Tensor],
               path: str) -> tuple[list[str], list[str]]:
    """Load the entries of a file that fit, all of them finite.

    Args:
        module (nn.Module): Network that gets them.
        state (Mapping[str, Tensor]): Entries of the file.
        path (str): Of the file, for messages.

    Returns:
        tuple[list[str], list[str]]: Missing and surplus names.

    Raises:
        ValueError: Entries that are not finite, or that the network refuses.
    """
    check_finite_state(state, path, module.state_dict())
    try:
        return module.load_state_dict(dict(state), strict=False)
    except ValueError as error:
        error.args = (f'{error} of `{path}`', )
        raise


def load_pretrained(backbone: nn.Module, checkpoint: str, prefix: str | None = None,
                    map_location: str = 'cpu') -> None:
    """Load the backbone of another model's checkpoint, whole or not at all.

    It is a file or URL, of a classifier, detector or segmentor; one of MMEngine's ``EMAHook`` holds
    the averaged weights. The backbone's keys start with the prefix, by default with ``'backbone.'``
    if there are such keys, else all keys are its. The backbone has a search space, which refuses
    other entries.
    """
    content = read_checkpoint(str(checkpoint), map_location)
    state = content.get('state_dict', content)
    if prefix is None:
        prefix = BACKBONE if any(key.startswith(BACKBONE) for key in state) else ''
    prefix = prefix.rstrip('.') + '.' if prefix else ''
    part = {key[len(prefix):]: value for key, value in state.items() if key.startswith(prefix)}
    if not part:
        raise ValueError(f'expected keys that start with `{prefix}` in the checkpoint '
                         f'`{checkpoint}`, found {", ".join(list(state)[:3]) or "no key"}')
    load_named(backbone, {**read_digests(backbone, content, str(checkpoint)), **part},
               str(checkpoint))
    if hasattr(backbone, '_params_init_info'):
        from mmengine.model import update_init_info
        update_init_info(backbone, f'loaded from {checkpoint}')


def content_sha256(checkpoint: Mapping[str, Any]) -> str:
    """SHA-256 of a checkpoint's weights and ``meta``, but for ``meta["sha256"]``."""
    meta = {key: value for key, value in checkpoint['meta'].items() if key != 'sha256'}
    sha = hashlib.sha256(json.dumps(meta, sort_keys=True, default=str).encode())
    for name, value in sorted(checkpoint.get('state_dict', {}).items()):
        sha.update(f'{name} {value.dtype} {tuple(value.shape)}'.encode())
        sha.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def read_digests(module: nn.Module, checkpoint: Mapping[str, Any],
                 path: str) -> dict[str, Tensor]:
    """Compare the structure in a checkpoint's ``meta``, if there is one, with that of a module.

    A sum in ``meta`` is compared too: whoever edited the file is told.

    Args:
        module (nn.Module): A task model or a backbone. Search spaces in it that were sliced are
            compared, and a difference that leaves all units the same is only named.
        checkpoint (Mapping): Its content, with ``meta``.
        path (str): Of the checkpoint, for messages.

    Returns:
        dict[str, Tensor]: By entry of the module's state the digests of units that the checkpoint
        has, which it lacks if an earlier version wrote it.

    Raises:
        ValueError: It keeps other units; the message names the site.
    """
    meta = checkpoint.get('meta')
    meta = meta if isinstance(meta, Mapping) else {}
    if 'sha256' in meta and meta['sha256'] != content_sha256(checkpoint):
        logging.getLogger('mmkcr').warning(
            'Weights or `meta` of `%s` were edited since it was written.', path)
    recorded = meta.get('structure')
    if not isinstance(recorded, Mapping):
        return {}
    theirs, digests = Structure.load(recorded), {}
    for name, host in module.named_modules():
        space = getattr(host, 'search_space', None)
        if isinstance(space, SearchSpace) and space.fixed:
            _check_sites(space, theirs, path)
            digests[f'{name}.{KEPT}'.lstrip('.')] = digest(space.fixed)
    return digests


def _check_sites(space: SearchSpace, theirs: Structure, path: str) -> None:
    """Refuse the structure of other units than a space's, and name other differences."""
    names = set(space.fixed) if space.structure is None else {*space.fixed, *theirs.sites}
    for name in sorted(names):
        if space.fixed.get(name) != theirs.sites.get(name):
            raise ValueError(f'expected weights of the units that the structure keeps at site '
                             f'`{name}`, found those of others in `{path}`: they are of another '
                             'call than the structure')
    if space.structure is None or space.inherits_dense:
        return
    ours, recorded = ({key: json.dumps(value, sort_keys=True, default=str)
                       for key, value in one.to_dict().items()}
                      for one in (space.structure, theirs))
    others = [key for key in ours if ours[key] != recorded[key]]
    if others:
        logging.getLogger('mmkcr').warning(
            'The structure has another %s than `%s` was written with: it was edited since, or one '
            'of them is of an earlier step.', ' and '.join(f'`{key}`' for key in others), path)
