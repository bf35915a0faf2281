"""How much a head's attention depends on the image (drop-in depthwise convolution, 3.3.1).

The score of a head is the standard deviation over images of every entry of its attention map,
summed over the entries: small where the head looks at the same places whatever the image. Not
imported by the package's ``__init__``, as :mod:`mmkcr.evaluation.features`.
"""

from contextlib import ExitStack
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmkcr.models.wrappers.feature_tap import unwrap
from .features import undisturbed

REDUCTIONS = ('sum', 'mean', 'relative')


class RunningMoments:
    """Mean and squared deviations of a stream of tensors of one shape, in fp64 (Welford, Chan).

    Memory is that of two such tensors, whatever the length of the stream.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Optional[Tensor] = None
        self.deviations: Optional[Tensor] = None

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
        delta = value.double() - self.mean
        self.mean.add_(delta, alpha=1 / self.count)
        self.deviations.addcmul_(delta, delta, value=(self.count - 1) / self.count)

    def reduce(self) -> 'RunningMoments':
        """Merge with the other processes, in place; every rank has the result.

        Every rank needs at least one tensor.
        """
        count = torch.tensor([float(self.count)], dtype=torch.float64, device=self.mean.device)
        own_mean, own_count = self.mean, self.count
        all_reduce(count)
        total = own_mean * own_count
        all_reduce(total)
        self.mean, self.count = total / count, int(count)
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
    q, k = F.linear(tokens, attn.qkv.weight, attn.qkv.bias).unflatten(
        1, (3, attn.num_heads, attn.head_dims))[:, :2].permute(1, 2, 0, 3)
    return torch.softmax(q @ k.transpose(1, 2) * attn.head_dims**-0.5, -1)


class HeadStatistics:
    """Moments of the attention maps of some layers while a model runs.

    Args:
        attentions (Mapping[str, MultiheadAttention]): By name.

    Example:
        >>> with HeadStatistics({'layers.0.attn': backbone.layers[0].attn}) as statistics:
        ...     backbone(images)
        >>> statistics.scores()['layers.0.attn']  # (H,)
    """

    def __init__(self, attentions: Mapping[str, nn.Module]) -> None:
        self.attentions = attentions
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
        def watch(module: nn.Module, inputs: Tuple[Tensor, ...]) -> None:
            for tokens in inputs[0]:  # one map at a time, whatever the batch
                self.moments[name].update(attention_map(module, tokens))

        return watch

    def reduce(self) -> 'HeadStatistics':
        """Merge with the other processes; see :meth:`RunningMoments.reduce`."""
        for moments in self.moments.values():
            moments.reduce()
        return self

    def scores(self, reduction: str = 'sum') -> Dict[str, Tensor]:
        """Score of every head, by layer.

        Args:
            reduction (str): Over the entries of a map: ``'sum'``, the paper's; ``'mean'``, which
                can be compared across image sizes; or ``'relative'``, the sum over the sum of the
                mean map, which is N. Defaults to ``'sum'``.

        Returns:
            dict[str, Tensor]: Shape (H,), fp64.

        Raises:
            ValueError: Another reduction.
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f'expected a reduction among {REDUCTIONS}, found {reduction!r}')
        scores = {}
        for name, moments in self.moments.items():
            sums = moments.std().sum((1, 2))
            over = dict(sum=1., mean=float(moments.mean[0].numel()), relative=moments.mean.sum(
                (1, 2)))[reduction]
            scores[name] = (sums / over).cpu()
        return scores


@torch.no_grad()
def head_statistics(model: nn.Module, attentions: Mapping[str, nn.Module],
                    batches: Iterable[Any], distributed: bool = False) -> HeadStatistics:
    """Run a model over a data set and collect the moments of its attention.

    Args:
        model (BaseModel): A task model, dense.
        attentions (Mapping[str, MultiheadAttention]): Its attention layers.
        batches (Iterable): As the model's data preprocessor takes them; a rank's share. All
            images have one size.
        distributed (bool): Merge the ranks. Defaults to False.

    Returns:
        HeadStatistics: Over all images.
    """
    model = unwrap(model)
    with undisturbed(model), HeadStatistics(attentions) as statistics:
        for batch in batches:
            data = model.data_preprocessor(batch, False)
            model.extract_feat(data['inputs'])
    return statistics.reduce() if distributed else statistics
