"""mmkcr: vision transformers made smaller and faster inside OpenMMLab.

Importing the package makes the host libraries importable, lets configs refer
to ``mmkcr::`` and ``mmseg::`` bases, and makes MMEngine read checkpoints without
running code (:mod:`mmkcr.safe_load`). Models, hooks, loops and metrics are
imported when a registry of scope ``mmkcr`` is first asked for one of them.
"""

from .compat import (
    ensure_torchvision,
    hush_missing_operators,
    hush_optional_parts,
    name_unreadable_images,
    refuse_mixed_families,
    register_references,
)
from .version import __version__

refuse_mixed_families()
ensure_torchvision()
hush_optional_parts()
hush_missing_operators()
name_unreadable_images()
register_references()

from . import registry, safe_load  # noqa: E402,F401  (need the host libraries)

__all__ = ['__version__']
