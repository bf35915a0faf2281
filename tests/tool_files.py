"""Files of ``tools/`` as modules."""

import importlib.util
import sys
from types import ModuleType

from mmkcr.apis.inference import shipped_root

#: Files of the commands that have another name than the command.
_FILES = {'export': 'deployment/export_onnx', 'flops': 'analysis_tools/get_flops',
          'latency': 'benchmarks/latency', 'latency-table': 'benchmarks/latency_table'}


def file_of(command: str) -> str:
    """The file of a command of ``mmkcr``: its path below ``tools/`` without its suffix."""
    return _FILES.get(command, command)


def load_tool(name: str) -> ModuleType:
    """The module that has the ``main`` of a file: the file's, or that of the command it starts.

    The name is the path below ``tools/`` without its suffix. The folder of a file is put in front
    of ``sys.path``, as Python does for a script.
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
    return sys.modules[module.main.__module__]
