"""What the masks of queries and keys select: openness, constants, and the network without them.

Not imported by the package's ``__init__``, as :mod:`mmkcr.evaluation.features`.
"""

import statistics
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import torch
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmkcr.models.gates import QKMask
from mmkcr.models.losses.mask_price import channels_last, foldable_macs, layer_name
from mmkcr.models.sites.qk_mask import QKMaskSite
from mmkcr.models.utils import unwrap


class MaskStatistics(NamedTuple):
    """A mask over a data set, without noise.

    Args:
        open (float): Share of entries, over positions, images and channels, that are 1.
        always (float): Share of channels that are 1 for every position of every image.
        never (float): Share of channels that are 0 likewise.
        foldable (float): MACs of one sequence that folding the constant channels saves: all of a
            channel that is never open, the mask's row of one that always is. It is reached where
            all heads have as many channels that are never open, and no mask of low rank or for
            all heads; a fold counts exactly, see :func:`mmkcr.apis.fold_masks`.
    """

    open: float
    always: float
    never: float
    foldable: float


def has_masks(model: nn.Module) -> bool:
    """Whether a model, also in a wrapper, has masks on queries and keys."""
    return any(isinstance(module, QKMask) for module in unwrap(model).modules())


def find_masks(model: nn.Module) -> Mapping[str, QKMask]:
    """The masks of a model by module path.

    Args:
        model (nn.Module): Any, also in a wrapper.

    Raises:
        ValueError: It has none.
    """
    masks = QKMaskSite.masks(unwrap(model))
    if not masks:
        raise ValueError('expected a model with masks on queries and keys, found '
                         f'`{type(unwrap(model)).__name__}` without')
    return masks


@contextmanager
def masks_held_open(model: nn.Module) -> Iterator[None]:
    """Within the block all masks are 1: the control of what they do."""
    masks = find_masks(model).values()
    before = [mask.held_open for mask in masks]
    try:
        for mask in masks:
            mask.held_open = True
        yield
    finally:
        for mask, held_open in zip(masks, before):
            mask.held_open = held_open


class MaskWatch:
    """Counts what masks select in the forward passes of a block.

    ::

        with MaskWatch(model) as watch:
            for batch in loader:
                model.test_step(batch)
        watch.statistics()

    Args:
        model (nn.Module): With masks, also in a wrapper.

    Raises:
        ValueError: It has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.masks = find_masks(model)
        self._opened: Dict[str, Tensor] = {}  # open positions by channel
        self._positions: Dict[str, int] = {}
        self._macs: Dict[str, Tuple[float, float]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> 'MaskWatch':
        for name, mask in self.masks.items():
            self._stack.callback(mask.register_forward_hook(self._recorder(name)).remove)
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def _recorder(self, name: str) -> Callable[[QKMask, tuple, Tensor], None]:
        def record(mask: QKMask, args: tuple, theta: Tensor) -> None:
            values = channels_last(mask, theta.detach()) > 0
            self._opened[name] = self._opened.get(name, 0) + values.sum(0)
            self._positions[name] = self._positions.get(name, 0) + len(values)
            self._macs[name] = foldable_macs(mask, args[0])

        return record

    def statistics(self) -> Dict[str, MaskStatistics]:
        """Of every mask that was called, over all processes."""
        return {name: self._of(name) for name in self.masks if name in self._opened}

    def _openness(self, name: str) -> Tensor:
        """Share of positions that are open, by channel, over all processes."""
        counts = torch.cat([self._opened[name].double().flatten(),
                            self._opened[name].new_tensor([self._positions[name]]).double()])
        all_reduce(counts)
        return counts[:-1] / counts[-1]

    def constants(self) -> Dict[str, Tuple[List[int], List[int]]]:
        """Rows of every called mask's linear layer that were always open, and that never were."""
        found = {}
        for name in self._opened:
            mask, openness = self.masks[name], self._openness(name)
            # one row for all heads, of queries and keys or of each
            rows = openness.view(-1, mask.repeats, mask.channels // mask.repeats)[:, 0].flatten()
            found[name] = tuple((rows == value).nonzero().flatten().tolist() for value in (1, 0))
        return found

    def _of(self, name: str) -> MaskStatistics:
        openness = self._openness(name)
        always, never = (float((openness == value).double().mean()) for value in (1, 0))
        shut, rows = self._macs[name]
        return MaskStatistics(float(openness.mean()), always, never,
                              never * shut + always * rows)

    def table(self) -> Dict[str, Dict[str, float]]:
        """``open``, ``always`` and ``never`` in percent by layer, named as in the backbone."""
        return {layer_name(name): {key: 100 * getattr(mask, key)
                                   for key in ('open', 'always', 'never')}
                for name, mask in self.statistics().items()}

    def means(self) -> Mapping[str, float]:
        """``open``, ``always`` and ``never`` in percent, means over the masks."""
        found = list(self.statistics().values())
        return {key: 100 * statistics.fmean(getattr(mask, key) for mask in found)
                for key in ('open', 'always', 'never')}


class NormWatch:
    """Finds the layer norms whose output a mask reads, in the forward passes of a block.

    Behind a layer norm the mask's logits are bounded, so that constants can be proved.

    Args:
        model (nn.Module): With masks, also in a wrapper.

    Raises:
        ValueError: It has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.masks = find_masks(model)
        self.norms: Dict[str, nn.LayerNorm] = {}
        self._all = [module for module in unwrap(model).modules() if type(module) is nn.LayerNorm]
        self._last: Tuple[Any, Any] = (None, None)  # a norm and its output
        self._stack = ExitStack()

    def __enter__(self) -> 'NormWatch':
        for norm in self._all:
            self._stack.callback(norm.register_forward_hook(self._remember).remove)
        for name, mask in self.masks.items():
            self._stack.callback(mask.register_forward_pre_hook(self._recorder(name)).remove)
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()
        self._last = (None, None)

    def _remember(self, norm: nn.Module, _: tuple, out: Tensor) -> None:
        self._last = (norm, out)

    def _recorder(self, name: str) -> Callable[[QKMask, tuple], None]:
        def record(_: QKMask, args: tuple) -> None:
            norm, out = self._last
            if out is args[0]:  # the very tensor: nothing lies between
                self.norms[name] = norm

        return record

    def constants(self) -> Dict[str, Tuple[List[int], List[int]]]:
        """Rows of every mask that are open, and that are shut, for any image, by their bounds."""
        none: Tuple[List[int], List[int]] = ([], [])
        return {name: proved_rows(mask, self.norms[name]) if name in self.norms else none
                for name, mask in self.masks.items()}


@torch.no_grad()
def proved_rows(mask: QKMask, norm: nn.LayerNorm,
                margin: float = 1e-4) -> Tuple[List[int], List[int]]:
    r"""Rows of a mask behind a layer norm that are open, or shut, whatever the input is.

    The norm gives :math:`g \odot \hat x + \beta`, where the C entries of :math:`\hat x` sum to 0
    and their norm is at most :math:`\sqrt C`. So with :math:`u = w \odot g` less its mean, a
    logit :math:`w x + b` is within :math:`w \beta + b \pm \sqrt C |u|`.

    Args:
        mask (QKMask): Not folded.
        norm (nn.LayerNorm): What the mask reads the output of.
        margin (float): Share of the terms' magnitude that rounding may take. Defaults to 1e-4,
            for fp32.

    Returns:
        tuple[list[int], list[int]]: Rows that are always open, and rows that are always shut.
    """
    weight = (mask.weight if mask.down is None else mask.weight @ mask.down).double()
    ones = weight.new_ones(weight.shape[1])
    scale = ones if norm.weight is None else norm.weight.double()
    shift = 0 * ones if norm.bias is None else norm.bias.double()
    spread = weight * scale
    radius = (spread - spread.mean(1, keepdim=True)).norm(dim=1) * len(ones)**.5
    centre, bias = weight @ shift, mask.bias.double()
    reach = radius + margin * (spread.norm(dim=1) * len(ones)**.5
                               + weight.abs() @ shift.abs() + bias.abs())
    centre = centre + bias
    return tuple(rows.nonzero().flatten().tolist() for rows in (centre > reach, centre < -reach))
