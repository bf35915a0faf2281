"""Context of a measured time: hardware and versions."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

#: How PyTorch reports that memory is exhausted.
NO_MEMORY = re.compile(r"can't allocate memory|out of memory|tried to allocate|Storage size calc",
                       re.IGNORECASE)


def processor_name() -> str:
    """The processor's own name."""
    info = Path('/proc/cpuinfo')
    names = [line.split(':')[1].strip() for line in info.read_text().splitlines()
             if line.startswith('model name')] if info.is_file() else []
    return names[0] if names else platform.processor() or platform.machine()


def hardware_name() -> str:
    """GPU if there is one, processor, cores, SIMD: ``'intel-xeon-2.50ghz-2-cores-avx512'``."""
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    # one name may stand for processors with and without AVX-512
    name = ' '.join([*gpu, processor_name(), f'{os.cpu_count()} cores',
                     torch.backends.cpu.get_cpu_capability()])
    name = re.sub(r'\((r|tm)\)|\bprocessor\b|\bcpu\b|@', ' ', name.lower())
    return '-'.join(re.sub(r'[^a-z0-9.]+', ' ', name).split())


def has_int8() -> bool:
    """Whether the processor has instructions for sums of products of int8 (VNNI, AMX, dot)."""
    info = Path('/proc/cpuinfo')
    text = info.read_text() if info.is_file() else ''
    return bool(re.search(r'\b(avx512_vnni|avx_vnni|amx_int8|asimddp|i8mm)\b', text))


def versions_name() -> str:
    """Versions of the software that computes, for file names: ``'torch2.13.0-…'``."""
    names = []
    for package in ('torch', 'onnxruntime', 'openvino', 'tensorrt'):
        with suppress(PackageNotFoundError):
            names.append(package + re.split(r'[+-]', version(package))[0])
    return '-'.join(names)


def this_machine() -> dict[str, str]:
    """Hardware and versions."""
    return dict(hardware=hardware_name(), versions=versions_name())


def free_memory(device: str | torch.device = 'cpu') -> int:
    """Bytes that this process may still take on a device; 8 GiB where the system does not tell.

    Limits of a container (control group) and of ``ulimit -v`` count.
    """
    if torch.device(device).type == 'cuda':
        # what PyTorch holds without using it is free for it
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) \
            - torch.cuda.memory_allocated(device)
    process, free = numbers_of('/proc/self/status'), []
    for limit, used in (('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.current'),
                        ('/sys/fs/cgroup/memory/memory.limit_in_bytes',
                         '/sys/fs/cgroup/memory/memory.usage_in_bytes')):
        with suppress(OSError, ValueError):  # 'max': none
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    if 'MemAvailable' in (system := numbers_of('/proc/meminfo')):
        free.append(system['MemAvailable'])
    with suppress(ImportError):  # Windows has none
        import resource
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            free.append(most - process.get('VmSize', 0))
    return max(min(free, default=2**33), 0)


@contextmanager
def naming_remedy(remedy: str) -> Iterator[None]:
    """Name a remedy where memory is exhausted, in a ``MemoryError`` in place of PyTorch's error."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise MemoryError(f'expected sizes that fit into memory, found more ({first[:160]}); '
                              f'{remedy}') from error
        raise


def numbers_of(path: str) -> dict[str, int]:
    """Bytes by name, of a file of the kernel with lines such as ``VmSize:  12 kB``."""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {line[0].rstrip(':'): 1024 * int(line[1]) for line in lines if line[2:] == ['kB']}
