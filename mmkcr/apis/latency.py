"""Latency of a dense model and its subnet, measured in pairs."""

import contextlib
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from mmcv.cnn import ConvModule
from torch import Tensor, nn

from mmkcr.core import Structure
from mmkcr.models.utils import find_backbone
from .count import count_macs
from .tensor_model import TensorModel

AMP_DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}


@dataclass
class PairTiming:
    """Seconds of both sides, pair by pair, and their MACs for one image.

    Args:
        dense (list[float]): Seconds of each forward of the dense model.
        slim (list[float]): Of the subnet, measured next to it.
        macs_dense (int): MACs of the dense model.
        macs_slim (int): MACs of the subnet.
    """

    dense: List[float]
    slim: List[float]
    macs_dense: int
    macs_slim: int

    @property
    def ratios(self) -> List[float]:
        """Seconds of the subnet over those of the dense model, pair by pair."""
        return [slim / dense for dense, slim in zip(self.dense, self.slim)]

    @property
    def ratio(self) -> float:
        """Median of :attr:`ratios`."""
        return statistics.median(self.ratios)

    @property
    def macs_ratio(self) -> float:
        """MACs of the subnet over those of the dense model."""
        return self.macs_slim / self.macs_dense

    def share(self, ratio: Optional[float] = None) -> Optional[float]:
        """Share of the MAC saving that became time: ``(1 - t_s / t_d) / (1 - m_s / m_d)``.

        Args:
            ratio (float, optional): Of seconds. Defaults to :attr:`ratio`.

        Returns:
            float: 1 where a tenth fewer MACs take a tenth less time; None
            where the MACs are equal.
        """
        saved = 1 - self.macs_ratio
        return (1 - (self.ratio if ratio is None else ratio)) / saved if saved else None

    def to_dict(self) -> Dict[str, Any]:
        """Medians, ratio and share with quartiles, and every sample."""
        quarters = statistics.quantiles(self.ratios, n=4) if len(self.ratios) > 1 else \
            [self.ratio] * 3
        return dict(
            macs=dict(dense=self.macs_dense, slim=self.macs_slim, ratio=self.macs_ratio),
            seconds=dict(dense=statistics.median(self.dense), slim=statistics.median(self.slim)),
            ratio=self.ratio, ratio_quartiles=[quarters[0], quarters[2]], share=self.share(),
            share_quartiles=[self.share(quarters[2]), self.share(quarters[0])],
            samples=dict(dense=self.dense, slim=self.slim))


def measure_pair(dense: nn.Module,
                 slim: nn.Module,
                 inputs: Tensor,
                 repeats: int = 20,
                 warmup: int = 3,
                 compile: bool = False,
                 amp: Optional[str] = None,
                 clock: Callable[[], float] = time.perf_counter) -> PairTiming:
    """Time a dense model and its subnet in turns, in alternating order.

    Whatever else the machine does then meets both sides alike, and the median
    of the ratios of neighbours is taken, not the ratio of medians.

    Args:
        dense (nn.Module): A backbone or task model, see :class:`TensorModel`.
        slim (nn.Module): Likewise.
        inputs (Tensor): Images (B, C, H, W) on the device of both.
        repeats (int): Pairs. Defaults to 20.
        warmup (int): Pairs before that, not counted. Defaults to 3.
        compile (bool): Run both through ``torch.compile``. Defaults to False.
        amp (str, optional): ``'bf16'`` or ``'fp16'`` autocast on both sides.
            Defaults to None: the precision of the weights.
        clock (Callable): Seconds. Defaults to the wall clock.

    Returns:
        PairTiming: All samples.

    Raises:
        ValueError: Fewer than one pair, a negative warm-up or another ``amp``.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f'expected at least one repeat and no negative warm-up, found '
                         f'repeats={repeats} and warmup={warmup}')
    if amp is not None and amp not in AMP_DTYPES:
        raise ValueError(f'expected `amp` among {sorted(AMP_DTYPES)}, found {amp!r}')
    sides = [TensorModel(dense), TensorModel(slim)]
    macs = [count_macs(side.model, tuple(inputs.shape[1:])) for side in sides]
    calls = [torch.compile(side, dynamic=False) if compile else side for side in sides]
    seconds: Tuple[List[float], List[float]] = ([], [])
    with _inference(inputs.device, amp):
        for index in range(-warmup, repeats):
            for side in (0, 1) if index % 2 else (1, 0):
                elapsed = _elapsed(calls[side], inputs, clock)
                if index >= 0:
                    seconds[side].append(elapsed)
    return PairTiming(*seconds, *macs)


@dataclass
class LayerTiming:
    """Seconds of the layers whose weights a subnet has fewer of, beside those of the whole.

    Args:
        layers (dict[str, tuple[float, float]]): Medians by module path, dense and slim.
        seconds (tuple[float, float]): Medians of the whole models, timed together with them.
        macs_ratio (float): MACs of the subnet over those of the dense model.
    """

    layers: Dict[str, Tuple[float, float]]
    seconds: Tuple[float, float]
    macs_ratio: float

    @property
    def sums(self) -> Tuple[float, float]:
        """Seconds of all these layers, dense and slim."""
        return tuple(sum(side) for side in zip(*self.layers.values())) or (0., 0.)

    def ceiling(self) -> Optional[float]:
        """Share of the MAC saving that would be time if no other layer changed its time.

        Without gather, scatter and masks, that is: what is above comes from layers that run
        faster in the subnet, what is below is what the selection costs.
        """
        saved = 1 - self.macs_ratio
        dense, slim = self.sums
        return (dense - slim) / self.seconds[0] / saved if saved else None

    def to_dict(self) -> Dict[str, Any]:
        """Seconds, sums and ceiling."""
        return dict(seconds=self.seconds, sums=self.sums, ceiling=self.ceiling(),
                    macs_ratio=self.macs_ratio, layers=self.layers)


def shrinking_layers(dense: nn.Module, slim: nn.Module) -> List[str]:
    """Module paths of the layers whose weight matrices differ in size.

    A convolution inside a ``ConvModule`` is named by that, which computes norm and activation
    with it.

    Args:
        dense (nn.Module): With the same paths as the subnet.
        slim (nn.Module): The subnet.
    """
    sizes = dict(slim.named_parameters())
    found = [name.rpartition('.')[0] for name, parameter in dense.named_parameters()
             if parameter.ndim > 1 and name in sizes
             and sizes[name].numel() != parameter.numel()]
    lifted = [name.rpartition('.')[0] if isinstance(
        dense.get_submodule(name.rpartition('.')[0]), ConvModule) else name for name in found]
    return list(dict.fromkeys(lifted))


def measure_layers(dense: nn.Module,
                   slim: nn.Module,
                   inputs: Tensor,
                   repeats: int = 20,
                   warmup: int = 3,
                   amp: Optional[str] = None,
                   clock: Callable[[], float] = time.perf_counter) -> LayerTiming:
    """Time the layers that shrink, by hooks, dense and slim in turns.

    Args:
        dense (nn.Module): See :func:`measure_pair`; with the same module paths as the subnet.
        slim (nn.Module): As there.
        inputs (Tensor): As there.
        repeats (int): As there.
        warmup (int): As there.
        amp (str, optional): As there.
        clock (Callable): As there.

    Raises:
        ValueError: No layer shrinks.
    """
    sides = [TensorModel(dense), TensorModel(slim)]
    names = shrinking_layers(sides[0].model, sides[1].model)
    if not names:
        raise ValueError('expected a subnet with smaller layers under the paths of the dense '
                         'model, found none')
    macs = [count_macs(side.model, tuple(inputs.shape[1:])) for side in sides]
    layers: List[Dict[str, List[float]]] = [{name: [] for name in names} for _ in sides]
    totals: List[List[float]] = [[], []]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_inference(inputs.device, amp))
        for side, seconds in zip(sides, layers):
            for name in names:
                for handle in _stopwatch(side.model.get_submodule(name), seconds[name], clock):
                    stack.callback(handle.remove)
        for index in range(-warmup, repeats):
            for side in (0, 1) if index % 2 else (1, 0):
                begun = {name: len(times) for name, times in layers[side].items()}
                elapsed = _elapsed(sides[side], inputs, clock)
                for name, times in layers[side].items():  # a layer may run several times
                    times[begun[name]:] = [sum(times[begun[name]:])] if index >= 0 else []
                totals[side] += [elapsed] if index >= 0 else []
    return LayerTiming({name: tuple(statistics.median(side[name]) for side in layers)
                        for name in names},
                       tuple(map(statistics.median, totals)), macs[1] / macs[0])


def _stopwatch(layer: nn.Module, seconds: List[float], clock: Callable[[], float]) -> List[Any]:
    """Hooks that append the seconds of every call."""
    started: List[float] = []

    def start(_: nn.Module, inputs: Tuple) -> None:
        _synchronize(inputs[0])
        started.append(clock())

    def stop(_: nn.Module, inputs: Tuple, out: Any) -> None:
        _synchronize(inputs[0])
        seconds.append(clock() - started.pop())

    return [layer.register_forward_pre_hook(start), layer.register_forward_hook(stop)]


@contextlib.contextmanager
def _inference(device: torch.device, amp: Optional[str]) -> Iterator[None]:
    with torch.no_grad():
        if amp is None:
            yield
        else:
            with torch.autocast(device.type, AMP_DTYPES[amp]):
                yield


def _elapsed(call: Callable, inputs: Tensor, clock: Callable[[], float]) -> float:
    _synchronize(inputs)
    start = clock()
    call(inputs)
    _synchronize(inputs)
    return clock() - start


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def scatter_gates(supernet: nn.Module, seed: int = 0) -> None:
    """Set the gates so that every site keeps the same share, of channels at random.

    Slimmed to a target, the supernet then gives a subnet with one keep ratio
    everywhere whose kept channels lie scattered, as those of a search do. Gates
    with options are left alone: which units they keep is random as they are made.

    Args:
        supernet (nn.Module): With gates that have learned nothing; changed in
            place.
        seed (int): Of the choice. Defaults to 0.
    """
    generator = torch.Generator().manual_seed(seed)
    for gate in find_backbone(supernet).gates().values():
        if gate.options() is None:
            ranks = torch.randperm(gate.total, generator=generator)
            gate.alpha.data.copy_(1 - (ranks + 0.5) / gate.total)


def keep_share(structure: Structure) -> float:
    """Share of the units kept, over all sites."""
    return sum(structure.sizes().values()) / sum(s.total for s in structure.sites.values())
