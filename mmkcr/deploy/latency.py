"""Latency of two models in one runtime, measured in pairs."""

import copy
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmkcr.core import eval_mode
from mmkcr.deploy.export import export_onnx, read_macs_and_shape
from mmkcr.deploy.runtimes import PACKAGES, open_onnx, require_runtime
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.visualization import show_progress

AMP_DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}
Side = nn.Module | str | Path
Clock = Callable[[], float]


@dataclass
class PairTiming:
    """Seconds of both sides, pair by pair, and their MACs for one image.

    MACs are None where a file does not say them, or says them for another size.
    """

    dense: list[float]
    slim: list[float]
    macs_dense: int | None = None
    macs_slim: int | None = None

    @classmethod
    def join(cls, timings: Sequence['PairTiming']) -> 'PairTiming':
        """All pairs of several timings of the same sides."""
        return replace(timings[0], **{
            side: list(itertools.chain.from_iterable(getattr(timing, side) for timing in timings))
            for side in ('dense', 'slim')})

    @property
    def seconds(self) -> tuple[float, float]:
        """Medians of both sides."""
        return statistics.median(self.dense), statistics.median(self.slim)

    @property
    def ratios(self) -> list[float]:
        """Seconds of the second side over seconds of the first, pair by pair.

        A side that took no time by a coarse clock counts as the shortest time that is not zero.
        """
        least = min((taken for taken in (*self.dense, *self.slim) if taken > 0), default=1.)
        return [max(slim, least) / max(dense, least)
                for dense, slim in zip(self.dense, self.slim)]

    @property
    def ratio(self) -> float:
        """Median of :attr:`ratios`."""
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of :attr:`ratios`."""
        return tuple(np.quantile(self.ratios, (0.25, 0.75), method='weibull').tolist())

    @property
    def macs_ratio(self) -> float | None:
        """MACs of the second side over MACs of the first; None where one is not known."""
        return None if None in (self.macs_slim, self.macs_dense) else \
            self.macs_slim / self.macs_dense

    def share(self, ratio: float | None = None) -> float | None:
        """Share of the MAC saving that became time: ``(1 - t_s / t_d) / (1 - m_s / m_d)``.

        It is 1 where a tenth fewer MACs take a tenth less time; None where the MACs are not fewer,
        or not known.

        Args:
            ratio (float, optional): Ratio of seconds. Defaults to None: :attr:`ratio`.
        """
        saved = 0. if self.macs_ratio is None else 1 - self.macs_ratio
        return (1 - (self.ratio if ratio is None else ratio)) / saved if saved > 0 else None


def measure_pair(dense: Side, slim: Side, inputs: Tensor, *args: Any, **options: Any) -> PairTiming:
    """Time two models in turns: :func:`measure_rounds` with a single other model.

    Args:
        dense, slim (nn.Module | str | Path): The models.
        inputs (Tensor): Images (B, C, H, W), on the device of both.
        *args, **options: Of :func:`measure_rounds`.

    Raises:
        ImportError, ValueError: See :func:`measure_rounds`.
    """
    return measure_rounds(dense, [slim], inputs, *args, **options)[0]


def measure_rounds(dense: Side, others: Sequence[Side], inputs: Tensor, repeats: int = 20,
                   warmup: int = 3, runtime: str = 'eager', threads: int | None = None,
                   amp: str | None = None, clock: Clock | None = None) -> list[PairTiming]:
    """Time models in rounds with a dense one, so that other load affects all alike.

    A round runs each once. The next is in the opposite order. A model's time and the dense one's
    of the same round are a pair.

    Args:
        dense (nn.Module | str | Path): An ONNX file; or a backbone or task model, see
            :class:`~mmkcr.deploy.tensor_model.TensorModel`, which is timed in eval mode, gets its
            own modes back, and is exported for runtimes of ONNX files.
        others (Sequence): Models or files that are compared with it.
        inputs (Tensor): Images (B, C, H, W), on the device of all.
        repeats (int): Pairs that count. Defaults to 20.
        warmup (int): Pairs before them that do not count. Defaults to 3.
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.RUNTIMES`. Defaults to ``'eager'``.
        threads (int, optional): CPU threads. Defaults to None: the runtime's default.
        amp (str, optional): ``'bf16'`` or ``'fp16'`` autocast on all sides, in PyTorch. Defaults
            to None: none.
        clock (Callable, optional): Returns seconds. Defaults to None: see :func:`clock_for`.

    Raises:
        ImportError: The runtime is not installed.
        ValueError: No pairs, another ``amp`` or runtime, or a file for a runtime of modules.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f'expected at least one repeat and no negative warm-up, found '
                         f'repeats={repeats} and warmup={warmup}')
    if amp is not None and (amp not in AMP_DTYPES or runtime in PACKAGES):
        raise ValueError(f'expected `amp` among {sorted(AMP_DTYPES)} for PyTorch, found {amp!r} '
                         f'for `{runtime}`')
    require_runtime(runtime)
    with ExitStack() as stack:
        if threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        sides = [dense, *others]
        for side in sides:
            if isinstance(side, nn.Module):
                stack.enter_context(eval_mode(side))
        calls, macs = zip(*(_open_side(side, runtime, inputs, threads, amp, stack)
                            for side in sides))
        clock = clock or clock_for(runtime, threads, inputs.device.type)
        timings = measure_calls(*calls, repeats=repeats, warmup=warmup, clock=clock)
        return [replace(timing, macs_dense=macs[0], macs_slim=count)
                for timing, count in zip(timings, macs[1:])]


def clock_for(runtime: str, threads: int | None, device: str = 'cpu') -> Clock:
    """The clock of the process where one thread of a CPU computes, so that neighbours do not count.

    Elsewhere, and in TensorRT, which computes on a GPU, it is the wall clock.

    Args:
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.RUNTIMES`.
        threads (int | None): CPU threads, None for the runtime's default.
        device (str): Kind of device, ``'cpu'`` or ``'cuda'``. Defaults to ``'cpu'``.
    """
    alone = threads == 1 and device == 'cpu' and runtime != 'tensorrt'
    return time.process_time if alone else time.perf_counter


def measure_calls(dense: Callable[[], Any], *others: Callable[[], Any], repeats: int, warmup: int,
                  clock: Clock = time.perf_counter) -> list[PairTiming]:
    """Time calls in rounds with a first one, in alternating order.

    Args:
        dense (Callable): A call that returns when its work is done.
        *others (Callable): The calls that are compared with it.
        repeats (int): Pairs that count.
        warmup (int): Pairs before them that do not count.
        clock (Callable): Returns seconds. Defaults to the wall clock.
    """
    calls, seconds, timings = (dense, *others), {}, [PairTiming([], []) for _ in others]
    for index in show_progress(range(-warmup, repeats), 'Pairs', refresh=False):
        for place in range(len(calls))[::1 if index % 2 else -1]:
            start = clock()
            calls[place]()
            seconds[place] = clock() - start
        for place, timing in enumerate(timings, 1) if index >= 0 else ():
            timing.dense.append(seconds[0])
            timing.slim.append(seconds[place])
    return timings


def _open_side(side: Side, runtime: str, inputs: Tensor, threads: int | None, amp: str | None,
               stack: ExitStack) -> tuple[Callable[[], Any], int | None]:
    """Make a function that runs one side and returns when it is done.

    Args:
        side (nn.Module | str | Path): A model, or an ONNX file.
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.RUNTIMES`.
        inputs (Tensor): Images (B, C, H, W).
        threads (int | None): CPU threads, None for the runtime's default.
        amp (str | None): Type of autocast, in PyTorch.
        stack (ExitStack): Closes the folder of an exported model.

    Returns:
        tuple: The function, and the MACs of one image, None where a file does not say them.
    """
    shape = tuple(inputs.shape[1:])
    if runtime not in PACKAGES:
        if not isinstance(side, nn.Module):
            raise ValueError(f'expected models for the runtime `{runtime}`, found the file '
                             f'`{side}`')
        view = TensorModel(side)
        return torch_call(view, inputs, runtime, amp), view.count_macs(shape)
    if isinstance(side, nn.Module):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if inputs.device.type != 'cpu':  # models are traced on the CPU
            side = copy.deepcopy(side).cpu()
        side = export_for_timing(side, Path(folder) / 'model.onnx', inputs.shape, runtime)
    # a known shape lets the runtime plan its memory
    session = open_onnx(side, runtime, threads, tuple(inputs.shape), str(inputs.device))
    images, (macs, counted) = inputs.cpu().numpy(), read_macs_and_shape(side)
    return lambda: session(images), macs if counted == shape else None


def export_for_timing(model: nn.Module, path: Path, shape: Sequence[int], runtime: str) -> Path:
    """Write the ONNX file of a model to time it.

    Args:
        model (nn.Module): A backbone or task model, on the CPU.
        path (Path): Output file.
        shape (Sequence[int]): (B, C, H, W) of the images.
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.PACKAGES`.
    """
    return export_onnx(model, path, shape[1:], False, shape[:1], 1e-3, runtime).path


def torch_call(module: nn.Module, inputs: Tensor, runtime: str = 'eager',
               amp: str | None = None) -> Callable[[], Any]:
    """Make a forward without gradients that returns when the device is done.

    Args:
        module (nn.Module): The network.
        inputs (Tensor): Images (B, C, H, W), on its device.
        runtime (str): ``'eager'`` or ``'compiled'``. Defaults to ``'eager'``.
        amp (str, optional): ``'bf16'`` or ``'fp16'`` autocast. Defaults to None: none.
    """
    call = torch.compile(module, dynamic=False) if runtime == 'compiled' else module

    def run() -> None:
        with torch.no_grad(), torch.autocast(inputs.device.type, AMP_DTYPES.get(amp),
                                             enabled=amp is not None):
            call(inputs)
        if inputs.is_cuda:
            torch.cuda.synchronize(inputs.device)

    return run
