"""Hooks, loops and optimizers."""

from .hooks import *  # noqa: F401,F403
from .loops import *  # noqa: F401,F403
from .optimizers import *  # noqa: F401,F403
