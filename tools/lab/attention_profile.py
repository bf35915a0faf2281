"""The profile of one attention block, and whole ViTs with some blocks replaced."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmkcr.core import count_forward_macs, count_params
from mmkcr.deploy.latency import AMP_DTYPES, torch_call
from mmkcr.models import DWConvVisionTransformer
from mmkcr.models.layers.operator_attention import OperatorAttention, TokenGrid
from .model_zoo import uninitialized

Clock = Callable[[], float]
#: Width and heads of the sizes.
SIZES = dict(small=(384, 6), base=(768, 12), large=(1024, 16))
MODES = ('mhsa', 'mhsa-naive', 'conv', 'dwconv', 'spvit', 'ensembled-dwconv')
#: Replaced in this order: the paper's choice for DINOv2 ViT-L, then the other blocks.
ORDERS = dict(large=(8, 6, 4, 9, 7, 5, 10, 1, 3, 11, 13, 12, 2, 14, 15, 16))


class PeakMemory(TorchDispatchMode):
    """Largest sum of the tensors that live at once and were made inside, in bytes.

    The same on every device: what an allocator keeps beside them does not count, nor does the
    workspace inside one operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._live = 0, {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        """Run the operator and look at what it made."""
        inputs = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs or {}))
                  if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in inputs:
                storage = leaf.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._live = {key: value for key, value in self._live.items() if not value[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


def stored_attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.) -> Tensor:
    """Attention that stores its map, as before fused kernels."""
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1]**-0.5, -1) @ v


def attention_block(mode: str, size: str, hw: Sequence[int]) -> nn.Module:
    """One attention block, with random weights, as it is deployed.

    Args:
        mode (str): Among :data:`MODES`.
        size (str): Among :data:`SIZES`.
        hw (Sequence[int]): Token grid.

    Raises:
        ValueError: Another mode or size.
    """
    if mode not in MODES or size not in SIZES:
        raise ValueError(f'expected a mode among {MODES} and a size among {tuple(SIZES)}, found '
                         f'{mode!r} and {size!r}')
    from mmpretrain.models.utils import MultiheadAttention  # behind the operators that it needs
    attn = MultiheadAttention(*SIZES[size]).train(False)
    if mode == 'mhsa-naive':
        attn.scaled_dot_product_attention = stored_attention
    if mode.startswith('mhsa'):
        return attn
    return OperatorAttention(attn, [], mode, TokenGrid(0, tuple(hw)))


@torch.no_grad()
def profile_block(mode: str, size: str, hw: Sequence[int], batch_size: int = 1,
                  device: str = 'cpu', dtype: str | None = None, runtime: str = 'eager',
                  repeats: int = 10, warmup: int = 3,
                  clock: Clock = time.perf_counter) -> dict[str, Any]:
    """MACs, parameters, latency and memory of one block.

    Args:
        mode (str): See :func:`attention_block`.
        size (str): As there.
        hw (Sequence[int]): As there.
        batch_size (int): Images. Defaults to 1.
        device (str): Defaults to ``'cpu'``.
        dtype (str, optional): ``'fp16'`` or ``'bf16'`` weights and tokens. Defaults to fp32.
        runtime (str): ``'eager'`` or ``'compiled'``. Defaults to ``'eager'``.
        repeats (int): Timed calls. Defaults to 10.
        warmup (int): Calls before. Defaults to 3.
        clock (Callable): Seconds. Defaults to the wall clock.

    Returns:
        dict: ``macs`` of one image, ``params`` (of training: ensembles hold all heads),
        ``seconds`` (median), ``samples`` and ``memory``, see :class:`PeakMemory`.
    """
    kind = AMP_DTYPES[dtype] if dtype else torch.float32
    module = attention_block(mode, size, hw)
    one = torch.zeros(1, hw[0] * hw[1], SIZES[size][0])
    macs = count_forward_macs(module, lambda: module(one)).total
    params = count_params(module)
    module = module.to(device, kind)
    if isinstance(module, OperatorAttention):
        module.fold()
    tokens = torch.randn(batch_size, hw[0] * hw[1], SIZES[size][0], device=device).to(kind)
    with PeakMemory() as memory:
        module(tokens)
    call, samples = torch_call(module, tokens, runtime), []
    for _ in range(warmup + repeats):
        start = clock()
        call()
        samples.append(clock() - start)
    samples = samples[warmup:]
    return dict(mode=mode, size=size, tokens=hw[0] * hw[1], macs=macs, params=params,
                memory=memory.peak, seconds=statistics.median(samples), samples=samples)


def replaced_blocks(size: str, depth: int, share: float) -> list[int]:
    """Blocks to replace: the paper's for ViT-L, spread like them over the first two thirds else."""
    count = round(share * depth)
    if size in ORDERS and depth > max(ORDERS[size]) + 1:
        return sorted(ORDERS[size][:count])
    return list(range(1, depth - 1))[:count]


def replaced_pair(size: str, share: float, image: int = 336, patch_size: int = 14,
                  depth: int | None = None) -> tuple[nn.Module, nn.Module]:
    """A dense ViT, and the same with a share of its blocks replaced, with random weights.

    Args:
        size (str): ``'base'`` or ``'large'``.
        share (float): Of the blocks.
        image (int): Height and width. Defaults to 336.
        patch_size (int): Defaults to 14.
        depth (int, optional): Blocks. Defaults to those of the size.
    """
    arch = dict(DWConvVisionTransformer.arch_zoo[size])
    arguments = dict(arch=dict(arch, num_layers=depth or arch['num_layers']), img_size=image,
                     patch_size=patch_size, with_cls_token=False, out_type='featmap')
    with uninitialized():
        dense, slim = (DWConvVisionTransformer(**arguments) for _ in range(2))
    for parameter in (*dense.parameters(), *slim.parameters()):
        nn.init.normal_(parameter, std=0.02)
    blocks = replaced_blocks(size, len(slim.layers), share)
    heads = SIZES[size][1]
    slim.search_space.slice_to(slim.search_space.structure_for({
        site: torch.arange(0 if index in blocks else heads)
        for index, site in enumerate(slim.search_space.sites)}))
    for module in slim.modules():
        if isinstance(module, OperatorAttention):
            module.train(False).fold()
    return dense, slim
