"""What masks select over a data set, and the control that holds them open."""

import pytest
import torch
from mmengine.registry import DefaultScope
from mmpretrain.structures import DataSample

from lab.kernel_analysis import classification_scores
from mmkcr.methods.dcs.qk_mask import MaskWatch, find_masks, masks_held_open
from mmkcr.registry import MODELS

MOBILE = dict(
    type='mmkcr.DCSMobileViT', out_indices=(1, ), last_exp_factor=2, stem_channels=8,
    arch=[['mobilenetv2', 8, 1, 1, 2], ['mobilevit', 12, 2, 16, 24, 2, 2]])
EFFICIENT = dict(type='mmkcr.DCSEfficientViT',
                 arch=dict(widths=[8, 8, 16], depths=[1, 1, 2], head_dim=8))
CASES = [pytest.param(MOBILE, 24, id='mobilevit'), pytest.param(EFFICIENT, 16, id='efficientvit')]


@pytest.fixture(autouse=True)
def _scope():
    DefaultScope.get_instance('test', scope_name='mmpretrain')


def build(backbone, width):
    torch.manual_seed(0)
    return MODELS.build(dict(
        type='mmkcr.RegularizedModel', architecture=dict(
            type='ImageClassifier', neck=dict(type='GlobalAveragePooling'),
            backbone=dict(backbone, outputs=False, qk_mask=dict(type='mmkcr.QKMask', init=0.)),
            head=dict(type='LinearClsHead', num_classes=4, in_channels=width, topk=(1, )))))


def thetas(model, images):
    """What every mask gives."""
    found = {}
    handles = [mask.register_forward_hook(
        lambda module, args, out, name=name: found.update({name: (module, out)}))
        for name, mask in find_masks(model).items()]
    model(images, mode='tensor')
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize('backbone, width', CASES)
def test_statistics_of_a_data_set(backbone, width):
    """Constants are constants over all batches, not of one; the control holds all masks open."""
    model = build(backbone, width).eval()
    mask = next(iter(find_masks(model).values()))
    mask.bias.data[:3], mask.bias.data[3:5] = 50., -50.
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    samples = [DataSample().set_gt_label(i % 4) for i in range(8)]
    loader = [dict(inputs=list(images[i:i + 2]), data_samples=samples[i:i + 2])
              for i in range(0, 8, 2)]
    with MaskWatch(model) as watch:
        for part in loader:
            model.test_step(part)
    model.test_step(loader[0])  # behind the block nothing is counted
    found = watch.table()
    layers = {name: name.rpartition('backbone.')[2].removesuffix('.mask')
              for name in find_masks(model)}
    assert set(found) == set(layers.values())
    assert watch.means()['open'] == pytest.approx(
        sum(mask['open'] for mask in found.values()) / len(found))
    with torch.no_grad():
        for name, (module, theta) in thetas(model, images).items():
            channels = theta.permute(0, 3, 4, 1, 2) if module.maps else theta
            opened = (channels.flatten(-2).flatten(0, -2) > 0).double().mean(0)
            assert found[layers[name]] == pytest.approx({
                key: 100 * float(share.double().mean()) for key, share in dict(
                    open=opened, always=opened == 1, never=opened == 0).items()})
    first = found[next(iter(found))]
    assert min(first['always'] / 3, first['never'] / 2) >= 100 / mask.channels
    with masks_held_open(model):
        control = classification_scores(model, loader)['top1']
    assert not any(module.held_open for module in find_masks(model).values())
    for module in find_masks(model).values():
        module.bias.data.fill_(50.)
    correct = [sample.pred_label == sample.gt_label for part in loader
               for sample in model.test_step(part)]
    assert control == pytest.approx(100 * sum(map(int, correct)) / 8)


def test_refusals():
    with pytest.raises(ValueError, match='masks on queries and keys, found `Linear`'):
        MaskWatch(torch.nn.Linear(1, 1))
