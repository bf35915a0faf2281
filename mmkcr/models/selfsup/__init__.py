"""Self-supervised training that mmpretrain does not have."""

from mmkcr import registry  # noqa: F401  (before any host library)
from .codebook import OnlineCodebook
from .moca import MOCA
from .moca_heads import MOCADecoder, MOCAHead

__all__ = ['MOCA', 'MOCADecoder', 'MOCAHead', 'OnlineCodebook']
