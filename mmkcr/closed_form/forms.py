"""The closed form of each kind of site."""

from mmkcr.models.sites.base import HostSite
from mmkcr.models.sites.heads import HeadChannels
from mmkcr.models.sites.rotary_pairs import RotaryPairs
from .head_rotation import NarrowHeads
from .options import CompressOptions
from .rotary import RotaryHeads
from .units import Units

_FORMS = {HeadChannels: NarrowHeads, RotaryPairs: RotaryHeads}


def form_of(site: HostSite, settings: CompressOptions, plain: bool = False) -> Units:
    """The closed form of a site.

    Args:
        site (HostSite): The site.
        settings (CompressOptions): Options of the compression.
        plain (bool): Nothing is rotated, as for a control's order. Defaults to False.
    """
    return (Units if plain else _FORMS.get(type(site), Units))(site, settings)
