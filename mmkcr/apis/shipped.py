"""Location of the configs, the tools and the model index of this package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import mmkcr


def shipped_root() -> Path:
    """Folder of ``configs/``, ``tools/`` and ``model-index.yml``.

    Returns:
        Path: The clone, or the copy inside an installed package (``mmkcr/.mim``).
    """
    package = Path(mmkcr.__file__).parent
    clone = package.parent / 'model-index.yml'
    return package.parent if clone.is_file() else package / '.mim'


def load_tool(name: str) -> ModuleType:
    """Load a command of ``tools/`` as a module, from a clone or an installed package.

    Its folder is put in front of ``sys.path``, as Python does for a script.

    Args:
        name (str): Path below ``tools/`` without its suffix, such as ``'deployment/export_onnx'``.

    Raises:
        FileNotFoundError: There is no such file.
    """
    path = shipped_root() / 'tools' / f'{name}.py'
    if not path.is_file():
        raise FileNotFoundError(f'expected a tool at `{path}`, found none')
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f'{path.stem}_command', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # worker processes and dataclasses look modules up there
    spec.loader.exec_module(module)
    return module


def sample_image() -> str:
    """Path of a handwritten digit, a three, for the networks that come with the package."""
    return str(shipped_root() / 'tools/model_zoo/digit.png')
