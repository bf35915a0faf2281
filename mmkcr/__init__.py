"""mmkcr: vision transformers made smaller and faster inside OpenMMLab.

Importing the package makes the host libraries importable, lets configs refer
to ``mmkcr::`` and ``mmseg::`` bases, and makes MMEngine read checkpoints without
running code (:mod:`mmkcr.safe_load`). Models, hooks, loops and metrics are
imported when a registry of scope ``mmkcr`` is first asked for one of them.
"""

from mmengine.config.utils import MODULE2PACKAGE

from .compat import ensure_torchvision, hush_missing_operators
from .version import __version__

ensure_torchvision()
hush_missing_operators()
MODULE2PACKAGE.update(mmkcr='mmkcr', mmseg='mmseg')

from . import registry, safe_load  # noqa: E402,F401  (need the host libraries)

__all__ = ['__version__']
