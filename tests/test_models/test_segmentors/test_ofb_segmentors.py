"""Bi-masked backbones inside SETR and UPerNet: searched, slimmed to a budget, trained again."""

import copy

import pytest
import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmkcr.apis import count_macs, slim
from mmkcr.models.tasks import find_backbone
from mmkcr.registry import MODELS

SHAPE = (3, 64, 64)
GATES = dict(type='mmkcr.BiMaskGate')
LOSS = dict(type='mmseg.CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)
COMMON = dict(num_classes=5, align_corners=False, loss_decode=LOSS,
              norm_cfg=dict(type='BN', requires_grad=True))
SETR = dict(
    backbone=dict(type='mmkcr.OFBVisionTransformer', img_size=64, patch_size=8,
                  arch=dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48),
                  out_type='featmap', out_indices=[0, 1]),
    decode_head=dict(type='mmseg.SETRUPHead', in_channels=24, channels=8, in_index=1, num_convs=1,
                     up_scale=2, kernel_size=1, dropout_ratio=0, **COMMON))
UPERNET = dict(
    backbone=dict(type='mmkcr.OFBSwinTransformer', img_size=64, patch_size=4, window_size=4,
                  arch=dict(embed_dims=12, depths=[1, 1], num_heads=[2, 3]), pad_small_map=True,
                  out_indices=(0, 1)),
    decode_head=dict(type='mmseg.UPerHead', in_channels=[12, 24], in_index=[0, 1], channels=8,
                     pool_scales=(1, 2), dropout_ratio=0, **COMMON))


def segmentor(parts, **backbone):
    torch.manual_seed(0)
    parts = copy.deepcopy(parts)
    parts['backbone'].update(backbone)
    return MODELS.build(dict(type='mmseg.EncoderDecoder', train_cfg=dict(),
                             test_cfg=dict(mode='whole'), **parts))


def samples():
    label = torch.randint(0, 5, (1, *SHAPE[1:]))
    return [SegDataSample(gt_sem_seg=PixelData(data=label),
                          metainfo=dict(img_shape=SHAPE[1:])) for _ in range(2)]


@pytest.mark.parametrize('parts', [SETR, UPERNET], ids=['setr', 'upernet'])
def test_slimmed_segmentors(parts):
    model = segmentor(parts, gates=GATES).double()
    backbone = find_backbone(model)
    images = torch.randn(2, *SHAPE).double()
    dense = count_macs(backbone, SHAPE)
    subnet, structure = slim(model, 0.5, 1, SHAPE, 'backbone')
    assert 0.485 * dense <= structure.macs['subnet'] <= 0.5 * dense
    # the law, for the options that the budget chose
    for site, gate in backbone.gates().items():
        sizes = [size for size, _ in gate.options()]
        kept = len(structure.sites[site].kept)
        for index in (i for i, size in enumerate(sizes) if size == kept):
            if torch.equal(gate.selection(index), torch.tensor(structure.sites[site].kept)):
                gate.restrict(gate.only(index))
                break
    model.train(False), subnet.train(False)
    with torch.no_grad():
        one, two = (net(images, mode='tensor') for net in (model, subnet))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12 * float(one.abs().max()))
    # an ordinary config of the segmentor takes structure and weights, and trains
    again = segmentor(parts, structure=structure).double()
    again.load_state_dict(subnet.state_dict(), strict=True)
    losses = again.train()(images, samples(), mode='loss')
    again.parse_losses(losses)[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in again.parameters())
