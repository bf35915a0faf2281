"""KCR-Swin in mmdet: the host's own Swin bit for bit, and budgets."""

import copy

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData

from mmkcr.apis import count_macs, slim
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import find_backbone
from .test_whole.whole_models import config_of

# not divisible by the window of 7, nor by the strides
SIZES = [(90, 131), (117, 74)]
SWIN = dict(out_indices=(0, 1), drop_path_rate=0., window_size=7)
OURS = dict(type='mmkcr.KCRSwinTransformer', pad_small_map=True,
            arch=dict(embed_dims=48, depths=[2, 2], num_heads=[2, 4]), **SWIN)
THEIRS = dict(type='SwinTransformer', embed_dims=48, depths=(2, 2), num_heads=(2, 4),
              strides=(4, 2), **SWIN)
GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)


@pytest.fixture(scope='module')
def base():
    """Cascade Mask R-CNN of mmdet, with narrow heads and few regions of interest."""
    model = config_of('cascade').model
    model.test_cfg.rcnn.update(score_thr=0., max_per_img=10)
    return model


def build(base, backbone, seed=0):
    init_default_scope('mmdet')
    model = MODELS.build(dict(copy.deepcopy(base), backbone=backbone))
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):  # ours and theirs in one order
        parameter.data.normal_(0, 0.1, generator=generator)
    return model


def batch(size, n=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for i in range(n):
        meta = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size,
                    scale_factor=(1., 1.))
        boxes = torch.tensor([[5., 8., 45., 40.], [30. + i, 20., 70., 88.]])
        masks = np.zeros((2, *size), np.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist()):
            mask[y1:y2, x1:x2] = 1
        sample = DetDataSample(metainfo=meta)
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([0, 2]),
                                           masks=BitmapMasks(masks, *size))
        samples.append(sample)
    return torch.randn(n, 3, *size, generator=generator), samples


def losses(model, size):
    torch.manual_seed(1)  # of the samplers
    found = model(*batch(size), mode='loss')
    return {name: torch.stack([torch.as_tensor(v).detach() for v in value]) if isinstance(
        value, list) else value.detach() for name, value in found.items()}


def predictions(model, size):
    model.eval()
    with torch.no_grad():
        return [sample.pred_instances for sample in model(*batch(size), mode='predict')]


@pytest.mark.parametrize('size', SIZES)
def test_dense_state_gives_the_outputs_of_the_hosts_swin_bit_for_bit(base, size):
    ours, theirs = build(base, OURS), build(base, THEIRS, seed=1)
    assert type(theirs.backbone).__module__.startswith('mmdet.')
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    first, second = losses(ours.train(), size), losses(theirs.train(), size)
    assert first.keys() == second.keys() and len(first) >= 12
    assert all(torch.equal(first[name], second[name]) for name in first)
    for one, two in zip(predictions(ours, size), predictions(theirs, size)):
        assert len(one) == len(two) == 10
        for field in ('bboxes', 'scores', 'labels', 'masks'):
            assert torch.equal(one[field], two[field]), field


def test_a_budget_is_about_the_backbone_at_the_given_size(base):
    model = build(base, dict(OURS, gates=GATES))
    subnet, structure = slim(model, 0.7, 1, (3, 90, 131))
    dense, kept = (count_macs(net.backbone, (3, 90, 131)) for net in (model, subnet))
    assert structure.macs == dict(dense=dense, subnet=kept, input_shape=[3, 90, 131],
                                  part='backbone')
    assert 0.68 * dense < kept <= 0.7 * dense
    whole = slim(model, 0.95, 1, (3, 90, 131), part='model')[1]
    assert whole.macs['dense'] > structure.macs['dense'] and 'part' not in whole.macs
    assert find_backbone(model).gates()  # left as it is
    with pytest.raises(ValueError, match="`model` or `backbone`, found 'neck'"):
        slim(model, 0.7, part='neck')


def test_a_config_is_as_it_was_after_its_model_was_built():
    """mmdet's DINO adds entries to that of its head, and refuses them when built again."""
    config = load_config('mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py')
    before = config.model.to_dict()
    build_model(config)
    assert config.model.to_dict() == before
    build_model(config)
