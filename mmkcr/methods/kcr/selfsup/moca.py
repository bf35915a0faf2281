"""MOCA: masked online codebook assignments (Gidaris et al., TMLR 2024)."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmpretrain.models import BaseSelfSupervisor
from mmpretrain.models.utils import CosineEMA
from torch import Tensor, nn

from mmkcr.registry import MODELS


@MODELS.register_module()
class MOCA(BaseSelfSupervisor):
    """Predicts, from a masked image, how a teacher assigns whole images to a codebook.

    The teacher is a momentum copy of the backbone. It sees both views of an image unmasked, and
    its tokens are assigned to the words of an online codebook. The student sees masked views and
    has two tasks. From the mean of its visible tokens it predicts the mean assignment of the
    *other* view. With a decoder that reads an early layer and that mean, it predicts the
    assignments of the tokens of the *same* view, masked ones included.

    The masks of a view are drawn independently; the public code makes two of them complementary.

    Args:
        backbone (dict): A backbone such as mmpretrain's ``MAEViT``: with ``mask=True`` it masks
            and returns visible tokens (class token first), mask and restoring indices; with
            ``mask=None`` it returns all tokens.
        neck (dict, optional): :class:`MOCADecoder`. Defaults to None: no loss of tokens.
        head (dict): :class:`MOCAHead`.
        codebook (dict): :class:`OnlineCodebook`.
        early_layer (int): Layer that the decoder reads, from 0. Defaults to 7, of 12.
        mask_ratios (Sequence[float]): Share of masked tokens, for each mask of every view.
            Defaults to (0.55, 0.75).
        decoded (Sequence[float]): Share of decoded tokens, for each mask; visible ones always are.
            Less than 1 makes training faster. Defaults to (0.65, 0.45).
        base_momentum (float): Momentum of the teacher, falling to 0 by a cosine. Defaults to 0.006.
        data_preprocessor, init_cfg: See ``BaseSelfSupervisor``.
    """

    def __init__(self, backbone: Mapping[str, Any] | nn.Module, head: Mapping[str, Any],
                 codebook: Mapping[str, Any], neck: Mapping[str, Any] | None = None,
                 early_layer: int = 7, mask_ratios: Sequence[float] = (0.55, 0.75),
                 decoded: Sequence[float] = (0.65, 0.45), base_momentum: float = 0.006,
                 data_preprocessor: Mapping[str, Any] | None = None, init_cfg: Any = None) -> None:
        super().__init__(backbone, neck, head, data_preprocessor=data_preprocessor,
                         init_cfg=init_cfg)
        if not isinstance(base_momentum, (int, float)) or not 0 < base_momentum < 1:
            raise ValueError('expected `base_momentum` within (0, 1) of MOCA, whose teacher is a '
                             f'momentum copy, found {base_momentum!r}')
        layers = len(getattr(self.backbone, 'layers', ()))
        if 'mask' not in inspect.signature(self.backbone.forward).parameters or \
                not 0 <= early_layer < layers:
            raise ValueError('expected a backbone of MOCA that masks images (such as `MAEViT`) and '
                             f'has `early_layer` {early_layer}, found '
                             f'`{type(self.backbone).__name__}` of {layers} layers')
        self.early_layer = early_layer
        self.masks = tuple(zip(mask_ratios, decoded))
        # 1 - 0.7 is 0.30000000000000004
        if len(mask_ratios) != len(decoded) or not all(
                0 < 1 - ratio <= share + 1e-9 <= 1 + 1e-9 for ratio, share in self.masks):
            raise ValueError('expected as many `decoded` as `mask_ratios` of MOCA, each at least '
                             f'the share that is not masked, found {tuple(decoded)} for '
                             f'{tuple(mask_ratios)}')
        self.codebook = MODELS.build(codebook)
        self.teacher = CosineEMA(self.backbone, momentum=base_momentum)

    def extract_feat(self, inputs: Tensor) -> Any:
        """All tokens of unmasked images."""
        return self.backbone(inputs, mask=None)

    def loss(self, inputs: list[Tensor], data_samples: list | None = None,
             **kwargs: Any) -> dict[str, Tensor]:
        """Compute ``loss_image`` and, with a decoder, ``loss_token``.

        Args:
            inputs (list[Tensor]): Two views of the images, (B, 3, H, W) each.
            data_samples (list, optional): Not used. Defaults to None.
            **kwargs: Not used.

        Raises:
            ValueError: Another number of views.
        """
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 2:
            views = f'{len(inputs)} views' if isinstance(inputs, (list, tuple)) else 'one image'
            raise ValueError('expected two views of every image (`MultiView` in the training '
                             f'pipeline) for MOCA, found {views}')
        images = torch.cat(tuple(inputs))  # (2B, 3, H, W), view after view
        words = self.codebook.words.clone()  # before they are renewed
        codes, bags = self._targets(images)  # (2B, N, K), (2B, K)
        bags = bags.roll(len(bags) // 2, 0)  # those of the other view
        losses: dict[str, list[Tensor]] = dict(loss_image=[])
        if self.with_neck:
            losses['loss_token'] = []
        for ratio, share in self.masks:
            self.backbone.mask_ratio = ratio
            seen: list[Tensor] = []  # the early layer's output
            with self.backbone.layers[self.early_layer].register_forward_hook(
                    lambda _, __, output, seen=seen: seen.append(output)):
                tokens, _, restore = self.backbone(images, mask=True)
            pooled = tokens[:, 1:].mean(1)  # (2B, C), without the class token
            losses['loss_image'].append(self.head.image_loss(pooled, bags, words))
            if self.with_neck:
                # argsort inverts the restoring permutation: places, the visible ones first
                decoded, places = self.neck(pooled, seen[0][:, 1:], restore.argsort(1), share)
                # (2B, P, K)
                target = codes.gather(1, places[..., None].expand(-1, -1, codes.shape[-1]))
                losses['loss_token'].append(self.head.token_loss(decoded, target, words))
        return {name: torch.stack(values).mean() for name, values in losses.items()}

    @torch.no_grad()
    def _targets(self, images: Tensor) -> Any:
        """Assignments of the tokens (2B, N, K) and of the images (2B, K) by the teacher."""
        # a teacher that is held (a step of the gates) does not count a step
        before = int(self.teacher.steps)
        self.teacher.update_parameters(self.backbone)
        tokens = self.teacher(images, mask=None)[-1][:, 1:]
        size = self.backbone.patch_resolution
        codes, bags, spread = self.codebook(tokens, size)
        if self.training and int(self.teacher.steps) > before:  # not in a step of the gates
            # the views take turns, so that a step's new words are of one view
            view = tokens.chunk(2)[before % 2]
            self.codebook.update(view, size, spread)
        return codes, bags
