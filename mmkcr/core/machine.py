"""What a measured time belongs to: hardware and versions."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Dict

import torch


def processor_name() -> str:
    """The processor's own name."""
    info = Path('/proc/cpuinfo')
    names = [line.split(':')[1].strip() for line in info.read_text().splitlines()
             if line.startswith('model name')] if info.is_file() else []
    return names[0] if names else platform.processor() or platform.machine()


def hardware_name() -> str:
    """GPU if there is one, processor, cores, SIMD: ``'intel-xeon-2.50ghz-2-cores-avx512'``.

    Tables of times are compared by it, and files named.
    """
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    # one name may stand for processors with and without AVX-512
    name = ' '.join([*gpu, processor_name(), f'{os.cpu_count()} cores',
                     torch.backends.cpu.get_cpu_capability()])
    name = re.sub(r'\((r|tm)\)|\bprocessor\b|\bcpu\b|@', ' ', name.lower())
    return '-'.join(re.sub(r'[^a-z0-9.]+', ' ', name).split())


def versions_name() -> str:
    """Versions of the software that computes, for file names: ``'torch2.13.0-…'``."""
    found = []
    for package in ('torch', 'onnxruntime', 'openvino', 'tensorrt'):
        try:
            found.append(package + re.split(r'[+-]', version(package))[0])
        except PackageNotFoundError:
            continue
    return '-'.join(found)


def this_machine() -> Dict[str, str]:
    """Hardware and versions of this machine."""
    return dict(hardware=hardware_name(), versions=versions_name())
