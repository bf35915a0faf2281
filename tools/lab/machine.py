"""Context of a measurement: hardware, load and versions."""

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import mmengine
import torch

from mmkcr.core.machine import numbers_of, processor_name
from mmkcr.version import __version__


def machine_info() -> dict[str, Any]:
    """Processor, cores, load, threads, and versions of the software that computes."""
    return dict(
        cpu=processor_name(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        cores=os.cpu_count(), threads=torch.get_num_threads(),
        load_average=round(os.getloadavg()[0], 2), system=platform.platform(),
        python=platform.python_version(), torch=torch.__version__,
        mmengine=mmengine.__version__, mmkcr=__version__)


def process_memory() -> tuple[int, int]:
    """Bytes in memory of this process: now, and most since the last call (ever, if not Linux)."""
    own = numbers_of('/proc/self/status')
    if not own:
        import resource
        return (most := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss), most
    with suppress(OSError):  # the kernel's word for: begin anew
        Path('/proc/self/clear_refs').write_text('5')
    return own['VmRSS'], own['VmHWM']
