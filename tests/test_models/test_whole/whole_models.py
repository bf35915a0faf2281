"""Small detectors and segmentors, and what they give for chosen proposals."""

import copy
from functools import cache, partial

import torch
from mmengine.config import Config

from mmkcr.closed_form.whole import HeldBatches, whole_outputs
from mmkcr.core.forward import flat_tensors
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import is_detector

SWIN = dict(type='mmkcr.KCRSwinTransformer', arch=dict(
    embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=32, patch_size=4, window_size=4,
    use_abs_pos_embed=False, drop_path_rate=0., out_indices=(0, 1), pad_small_map=True)
UPERNET = 'configs/kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py'
MASK_RCNN = 'configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
_read = cache(load_config)


def _shipped(path):
    """The model of a config, to be altered."""
    return copy.deepcopy(_read(path).model)


def _upernet():
    """Narrower than shipped: a refit takes the cube of a convolution's inputs."""
    model = _shipped(UPERNET)
    model.backbone.arch.embed_dims = 16
    model.decode_head.update(in_channels=[16, 32], channels=24)
    model.auxiliary_head.in_channels = 32
    return model


def _upernet_batch_norm():
    model = _upernet()
    model.decode_head.norm_cfg, model.decode_head.channels = dict(type='BN'), 12
    return model


def _segformer():
    model = _upernet()
    head = {key: model.decode_head[key] for key in ('in_channels', 'in_index', 'num_classes')}
    model.decode_head = dict(head, type='SegformerHead', channels=12, align_corners=False,
                             norm_cfg=dict(type='BN'))
    return model


def _mask_rcnn(neck='FPN', convs=2):
    """With so many convolutions of the masks before they grow."""
    model = _shipped(MASK_RCNN)
    model.neck.update(type=neck, out_channels=16)
    model.rpn_head.update(in_channels=16, feat_channels=12)
    head = model.roi_head
    for part in (head.bbox_roi_extractor, head.mask_roi_extractor):
        part.out_channels = 16
    head.bbox_head.update(in_channels=16, fc_out_channels=24, num_classes=3)
    head.mask_head.update(in_channels=16, conv_out_channels=12, num_classes=3, num_convs=convs)
    for config in (model.train_cfg.rpn_proposal, model.test_cfg.rpn):
        config.update(nms_pre=20, max_per_img=10)
    return model


def _cascade(masks=True):
    """Three stages, each with heads of its own."""
    model = _mask_rcnn()
    head, stages = model.roi_head, 3
    head.type = 'CascadeRoIHead'
    head.update(num_stages=stages, stage_loss_weights=[1, 0.5, 0.25])
    boxes = []
    for stage in range(stages):
        of_stage = copy.deepcopy(head.bbox_head)
        of_stage.reg_class_agnostic = True
        of_stage.bbox_coder.target_stds = [value / (stage + 1) for value in (0.1, 0.1, 0.2, 0.2)]
        boxes.append(of_stage)
    head.bbox_head = boxes
    if not masks:
        del head.mask_head, head.mask_roi_extractor
    model.train_cfg.rcnn = [model.train_cfg.rcnn] * stages
    return model


def _small_layers(config):
    for layer in config.values():
        layer.update(embed_dims=32)
    config.ffn_cfg.feedforward_channels = 24


def _queries(path, backbone, **neck):
    """An encoder and a decoder of two layers each, for nine queries."""
    model = _shipped(path)
    model.backbone, model.num_queries = backbone, 9
    model.neck.update(out_channels=32, **neck)
    for part in (model.encoder, model.decoder):
        part.num_layers = 2
        _small_layers(part.layer_cfg)
    model.positional_encoding.num_feats = 16
    model.bbox_head.update(num_classes=3, embed_dims=32)
    return model


def _mask2former():
    model = _shipped('mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py')
    model.backbone = SWIN
    head = model.panoptic_head
    head.update(in_channels=[16, 32], strides=[4, 8], feat_channels=32, out_channels=32,
                num_queries=9, num_transformer_feat_level=1)
    pixels, decoder = head.pixel_decoder, head.transformer_decoder
    pixels.update(num_outs=1, norm_cfg=dict(type='GN', num_groups=4))
    pixels.encoder.num_layers = decoder.num_layers = 2
    pixels.encoder.layer_cfg.self_attn_cfg.update(num_levels=1, num_heads=4)
    _small_layers(pixels.encoder.layer_cfg), _small_layers(decoder.layer_cfg)
    for part in (pixels, head):
        part.positional_encoding.num_feats = 16
    return model


#: Configs of models by name.
MODELS = dict(
    upernet=_upernet, upernet_batch_norm=_upernet_batch_norm,
    segformer=_segformer, mask_rcnn=_mask_rcnn, cascade=_cascade,
    cascade_of_boxes=partial(_cascade, masks=False), short_masks=partial(_mask_rcnn, convs=0),
    pafpn=partial(_mask_rcnn, neck='PAFPN'), mask2former=_mask2former,
    dino=partial(_queries, 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', SWIN,
                 in_channels=[16, 32], norm_cfg=dict(type='GN', num_groups=4)),
    detr=partial(_queries, 'mmdet::detr/detr_r50_8xb2-150e_coco.py',
                 dict(SWIN, out_indices=(1, )), in_channels=[32]))
SEGMENTORS = ('upernet', 'upernet_batch_norm', 'segformer')
DETECTORS = tuple(name for name in MODELS if name not in SEGMENTORS)


def config_of(name):
    """Config of a model with its scope."""
    return Config(dict(model=MODELS[name](),
                       default_scope='mmseg' if name in SEGMENTORS else 'mmdet'))


def build(name):
    """A dense model in eval mode."""
    model = build_model(config_of(name))
    for path, parameter in model.named_parameters():
        if path.endswith('level_embed'):  # mmdet leaves its memory as it was found
            torch.nn.init.normal_(parameter)
    return model


def batches(model, count=1, images=2, size=64, dtype=torch.float32):
    """Batches as a data preprocessor gives them."""
    from mmdet.structures import DetDataSample
    generator, shape = torch.Generator().manual_seed(0), (size, size)
    shapes = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape,
                  scale_factor=(1., 1.))
    return [dict(inputs=torch.randn(images, 3, size, size, generator=generator, dtype=dtype),
                 data_samples=[DetDataSample(metainfo=shapes) for _ in range(images)]
                 if is_detector(model) else None) for _ in range(count)]


def outputs(model, chooser, found):
    """All tensors that a model gives, for what another one in fp32 chose to look at."""
    if is_detector(model):
        choices = HeldBatches([dict(batch, inputs=batch['inputs'].float()) for batch in found],
                              chooser)
        found = [dict(choice, inputs=batch['inputs']) for choice, batch in zip(choices, found)]
    with torch.no_grad():
        return flat_tensors([whole_outputs(model, batch) for batch in found])
