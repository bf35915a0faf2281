"""What a measurement belongs to: hardware, versions, memory."""

import ctypes
import os
import platform
from pathlib import Path
from typing import Any, Dict

import mmengine
import torch

from mmkcr.version import __version__

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def machine_info() -> Dict[str, Any]:
    """Processor, cores, load, threads, and versions of what computes."""
    info = Path('/proc/cpuinfo')
    names = [line.split(':')[1].strip() for line in info.read_text().splitlines()
             if line.startswith('model name')] if info.is_file() else []
    return dict(
        cpu=names[0] if names else platform.processor() or platform.machine(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        cores=os.cpu_count(), threads=torch.get_num_threads(),
        load_average=round(os.getloadavg()[0], 2), system=platform.platform(),
        python=platform.python_version(), torch=torch.__version__,
        mmengine=mmengine.__version__, mmkcr=__version__)


def keep_freed_memory(pad: int = 64 * 2**20) -> bool:
    """Keep freed memory in the process instead of handing it back to the system.

    A hidden layer of some megabytes is otherwise given back after every block
    and faulted in again, page by page, in the next: in ViT-S at batch 8 that
    makes the activation function three times as slow, in the dense model and
    in the subnet alike. A preloaded jemalloc or tcmalloc, or the environment
    variables ``MALLOC_TOP_PAD_`` and ``MALLOC_MMAP_MAX_=0``, do the same.

    Args:
        pad (int): Bytes to take from the system at a time. Defaults to 64 MiB.

    Returns:
        bool: Whether the C library is glibc and took the settings. They hold
        for the rest of the process.
    """
    if platform.libc_ver()[0] != 'glibc':
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: pad}
    return all(mallopt(key, value) == 1 for key, value in settings.items())
