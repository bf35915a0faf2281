"""Searches in detectors and segmentors: the law, budgets, and images of several sizes."""

from pathlib import Path

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmkcr.apis import slim
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.sites import QKMaskSite
from mmkcr.models.tasks import find_task, search_space
from .test_backbones.law import decide

CONFIGS = Path(__file__).parents[2] / 'configs'
SSDLITE = 'dcs/detection/dcs-ssdlite_mobilevit-mini_{}_1xb8_digit-scenes.py'
MASK_RCNN = 'dcs/detection/dcs-mask-rcnn_efficientvit-mini_dense_1xb8_digit-scenes.py'
OFB = 'ofb/detection/ofb-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py'
# a dense config beside a method base, as `mmkcr init` writes it
COMPOSED = "_base_ = ['{configs}/{path}', '{configs}/_base_/methods/{method}.py']\n" \
    'compression = dict({lines})\n'
IB = dict(ib=dict(type='mmkcr.InformationBottleneckLoss', num_classes=10))
# not divisible by a stride; of one batch
SIZES = [(90, 131), (117, 74)]


@pytest.fixture
def composed(tmp_path):
    """``composed(path, method, **lines)``: the config of a dense one beside a method base."""

    def load(path, method, **lines):
        file = tmp_path / f'{method}.py'
        file.write_text(COMPOSED.format(configs=CONFIGS, path=path, method=method, lines=', '.join(
            f'{key}={value!r}' for key, value in lines.items())))
        return load_config(file)

    return load


def random_model(config, seed=0):
    """With weights and gates that have learned nothing."""
    model = build_model(config)
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.05, generator=generator)
    for _, gate in sorted(model.gates().items()):
        gate.alpha.data.normal_(0.3, 1., generator=generator)
    return model


@pytest.mark.usefixtures('exact_positions')
@pytest.mark.parametrize('path', [
    SSDLITE.format('search'), MASK_RCNN, OFB,
    'ofb/segmentation/ofb-setr-naive_vit-mini_search_1xb8_digit-scenes.py',
    'kcr/detection/kcr-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py',
    'kcr/segmentation/kcr-upernet_swin-mini_search_1xb8_digit-scenes.py'])
def test_supernet_of_a_task_equals_its_subnet_within_the_budget(path, composed):
    method = path.split('/')[0]
    if path == MASK_RCNN:
        config = composed(MASK_RCNN, 'dcs_search', sites='own', target='80%')
    else:
        config = load_config(CONFIGS / path)
    model = random_model(config).double()
    price = model.price
    assert price.input_shape == (3, 128, 128)
    target = model.macs_model().parse_target(price.target)
    subnet, structure = slim(model, price.target, 1, price.input_shape, ordinary=False)
    assert structure.macs['part'] == 'backbone'
    assert 0.95 * target < structure.macs['subnet'] <= target
    decide(model, structure)
    assert bool(QKMaskSite.masks(subnet)) == (method == 'dcs')
    assert search_space(subnet).method == method
    pair = [find_task(net).eval() for net in (model, subnet)]
    for size in SIZES:
        images = torch.randn(2, 3, *size).double()
        with torch.no_grad():
            for one, two in zip(*(net.extract_feat(images) for net in pair)):
                torch.testing.assert_close(one, two, rtol=0, atol=1e-10 * float(one.abs().max()))


@pytest.mark.parametrize('method', ['dcs', 'ofb'])
def test_a_retraining_takes_what_the_search_left(method, composed, tmp_path):
    """Both written by the same two lines, around the dense config."""
    path = SSDLITE.format('dense') if method == 'dcs' else \
        'kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
    own = dict(sites='own') if method == 'dcs' else {}
    searched = random_model(composed(path, f'{method}_search', target='85%', **own))
    subnet, structure = slim(searched, '85%', 1, (3, 128, 128))
    structure.save(tmp_path / 'structure.json')
    model = build_model(composed(path, f'{method}_retrain',
                                 structure=str(tmp_path / 'structure.json'), **own))
    model.load_state_dict(subnet.state_dict(), strict=True)
    images = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        for one, two in zip(find_task(model).eval().extract_feat(images),
                            subnet.eval().extract_feat(images)):
            torch.testing.assert_close(one, two)


def batch(sizes):
    """Images of several sizes with an object each, as a data loader gives them."""
    samples = []
    for height, width in sizes:
        sample = DetDataSample(metainfo=dict(img_shape=(height, width), scale_factor=(1., 1.),
                                             ori_shape=(height, width)))
        sample.gt_instances = InstanceData(bboxes=torch.tensor([[5., 8., 45., 40.]]),
                                           labels=torch.tensor([2]))
        samples.append(sample)
    images = [torch.randint(0, 255, (3, *size), dtype=torch.uint8) for size in sizes]
    return dict(inputs=images, data_samples=samples)


@pytest.mark.parametrize('divisor', [32, 1])
def test_masked_patches_of_a_detectors_images(divisor):
    """Patches are as many as the last tokens, whatever the batch is padded to."""
    config = load_config(CONFIGS / OFB, {
        'compression.wrapper': dict(
            _delete_=True, type='mmkcr.MaskedSearchModel', reconstruction=dict(
                in_channels=96, token_channels=48, patch_size=8, window=9, mask_ratio=0.25)),
        'model.roi_head.mask_head': None, 'model.roi_head.mask_roi_extractor': None,
        'model.data_preprocessor.pad_mask': False,
        'model.data_preprocessor.pad_size_divisor': divisor})
    model = build_model(config).train()
    losses = model(**model.data_preprocessor(batch(SIZES), training=True), mode='loss')
    task = sum(float(sum(value) if isinstance(value, list) else value)
               for name, value in losses.items() if name in (
                   'loss_rpn_cls', 'loss_rpn_bbox', 'loss_cls', 'loss_bbox'))
    assert float(losses['loss_reconstruction']) == pytest.approx(task, rel=1e-4)
    total, logs = model.parse_losses(losses)
    assert logs['loss'] == total and float(logs['loss_task']) == pytest.approx(task, rel=1e-4)
    total.backward()
    assert not [name for name, parameter in model.named_parameters()
                if parameter.requires_grad and parameter.grad is None]
    assert model.reconstruction.mask_token.grad.abs().sum() > 0


def test_a_reconstruction_needs_the_last_tokens():
    options = {'compression.wrapper': dict(
        _delete_=True, type='mmkcr.MaskedSearchModel', reconstruction=dict(in_channels=96))}
    with pytest.raises(ValueError, match=r'last output, for a `reconstruction`, found '
                       r'`OFBSwinTransformer` with `out_indices=\[0\]`'):
        build_model(load_config(CONFIGS / OFB, {
            **options, 'model.backbone.out_indices': (0, ), 'model.neck.in_channels': [48]}))
    with pytest.raises(ValueError, match='found `SwinTransformer` with'):
        build_model(load_config(CONFIGS / OFB, {
            **options, 'compression.sites': ['heads', 'mlp_hidden'],
            'model.backbone.type': 'mmpretrain.SwinTransformer'}))


def test_the_information_bottleneck_has_no_label_in_a_detector(composed):
    with pytest.raises(ValueError, match='one label an image for the regulariser `ib` '
                       r'\(`InformationBottleneckLoss`\), found `SingleStageDetector`'):
        build_model(composed(SSDLITE.format('dense'), 'dcs_retrain', sites='own',
                             regularizers=IB))
