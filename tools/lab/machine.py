"""What a measurement belongs to: hardware, versions."""

import os
import platform
from pathlib import Path
from typing import Any, Dict

import mmengine
import torch

from mmkcr.version import __version__


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
