"""KCR-Swin inside mmseg's segmentor: mmseg's own Swin, searching, and its graphs."""

import copy

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmkcr.apis import count_macs, slim
from mmkcr.deploy.export import compare_onnx, export_onnx
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.engine.build import build_model, load_config

NORM = dict(type='BN', requires_grad=True)
WIDTHS = [12, 24, 48, 96]
HEADS = dict(
    decode_head=dict(
        type='UPerHead', in_channels=WIDTHS, in_index=[0, 1, 2, 3], pool_scales=(1, 2, 3, 6),
        channels=16, dropout_ratio=0., num_classes=5, norm_cfg=NORM, align_corners=False),
    auxiliary_head=dict(
        type='FCNHead', in_channels=48, in_index=2, channels=8, num_convs=1, concat_input=False,
        dropout_ratio=0., num_classes=5, norm_cfg=NORM, align_corners=False))
OURS = dict(
    type='mmkcr.KCRSwinTransformer', arch=dict(embed_dims=12, depths=[2, 2, 2, 2],
                                               num_heads=[2, 2, 4, 4]),
    window_size=4, out_indices=(0, 1, 2, 3), pad_small_map=True, drop_path_rate=0.)
THEIRS = dict(
    type='mmseg.SwinTransformer', embed_dims=12, depths=[2, 2, 2, 2], num_heads=[2, 2, 4, 4],
    window_size=4, out_indices=(0, 1, 2, 3), drop_path_rate=0.)
SIZES = [(61, 83), (70, 45)]  # neither is a multiple of the patch, or of the window in any stage


def segmentor(backbone, seed=0):
    """Weights, gates and running statistics at random."""
    init_default_scope('mmseg')
    model = MODELS.build(ConfigDict(copy.deepcopy(dict(
        type='EncoderDecoder', data_preprocessor=dict(type='SegDataPreProcessor'),
        backbone=backbone, train_cfg=dict(), test_cfg=dict(mode='whole'), **HEADS))))
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        parameter.data.normal_(0, 0.3, generator=generator)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith('running_mean'):
            buffer.normal_(0, 0.3, generator=generator)
    model.train(False)
    return model


def batch(size, count=2, seed=0):
    """Normalised images, and samples with labels of 5 classes and some ignored pixels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, *size, generator=generator)
    samples = []
    for _ in range(count):
        labels = torch.randint(0, 6, (1, *size), generator=generator)
        labels[labels == 5] = 255
        meta = dict(img_shape=size, ori_shape=(size[0] + 9, size[1] - 2), pad_shape=size,
                    padding_size=[0] * 4)
        samples.append(SegDataSample(metainfo=meta, gt_sem_seg=PixelData(data=labels)))
    return images, samples


def outcomes(model, size):
    """Losses in both modes, logits, and predictions at the images' original size."""
    images, samples = batch(size)
    with torch.no_grad():
        found = dict(model(images, samples, mode='loss'))
        found['logits'] = model(images, mode='tensor')
        for i, sample in enumerate(model(images, samples, mode='predict')):
            found[f'scores{i}'] = sample.seg_logits.data
            found[f'labels{i}'] = sample.pred_sem_seg.data
    return found


@pytest.mark.parametrize('size', SIZES)
def test_dense_is_mmsegs_swin_bit_for_bit(size):
    ours, theirs = segmentor(OURS), segmentor(THEIRS, seed=1)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict(), strict=True)
    expected, found = outcomes(theirs, size), outcomes(ours, size)
    assert {'decode.loss_ce', 'aux.loss_ce', 'logits', 'scores1', 'labels1'} <= expected.keys()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    # and the gradients
    for model in (ours, theirs):
        losses = model.train()(*batch(size), mode='loss')
        model.parse_losses(losses)[0].backward()
    gradients = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.grad, gradients[name].grad), name


def test_search_model_prices_the_task_and_regularises_the_last_map():
    search = MODELS.build(ConfigDict(
        type='mmkcr.SearchModel',
        architecture=segmentor(dict(OURS, gates=dict(type='mmkcr.GumbelChannelGate', min_size=4))),
        regularizers=dict(kcr=dict(type='mmkcr.KernelComplexityLoss', num_features=96)),
        price=dict(type='mmkcr.MacsPrice', part='backbone', input_shape=(3, 64, 64)))).train()
    term = search.regularizers['kcr']
    term.set_basis(torch.linalg.qr(torch.randn(96, term.basis.shape[1]))[0])
    images, samples = batch((61, 83))
    losses = search(images, samples, mode='loss')
    assert {'decode.loss_ce', 'aux.loss_ce', 'loss_kcr', 'loss_price', 'macs'} <= losses.keys()
    with torch.no_grad():  # the same masks: the noise is drawn once a step
        last = search.architecture.backbone(images)[-1].mean((2, 3))
    residual = last - last @ term.basis @ term.basis.T
    assert float(losses['loss_kcr']) == pytest.approx(
        0.2 * float(residual.square().sum()) / 2, rel=1e-4)
    assert search.macs_model().dense == count_macs(search.architecture.backbone, (3, 64, 64))
    search.parse_losses(losses)[0].backward()
    assert not [name for name, p in search.named_parameters() if p.grad is None]
    assert all(gate.alpha.grad.abs().sum() > 0 for gate in search.gates().values())


def test_onnx_of_the_slim_segmentor_at_any_size(tmp_path):
    """Backbone, pyramid pooling and upsampling, at sizes that were not traced."""
    arch = dict(OURS['arch'], depths=[2, 1, 1, 1])  # whole windows and shifted ones
    supernet = segmentor(dict(OURS, arch=arch, gates=dict(type='mmkcr.GumbelChannelGate',
                                                          min_size=4)))
    subnet, _ = slim(supernet, 0.7, 1, (3, 64, 64), 'backbone')
    report = export_onnx(subnet, tmp_path / 'model.onnx', (3, 64, 64))
    assert report.dynamic_size and not report.notice
    assert max(report.errors.values()) < 1e-4 and len(report.errors) >= 5
    others = [(1, 3, *size) for size in SIZES] + [(2, 3, 96, 128)]
    assert max(compare_onnx(TensorModel(subnet), report.path, others).values()) < 1e-4


def test_mask2former_as_a_function_from_images_to_tensors():
    """mmseg's mode 'tensor' does not give its head the sizes that it needs."""
    config = 'mmseg::mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512.py'
    model = build_model(load_config(config, {
        'model.backbone.embed_dims': 24, 'model.backbone.depths': (1, 1, 1, 1),
        'model.decode_head.in_channels': [24, 48, 96, 192], 'model.decode_head.num_queries': 10}))
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        scores, masks = TensorModel(model)(images)
        size = dict(img_shape=(64, 96), pad_shape=(64, 96))
        expected = model.encode_decode(images, [size, size])
    assert scores.shape == (2, 10, 151) and masks.shape == (2, 10, 16, 24)
    masks = torch.nn.functional.interpolate(masks, (64, 96), mode='bilinear').sigmoid()
    found = torch.einsum('bqc,bqhw->bchw', scores.softmax(-1)[..., :-1], masks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
