"""Width of the residual stream (Once for Both, section 3)."""

from typing import Any

from torch import Tensor, nn

from mmkcr.core import Axis, MaskPoint
from mmkcr.core.axes import along_inputs, along_outputs
from mmkcr.models.adapters import stream_views
from mmkcr.models.layers.selection import put
from .base import HostSite


class Embedding(HostSite):
    """A unit is a channel of a residual stream, in all layers that write it or read it.

    The mask multiplies the embeddings that start the stream. Features that leave the host keep the
    dense width, with 0 at dropped channels. So heads and necks stay those of the dense model.
    """

    kind = 'embedding'
    views = staticmethod(stream_views)

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'Embedding':
        """The width of a stream."""
        return cls(host, view, view.path, view.total)

    def axes(self) -> list[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        view = self.view
        axes = [Axis(self.host, name, 2, True) for name in view.tokens]
        for path in (*view.writers, *view.scales):
            axes += along_outputs(self.module(path), path in view.folds)
        for path, inner in view.norms:
            axes += along_outputs(self.module(path), path in view.folds, inner=inner)
        return axes + [along_inputs(self.module(path), inner=inner)
                       for path, inner in view.readers]

    def mask_points(self) -> list[MaskPoint]:
        """See :class:`~mmkcr.core.Site`."""
        return [MaskPoint(self.module(path), 'output', dim) for path, dim in self.view.masked]

    def norms(self) -> tuple[tuple[str, int], ...]:
        """Norms over the stream."""
        return self.view.norms

    def resized(self, kept: Tensor) -> None:
        """Update the host's own record of the width."""
        if self.view.resize is not None:
            self.view.resize(self.host, len(kept))

    def widened(self, outputs: Any) -> Any:
        """See :class:`~mmkcr.models.sites.base.HostSite`."""
        if isinstance(outputs, Tensor):
            return self.widened((outputs, ))[0]
        return type(outputs)(
            self.widen(out, 1 if out.ndim == 4 else -1) if place in self.view.places else out
            for place, out in enumerate(outputs))

    def widen(self, x: Tensor, dim: int = -1) -> Tensor:
        """Put the channels of the stream at their positions in the dense width, 0 elsewhere.

        Args:
            x (Tensor): Has the present channels along ``dim``.
            dim (int): Dimension of the channels. Defaults to -1.
        """
        kept, support = self.kept, None if self.gate is None else self.gate.support()
        if support is not None:  # channels that no option keeps leave as 0, as after slicing
            shape = [1] * x.ndim
            shape[dim] = -1
            x = x * (support > 0).to(x.dtype).view(shape)
        if kept is None or len(kept) == self.total:
            return x
        return put(x, kept.to(x.device), self.total, dim)
