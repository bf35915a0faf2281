"""A search whose features are kept rich by masked image modelling (OFB, section 3.4)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from mmengine.dist import all_reduce
from torch import Tensor

from mmkcr.core import Axis
from mmkcr.methods.search.search_model import SearchModel
from mmkcr.models.tasks import find_backbone, search_space
from mmkcr.registry import MODELS


@MODELS.register_module()
class MaskedSearchModel(SearchModel):
    """A :class:`SearchModel` that masks patches and adds ``loss_reconstruction``.

    Task loss and reconstruction come from the same forward pass. The reconstruction loss is scaled
    to the size of the task loss, as in the public code. Which patches are masked depends only on
    the noise's seed and step, so it is the same for one process and for several, and after a
    resume. The mask token is sliced and scaled with the width that it belongs to.

    Args:
        *args: See :class:`SearchModel`.
        reconstruction (dict, optional): See
            :class:`~mmkcr.methods.ofb.masked_image_head.MaskedImageHead`; without ``type``.
            Defaults to None: an ordinary search.
        reconstruction_weight (float): Size of the reconstruction loss as a
            share of the task's. Defaults to 1.
        end_when_decided (bool): Whether masking ends when the last size is decided, as the public
            code does; in the paper's algorithm 1 it continues. Defaults to True.
        **kwargs: See :class:`SearchModel`.
    """

    def __init__(self, *args: Any, reconstruction: dict | None = None,
                 reconstruction_weight: float = 1., end_when_decided: bool = True,
                 **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reconstruction_weight = reconstruction_weight
        self.end_when_decided = end_when_decided
        self.reconstruction = None if reconstruction is None else MODELS.build(
            dict(type='mmkcr.MaskedImageHead', **reconstruction))
        if self.reconstruction is not None:
            backbone = find_backbone(self.architecture)
            if not hasattr(backbone, 'last_norm'):  # Swin has it only with its last output
                outputs = list(getattr(backbone, 'out_indices', ()))
                raise ValueError(
                    'expected an `OFBVisionTransformer`, or an `OFBSwinTransformer` that gives its '
                    f'last output, for a `reconstruction`, found `{type(backbone).__name__}` with '
                    f'`out_indices={outputs}`')
            search_space(self.architecture).attach_axis(
                backbone.embedding_site, Axis(self.reconstruction, 'mask_token', folds=True))

    def forward(self, inputs: Tensor, data_samples: list | None = None,
                mode: str = 'tensor') -> Any:
        """Like :meth:`SearchModel.forward`, with the reconstruction in mode ``'loss'``."""
        head = self.reconstruction
        ended = self.end_when_decided and all(gate.decided for gate in self.gates().values())
        if mode != 'loss' or head is None or ended:
            return super().forward(inputs, data_samples, mode)
        # the first call counts MACs by a forward of its own, which must run unmasked
        self.macs_model(tuple(inputs.shape[1:]))
        seed, step = self._noise()
        generator = torch.Generator().manual_seed(seed * 2**31 + step)
        sizes = _image_sizes(inputs, data_samples)
        with self._masked(generator, sizes) as seen:
            losses = super().forward(inputs, data_samples, mode)
        mask = seen['mask']
        features = find_backbone(self.architecture).token_map(seen['tokens'], mask.shape[1:])
        error = head(features, inputs, mask, sizes)
        # task loss over reconstruction error: one factor for all ranks, so that their gradients are
        # of one loss
        means = torch.stack([self.parse_losses(seen['losses'])[0].detach(), error.detach()])
        all_reduce(means, 'mean')
        balance = self.reconstruction_weight * means[0] / means[1].clamp(min=1e-6)
        losses['loss_reconstruction'] = error * balance
        losses['reconstruction_error'] = error.detach()
        return losses

    def end_search(self) -> None:
        """Freeze the reconstruction, for whose gradients a distributed wrapper would wait."""
        if self.reconstruction is not None and self.end_when_decided:
            self.reconstruction.requires_grad_(False)

    @contextmanager
    def _masked(self, generator: torch.Generator, sizes: Tensor | None) -> Iterator[dict]:
        """Hide tokens in the forward within the block; collect mask, tokens and task losses."""
        head, backbone, seen = self.reconstruction, find_backbone(self.architecture), {}
        # tokens along a side of a masked patch; stages of Swin round sizes up, so patches do too
        finer = max(1, head.patch_size // backbone.patch_embed.projection.stride[0])

        def embedded(_: Any, __: Any, out: tuple) -> tuple:  # (B, N, C), (h, w)
            tokens, seen['hw'] = out
            seen['mask'] = head.draw(len(tokens), [-(-side // finer) for side in seen['hw']],
                                     generator, sizes)
            # before the position embedding is added (masked tokens keep it), or else after it
            return (hidden(tokens) if head.keep_position else tokens, seen['hw'])

        def hidden(tokens: Tensor) -> Tensor:
            return head.hide(tokens, seen['hw'], seen['mask'], finer)

        with ExitStack() as hooks:
            # hosts add class tokens and positions between the embedding and the first block
            hooks.enter_context(backbone.patch_embed.register_forward_hook(embedded))
            if not head.keep_position:
                hooks.enter_context(backbone.drop_after_pos.register_forward_pre_hook(
                    lambda _, args: (hidden(args[0]), )))
            hooks.enter_context(backbone.last_norm.register_forward_hook(
                lambda _, __, out: seen.update(tokens=out)))
            # a copy of the task's losses, as the wrapper adds its own terms to the same dict
            hooks.enter_context(self.architecture.register_forward_hook(
                lambda _, __, out: seen.update(losses=dict(out))))
            yield seen


def _image_sizes(inputs: Tensor, data_samples: list | None) -> Tensor | None:
    """Height and width (B, 2) of images padded to one size; None if none was padded.

    Only the hosts' own padding (``pad_shape``) is recognised, which is below and to the right.
    """
    if not data_samples or not all('pad_shape' in sample for sample in data_samples):
        return None
    sizes = torch.tensor([sample.img_shape[:2] for sample in data_samples])
    return None if (sizes == torch.tensor(inputs.shape[-2:])).all() else sizes
