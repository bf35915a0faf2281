"""A search whose features are kept rich by masked image modelling (OFB, section 3.4)."""

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Optional

import torch
from mmengine.dist import all_reduce
from torch import Tensor

from mmkcr.core import Axis
from mmkcr.models.utils import find_backbone, search_space
from mmkcr.registry import MODELS
from .search import SearchModel


@MODELS.register_module()
class MaskedSearchModel(SearchModel):
    """A :class:`SearchModel` that masks patches and adds ``loss_reconstruction``.

    Task loss and reconstruction come from the same forward. The latter is
    weighted to the size of the former, as the public code does. Which patches
    are masked depends on the noise's seed and step alone, so it is the same
    for one process and for several, and after a resume. The mask token is
    sliced and scaled with the width that it lies in.

    Args:
        *args: See :class:`SearchModel`.
        reconstruction (dict, optional): See
            :class:`~mmkcr.models.heads.MaskedImageHead`; without ``type``.
            Defaults to None: an ordinary search.
        reconstruction_weight (float): Size of the reconstruction loss as a
            share of the task's. Defaults to 1.
        end_when_decided (bool): Whether masking ends when the last size is decided, as the public
            code does; the paper's algorithm 1 goes on. Defaults to True.
        **kwargs: See :class:`SearchModel`.
    """

    def __init__(self,
                 *args: Any,
                 reconstruction: Optional[Dict] = None,
                 reconstruction_weight: float = 1.,
                 end_when_decided: bool = True,
                 **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reconstruction_weight = reconstruction_weight
        self.end_when_decided = end_when_decided
        self.reconstruction = None if reconstruction is None else MODELS.build(
            dict(type='mmkcr.MaskedImageHead', **reconstruction))
        if self.reconstruction is not None:
            search_space(self.architecture).attach_axis(
                find_backbone(self.architecture).embedding_site,
                Axis(self.reconstruction, 'mask_token', folds=True))

    def forward(self,
                inputs: Tensor,
                data_samples: Optional[List] = None,
                mode: str = 'tensor') -> Any:
        """As :meth:`SearchModel.forward`, with the reconstruction in mode ``'loss'``."""
        head = self.reconstruction
        if mode != 'loss' or head is None or self._has_ended():
            return super().forward(inputs, data_samples, mode)
        self.macs_model(tuple(inputs.shape[1:]))  # counted, if it is to be, without a mask
        seed, step = self._noise_state
        generator = torch.Generator().manual_seed(seed * 2**31 + step)
        mask = head.draw(len(inputs), inputs.shape[-2:], generator)
        with self._masked(mask) as seen:
            losses = super().forward(inputs, data_samples, mode)
        features = find_backbone(self.architecture).token_map(seen['tokens'], mask.shape[1:])
        error = head(features, inputs, mask)
        losses['loss_reconstruction'] = error * self._balance(seen['losses'], error)
        losses['reconstruction_error'] = error.detach()
        return losses

    def _has_ended(self) -> bool:
        return self.end_when_decided and all(gate.decided for gate in self.gates().values())

    def end_search(self) -> None:
        """Freeze what no loss reaches any more: a distributed wrapper would wait for it."""
        if self.reconstruction is not None and self.end_when_decided:
            self.reconstruction.requires_grad_(False)

    def _balance(self, task_losses: Dict, error: Tensor) -> Tensor:
        """Task loss over reconstruction error, both averaged over the ranks."""
        sizes = torch.stack([self.parse_losses(task_losses)[0].detach(), error.detach()])
        all_reduce(sizes, 'mean')
        return self.reconstruction_weight * sizes[0] / sizes[1].clamp(min=1e-6)

    @contextmanager
    def _masked(self, mask: Tensor) -> Iterator[Dict]:
        """Hide tokens in the forward within the block; catch tokens and task losses."""
        head, backbone, seen = self.reconstruction, find_backbone(self.architecture), {}

        def embedded(_: Any, __: Any, out: tuple) -> tuple:
            tokens, seen['hw'] = out
            return (head.hide(tokens, seen['hw'], mask) if head.keep_position else tokens,
                    seen['hw'])

        def positioned(_: Any, args: tuple) -> tuple:
            return (head.hide(args[0], seen['hw'], mask), )

        with ExitStack() as stack:
            def attach(handle: Any) -> None:
                stack.callback(handle.remove)

            attach(backbone.patch_embed.register_forward_hook(embedded))
            if not head.keep_position:
                attach(backbone.drop_after_pos.register_forward_pre_hook(positioned))
            attach(backbone.last_norm.register_forward_hook(
                lambda _, __, out: seen.update(tokens=out)))
            attach(self.architecture.register_forward_hook(
                lambda _, __, out: seen.update(losses=dict(out))))
            yield seen
