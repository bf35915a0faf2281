"""Dependence of a head's attention on the image (drop-in depthwise convolution, 3.3.1).

The score of a head is the standard deviation over images of every entry of its attention map,
summed over the entries. It is small if the head attends to the same places in every image.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import all_gather_object, all_reduce, get_comm_device
from torch import Tensor, nn

from mmkcr.core.forward import stop_after
from mmkcr.evaluation.features import preserve_state
from mmkcr.models.layers.operator_attention import TokenGrid
from mmkcr.models.tasks import find_task, unwrap
from mmkcr.visualization import show_progress

REDUCTIONS = ('sum', 'mean', 'relative')


class RunningMoments:
    """Mean and squared deviations of a stream of tensors of one shape, in fp64 (Welford, Chan).

    Memory is that of two such tensors, whatever the length of the stream.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self.deviations: Tensor | None = None

    def update(self, value: Tensor) -> None:
        """Take in one more tensor.

        Raises:
            ValueError: It has another shape than those before.
        """
        if self.mean is None:
            self.mean = torch.zeros_like(value, dtype=torch.float64)
            self.deviations = torch.zeros_like(self.mean)
        if value.shape != self.mean.shape:
            raise ValueError(f'expected a tensor of shape {tuple(self.mean.shape)} as before, '
                             f'found {tuple(value.shape)}')
        self.count += 1
        # Welford: M2 += delta^2 (n - 1) / n, with the delta from the mean before
        delta = value.double() - self.mean
        self.mean.add_(delta, alpha=1 / self.count)
        self.deviations.addcmul_(delta, delta, value=(self.count - 1) / self.count)

    def reduce(self) -> 'RunningMoments':
        """Merge with the other processes, in place; every rank has the result.

        A rank may have no tensor.
        """
        shapes = all_gather_object(None if self.mean is None else self.mean.shape)
        shape = next((shape for shape in shapes if shape is not None), None)
        if shape is None:
            return self
        if self.mean is None:
            self.mean = torch.zeros(shape, dtype=torch.float64, device=get_comm_device())
            self.deviations = torch.zeros_like(self.mean)
        count = torch.tensor([float(self.count)], dtype=torch.float64, device=self.mean.device)
        own_mean, own_count = self.mean, self.count
        all_reduce(count)
        total = own_mean * own_count
        all_reduce(total)
        self.mean, self.count = total / count, int(count)
        # Chan: deviations about the common mean simply add up
        self.deviations = self.deviations + own_count * (own_mean - self.mean).square()
        all_reduce(self.deviations)
        return self

    def std(self) -> Tensor:
        """Unbiased standard deviation of every entry.

        Raises:
            ValueError: Fewer than two tensors.
        """
        if self.count < 2:
            raise ValueError(f'expected at least two images for a standard deviation, found '
                             f'{self.count}')
        return (self.deviations / (self.count - 1)).clamp_min(0).sqrt()


def attention_map(attn: nn.Module, tokens: Tensor) -> Tensor:
    """Post-softmax attention of one image.

    Args:
        attn (MultiheadAttention): mmpretrain's.
        tokens (Tensor): Its input for the image, shape (N, D).

    Returns:
        Tensor: Shape (H, N, N).
    """
    # (N, 3 H d) -> (N, 2, H, d) -> (2, H, N, d)
    q, k = F.linear(tokens, attn.qkv.weight, attn.qkv.bias).unflatten(
        1, (3, attn.num_heads, attn.head_dims))[:, :2].permute(1, 2, 0, 3)
    return torch.softmax(q @ k.transpose(1, 2) * attn.head_dims**-0.5, -1)


class HeadStatistics:
    """Moments of the attention maps of some layers while a model runs.

    All maps must share one token grid: 4 x 8 and 8 x 4 patches give maps of one shape whose entries
    are different pairs of positions.

    Args:
        attentions (Mapping[str, MultiheadAttention]): Layers by name.
        grid (TokenGrid): Grid of the backbone: the layout of the running batch's tokens.
        expected (tuple[int, int], optional): The required grid; maps on others are skipped, and
            their images counted in ``others``. Defaults to None: the first grid, and any other is
            an error.

    Examples:
        >>> layers = {'layers.0.attn': backbone.layers[0].attn}
        >>> with HeadStatistics(layers, grid) as statistics:
        ...     backbone(images)
        >>> statistics.scores()['layers.0.attn']  # (H,)
    """

    def __init__(self, attentions: Mapping[str, nn.Module], grid: TokenGrid,
                 expected: tuple[int, int] | None = None) -> None:
        self.attentions, self.grid = attentions, grid
        self.hw, self._strict = expected, expected is None
        self.others = 0
        self.moments = {name: RunningMoments() for name in attentions}

    def __enter__(self) -> 'HeadStatistics':
        self._stack = ExitStack()
        for name, module in self.attentions.items():
            self._stack.callback(module.register_forward_pre_hook(self._hook(name)).remove)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def _hook(self, name: str) -> Callable:
        @torch.no_grad()
        def watch(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if self._counts(name, len(inputs[0])):
                for tokens in inputs[0]:  # one map at a time, whatever the batch
                    self.moments[name].update(attention_map(module, tokens))

        return watch

    def _counts(self, name: str, images: int) -> bool:
        """Whether the running batch has the required grid."""
        found = tuple(self.grid.hw)
        self.hw = found if self.hw is None else self.hw
        if found == self.hw:
            return True
        if self._strict:
            raise ValueError('expected images with one token grid to score heads on, found '
                             f'{found[0]} x {found[1]} patches after {self.hw[0]} x {self.hw[1]}')
        self.others += images if name == next(iter(self.attentions)) else 0
        return False

    def reduce(self) -> 'HeadStatistics':
        """Merge with the other processes; see :meth:`RunningMoments.reduce`.

        Raises:
            ValueError: Ranks have seen different grids.
        """
        grids = sorted({hw for hw in all_gather_object(self.hw) if hw is not None})
        if len(grids) > 1:
            raise ValueError('expected images with one token grid on all ranks to score heads on, '
                             f'found {" and ".join(f"{h} x {w}" for h, w in grids)} patches')
        for moments in self.moments.values():
            moments.reduce()
        return self

    def scores(self, reduction: str = 'sum') -> dict[str, Tensor]:
        """Score of every head, by layer.

        Args:
            reduction (str): How a map's entries are combined: ``'sum'``, as in the paper;
                ``'mean'``, comparable across image sizes; or ``'relative'``, the sum over the sum
                of the mean map, which is N. Defaults to ``'sum'``.

        Returns:
            dict[str, Tensor]: Shape (H,), fp64.

        Raises:
            ValueError: Another reduction, no image with the grid, or maps that are not finite.
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f'expected a reduction among {REDUCTIONS}, found {reduction!r}')
        scores = {}
        for name, moments in self.moments.items():
            if moments.mean is None:
                raise ValueError(f'expected images with a token grid of {self.hw} to score heads '
                                 f'on, found {self.others} others')
            sums = moments.std().sum((1, 2))
            over = dict(sum=1., mean=float(moments.mean[0].numel()), relative=moments.mean.sum(
                (1, 2)))[reduction]
            scores[name] = (sums / over).cpu()
            if not torch.isfinite(scores[name]).all():
                raise ValueError(f'expected attention maps that are finite, found others in '
                                 f'`{name}`: its scores are {scores[name].tolist()}')
        return scores


@torch.no_grad()
def head_scores(model: nn.Module, sites: Mapping[str, Any], batches: Iterable[Any],
                reduction: str = 'sum', distributed: bool = False,
                memory: int = 2 * 2**30) -> dict[str, Tensor]:
    """Run a model over a data set as it is deployed, and score its heads.

    A segmentor with a sliding window is scored on all its windows of full size (an image smaller
    than the window is skipped), a classifier on its crops. The moments of a
    block take 16 H N^2 bytes (16 heads and 1813 tokens: 841 MB). The data set is processed in as
    many passes as it takes to hold no more than ``memory``, at least one block at a time.

    Args:
        model (BaseModel): A task model, dense.
        sites (Mapping[str, HeadOperatorSite]): Sites of its backbone, by name.
        batches (Iterable): As the model's data preprocessor takes them; this rank's share, the
            same in every pass.
        reduction (str): See :meth:`HeadStatistics.scores`. Defaults to ``'sum'``.
        distributed (bool): Merge the ranks. Defaults to False.
        memory (int): Maximum bytes of moments. Defaults to 2 GiB.

    Returns:
        dict[str, Tensor]: Shape (H,) by site, fp64.

    Raises:
        ValueError: Images with other token grids, or fewer than two.
    """
    model, scores = unwrap(model), {}
    rest = {name: site.owner for name, site in sites.items()}
    some = next(iter(sites.values()))
    first, window = some.owner, window_grid(model, some.host)
    with preserve_state(model):
        # tokens decide the size of the moments, so the first batch is run to count them
        sizes: list[int] = []
        with ExitStack() as stack:
            stack.callback(first.register_forward_pre_hook(
                lambda _, inputs: sizes.append(inputs[0].shape[1])).remove)
            stack.enter_context(stop_after(first))
            model.test_step(next(iter(batches)))
        block = 16 * first.num_heads * sizes[0]**2  # mean and deviations, fp64
        # blocks of one pass over the data
        together = max(1, int(memory // block))
        while rest:
            part = dict(list(rest.items())[:together])
            with HeadStatistics(part, some.grid, window) as statistics:
                for batch in show_progress(batches, 'Head scores'):
                    model.test_step(batch)
            scores.update((statistics.reduce() if distributed else statistics).scores(reduction))
            rest = {name: layer for name, layer in rest.items() if name not in part}
    return scores


def window_grid(model: nn.Module, backbone: nn.Module) -> tuple[int, int] | None:
    """Patches of a segmentor's sliding window, or None for models without one."""
    test_cfg = getattr(find_task(model), 'test_cfg', None) or {}
    if test_cfg.get('mode') != 'slide':
        return None
    weight = backbone.patch_embed.projection.weight  # (D, C, kernel, kernel)
    window = weight.new_zeros(1, weight.shape[1], *test_cfg['crop_size'])
    # by the embedding itself, which may pad the window to whole patches
    return tuple(backbone.patch_embed(window)[1])
