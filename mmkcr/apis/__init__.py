"""Functions for users: build, compress, slim, count, infer.

A name is imported when it is asked for: the command line shows its help without the hosts' models.
"""

from mmkcr.lazy import lazy_names

_HOMES = dict(
    CompressOptions='mmkcr.closed_form.options', CompressResult='mmkcr.closed_form.compression',
    compress='mmkcr.closed_form.compression', count_macs='mmkcr.models.counting',
    export='saved', frontier='levers', inferencer='inference', list_models='inference',
    load='saved', load_config='mmkcr.engine.build', macs_report='mmkcr.models.counting',
    model_config='inference', sample_image='inference', save='saved',
    slim='mmkcr.methods.search.slimming')

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
