"""MACs of whole detectors and segmentors by part, against a naive count of every layer's calls."""

import pytest
import torch
from torch import nn

from mmkcr.apis.build import build_model, load_config
from mmkcr.apis.count import count_parts, counted_proposals, part_rows
from mmkcr.models.utils import most_proposals, task_forward

SHAPE = (3, 64, 64)
CONFIGS = dict(
    upernet='configs/kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py',
    rcnn='configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py')


@pytest.fixture(scope='module')
def models():
    return {name: build_model(load_config(path)) for name, path in CONFIGS.items()}


def naive(model):
    """Multiplications of linear layers and convolutions by part, without the backbone's."""
    found, handles = {}, []

    def hook(part):
        def count(layer, args, out):
            size = args[0] if isinstance(layer, nn.ConvTranspose2d) else out
            found[part] = found.get(part, 0) + size.numel() * layer.weight[0].numel() // (
                1 if not isinstance(layer, nn.Conv2d) or layer.groups == 1 else layer.groups)
        return count

    for name, layer in model.named_modules():
        if hasattr(layer, 'weight') and isinstance(
                layer, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            part = '.'.join(name.split('.')[:2 if name.startswith('roi_head') else 1])
            handles.append(layer.register_forward_hook(hook(part)))
    with torch.no_grad():
        task_forward(model, SHAPE)()
    for handle in handles:
        handle.remove()
    found.pop('backbone')  # with products that are no layer's
    return found


@pytest.mark.parametrize('name', CONFIGS)
def test_parts_are_the_naive_count(models, name):
    if name == 'rcnn':
        pytest.importorskip('mmcv.ops')
    parts = count_parts(models[name], SHAPE)
    assert {part: macs for part, macs in parts.items() if part != 'backbone'} == naive(models[name])
    assert 'auxiliary_head' not in parts and parts['backbone'] > 0


def test_the_second_stage_runs_on_the_stated_number(models):
    pytest.importorskip('mmcv.ops')
    model = models['rcnn']
    for count in (7, 130):
        model.rpn_head.test_cfg['max_per_img'] = count
        parts, head = count_parts(model, SHAPE), model.roi_head.bbox_head
        assert most_proposals(model) == count and f' {count} prop' in counted_proposals(model)
        assert parts['roi_head.bbox_head'] == count * (
            64 * 7 * 7 * 128 + 128 * 128 + 128 * (head.num_classes + 1) + 128 * 40)
        pixels = min(count, 100) * 14 * 14  # two convolutions, one to twice the size, one layer
        assert parts['roi_head.mask_head'] == pixels * (
            2 * 64 * 64 * 9 + 4 * 64 * 64 + 4 * 64 * head.num_classes)
    model.rpn_head.test_cfg['max_per_img'] = 50
    assert counted_proposals(models['upernet']) is None


def test_rows_end_with_the_whole_model():
    rows = part_rows(dict(backbone=(4 * 10**9, 2 * 10**9), neck=(6 * 10**9, 6 * 10**9)))
    assert rows[-1] == ('whole model', '10', '8', '80.0%')
