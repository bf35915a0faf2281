"""Location of the configs, the tools and the model index of this package."""

from pathlib import Path

import mmkcr


def shipped_root() -> Path:
    """Folder of ``configs/``, ``tools/`` and ``model-index.yml``: the clone, or ``mmkcr/.mim``."""
    package = Path(mmkcr.__file__).parent
    clone = package.parent / 'model-index.yml'
    return package.parent if clone.is_file() else package / '.mim'


def sample_image() -> str:
    """Path of a handwritten digit, a three, for the networks that come with the package."""
    return str(shipped_root() / 'tools/model_zoo/digit.png')
