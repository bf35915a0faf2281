"""mmkcr: vision transformers made smaller and faster.

Importing the package imports no other library and changes none. Its names are imported when they
are asked for; the OpenMMLab libraries when a config names one of them.
"""

from .lazy import lazy_names
from .version import __version__

_OFFERED = dict(compress='apis', count_macs='apis', export='apis', frontier='apis',
                inferencer='apis', load='apis', load_config='apis', prepare_hosts='hosts',
                sample_image='apis', save='apis', slim='apis')

__all__ = ['__version__', *_OFFERED]
__getattr__ = lazy_names(__name__, _OFFERED)
