"""Which kinds of site which backbones have, and whether the law holds there.

Small networks of every family, with random weights and norms. The law: a supernet with hard gates
gives the outputs of the sliced subnet.
"""

import copy
import functools
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.core import Structure
from mmkcr.core.forward import flat_tensors
from mmkcr.models.searchable import Searchable
from mmkcr.models.sites import KINDS, QKMaskSite, why_not

#: A cell of the table where it is so.
HOLDS = '✓'
#: Gates by kind: channels of heads are chosen equally in every head.
GATES = {
    **{kind: dict(type='mmkcr.GumbelChannelGate', min_size=1)
       for kind, cls in KINDS.items() if cls.gated},
    'head_channels': dict(type='mmkcr.BiMaskGate')}


class Family(NamedTuple):
    """One small network of a family.

    Args:
        library (str): Where it comes from.
        build (Callable): Without arguments; gives the network.
        size (int): Height and width of an image.
        other (tuple[int, int], optional): Another size that it takes.
        forward (Callable): Takes network and images; gives a list of tensors.
    """

    library: str
    build: Callable[[], nn.Module]
    size: int = 64
    other: tuple[int, int] | None = None
    forward: Callable[[nn.Module, Tensor], list[Tensor]] = None


#: No multiple of a window, in either direction.
_OTHER = (88, 120)


def _mm(library: str, name: str, size: int = 64, other: tuple[int, int] | None = _OTHER,
        **arguments: Any) -> Family:
    def build() -> nn.Module:
        return MODELS.build(dict(type=f'{library}.{name}', **arguments))

    return Family(library, build, size, other)


def _timm(name: str, size: int = 64, other: tuple[int, int] | None = None,
          **arguments: Any) -> Family:
    def build() -> nn.Module:
        import timm
        return timm.create_model(name, pretrained=False, num_classes=0, **arguments)

    return Family('timm', build, size, other)


def _transformers(name: str, config: str, size: int = 64,
                  other: tuple[int, int] | None = None, **arguments: Any) -> Family:
    def build() -> nn.Module:
        import transformers
        cls = getattr(transformers, name)
        return cls(getattr(transformers, config)(**arguments))

    def forward(model: nn.Module, images: Tensor) -> list[Tensor]:
        return [model(pixel_values=images).last_hidden_state]

    return Family('transformers', build, size, other, forward)


_VIT = dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=48)
_SWIN = dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4])
_HF_VIT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
               image_size=64, patch_size=16)


def _levit() -> nn.Module:
    """LeViT takes no dict of sizes: they stand among its own while it is built."""
    sizes = dict(embed_dims=[16, 24, 32], num_heads=[2, 2, 4], depths=[1, 1, 1], key_dims=[8] * 3)
    with mock.patch.dict(MODELS.get('mmpretrain.LeViT').arch_zoo, small=sizes):
        return MODELS.build(dict(type='mmpretrain.LeViT', arch='small', img_size=64))



def _depth_anything() -> nn.Module:
    """A DINOv2 with a head that gives depths."""
    import transformers
    backbone = transformers.Dinov2Config(**dict(_HF_VIT, image_size=56, patch_size=14), mlp_ratio=2,
                                         out_indices=[1, 2], reshape_hidden_states=False,
                                         apply_layernorm=True)
    return transformers.DepthAnythingForDepthEstimation(transformers.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=32, patch_size=14,
        reassemble_factors=[2, 1], neck_hidden_sizes=[16, 16], fusion_hidden_size=16,
        head_hidden_size=16))


def _rt_detr() -> nn.Module:
    """A ResNet, an encoder and a decoder of one layer each."""
    import transformers
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type='basic',
        out_features=['stage2', 'stage3', 'stage4'])
    return transformers.RTDetrModel(transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[16, 16, 16],
        encoder_ffn_dim=48, encoder_attention_heads=4, d_model=32, decoder_ffn_dim=48,
        num_queries=8, decoder_layers=1, decoder_attention_heads=4, num_denoising=0,
        decoder_in_channels=[32, 32, 32]))


_HF_SWIN = dict(image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
_HF_DETR = dict(d_model=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=48,
                decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, num_queries=8)


def _vit_pose() -> nn.Module:
    """A ViT whose head draws the places of 17 joints."""
    import transformers
    backbone = transformers.VitPoseBackboneConfig(
        **dict(_HF_VIT, image_size=(64, 64), patch_size=(16, 16)), mlp_ratio=2,
        out_features=['stage2'])
    return transformers.VitPoseForPoseEstimation(transformers.VitPoseConfig(
        backbone_config=backbone, num_labels=17))


def _dpt() -> nn.Module:
    """A ViT with a head that gives depths."""
    import transformers
    return transformers.DPTForDepthEstimation(transformers.DPTConfig(
        **dict(_HF_VIT, num_hidden_layers=4), backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 16, 16], fusion_hidden_size=16, is_hybrid=False))


def _detr() -> nn.Module:
    """A ResNet, an encoder of one layer and a decoder of two."""
    import transformers
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                         layer_type='basic', out_features=['stage2'])
    return transformers.DetrModel(transformers.DetrConfig(
        backbone_config=backbone, backbone=None, use_timm_backbone=False,
        use_pretrained_backbone=False, **_HF_DETR))


def _mask_former() -> nn.Module:
    """MaskFormer: a Swin of its own and the decoder of DETR."""
    import transformers
    swin = transformers.SwinConfig(**dict(_HF_SWIN, depths=[2, 2, 1, 1], num_heads=[2] * 4),
                                   out_features=['stage1', 'stage2', 'stage3', 'stage4'])
    return transformers.MaskFormerForInstanceSegmentation(transformers.MaskFormerConfig(
        backbone_config=swin, decoder_config=transformers.DetrConfig(**_HF_DETR),
        fpn_feature_size=32, mask_feature_size=32))


def _mask2former() -> nn.Module:
    """Mask2Former: a Swin, deformable attention, and a decoder whose attention is masked."""
    import transformers
    swin = transformers.SwinConfig(**dict(_HF_SWIN, depths=[2, 2, 1, 1], num_heads=[2] * 4),
                                   out_features=['stage1', 'stage2', 'stage3', 'stage4'])
    return transformers.Mask2FormerForUniversalSegmentation(transformers.Mask2FormerConfig(
        backbone_config=swin, hidden_dim=32, feature_size=32, mask_feature_size=32,
        encoder_feedforward_dim=48, dim_feedforward=48, num_attention_heads=4, encoder_layers=1,
        decoder_layers=2, num_queries=8))


def _tensors(model: nn.Module, images: Tensor) -> list[Tensor]:
    """What a network for pixels gives, without what it takes for granted."""
    return flat_tensors(model(pixel_values=images))


#: By a short name. Small, so that the whole matrix runs in a minute or two.
FAMILIES: dict[str, Family] = {
    'ViT': _mm('mmpretrain', 'VisionTransformer', arch=_VIT, img_size=64, patch_size=16,
               out_type='featmap', out_indices=[0, 1], other=(48, 80)),
    'DeiT (distilled)': _mm('mmpretrain', 'DistilledVisionTransformer', arch=_VIT, img_size=64,
                            patch_size=16),
    'DeiT III': _mm('mmpretrain', 'DeiT3', arch=_VIT, img_size=64, patch_size=16),
    'Swin': _mm('mmpretrain', 'SwinTransformer', arch=_SWIN, img_size=64, window_size=4,
                out_indices=[0, 1], pad_small_map=True, other=(61, 83)),
    'Swin V2': _mm('mmpretrain', 'SwinTransformerV2',
                   arch=dict(_SWIN, extra_norm_every_n_blocks=0), img_size=64, window_size=[4, 4],
                   pretrained_window_sizes=[0, 0], out_indices=(1, ), pad_small_map=True),
    'BEiT': _mm('mmpretrain', 'BEiTViT', arch=_VIT, img_size=64, patch_size=16, other=None),
    'EVA-02': _mm('mmpretrain', 'ViTEVA02', arch=dict(_VIT, mlp_ratio=1.5), img_size=64,
                  patch_size=16, sub_ln=False, other=None),
    'EVA-02 (sub-LN)': _mm('mmpretrain', 'ViTEVA02', arch=dict(_VIT, mlp_ratio=1.5), img_size=64,
                           patch_size=16, sub_ln=True, other=None),
    'TNT': _mm('mmpretrain', 'TNT', arch=dict(
        embed_dims_outer=32, embed_dims_inner=16, num_layers=2, num_heads_outer=4,
        num_heads_inner=2), img_size=64, patch_size=16, other=None),
    'T2T-ViT': _mm('mmpretrain', 'T2T_ViT', img_size=64, embed_dims=32, num_layers=2, t2t_cfg=dict(
        token_dims=16, use_performer=False), layer_cfgs=dict(
            num_heads=4, feedforward_channels=48)),
    'PCPVT': _mm('mmpretrain', 'PCPVT', arch=dict(
        embed_dims=[16, 32], depths=[1, 1], num_heads=[2, 4], patch_sizes=[4, 2], strides=[4, 2],
        mlp_ratios=[2, 2], sr_ratios=[2, 1]), out_indices=(0, 1), other=(64, 96)),
    'SVT': _mm('mmpretrain', 'SVT', arch=dict(
        embed_dims=[16, 32], depths=[2, 2], num_heads=[2, 4], patch_sizes=[4, 2], strides=[4, 2],
        mlp_ratios=[2, 2], sr_ratios=[2, 1], window_sizes=[4, 4]), out_indices=(0, 1),
        other=(72, 64)),  # windows that do not fit in one direction
    'MViT': _mm('mmpretrain', 'MViT', arch=dict(
        embed_dims=16, num_layers=2, num_heads=1, downscale_indices=[1]), img_size=64),
    'MobileViT': _mm('mmpretrain', 'MobileViT', other=(64, 96), arch=[
        ['mobilenetv2', 8, 1, 1, 1], ['mobilenetv2', 8, 2, 1, 1],
        ['mobilevit', 16, 2, 16, 32, 2, 1]], stem_channels=8, last_exp_factor=2,
        out_indices=(2, )),
    'XCiT': _mm('mmpretrain', 'XCiT', img_size=64, patch_size=16, embed_dims=32, depth=2,
                num_heads=4, mlp_ratio=2, qkv_bias=True),
    'LeViT': Family('mmpretrain', _levit),
    'EdgeNeXt': _mm('mmpretrain', 'EdgeNeXt', arch=dict(
        channels=[16, 24, 32, 48], depths=[1, 2, 2, 2], num_heads=[4, 4, 4, 4]), size=64),
    'EfficientFormer': _mm('mmpretrain', 'EfficientFormer', arch=dict(
        layers=[1, 1, 1, 2], embed_dims=[16, 24, 32, 48], downsamples=[False, True, True, True],
        vit_num=1), size=224, other=None),
    'PoolFormer': _mm('mmpretrain', 'PoolFormer', arch=dict(
        layers=[1, 1, 1, 1], embed_dims=[8, 16, 20, 24], mlp_ratios=[2, 2, 2, 2],
        layer_scale_init_value=1e-5), out_indices=[0, 2, 4, 6]),
    'RIFormer': _mm('mmpretrain', 'RIFormer', arch=dict(
        layers=[1, 1, 1, 1], embed_dims=[8, 16, 20, 24], mlp_ratios=[2, 2, 2, 2],
        layer_scale_init_value=1e-5), out_indices=[0, 2, 4, 6]),
    'Conformer': _mm('mmpretrain', 'Conformer', arch=dict(
        embed_dims=32, channel_ratio=1, num_heads=4, depths=3), base_channels=8),
    'DaViT': _mm('mmpretrain', 'DaViT', arch=dict(
        embed_dims=16, depths=[1, 1], num_heads=[2, 4]), window_size=4, out_indices=(1, )),
    'MixMIM': _mm('mmpretrain', 'MixMIMTransformer', arch=dict(
        embed_dims=16, depths=[1, 1, 1, 1], num_heads=[2, 2, 4, 4]), img_size=128, size=128,
        window_size=[4, 4, 4, 4], other=None),
    'MLP-Mixer': _mm('mmpretrain', 'MlpMixer', arch=dict(
        embed_dims=32, num_layers=2, tokens_mlp_dims=24, channels_mlp_dims=48), img_size=64,
        patch_size=16, other=None),
    'RevViT': _mm('mmpretrain', 'RevVisionTransformer', arch=_VIT, img_size=64, patch_size=16),
    'TinyViT': _mm('mmpretrain', 'TinyViT', arch=dict(
        channels=[16, 24, 32, 48], num_heads=[2, 2, 4, 4], window_sizes=[4, 4, 4, 2],
        depths=[1, 1, 1, 1]), img_size=(64, 64), other=None),
    'ViT-SAM': _mm('mmpretrain', 'ViTSAM', arch=dict(_VIT, global_attn_indexes=[1]), img_size=64,
                   patch_size=16, out_channels=32, window_size=2),
    'VAN': _mm('mmpretrain', 'VAN', arch=dict(
        embed_dims=[16, 24], depths=[1, 1], ffn_ratios=[2, 2]), out_indices=(1, )),
    'HiViT': _mm('mmpretrain', 'HiViT', arch=dict(embed_dims=32, depths=[1, 1, 7], num_heads=4),
                 img_size=64, out_indices=[6], other=None),
    'HorNet': _mm('mmpretrain', 'HorNet', arch=dict(
        base_dim=16, depths=[1, 1, 1, 1], orders=[2, 2, 2, 2], dw_cfg=[dict(
            type='DW', kernel_size=7)] * 4)),
    'ConvNeXt': _mm('mmpretrain', 'ConvNeXt', arch=dict(depths=[1, 1, 1, 1],
                                                        channels=[8, 16, 24, 32])),
    'ResNet-50': _mm('mmpretrain', 'ResNet', depth=50, base_channels=8, stem_channels=8,
                     out_indices=(0, 1, 2, 3), other=(64, 96)),
    'EfficientViT': _mm('mmkcr', 'EfficientViT', arch=dict(
        widths=[8, 16, 24], depths=[1, 1, 1], head_dim=8, attention_stages=1), other=(64, 96)),
    'MiT (SegFormer)': _mm('mmseg', 'MixVisionTransformer', embed_dims=16, num_stages=2,
                           num_layers=[1, 1], num_heads=[2, 4], patch_sizes=[7, 3], strides=[4, 2],
                           sr_ratios=[2, 1], out_indices=(0, 1), mlp_ratio=2, other=(64, 96)),
    'PVT': _mm('mmdet', 'PyramidVisionTransformer', embed_dims=16, num_stages=2, num_layers=[1, 1],
               num_heads=[1, 2], patch_sizes=[4, 2], strides=[4, 2], paddings=[0, 0],
               sr_ratios=[2, 1], out_indices=(0, 1), mlp_ratios=[2, 2], pretrain_img_size=64),
    'mmdet Swin': _mm('mmdet', 'SwinTransformer', embed_dims=16, depths=[2, 2], num_heads=[2, 4],
                      window_size=4, out_indices=(0, 1), strides=(4, 2), other=(61, 83)),
    'timm ViT': _timm('vit_tiny_patch16_224', img_size=64, embed_dim=32, depth=2, num_heads=4,
                      patch_size=16),
    'timm DeiT III': _timm('deit3_small_patch16_224', img_size=64, embed_dim=32, depth=2,
                           num_heads=4),
    'timm DINOv2 (registers)': _timm('vit_small_patch14_reg4_dinov2', size=56, img_size=56,
                                     embed_dim=32, depth=2, num_heads=4),
    'timm EVA-02': _timm('eva02_tiny_patch14_224', size=56, img_size=56, embed_dim=32, depth=2,
                         num_heads=4),
    'timm DINOv3': _timm('vit_small_patch16_dinov3', img_size=64, embed_dim=32, depth=2,
                         num_heads=4, other=(64, 96)),
    'timm SigLIP 2': _timm('vit_base_patch16_siglip_256.v2_webli', img_size=64, embed_dim=32,
                           depth=2, num_heads=4),
    'timm AIMv2': _timm('aimv2_large_patch14_224', size=56, img_size=56, embed_dim=32, depth=2,
                        num_heads=4),
    'timm Swin': _timm('swin_tiny_patch4_window7_224', img_size=64, embed_dim=16, depths=(2, 2),
                       num_heads=(2, 4), window_size=4),
    'timm Swin V2': _timm('swinv2_tiny_window8_256', img_size=64, embed_dim=16, depths=(2, 2),
                          num_heads=(2, 4), window_size=4),
    'timm BEiT': _timm('beit_base_patch16_224', img_size=64, embed_dim=32, depth=2, num_heads=4),
    'timm PVT v2': _timm('pvt_v2_b0', embed_dims=(16, 32), depths=(1, 1), num_heads=(2, 4),
                         sr_ratios=(2, 1), mlp_ratios=(2, 2), other=_OTHER),
    'HF ViT': _transformers('ViTModel', 'ViTConfig', **_HF_VIT),
    'HF DINOv2': _transformers('Dinov2Model', 'Dinov2Config', mlp_ratio=2, other=(64, 96),
                               **_HF_VIT),
    'HF DINOv2 (SwiGLU)': _transformers('Dinov2Model', 'Dinov2Config', mlp_ratio=2,
                                        use_swiglu_ffn=True, other=(64, 96), **_HF_VIT),
    'HF DINOv2 (registers)': _transformers(
        'Dinov2WithRegistersModel', 'Dinov2WithRegistersConfig', mlp_ratio=2, other=(64, 96),
        **_HF_VIT),
    'HF DINOv3': _transformers('DINOv3ViTModel', 'DINOv3ViTConfig', other=(64, 96), **_HF_VIT),
    'HF SigLIP': _transformers('SiglipVisionModel', 'SiglipVisionConfig', **_HF_VIT),
    'HF CLIP': _transformers('CLIPVisionModel', 'CLIPVisionConfig', **_HF_VIT),
    'HF FLAVA': _transformers('FlavaImageModel', 'FlavaImageConfig', **_HF_VIT),
    'HF Swin': _transformers('SwinModel', 'SwinConfig', **_HF_SWIN),
    'HF Swin V2': _transformers('Swinv2Model', 'Swinv2Config', **_HF_SWIN),
    'HF BEiT': _transformers('BeitModel', 'BeitConfig', use_relative_position_bias=True,
                             **_HF_VIT),
    'HF SegFormer': _transformers('SegformerModel', 'SegformerConfig', other=(64, 96),
                                  depths=[1, 1], num_encoder_blocks=2, hidden_sizes=[16, 32],
                                  mlp_ratios=[2, 2], sr_ratios=[2, 1],
                                  num_attention_heads=[2, 4], strides=[4, 2], patch_sizes=[7, 3]),
    'HF DepthAnything': Family('transformers', _depth_anything, 56, None, _tensors),
    'HF ViTDet': _transformers('VitDetModel', 'VitDetConfig', mlp_ratio=2, window_size=2,
                               use_relative_position_embeddings=True, window_block_indices=[0],
                               residual_block_indices=[], **_HF_VIT),
    'HF SAM': _transformers('SamVisionModel', 'SamVisionConfig', mlp_dim=48, output_channels=16,
                            window_size=2, global_attn_indexes=[1], **_HF_VIT),
    'HF DPT': Family('transformers', _dpt, 64, None, _tensors),
    'HF ViTPose': Family('transformers', _vit_pose, 64, None, _tensors),
    'HF DETR': Family('transformers', _detr, 64, None, _tensors),
    'HF MaskFormer': Family('transformers', _mask_former, 64, None, _tensors),
    'HF Mask2Former': Family('transformers', _mask2former, 64, None, _tensors),
    'HF RT-DETR': Family('transformers', _rt_detr, 64, None, _tensors),
}


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights, gates and statistics at random, so that slicing any of them wrongly shows.

    Args:
        model (nn.Module): Changed in place.
        seed (int): Of the draw. Defaults to 0.

    Returns:
        nn.Module: The model, in eval mode.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: Tensor, low: float, high: float) -> None:
        values = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        tensor.data.copy_(low + (high - low) * values)

    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1:  # so that values neither grow nor fade from layer to layer
                bound = (3 / max(parameter[0].numel(), 1))**0.5
                draw(parameter, -bound, bound)
            elif name == 'alpha':
                draw(parameter, -1., 1.)
            else:
                draw(parameter, 0.5, 1.5) if name == 'weight' else draw(parameter, -0.5, 0.5)
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            draw(module.running_mean, -0.5, 0.5)
            draw(module.running_var, 0.5, 1.5)
    model.eval()  # a backbone of mmpretrain does not return itself
    return model


def run(family: Family, model: nn.Module, images: Tensor) -> list[Tensor]:
    """The tensors that a network gives."""
    for module in model.modules():  # some hosts compute positions in fp32
        if isinstance(module, nn.Conv2d) and not module._forward_pre_hooks:
            module.register_forward_pre_hook(_cast)
    with torch.no_grad():
        if family.forward is not None:
            return family.forward(model, images)
        out = model(images)
    return flat_tensors(out)


def _cast(module: nn.Module, args: tuple) -> tuple:
    return (args[0].to(module.weight.dtype), *args[1:])


def law_error(family: Family, kinds: Sequence[Any], seed: int = 0,
              size: tuple[int, int] | None = None,
              gates: Mapping[str, Any] = GATES) -> tuple[float, float]:
    """How far supernet, subnet and reloaded subnet are apart, in fp64.

    Args:
        family (Family): Of the network.
        kinds (Sequence[str | dict]): Kinds of site, together.
        seed (int): Of weights, gates and images. Defaults to 0.
        size (tuple[int, int], optional): Of the images. Defaults to the family's.
        gates (dict): Their configs by kind.

    Returns:
        tuple[float, float]: The largest difference, relative to the largest output; and how far
        the outputs are from those of the dense network, which must not be 0.
    """
    torch.manual_seed(seed)
    dense = family.build()
    names = {kind if isinstance(kind, str) else kind['kind'] for kind in kinds}
    gates = {kind: config for kind, config in gates.items() if kind in names}
    supernet = Searchable(copy.deepcopy(dense), sites=kinds, gates=gates).double()
    randomise(supernet, seed)
    space = supernet.search_space
    height, width = size or (family.size, family.size)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(2, 3, height, width, generator=generator, dtype=torch.float64)
    expected = run(family, supernet, images)
    kept = {name: gate.selection() for name, gate in space.gates().items()}
    structure = space.structure_for(kept)
    state = {name: value for name, value in supernet.state_dict().items() if '.gate.' not in name}
    plain = dense.double()
    plain.load_state_dict(state, strict=False)
    plain.eval()
    whole = run(family, plain, images)
    space.slice_to(structure)  # the supernet becomes the subnet
    supernet.eval()
    found = run(family, supernet, images)
    again = Searchable(family.build(), sites=kinds, structure=Structure.load(structure.to_dict()))
    again = again.double()
    again.load_state_dict(supernet.state_dict(), strict=False)  # the space itself is strict
    again.eval()
    reloaded = run(family, again, images)
    scale = max(float(out.abs().max()) for out in expected)
    error = max(float((a - b).abs().max()) for other in (found, reloaded)
                for a, b in zip(expected, other))
    moved = max(float((a - b).abs().max()) for a, b in zip(expected, whole))
    assert all(torch.isfinite(out).all() for out in expected) and scale > 0
    return error / scale, moved / scale


def open_masks_error(family: Family, kind: str) -> tuple[float, float]:
    """As :func:`law_error` of a kind without gates: how far open masks are from no masks.

    Args:
        family (Family): Of the network.
        kind (str): Puts masks under the name ``mask`` on attention layers.
    """
    plain = randomise(family.build().double())
    masked = Searchable(family.build().double(), sites=[kind])
    masked.load_state_dict({**masked.state_dict(), **plain.state_dict()})
    masked.eval()
    images = torch.randn(2, 3, family.size, family.size, dtype=torch.float64,
                         generator=torch.Generator().manual_seed(0))
    expected, outputs = run(family, plain, images), []
    for bias in (1., 0.):
        for mask in QKMaskSite.masks(masked).values():
            mask.weight.data.normal_(0., 1. - bias)
            mask.bias.data.fill_(bias)
        outputs.append(run(family, masked, images))
    scale = max(float(out.abs().max()) for out in expected)
    error, moved = (max(float((a - b).abs().max()) for a, b in zip(expected, found))
                    for found in outputs)
    return error / scale, moved / scale


@functools.lru_cache(maxsize=1)
def _dense_host(name: str) -> nn.Module:
    """A network of a family, which its kinds of site look at one after the other."""
    torch.manual_seed(0)
    return FAMILIES[name].build()


@functools.lru_cache(maxsize=None)
def cell(name: str, kind: str) -> str:
    """``'✓'`` if the law holds, or why a family has no site of a kind.

    Args:
        name (str): Of :data:`FAMILIES`.
        kind (str): Of site.
    """
    family, host = FAMILIES[name], _dense_host(name)
    reason = why_not(host, kind)
    if reason:
        reason = re.sub(r' at `[^`]*`$', '', reason)
        return reason.replace(f'`{type(host).__name__}`', 'the host')
    error, moved = law_error(family, [kind]) if KINDS[kind].gated else \
        open_masks_error(family, kind)
    return HOLDS if error < 1e-12 and moved > 1e-6 else f'law broken ({error:.1e}, {moved:.1e})'


def installed(name: str) -> bool:
    """Whether the library of a family is there."""
    return importlib.util.find_spec(FAMILIES[name].library) is not None


def format_cells(cells: Mapping[str, Mapping[str, str]]) -> str:
    """The table of the docs: reasons are numbered, and listed below.

    Args:
        cells (Mapping[str, Mapping[str, str]]): By family and kind, see :func:`cell`.
    """
    notes: dict[str, int] = {}
    lines = ['| ' + ' | '.join(['backbone', 'library', *(f'`{kind}`' for kind in KINDS)]) + ' |',
             '|' + ' --- |' * (2 + len(KINDS))]
    for name, row in cells.items():
        found = [row[kind] if row[kind] == HOLDS else
                 f'({notes.setdefault(row[kind], len(notes) + 1)})' for kind in KINDS]
        lines.append('| ' + ' | '.join([name, FAMILIES[name].library, *found]) + ' |')
    return '\n'.join([*lines, '', *(f'{number}. {reason}' for reason, number in notes.items()), ''])


def read_cells(text: str) -> dict[str, dict[str, str]]:
    """What :func:`format_cells` has written."""
    notes = dict(re.findall(r'^(\d+)\. (.*)$', text, re.MULTILINE))
    rows = [[part.strip() for part in line.strip('|').split('|')]
            for line in text.splitlines() if line.startswith('|')]
    kinds = [part.strip('`') for part in rows[0][2:]] if rows else []
    return {name: {kind: notes[value[1:-1]] if value.startswith('(') else value
                   for kind, value in zip(kinds, values)} for name, _, *values in rows[2:]}
