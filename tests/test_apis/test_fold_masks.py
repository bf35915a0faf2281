"""Folding masks on queries and keys: the same function, fewer MACs, one structure file."""

import copy
from pathlib import Path

import pytest
import torch

from mmkcr.apis import count_macs, slim
from mmkcr.apis.build import build_model, load_config
from mmkcr.apis.export import export_onnx
from mmkcr.apis.mask_folding import constant_masks, fold_masks
from mmkcr.core import MaskEntry, Structure, count_params
from mmkcr.evaluation.masks import find_masks, proved_rows
from mmkcr.models.gates import QKMask
from mmkcr.models.losses.mask_price import channels_last, foldable_macs
from mmkcr.models.utils import find_task
from mmkcr.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs' / 'dcs' / 'digits'
NETS = ['mobilevit-mini', 'efficientvit-mini']
MASKS = [pytest.param({}, id='plain'), pytest.param(dict(share_heads=True), id='share_heads'),
         pytest.param(dict(rank=3), id='rank'), pytest.param(dict(separate=True), id='separate')]
SHAPE = (3, 32, 32)


def supernet(net, **mask):
    """The shipped search, with masks of which a part is constant, unequally over the heads."""
    config = load_config(str(CONFIGS / f'dcs-search_{net}_1xb64_digits.py'))
    config.model.architecture.backbone.qk_mask = dict(type='mmkcr.QKMask', **mask)
    torch.manual_seed(0)
    model = build_model(config)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.5, 0.5)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    model.eval()
    shut_some(find_task(model))
    return model


def shut_some(model):
    """Some rows of every mask are constant, and the others are not on the images."""
    model.eval()
    for mask in find_masks(model).values():
        torch.nn.init.normal_(mask.weight, 0, 0.5)
        torch.nn.init.zeros_(mask.bias)
        seen = []
        handle = mask.register_forward_hook(
            lambda module, _, theta, seen=seen: seen.append(channels_last(module, theta)))
        with torch.no_grad():
            model(images())
        handle.remove()
        rows = seen[0].mean(0).view(-1, mask.repeats, mask.channels // mask.repeats)
        mask.bias.data -= rows[:, 0].flatten()
        half = mask.weight.shape[0] // 2
        for chosen, value in ((slice(0, half // 2), -60.), (slice(half, half + 3), -60.),
                              (slice(half + 3, half + 6), 60.)):
            mask.bias.data[chosen] = value
            mask.weight.data[chosen] *= 0.1


def images(n=4, seed=1):
    return torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(seed))


def batches():
    """Calibration images; the first batch is that of :func:`images`."""
    return [dict(inputs=images(4, seed)) for seed in (1, 2)]


def outputs(model, x):
    """In double precision, in which no mask is near the edge."""
    model = copy.deepcopy(find_task(model)).double()
    model.eval()
    with torch.no_grad():
        return model(x.double(), mode='tensor')


def same(one, two):
    for a, b in zip(one, two) if isinstance(one, tuple) else ((one, two), ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9 * float(b.abs().max()))


def built_from(net, structure, **mask):
    """The shipped deploy config with a structure."""
    config = load_config(str(CONFIGS / f'dcs-deploy_{net}_1xb64_digits.py'))
    config.model.backbone.structure = str(structure)
    config.model.backbone.qk_mask = dict(type='mmkcr.QKMask', **mask)
    return build_model(config)


@pytest.mark.parametrize('mask', MASKS)
@pytest.mark.parametrize('net', NETS)
def test_folded_network_computes_what_the_masked_one_does(net, mask, tmp_path):
    model = supernet(net, **mask)
    whole, before = slim(model, 0.8, input_shape=SHAPE)
    folded, structure = slim(model, 0.8, input_shape=SHAPE, fold=batches())
    assert structure.sites == before.sites and not before.masks
    assert len(structure.masks) == len(find_masks(whole))
    for entry in structure.masks.values():
        assert len(entry.open) >= 3 and len(entry.shut) >= 5
        assert len(entry.open) + len(entry.shut) < entry.total  # something is left to decide
    for batch in batches():
        same(outputs(folded, batch['inputs']), outputs(whole, batch['inputs']))
    # the saving is counted, and written
    assert structure.macs['subnet'] == count_macs(folded, SHAPE) < before.macs['subnet']
    assert structure.params['subnet'] == count_params(folded) < before.params['subnet']
    assert structure.macs['dense'] == before.macs['dense']
    # the file alone builds it, and the weights load strictly; whole ones do not
    structure.save(tmp_path / 'structure.json')
    assert Structure.load(tmp_path / 'structure.json') == structure
    again = built_from(net, tmp_path / 'structure.json', **mask)
    again.load_state_dict(folded.state_dict(), strict=True)
    same(outputs(again, images()), outputs(folded, images()))
    with pytest.raises((ValueError, RuntimeError), match='mask|qkv'):
        again.load_state_dict(whole.state_dict())


@pytest.mark.parametrize('mask', [{}, dict(share_heads=True)])
@pytest.mark.parametrize('net', NETS)
def test_onnx(net, mask, tmp_path):
    folded = slim(supernet(net, **mask), None, input_shape=SHAPE, fold=batches())[0]
    report = export_onnx(folded, tmp_path / 'slim.onnx', SHAPE)
    assert max(report.errors.values()) <= 1e-4


@pytest.mark.parametrize('value', [60., -60.])
@pytest.mark.parametrize('net', NETS)
def test_a_mask_without_rows_disappears(net, value):
    model = supernet(net)
    for mask in find_masks(model).values():
        torch.nn.init.normal_(mask.weight, 0, 0.01)
        mask.bias.data.fill_(value)
    whole = slim(model, None, input_shape=SHAPE)[0]
    folded, structure = slim(model, None, input_shape=SHAPE, fold=batches())
    assert not any(isinstance(module, QKMask) for module in folded.modules())
    same(outputs(folded, images()), outputs(whole, images()))
    assert not [key for key in folded.state_dict() if 'mask' in key]
    assert count_params(folded) <= count_params(whole) - sum(
        count_params(mask) for mask in find_masks(whole).values())


@pytest.mark.parametrize('mask', [MASKS[0], MASKS[3]])
@pytest.mark.parametrize('net', NETS)
def test_it_trains_on(net, mask):
    """With the noise of training, and gradients for all that is left of the masks."""
    folded = slim(supernet(net, **mask), None, input_shape=SHAPE, fold=batches())[0].train()
    left = [module for module in folded.modules() if isinstance(module, QKMask)]
    for module in left:
        module.resample(torch.Generator().manual_seed(0))
    found = folded(images(), mode='tensor')
    sum(x.square().sum() for x in (found if isinstance(found, tuple) else (found, ))).backward()
    assert left and all(float(module.bias.grad.abs().max()) > 0 for module in left)


@pytest.mark.parametrize('net', NETS)
def test_a_network_without_gates(net, tmp_path):
    """A retrained subnet, and a network with masks only, which has no other structure."""
    retrained, before = slim(supernet(net), 0.8, input_shape=SHAPE)
    folded, structure = fold_masks(retrained, batches(), SHAPE)
    at_once = slim(supernet(net), 0.8, input_shape=SHAPE, fold=batches())[1]
    assert structure.to_dict() == at_once.to_dict() and not before.masks
    same(outputs(folded, images()), outputs(retrained, images()))
    with pytest.raises(ValueError, match='masks on queries and keys that are not folded, found a '
                                         'folded one at'):
        fold_masks(folded, batches(), SHAPE)
    torch.manual_seed(0)
    alone = build_model(load_config(str(CONFIGS / f'dcs-dense_{net}_arch1_1xb64_digits.py')))
    alone = find_task(alone).eval()
    shut_some(alone)
    folded, structure = fold_masks(alone, batches(), SHAPE)
    assert not structure.sites and structure.masks
    same(outputs(folded, images()), outputs(alone, images()))
    assert structure.macs['subnet'] == count_macs(folded, SHAPE) < count_macs(alone, SHAPE)
    structure.save(tmp_path / 'structure.json')
    config = load_config(str(CONFIGS / f'dcs-dense_{net}_arch1_1xb64_digits.py'))
    model = config.model.get('architecture', config.model)
    model.backbone.structure = str(tmp_path / 'structure.json')
    again = find_task(build_model(config))
    again.load_state_dict(folded.state_dict(), strict=True)
    same(outputs(again, images()), outputs(folded, images()))


def test_proof_by_the_layer_norm():
    """Proved rows are constant for any input, and without images they alone are folded."""
    model = supernet('mobilevit-mini')
    found = constant_masks(slim(model, None, input_shape=SHAPE)[0], (), SHAPE)
    on_images = constant_masks(slim(model, None, input_shape=SHAPE)[0], batches(), SHAPE)
    assert len(found) == 4
    for name, (entry, proved) in found.items():
        assert proved == len(entry.open) + len(entry.shut) > 0
        assert on_images[name].proved == proved
        for key in ('open', 'shut'):
            assert set(getattr(entry, key)) <= set(getattr(on_images[name].entry, key))
    # the bound is reached: the worst input is within 1 % of it
    generator = torch.Generator().manual_seed(0)
    mask, norm = QKMask(24, 8), torch.nn.LayerNorm(24, eps=0.)
    for value in (mask.weight, mask.bias, norm.weight, norm.bias):
        value.data.copy_(torch.randn(value.shape, generator=generator))
    spread = (mask.weight * norm.weight).detach()
    spread = spread - spread.mean(1, keepdim=True)
    worst = norm(-spread)
    lowest = mask(worst[None])[0, range(8), 0, range(8)].detach()
    mask.bias.data -= lowest - 0.01 * torch.tensor([1., -1.] * 4)
    # now the lowest logits are 0.01 and -0.01
    assert proved_rows(mask, norm, 1e-6)[0] == [0, 2, 4, 6]
    # linear attention reads no norm: nothing is proved
    model = supernet('efficientvit-mini')
    assert not constant_masks(slim(model, None, input_shape=SHAPE)[0], (), SHAPE)


@pytest.mark.parametrize('net', NETS)
def test_foldable_macs_are_what_a_fold_saves(net):
    """Half of the channels of every head shut, and none open: half of the bound."""
    whole = slim(supernet(net), None, input_shape=SHAPE)[0]
    space, bound = whole.backbone.search_space, 0.
    entries, handles = {}, []
    for name, site in space.mask_sites().items():
        rows = site.mask.bias.numel()
        entries[name] = MaskEntry(rows, [], list(range(0, rows, 2)))
        handles.append(site.mask.register_forward_hook(
            lambda mask, args, out: sizes.append(foldable_macs(mask, args[0])[0])))
    sizes = []
    outputs(whole, images(1))
    for handle in handles:
        handle.remove()
    before, calls = count_macs(whole, SHAPE), len(sizes)
    # MobileViT runs its attention on the 4 pixels of a patch as 4 sequences
    per_image = 4 if net.startswith('mobile') else 1
    bound = per_image * sum(sizes)
    space.fold_masks(entries)
    assert calls == len(entries)
    assert before - count_macs(whole, SHAPE) == bound / 2


def test_other_hosts_keep_their_width():
    """Swin's layer takes no narrower queries: shut channels get weights of 0 instead."""
    torch.manual_seed(0)
    backbone = MODELS.build(dict(
        type='mmkcr.Searchable', sites=['qk_mask'], backbone=dict(
            type='mmpretrain.SwinTransformer', img_size=32, patch_size=4, window_size=4,
            arch=dict(embed_dims=16, depths=[2], num_heads=[2]), out_indices=(0, ))))
    backbone.eval()  # which returns nothing
    shut_some(backbone)
    folded, structure = fold_masks(backbone, [images()], SHAPE)
    with torch.no_grad():
        same(copy.deepcopy(folded).double()(images().double()),
             copy.deepcopy(backbone).double()(images().double()))
    entries = structure.masks.values()
    left = sum(entry.total - len(entry.open) - len(entry.shut) for entry in entries)
    assert sum(len(mask.bias) for mask in find_masks(folded).values()) == left
    assert count_macs(folded, SHAPE) < count_macs(backbone, SHAPE)
    again = MODELS.build(dict(structure.backbone, structure=structure.to_dict()))
    again.load_state_dict(folded.state_dict(), strict=True)


def test_bad_entries():
    structure = slim(supernet('mobilevit-mini'), None, input_shape=SHAPE, fold=batches())[1]
    data = structure.to_dict()
    name = next(iter(data['masks']))
    for entry, message in ((dict(total=4, open=[0]), 'the keys `open`, `shut` and `total`'),
                           (dict(total=4, open=[0, 9], shut=[]), r'rows within \[0, 4\)'),
                           (dict(total=4, open=[1], shut=[1]), 'found row 1 as both'),
                           (dict(total=0, open=[], shut=[]), 'integer `total`')):
        with pytest.raises(ValueError, match=message):
            Structure.load({**data, 'masks': {name: entry}})
    backbone = dict(structure.backbone)
    with pytest.raises(ValueError, match='a fold of 64 rows at .*found one of 4'):
        MODELS.build(dict(backbone, structure={**data, 'masks': {
            name: dict(total=4, open=[], shut=[])}}))
    with pytest.raises(ValueError, match='folded masks among the 4 of `DCSMobileViT`, found `no`'):
        MODELS.build(dict(backbone, structure={**data, 'masks': dict(no=data['masks'][name])}))
    with pytest.raises(ValueError, match='a network without gates to fold, found a supernet'):
        fold_masks(supernet('mobilevit-mini'), batches(), SHAPE)
