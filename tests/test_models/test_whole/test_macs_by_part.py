"""MACs of whole detectors and segmentors by part, against a naive count of every layer's calls."""

import pytest
import torch
from mmengine.structures import InstanceData
from torch import nn

from mmkcr.engine.build import build_model, load_config
from mmkcr.models.counting import both_parts, count_macs, count_parts, describe_proposals
from mmkcr.models.tasks import task_forward
from mmkcr.models.two_stage import most_proposals, refine_boxes, two_stage_outputs
from .whole_models import MASK_RCNN, SWIN, UPERNET, batches, build

SHAPE = (3, 64, 64)


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


@pytest.mark.parametrize('path', [UPERNET, MASK_RCNN])
def test_parts_are_the_naive_count(path):
    if path == MASK_RCNN:
        pytest.importorskip('mmcv.ops')
    model = build_model(load_config(path))
    parts = count_parts(model, SHAPE)
    assert {part: macs for part, macs in parts.items() if part != 'backbone'} == naive(model)
    assert 'auxiliary_head' not in parts and parts['backbone'] > 0
    assert (describe_proposals(model) is None) == (path == UPERNET)


@pytest.mark.parametrize('name, stages, boxes', [('mask_rcnn', 1, 3 * 4), ('cascade', 3, 4)])
def test_every_second_stage_runs_on_the_stated_number(name, stages, boxes):
    pytest.importorskip('mmcv.ops')
    model = build(name)
    for count in (7, 130):
        model.rpn_head.test_cfg['max_per_img'] = count
        parts, said = count_parts(model, SHAPE), describe_proposals(model)
        assert most_proposals(model) == count and f' {count} proposals' in said
        assert f'masks for {min(count, 100)}.' in said
        # two layers, and those of scores and of boxes, of a cascade for any class; four layers of
        # 12 channels, one to twice the size, and the logits
        assert parts['roi_head.bbox_head'] == stages * count * (
            16 * 7 * 7 * 24 + 24 * 24 + 24 * (3 + 1) + 24 * boxes)
        pixels = min(count, 100) * 14 * 14
        assert parts['roi_head.mask_head'] == stages * pixels * (
            16 * 12 * 9 + 12 * 12 * 9 + 4 * 12 * 12 + 4 * 12 * 3)


def test_stages_of_a_cascade_run_on_the_boxes_of_the_stage_before():
    """Against mmdet's own forward: mean scores, boxes of the last stage, mean of the masks."""
    pytest.importorskip('mmcv.ops')
    torch.manual_seed(0)
    model = build('cascade').double()
    for head in model.roi_head.bbox_head:
        torch.nn.init.normal_(head.fc_reg.weight, std=0.3)  # so that boxes move
    found = batches(model, dtype=torch.float64)[0]
    images, samples = found['inputs'], found['data_samples']
    boxes = [torch.tensor([[4., 4., 30., 40.], [10., 0., 60., 20.], [0., 0., 64., 64.]]).double(),
             torch.tensor([[8., 2., 50., 30.], [1., 9., 20., 60.], [5., 5., 15., 25.]]).double()]
    with torch.no_grad():
        features = model.extract_feat(images)
        stages = refine_boxes(model, features, boxes, samples)
        _, regions = two_stage_outputs(model, images, samples, stages)
        scores, deltas, masks = model.roi_head.forward(
            features, [InstanceData(bboxes=of_image) for of_image in boxes], samples)
    assert len(stages) == 3 and not torch.allclose(stages[0][0], stages[2][0], atol=1.)
    assert torch.allclose(sum(scores for scores, _ in regions[:3]) / 3, torch.cat(scores))
    assert torch.allclose(regions[2][1], torch.cat(deltas))
    assert torch.allclose(sum(found.sigmoid() for found in regions[3:]) / 3, torch.cat(masks))
    single = build('mask_rcnn')
    with torch.no_grad():
        assert refine_boxes(single, (), boxes, samples) == [boxes]


def sparse_rcnn():
    """mmdet runs its heads with labels only."""
    config = load_config('mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py')
    config.model.backbone = SWIN
    config.model.neck.update(in_channels=[16, 32], num_outs=2)
    config.model.roi_head.update(num_stages=1, stage_loss_weights=[1],
                                 bbox_head=config.model.roi_head.bbox_head[:1])
    config.model.roi_head.bbox_roi_extractor.featmap_strides = [4, 8]
    return build_model(config)


def test_a_model_that_needs_labels_is_refused_and_its_backbone_is_compressed_all_the_same():
    pytest.importorskip('mmcv.ops')
    model = sparse_rcnn()
    with pytest.raises(ValueError, match=r'expected `SparseRCNN` to run on one image of zeros .*, '
                       r'without labels, found that it raised \w+Error'):
        count_parts(model, SHAPE)
    with pytest.warns(UserWarning, match='MACs by part are not counted: expected `SparseRCNN`'):
        assert both_parts(model, model, SHAPE) == {}
    assert count_macs(model.backbone, SHAPE) > 0
