"""Hooks, optimizers, resuming, and the runner of a config with `compression`."""

from .compressed_config import CompressionRunner, compressed_config  # noqa: F401
from .hooks import *  # noqa: F401,F403
from .optimizers import *  # noqa: F401,F403
from .resume import *  # noqa: F401,F403
