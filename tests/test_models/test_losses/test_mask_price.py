"""The price on open masks: its formula, what it sees, and what it does to masks."""

import pytest
import torch
from mmengine.registry import DefaultScope
from mmpretrain.structures import DataSample

from mmkcr.evaluation.analysis import classification_scores
from mmkcr.evaluation.masks import MaskWatch, find_masks, has_masks, masks_held_open
from mmkcr.models.losses.mask_price import channels_last, foldable_macs
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


def build(backbone, width, weight=1., **mask):
    torch.manual_seed(0)
    return MODELS.build(dict(
        type='mmkcr.RegularizedModel',
        architecture=dict(
            type='ImageClassifier', neck=dict(type='GlobalAveragePooling'),
            backbone=dict(backbone, outputs=False, qk_mask=dict(type='mmkcr.QKMask', **mask)),
            head=dict(type='LinearClsHead', num_classes=4, in_channels=width, topk=(1, ))),
        regularizers=dict(mask=dict(type='mmkcr.MaskPrice', weight=weight))))


def batch(n=6, side=32):
    samples = [DataSample().set_gt_label(i % 4) for i in range(n)]
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(1)), samples


def thetas(model, images):
    """What every mask gives, and its input."""
    found = {}
    handles = [mask.register_forward_hook(
        lambda module, args, out, name=name: found.update({name: (module, args[0], out)}))
        for name, mask in find_masks(model).items()]
    model(images, mode='tensor')
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize('separate', [False, True])
@pytest.mark.parametrize('backbone, width', CASES)
def test_formula(backbone, width, separate):
    model = build(backbone, width, weight=0.7, separate=separate, init=0.).eval()
    images, samples = batch()
    found = thetas(model, images)
    price = total = 0.
    for mask, x, theta in found.values():
        rows = channels_last(mask, theta)
        assert rows.shape[1] == mask.channels * (1 + separate)
        shut, _ = foldable_macs(mask, x)
        price += shut * float(torch.sigmoid(rows).square().mean(0).sqrt().mean())
        total += shut
    losses = model(images, samples, mode='loss')
    assert float(losses['loss_mask']) == pytest.approx(0.7 * price / total, rel=1e-5)
    assert len(found) == len(find_masks(model)) >= 2
    for name, (mask, _, theta) in found.items():
        opened = (channels_last(mask, theta) > 0).float().mean(0)
        short = name.removeprefix('architecture.backbone.').removesuffix('.mask')
        for key, value in dict(open=opened.mean(), always=(opened == 1).float().mean(),
                               never=(opened == 0).float().mean()).items():
            assert float(losses[f'mask_{short}.{key}']) == pytest.approx(float(value))
    # by its weights, a mask sees the price; without a weight there is the log alone
    torch.autograd.backward(losses['loss_mask'])
    assert all(mask.bias.grad.min() > 0 for mask in find_masks(model).values())
    model.regularizers['mask'].weight = 0.
    again = model(images, samples, mode='loss')
    assert again['loss_mask'] == 0
    assert {key for key in again if key.endswith('.open')} == {
        key for key in losses if key.endswith('.open')}


@pytest.mark.parametrize('backbone, width', CASES)
def test_foldable_macs_are_what_the_layers_lose(backbone, width):
    """Counted: rows of the mask; of queries and keys, and products. See also `test_fold_masks`."""
    model = build(backbone, width)
    for mask, x, _ in thetas(model, batch(2)[0]).values():
        if mask.maps:
            _, channels, height, across = x.shape
            positions = height * across
            # two scales of heads of 8, with values and ones, then with queries; their rows stay
            rest = 2 * 2 * positions * mask.channels * (8 + 1)
        else:
            _, positions, channels = x.shape
            rest = positions**2 * mask.channels + 2 * positions * channels * mask.channels
        rows = positions * channels * mask.channels
        assert foldable_macs(mask, x) == (rows + rest, rows)


def test_layers_weigh_what_all_windows_of_an_image_save():
    torch.manual_seed(0)
    model = MODELS.build(dict(
        type='mmkcr.RegularizedModel',
        architecture=dict(
            type='ImageClassifier', neck=dict(type='GlobalAveragePooling'),
            backbone=dict(
                type='mmkcr.Searchable', sites=['qk_mask'], backbone=dict(
                    type='mmpretrain.SwinTransformer', img_size=112, patch_size=4,
                    window_size=7, out_indices=(2, ),
                    arch=dict(embed_dims=16, depths=[1, 1, 1], num_heads=[1, 2, 4]))),
            head=dict(type='LinearClsHead', num_classes=4, in_channels=64, topk=(1, ))),
        regularizers=dict(mask=dict(type='mmkcr.MaskPrice', weight=1.)))).eval()
    images, samples = batch(2, 112)
    found = thetas(model, images)
    assert [len(x) for _, x, _ in found.values()] == [2 * 16, 2 * 4, 2 * 1]
    shut = [foldable_macs(mask, x)[0] * len(x) for mask, x, _ in found.values()]
    assert shut[0] > shut[1] > shut[2]  # 16, 4 and 1 windows
    opened = [float(torch.sigmoid(channels_last(mask, theta)).square().mean(0).sqrt().mean())
              for mask, _, theta in found.values()]
    expected = sum(a * b for a, b in zip(shut, opened)) / sum(shut)
    assert float(model(images, samples, mode='loss')['loss_mask']) == pytest.approx(expected, 1e-5)


def test_a_channel_pays_while_any_position_is_open():
    """Half of the positions open costs more than half: shutting all of few channels is cheaper."""
    price = MODELS.build(dict(type='mmkcr.MaskPrice', weight=1.))
    mask = MODELS.build(dict(type='mmkcr.QKMask', in_channels=4, channels=4))
    price.bind(torch.nn.ModuleDict(dict(mask=mask)))

    def cost(theta):
        with price.watch():
            price._seen['mask'] = (theta, 1.)
        return float(price(torch.zeros(1)))

    high = 30.
    positions = torch.full((1, 8, 1, 4), high)
    positions[:, ::2] = -high  # every channel at half of the positions
    channels = torch.full((1, 8, 1, 4), high)
    channels[..., ::2] = -high  # half of the channels at every position
    assert cost(channels) == pytest.approx(0.5, abs=1e-5)
    assert cost(positions) == pytest.approx(0.5**0.5, abs=1e-5)


def test_the_price_shuts_masks():
    model = build(MOBILE, 24, weight=1.)
    optimizer = torch.optim.Adam([p for mask in find_masks(model).values()
                                  for p in mask.parameters()], lr=0.1)
    images, samples = batch()
    shares = []
    for _ in range(60):
        losses = model(images, samples, mode='loss')
        shares.append(float(sum(v for k, v in losses.items() if k.endswith('.open')) / 2))
        optimizer.zero_grad()
        losses['loss_mask'].backward()
        optimizer.step()
    assert shares[0] > 0.9 and shares[-1] < 0.1


@pytest.mark.parametrize('backbone, width', CASES)
def test_statistics_of_a_data_set(backbone, width):
    """Constants are constants over all batches, not of one; the control holds all masks open."""
    model = build(backbone, width, init=0.).eval()
    mask = next(iter(find_masks(model).values()))
    mask.bias.data[:3], mask.bias.data[3:5] = 50., -50.
    images, samples = batch(8)
    loader = [dict(inputs=list(images[i:i + 2]), data_samples=samples[i:i + 2])
              for i in range(0, 8, 2)]
    with MaskWatch(model) as watch:
        for part in loader:
            model.test_step(part)
    model.test_step(loader[0])  # behind the block nothing is counted
    found = watch.statistics()
    assert set(found) == set(find_masks(model))
    assert watch.means()['open'] == pytest.approx(
        100 * sum(mask.open for mask in found.values()) / len(found))
    with torch.no_grad():
        for name, (module, x, theta) in thetas(model, images).items():
            opened = (channels_last(module, theta) > 0).double().mean(0)
            statistics = found[name]
            assert statistics.open == pytest.approx(float(opened.mean()))
            assert statistics.always == float((opened == 1).double().mean())
            assert statistics.never == float((opened == 0).double().mean())
            shut, rows = foldable_macs(module, x)
            assert statistics.foldable == pytest.approx(
                statistics.never * shut + statistics.always * rows)
    first = found[next(iter(found))]
    assert first.always >= 3 / mask.channels and first.never >= 2 / mask.channels
    with masks_held_open(model):
        control = classification_scores(model, loader)['top1']
    assert not any(module.held_open for module in find_masks(model).values())
    for module in find_masks(model).values():
        module.bias.data.fill_(50.)
    correct = [sample.pred_label == sample.gt_label for part in loader
               for sample in model.test_step(part)]
    assert control == pytest.approx(100 * sum(map(int, correct)) / 8)


def test_refusals():
    with pytest.raises(ValueError, match='non-negative mask price `weight`, found -1'):
        MODELS.build(dict(type='mmkcr.MaskPrice', weight=-1))
    plain = dict(MOBILE, outputs=False)
    model = build(plain, 24)
    price = MODELS.build(dict(type='mmkcr.MaskPrice', weight=1.))
    for kind in (model.architecture.head, torch.nn.Linear(1, 1)):
        with pytest.raises(ValueError, match='masks on queries and keys for `MaskPrice`'):
            price.bind(kind)
    with pytest.raises(ValueError, match='masks on queries and keys, found `Linear`'):
        MaskWatch(torch.nn.Linear(1, 1))
    assert not has_masks(torch.nn.Linear(1, 1))
    MODELS.build(dict(type='mmkcr.MaskPrice')).bind(torch.nn.Linear(1, 1))  # a log of nothing


@pytest.mark.parametrize('weight', [0., 1.])
def test_masks_within_gradient_checkpointing(weight):
    """There a price has no gradient: it is refused, and the log alone goes on."""
    swin = dict(type='SwinTransformer', img_size=32, patch_size=4, window_size=4, with_cp=True,
                arch=dict(embed_dims=16, depths=[1], num_heads=[2]), out_indices=(0, ))
    model = MODELS.build(dict(
        type='mmkcr.RegularizedModel',
        architecture=dict(
            type='ImageClassifier', neck=dict(type='GlobalAveragePooling'),
            backbone=dict(type='mmkcr.Searchable', backbone=swin, sites=['qk_mask']),
            head=dict(type='LinearClsHead', num_classes=4, in_channels=16, topk=(1, ))),
        regularizers=dict(mask=dict(type='mmkcr.MaskPrice', weight=weight)))).train()
    images, samples = batch()
    images.requires_grad_()  # re-entrant checkpointing needs an input with a gradient
    if not weight:
        assert 'mask_stages.0.blocks.0.attn.w_msa.open' in model(images, samples, mode='loss')
        return
    with pytest.raises(ValueError, match='outside of gradient checkpointing .*found `stages.0'):
        model(images, samples, mode='loss')
