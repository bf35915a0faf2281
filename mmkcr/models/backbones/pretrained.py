"""The hand-over: a backbone that starts from the checkpoint of another task's model."""

from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from mmengine.model import PretrainedInit, update_init_info
from mmengine.runner.checkpoint import load_state_dict
from torch import Tensor, nn

from mmkcr.safe_load import read_checkpoint

BACKBONE = 'backbone.'
InitCfg = Union[Mapping[str, Any], List[Mapping[str, Any]], None]


def split_pretrained(init_cfg: InitCfg) -> Tuple[Optional[Dict[str, Any]], List[Dict[str, Any]]]:
    """Take ``Pretrained`` out of an ``init_cfg``.

    Args:
        init_cfg (dict | list[dict], optional): Of a ``BaseModule``.

    Returns:
        tuple[dict | None, list[dict]]: The arguments of ``Pretrained``, and
        the other initialisers.
    """
    configs = [init_cfg] if isinstance(init_cfg, Mapping) else list(init_cfg or [])
    chosen = [config for config in configs if config['type'] in ('Pretrained', PretrainedInit)]
    others = [config for config in configs if config not in chosen]
    arguments = {key: value for key, value in chosen[-1].items() if key != 'type'} if chosen \
        else None
    return arguments, others


def read_backbone(checkpoint: str, prefix: Optional[str] = None,
                  map_location: str = 'cpu') -> Dict[str, Tensor]:
    """The backbone's part of a checkpoint of a classifier, detector or segmentor.

    Args:
        checkpoint (str): A file or URL; beside MMEngine's ``EMAHook`` it holds
            the averaged weights.
        prefix (str, optional): Where the backbone's keys start. Defaults to
            None: ``'backbone.'`` if there are such keys, else all keys.
        map_location (str): See ``torch.load``. Defaults to ``'cpu'``.

    Returns:
        dict[str, Tensor]: Without the prefix.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, or has no key with the prefix.
    """
    content = read_checkpoint(checkpoint, map_location)
    state = content.get('state_dict', content)
    if prefix is None:
        prefix = BACKBONE if any(key.startswith(BACKBONE) for key in state) else ''
    prefix = prefix.rstrip('.') + '.' if prefix else ''
    part = {key[len(prefix):]: value for key, value in state.items() if key.startswith(prefix)}
    if not part:
        raise ValueError(f'expected keys that start with `{prefix}` in the checkpoint '
                         f'`{checkpoint}`, found {", ".join(list(state)[:3]) or "no key"}')
    return part


def load_pretrained(backbone: nn.Module, checkpoint: str, prefix: Optional[str] = None,
                    map_location: str = 'cpu') -> None:
    """Load the backbone of another model's checkpoint, whole or not at all.

    Args:
        backbone (SearchableBackbone): In any of its states.
        checkpoint (str): See :func:`read_backbone`.
        prefix (str, optional): As there.
        map_location (str): As there.

    Raises:
        FileNotFoundError: As of :func:`read_backbone`.
        ValueError: As of :func:`read_backbone`, or the keys are not those of
            the backbone.
    """
    state = read_backbone(str(checkpoint), prefix, map_location)
    try:
        load_state_dict(backbone, state, strict=False, logger='silent')
    except ValueError as error:
        wrong = ValueError(f'{error} of `{checkpoint}`')
        for note in getattr(error, '__notes__', ()):
            wrong.add_note(note)
        raise wrong from error
    if hasattr(backbone, '_params_init_info'):
        update_init_info(backbone, f'loaded from {checkpoint}')
