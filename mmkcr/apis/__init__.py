"""What a user imports: build, compress, slim, count, infer.

A name is imported when it is asked for: the command line shows its help without the hosts' models.
"""

from importlib import import_module
from typing import Any, List

_HOMES = dict(
    CompressOptions='mmkcr.closed_form.options', CompressResult='mmkcr.closed_form.compression',
    compress='mmkcr.closed_form.compression', count_macs='mmkcr.models.counting',
    macs_report='mmkcr.models.counting',
    fold_masks='mask_folding', inferencer='inference', list_models='inference',
    model_config='inference', register_models='inference', slim='slimming')

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    home = _HOMES[name]
    return getattr(import_module(home if '.' in home else f'{__name__}.{home}'), name)


def __dir__() -> List[str]:
    return __all__
