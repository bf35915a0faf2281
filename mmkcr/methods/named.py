"""The methods' backbones under their names: a host class and the method's kinds of site.

Any other backbone takes the same kinds by :func:`~mmkcr.models.searchable.Searchable`.
"""

from collections.abc import Mapping
from typing import Any

from mmpretrain.models import MobileViT, ResNet, SwinTransformer, VisionTransformer
from torch import Tensor, nn

from mmkcr.models.backbones.efficientvit import EfficientViT
from mmkcr.models.backbones.register_vit import RegisterVisionTransformer
from mmkcr.models.searchable import SearchableBackbone
from mmkcr.models.sites.base import KindConfig
from mmkcr.registry import MODELS


class ViTKeys:
    """Mixin before a subclass of ``VisionTransformer``: says which keys a checkpoint may lack or
    have in addition.
    """

    @property
    def optional_keys(self) -> str:
        """Keys that may be in the checkpoint alone, or in the network alone.

        These are the norm of pooled patches ``ln2``, which ``out_type='avg_featmap'`` alone has,
        and the final norm, class token and mask token where the arguments leave them out.
        """
        keys = [r'ln2\.', 'mask_token$']
        keys += [] if self.final_norm else [r'ln1\.']
        keys += ['cls_token$'] if self.cls_token is None else []
        return '|'.join(keys)


class UpgradedSwinKeys:
    """Mixin before a subclass of ``SwinTransformer``: loads old checkpoints."""

    @property
    def optional_keys(self) -> str:
        """Norms of the levels in ``out_indices``; never the norm of the last stage if it is one."""
        last = self.num_layers - 1
        return rf'norm(?!{last}\.)\d\.' if last in self.out_indices else r'norm\d\.'

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str,
                              local_metadata: dict[str, Any], *args: Any) -> None:
        """Upgrade keys of old checkpoints, which the host does only for its own class."""
        # the host tests `self.__class__ is SwinTransformer`, which no subclass passes
        if (local_metadata.get('version') or 1) < 3:
            old, new = f'{prefix}norm.', f'{prefix}norm{self.num_layers - 1}.'
            for key in [key for key in state_dict if key.startswith(prefix)]:
                if key.startswith(old):
                    state_dict[key.replace(old, new, 1)] = state_dict.pop(key)
                elif 'attn_mask' in key[len(prefix):]:
                    del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


@MODELS.register_module()
class KCRVisionTransformer(ViTKeys, SearchableBackbone, VisionTransformer):
    """mmpretrain's ``VisionTransformer`` with KCR-Transformer blocks.

    ViT-S/16 is ``arch='deit-small'`` (mmpretrain's ``'small'`` is another model), ViT-B/16 is
    ``arch='base'``.
    """

    method, kinds = 'kcr', ('mlp_channels', )


@MODELS.register_module()
class KCRSwinTransformer(UpgradedSwinKeys, SearchableBackbone, SwinTransformer):
    """mmpretrain's ``SwinTransformer`` with KCR-Transformer blocks.

    With ``pad_small_map=True`` and ``out_indices=(0, 1, 2, 3)`` it is a backbone for mmdet and
    mmseg: every feature level keeps its dense width.
    """

    method, kinds = 'kcr', ('mlp_channels', )


@MODELS.register_module()
class KCREfficientViT(SearchableBackbone, EfficientViT):
    """:class:`EfficientViT` with KCR-Transformer blocks: the bottleneck after every attention."""

    method = 'kcr'
    kinds = (dict(kind='mlp_channels', where=r'\.local$'), )


class DCSBackbone(SearchableBackbone):
    """Mixin: a mask on queries and keys of every attention, and a selection of attention outputs.

    The mask is part of both supernet and subnet. The paper's ablations:

    - ``DCS-Arch1`` (mask only): ``outputs=False``. There is nothing to search.
    - ``DCS-Arch2`` (selected outputs only): ``qk_mask=None``.
    - ``DCS-QK-Mask`` (two masks): ``qk_mask=dict(type='mmkcr.QKMask', separate=True)``.

    Args:
        *args, **kwargs: The host backbone's arguments, and those of
            :class:`~mmkcr.models.searchable.SearchableBackbone`.
        qk_mask (dict, optional): Config of the mask without its channels.
        outputs (bool): Select attention outputs. Defaults to True.
    """

    method = 'dcs'
    #: Arguments that hosts lack and their defaults; a structure records those that differ.
    own: Mapping[str, Any] = dict(outputs=True, qk_mask=dict(type='mmkcr.QKMask'))

    def __init__(self, *args: Any,
                 qk_mask: Mapping[str, Any] | None = dict(type='mmkcr.QKMask'),
                 outputs: bool = True, **kwargs: Any) -> None:
        self.qk_mask, self.outputs = None if qk_mask is None else dict(qk_mask), outputs
        masks = self.masks_of(dict(qk_mask=qk_mask))
        self.kinds = [*masks, *(self.kinds if outputs else ())]
        super().__init__(*args, **kwargs)

    @classmethod
    def masks_of(cls, backbone: Mapping[str, Any]) -> list[KindConfig]:
        """The mask of a backbone with this config, unless its ``qk_mask`` is None."""
        mask = backbone.get('qk_mask', cls.own['qk_mask'])
        return [] if mask is None else [dict(mask, kind='qk_mask')]

    def _own_arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, default in self.own.items()
                if getattr(self, name) != default}


@MODELS.register_module()
class DCSEfficientViT(DCSBackbone, EfficientViT):
    """:class:`EfficientViT` with DCS-Transformer blocks (DCS, appendix A).

    Args:
        *args, **kwargs: See :class:`EfficientViT` and :class:`DCSBackbone`.
        local (bool): Also select the channels of the bottleneck after every attention, which is
            this network's MLP. The projections alone hold a twelfth of B1's MACs, which is less
            than the paper's subnet saves. Defaults to False.
    """

    kinds = ('attention_outputs', )
    own = dict(DCSBackbone.own, local=False)

    def __init__(self, *args: Any, local: bool = False, **kwargs: Any) -> None:
        self.local = local
        self.kinds = [*self.kinds, *(KCREfficientViT.kinds if local else ())]
        super().__init__(*args, **kwargs)


@MODELS.register_module()
class DCSMobileViT(DCSBackbone, MobileViT):
    """mmpretrain's ``MobileViT`` with DCS-Transformer blocks.

    Args:
        *args, **kwargs: See :class:`mmpretrain.models.MobileViT`, whose ``arch`` is 'small',
            'x_small', 'xx_small' or a list, and :class:`DCSBackbone`.
        img_size (int): See :class:`EfficientViT`. Defaults to 224.
    """

    kinds = ('mlp_channels', )
    arch_zoo = MobileViT.arch_settings

    def __init__(self, *args: Any, img_size: int = 224, **kwargs: Any) -> None:
        self.img_size = img_size
        super().__init__(*args, **kwargs)


class OFBBackbone(SearchableBackbone):
    """Mixin: widths of the streams, channels of all heads, and hidden widths of the MLPs."""

    method, kinds = 'ofb', ('embedding', 'head_channels', 'mlp_hidden')
    unlearned_gates = dict(type='mmkcr.BiMaskGate', init='uniform')


class _WithTokens:
    """Mixin for masked image modelling: the last stream's tokens as maps of the dense width."""

    #: Site of the width that patches are embedded in.
    embedding_site = 'patch_embed.embedding'

    @property
    def last_norm(self) -> nn.Module:
        """The norm whose outputs are the normalised tokens, if there is one."""
        return self.ln1 if hasattr(self, 'ln1') else getattr(self, f'norm{self.num_layers - 1}')

    def token_map(self, tokens: Tensor, hw: tuple) -> Tensor:
        """Normalised tokens (B, N, present) as a map (B, dense width, h, w)."""
        last = [site for site in self.search_space.sites.values() if site.kind == 'embedding'][-1]
        patches = last.widen(tokens[:, getattr(self, 'num_extra_tokens', 0):])
        return patches.transpose(1, 2).unflatten(2, tuple(hw))


@MODELS.register_module()
class OFBVisionTransformer(ViTKeys, _WithTokens, OFBBackbone, VisionTransformer):
    """mmpretrain's ``VisionTransformer`` with the search space of Once-for-Both."""


@MODELS.register_module()
class OFBSwinTransformer(_WithTokens, UpgradedSwinKeys, OFBBackbone, SwinTransformer):
    """mmpretrain's ``SwinTransformer`` with the search space of Once-for-Both."""


@MODELS.register_module()
class OFBResNet(OFBBackbone, ResNet):
    """mmpretrain's ``ResNet`` of bottlenecks with the search space of Once-for-Both.

    Sites: the two inner widths of every bottleneck and the width of every stage. The stem stays.
    """

    kinds = ('embedding', 'mlp_hidden')


@MODELS.register_module()
class DWConvVisionTransformer(ViTKeys, SearchableBackbone, RegisterVisionTransformer):
    """mmpretrain's ``VisionTransformer`` with heads replaced by depthwise convolution.

    DINOv2 is ``arch='dinov2-base'`` or ``'dinov2-large'`` with ``patch_size=14`` and
    ``layer_scale_init_value=1e-5``; MAE and plain ViT ``'base'`` or ``'large'``; CLIP the same with
    ``pre_norm=True``; DeiT ``'deit-small'`` and the like.

    Args:
        *args, **kwargs: See :class:`RegisterVisionTransformer` and
            :class:`~mmkcr.models.searchable.SearchableBackbone`.
        operator (str): Operator of replaced heads in a supernet and new structures: ``'dwconv'``
            (DW[all]), ``'conv'`` (Conv[all]), ``'ensembled-dwconv'`` or ``'spvit'``. A structure
            file names its own. Defaults to ``'dwconv'``.
    """

    method, kinds = 'dwconv', ('head_operator', )

    def __init__(self, *args: Any, operator: str = 'dwconv', **kwargs: Any) -> None:
        self.kinds = [dict(kind=kind, operator=operator) if kind == 'head_operator' else kind
                      for kind in self.kinds]
        super().__init__(*args, **kwargs)


@MODELS.register_module()
class KCRDWConvVisionTransformer(DWConvVisionTransformer):
    """Two methods at once: replaced heads, and KCR's channel selection at the MLPs.

    With ``structure`` of replaced heads and ``gates=dict(mlp_channels=...)`` the channels are
    searched on the replaced network; with ``gates=dict(head_operator=..., mlp_channels=...)`` both
    are searched together.
    """

    method, kinds = 'kcr+dwconv', ('head_operator', 'mlp_channels')
