"""Widths of an MLP: its hidden layer (Once for Both, section 3), and its channels (KCR, 3.1)."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.core import Axis, Cost, MaskPoint, Unsupported
from mmkcr.core.axes import along_inputs, along_outputs
from mmkcr.models.adapters import mlp_views
from mmkcr.models.adapters.views import keeps_zero
from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.selection import Put, Take
from .base import HostSite, channel_dim


class MLPHidden(HostSite):
    """A unit is a hidden unit of an MLP: a row of each input projection, a column of the output.

    The mask acts before the activation if a 0 there is a 0 behind it: without gating, without a
    convolution between, and with activations that map 0 to 0 (those that are modules; one that is a
    function is taken to do so). Otherwise it acts on the input of the output projection. A layer
    norm over the hidden layer uses the statistics of the kept units.
    """

    kind = 'mlp_hidden'
    views = staticmethod(mlp_views)
    #: How often the units occur in the outputs of an input projection: 2 with a gate in it.
    parts: int
    #: Path of the module whose output is masked; '' for the input of the output projection.
    masked: str = ''

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'MLPHidden':
        """The hidden layer of an MLP."""
        norm = host.get_submodule(view.hidden_norm) if view.hidden_norm else None
        if norm is not None and not isinstance(norm, nn.LayerNorm):
            raise Unsupported(f'the statistics of `{type(norm).__name__}` over part of the '
                              f'hidden channels are not defined at `{view.path}`')
        output, first = map(host.get_submodule, (view.output, view.inputs[0]))
        site = cls(host, view, view.path, output.weight.shape[1])
        site.parts = len(first.weight) // site.total
        # what computes by itself, and does not only contain others; selections of ours are inside
        computing = [part for part in host.get_submodule(view.path).modules()
                     if (part._parameters or not part._modules)
                     and not type(part).__module__.startswith('mmkcr.')]
        normed = [path for path in view.between
                  if isinstance(host.get_submodule(path), _BatchNorm)]
        if not view.hidden_norm and site.parts == len(view.inputs) == 1 and \
                len(view.between) == len(normed) and all(map(keeps_zero, computing)):
            site.masked = (normed or view.inputs)[-1]
        return site

    def axes(self) -> list[Axis]:
        view, axes = self.view, []
        for path in view.inputs:
            axes += along_outputs(self.module(path), path == self.masked, repeats=self.parts)
        for path in (*view.between, *(path for path, _ in self.norms())):
            axes += along_outputs(self.module(path), path == self.masked)
        return [*axes, along_inputs(self.module(view.output), not self.masked)]

    def norms(self) -> list[tuple[str, int]]:
        """The norm over the hidden layer, if there is one."""
        return [(self.view.hidden_norm, 1)] if self.view.hidden_norm else []

    def resized(self, kept: Tensor) -> None:
        """Update the host's own record of the width."""
        if self.view.width:
            setattr(self.module(self.view.path), self.view.width, len(kept))


class MLPChannels(HostSite):
    r"""A unit is a channel of the residual stream: :math:`y = x + g \odot MLP(g \odot LN(x))`.

    The norm sees all channels, and the hidden width stays. A subnet takes the kept channels out of
    the norm's output and puts the MLP's output back at their positions. So the MLP itself consists
    of ordinary, narrower layers.
    """

    kind = 'mlp_channels'
    views = staticmethod(mlp_views)

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'MLPChannels':
        """The channels of an MLP."""
        if view.why_no_channels or not (view.norm and view.after):
            reason = view.why_no_channels or 'nothing stands behind its last layer'
            raise Unsupported(f'{reason} at `{view.path}`')
        norm, total = host.get_submodule(view.norm), len(host.get_submodule(view.output).weight)
        if not isinstance(norm, (nn.LayerNorm, nn.Identity, Take)):
            raise Unsupported(f'the statistics of `{type(norm).__name__}` over part of the '
                              f'channels are not defined at `{view.path}`')
        return cls(host, view, view.path, total)

    def axes(self) -> list[Axis]:
        view = self.view
        # a scale folds into what reads the channels, and into what writes them last
        norms = [path for path in view.scales if isinstance(self.module(path), _BatchNorm)]
        written = [(view.output, not norms), *((path, path in norms) for path in view.scales),
                   (view.norm, False)]
        return [*(along_inputs(self.module(path), True) for path in view.inputs),
                *(axis for path, folds in written
                  for axis in along_outputs(self.module(path), folds))]

    @property
    def _dim(self) -> int:
        """Channel dimension of the stream: -1 for tokens, -3 for maps."""
        return -3 if isinstance(self.module(self.view.norm), (nn.Identity, Take)) else -1

    def mask_points(self) -> list[MaskPoint]:
        layers = map(self.module, self.view.inputs)
        inputs = [MaskPoint(layer, 'input', channel_dim(layer)) for layer in layers]
        return [*inputs, MaskPoint(self.module(self.view.after), 'input', self._dim)]

    def resized(self, kept: Tensor) -> None:
        """Let the MLP read and write only the kept channels."""
        norm, dim = self.module(self.view.norm), self._dim
        if isinstance(norm, nn.LayerNorm):
            norm.normalized_shape = (self.total, )  # slicing set it to the kept width
            selected = SlicedLayerNorm.convert_from(norm, kept)
        else:
            selected = Take(kept, self.total, dim)
        self.exchange(self.view.norm, selected)
        after = self.module(self.view.after)
        # a second slicing replaces the `Put` of the first one
        inside = after[0] if isinstance(after, nn.Sequential) else after
        self.exchange(self.view.after, nn.Sequential(inside, Put(kept, self.total, dim)))

    def lost_outputs(self) -> tuple[str, ...]:
        """The output projection: its dropped channels are missing in the stream."""
        return (self.view.output, )

    def paper_cost(self, size: Cost, input_shape: Sequence[int]) -> Cost:
        """``l (2 size^2 + size)`` with l = 2 layers (KCR, section 3.3).

        In MobileViT the term ``(1 + size) H W C'`` of DCS, section 3.4, is added, where C' are the
        filters of the convolution behind the transformer.
        """
        cost = 2 * (2 * size * size + size)
        stage = self.view.path.partition('.global_rep.')
        if stage[1]:
            filters = self.module(f'{stage[0]}.conv_proj.conv').out_channels
            cost = cost + (1 + size) * math.prod(input_shape[:-1]) * filters
        return cost
