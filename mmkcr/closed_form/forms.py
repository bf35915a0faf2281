"""The closed form of each kind of site."""

from mmkcr.models.sites.base import HostSite
from mmkcr.models.sites.head_operator import HeadOperatorSite
from mmkcr.models.sites.heads import HeadChannels
from mmkcr.models.sites.rotary_pairs import RotaryPairs
from .head_rotation import NarrowHeads
from .kernel_fit import ReplacedHeads
from .options import CompressOptions
from .rotary import RotaryHeads
from .units import Units

_FORMS = {HeadChannels: NarrowHeads, RotaryPairs: RotaryHeads, HeadOperatorSite: ReplacedHeads}


def form_of(site: HostSite, settings: CompressOptions, plain: bool = False) -> Units:
    """The closed form of a site.

    Args:
        site (HostSite): The site.
        settings (CompressOptions): Options of the compression.
        plain (bool): Nothing is rotated or fitted, as for a control's order. Defaults to False.
    """
    return (Units if plain else _FORMS.get(type(site), Units))(site, settings)
