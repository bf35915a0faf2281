"""Context of a measurement: hardware, load and versions."""

import os
import platform
from typing import Any

import mmengine
import torch

from mmkcr.core.machine import processor_name
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
