"""Closed-form slimming: exact where units depend on each other, within its budget, reloadable."""

import copy
import itertools
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models import SwinTransformer, VisionTransformer
from torch import nn
from torch.utils.data import DataLoader
from two_branches import conformer

from lab.kind_coverage import FAMILIES, randomise
from long_form import every_nth
from mmkcr.apis import compress, count_macs
from mmkcr.apis.compress_files import task_outputs
from mmkcr.closed_form.batches import split_batches
from mmkcr.closed_form.compression import compress_network, macs_model, refit_structure
from mmkcr.closed_form.heads import width_order
from mmkcr.closed_form.options import CompressOptions, open_search_space
from mmkcr.closed_form.profiles import size_options
from mmkcr.closed_form.progress import CompressProgress
from mmkcr.closed_form.readers import input_rows, output_rows, weight_matrix
from mmkcr.core import count_params
from mmkcr.core.budget import Curve, allocate
from mmkcr.functional.attention_refit import rotary_pairs
from mmkcr.methods.named import KCRVisionTransformer
from mmkcr.models import Searchable
from mmkcr.models.layers.lite_mla import LiteMLA

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = dict(input_shape=(3, 32, 32), progress=False, divisor=4)
ARCH = dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=128)


def vit(cls=VisionTransformer, out_type='featmap', layers=2, **kwargs):
    torch.manual_seed(0)
    model = cls(arch=dict(ARCH, num_layers=layers), img_size=32, patch_size=8, out_type=out_type,
                **kwargs)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3 if parameter.ndim == 2 else 0.1)
    model.eval()
    return model


def swin():
    torch.manual_seed(0)
    model = SwinTransformer(
        arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=32, window_size=4,
        patch_size=4, drop_path_rate=0., out_indices=(0, 1), pad_small_map=True)
    model.eval()
    return model


def outputs(model, images=IMAGES[:4]):
    with torch.no_grad():
        return model(images)


def family(name):
    """A small network, images and how it is called."""
    found = FAMILIES[name]
    torch.manual_seed(0)
    images = torch.randn(24, 3, found.size, found.size, generator=torch.Generator().manual_seed(0))
    return randomise(found.build()), images, found.forward


def network(build):
    """The same, of a family's name or of a function that makes a network for IMAGES."""
    return family(build) if isinstance(build, str) else (build(), IMAGES, None)


def reduced(model, images, kinds, divisor=2):
    """Compressed to a part of the units of every site, without a ridge."""
    shape, copied = images.shape[1:], copy.deepcopy(model)
    space = open_search_space(copied, kinds)
    sizes = {name: total // divisor for name, total in space.totals().items()}
    target = int(macs_model(copied, space, shape, None)(sizes))
    return compress(model, images, target, kinds, uniform=True, rho=1e-10, order_rho=1e-10,
                    **dict(OPTIONS, input_shape=shape))


def assert_costs_nothing(result, model, images, tolerance=1e-6):
    """Outputs are those of the dense network, to a share of the largest."""
    for found, expected in zip(outputs(result.model, images), outputs(model, images)):
        torch.testing.assert_close(found, expected, rtol=0,
                                   atol=tolerance * float(expected.abs().max()))


def with_twin_units(layer):
    """Twins before the activation, with different weights behind it, are one unit."""
    first = layer.ffn.layers[0][0]
    for tensor in (first.weight.data, first.bias.data):
        tensor[64:] = tensor[:64]


def with_twin_heads(layer):
    for tensor in (layer.attn.qkv.weight.data, layer.attn.qkv.bias.data):
        heads = tensor.unflatten(0, (3, 4, 8))
        heads[:, 2:] = heads[:, :2]


@pytest.mark.parametrize('kind, change, size', [
    ('mlp_hidden', with_twin_units, 64), ('heads', with_twin_heads, 2)])
def test_units_that_are_twins_cost_nothing(kind, change, size):
    model, images = vit().double(), IMAGES.double()
    for layer in model.layers:
        change(layer)
    result = reduced(model, images, [kind])
    assert set(result.structure.sizes().values()) == {size}
    assert_costs_nothing(result, model, images)
    assert result.agreement['error'] < 1e-6


def test_channels_of_an_mlp_that_are_twins_cost_nothing():
    """It reads two copies of 16 channels, and writes to the first alone."""
    model, images = vit().double(), IMAGES.double()
    layer = model.layers[0]
    for module, names in ((model, ('pos_embed', 'cls_token')),
                          (model.patch_embed.projection, ('weight', 'bias')),
                          (layer.attn.proj, ('weight', 'bias')), (layer.ln2, ('weight', 'bias'))):
        for name in names:
            values = getattr(module, name).data
            values = values.movedim(-1, 0) if module is model else values
            values[16:] = values[:16]
    for values in layer.ffn.layers[1].parameters():
        values.data[16:] = 0
    result = reduced(model, images, [dict(kind='mlp_channels', where=r'^layers\.0\.')])
    site, = result.structure.sites.values()
    assert site.kept == list(range(16))
    assert_costs_nothing(result, model, images)


def test_outputs_of_linear_attention_that_are_twins_cost_nothing():
    """Three heads that are one, at two scales."""
    model, images, _ = family('EfficientViT')
    model, images = model.double(), images.double()
    layer = next(module for module in model.modules() if isinstance(module, LiteMLA))
    heads = layer.channels // layer.head_dim
    for conv in (layer.qkv, *layer.aggreg[0]):
        of_heads = conv.weight.data.unflatten(0, (heads, -1))
        of_heads[1:] = of_heads[:1]
    result = reduced(model, images, ['attention_outputs'], 3)
    site, = result.structure.sites.values()
    assert sorted(unit % 8 + unit // 24 * 8 for unit in site.kept) == list(range(16))
    assert_costs_nothing(result, model, images)


def make_rank_four(rows, bias, generator):
    """Of every head: weights (heads, channels, inputs) and biases (heads, channels), in place."""
    mixed = torch.randn(*rows.shape[:2], 4, generator=generator).double()
    rows.copy_(mixed @ rows[:, :4])
    if bias is not None:
        bias.copy_((mixed @ bias[:, :4, None]).squeeze(-1))


@pytest.mark.parametrize('build', [vit, swin])
def test_narrower_heads_cost_nothing_where_ranks_are_low(build):
    """Queries times keys and values times the projection of rank 4, in heads of 8 channels."""
    model = build().double()
    for module in model.modules():
        if hasattr(module, 'qkv') and hasattr(module, 'proj'):
            generator = torch.Generator().manual_seed(module.num_heads)
            weights, biases = (value.data.unflatten(0, (3, module.num_heads, -1))
                               for value in (module.qkv.weight, module.qkv.bias))
            for rows, bias in zip(weights, biases):
                make_rank_four(rows, bias, generator)
    images = IMAGES.double()
    result = compress(model, images, 0.87, ['head_channels'], uniform=True, rho=1e-9,
                      order_rho=1e-9, min_share=0.5, **dict(OPTIONS, divisor=1))
    sizes = {name: len(entry.kept) / entry.total for name, entry in result.structure.sites.items()}
    assert set(sizes.values()) <= {0.5, 0.625, 0.75} and min(sizes.values()) < 1
    assert_costs_nothing(result, model, images, 1e-4)


def eva(name='eva02_tiny_patch14_224'):
    return randomise(timm.create_model(name, img_size=32, patch_size=8, embed_dim=32, depth=2,
                                       num_heads=4, num_classes=5))


@pytest.mark.parametrize('name', ['eva02_tiny_patch14_224', 'vit_small_patch16_dinov3'])
def test_rotary_pairs_without_logits_cost_nothing(name):
    """Two pairs of four whose queries are 0, and values of rank 4 in heads of 8 channels."""
    model = eva(name).double()
    pairs = rotary_pairs(8, 'half' if 'dinov3' in name else 'interleaved')
    for block in model.blocks:
        attn, silent = block.attn, pairs[[0, 2]].flatten()
        queries, _, values = attn.qkv.weight.data.unflatten(0, (3, 4, 8))
        biases = [bias if bias is None else bias.data.view(4, 8)
                  for bias in (attn.q_bias, attn.v_bias)]
        for rows in (queries, biases[0]):
            if rows is not None:
                rows[:, silent] = 0
        make_rank_four(values, biases[1], torch.Generator().manual_seed(0))
    images = IMAGES.double()
    result = compress(model, images, 0.9, ['head_channels'], uniform=True, rho=1e-9,
                      order_rho=1e-9, **OPTIONS)
    assert [entry.kept for entry in result.structure.sites.values()] == [[1, 3]] * 2
    assert_costs_nothing(result, model, images, 1e-4)


@pytest.mark.parametrize('build, sites', every_nth(2, [
    (build, sites) for sites in (['mlp_hidden', 'heads'], ['mlp_channels'],
                                 ['mlp_hidden', 'head_channels']) for build in (vit, swin)]))
def test_meets_its_budgets_and_reloads(build, sites, tmp_path):
    model, profiles = build(), None
    before = copy.deepcopy(model.state_dict())
    for target in (0.8, 0.6):
        result = compress(model, IMAGES, target, sites, profiles=profiles, **OPTIONS)
        macs, profiles = result.structure.macs, result.profiles
        assert macs['subnet'] == count_macs(result.model, (3, 32, 32))
        assert macs['dense'] == count_macs(model, (3, 32, 32))
        assert 0.9 * target < macs['subnet'] / macs['dense'] <= target
        # the model that was given is as it was, without even an attribute
        assert not hasattr(model, 'search_space')
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    result.structure.save(tmp_path / 'structure.json')
    again = Searchable(build(), sites=sites, structure=str(tmp_path / 'structure.json'))
    again.load_state_dict(result.model.state_dict(), strict=True)
    again.eval()
    for found, expected in zip(outputs(again), outputs(result.model)):
        assert torch.equal(found, expected)


dinov3 = partial(eva, 'vit_small_patch16_dinov3')
SHIFTED, SELECTED = dict(rho=1e6), dict(refit='none')
#: Units of a structure, as many as the closed form keeps.
AT_RANDOM = dict(refit='none', choose=lambda site: torch.randperm(
    site.total, generator=torch.Generator().manual_seed(0)))
FIRST_PAIRS = dict(choose=lambda site: torch.arange(site.total))
#: Those of every head as they are, which are not rotated.
FIRST_CHANNELS = dict(choose=lambda site: torch.tensor(width_order(site)))


@pytest.mark.parametrize('build, kind, target, controls', every_nth(2, [
    *((build, 'mlp_hidden', 0.6, (SHIFTED, SELECTED, AT_RANDOM))
      for build in (vit, swin)),
    (eva, 'head_channels', 0.88, (SHIFTED, SELECTED)),
    (eva, 'head_channels', 0.88, (FIRST_PAIRS, )),
    (dinov3, 'head_channels', 0.88, (FIRST_PAIRS, )),
    (dinov3, 'head_channels', 0.88, (SHIFTED, SELECTED)),
    *((build, 'head_channels', 0.85, (FIRST_CHANNELS, )) for build in (vit, swin)),
    *((name, kind, target, (SELECTED, )) for name, kind, target in (
        ('Swin', 'heads', 0.85), ('timm DINOv3', 'heads', 0.9),
        ('ViT', 'mlp_channels', 0.9), ('EfficientViT', 'mlp_channels', 0.9),
        ('EfficientViT', 'attention_outputs', 0.97), ('Swin', 'head_channels', 0.85)))]))
def test_controls_of_equal_sizes_are_further_away(build, kind, target, controls):
    """Each further than the one before it, for every kind of a backbone.

    On the calibration images, at the outputs of the whole network. Those of necks and heads,
    `channels`: tests/test_models/test_whole.
    """
    model, images, forward = network(build)

    def found(**control):
        return compress(model, images, target, [kind], held_out=images, uniform=True,
                        forward=forward, **dict(OPTIONS, input_shape=images.shape[1:], divisor=1),
                        **control)

    def chosen(choose, **control):
        space = open_search_space(copy.deepcopy(model), [kind])
        structure = space.structure_for({
            name: choose(site)[:len(results[0].structure.sites[name].kept)].sort().values
            for name, site in space.sites.items()})
        options = CompressOptions(**dict(OPTIONS, input_shape=images.shape[1:]), **control)
        return refit_structure(model, structure, images, options, forward, images)

    results = [found()]
    assert any(len(site.kept) < site.total for site in results[0].structure.sites.values())
    for control in controls:
        if 'choose' in control:
            results.append(chosen(**control))
        else:
            results.append(found(**control, profiles=results[0].profiles))
            assert results[-1].structure.sites == results[0].structure.sites
    errors = [result.agreement['error'] for result in results]
    assert errors == sorted(set(errors))


@pytest.mark.parametrize('build', [partial(vit, layers=3), swin])
def test_the_layer_that_ends_a_block_takes_back_what_was_lost(build, monkeypatch):
    def found(profiles=None):
        return compress(build(), IMAGES, 0.5, ['mlp_hidden'], held_out=IMAGES, uniform=True,
                        profiles=profiles, **OPTIONS)

    mended = found()
    module = import_module('mmkcr.closed_form.refit_blocks')
    monkeypatch.setattr(module, 'output_factors', lambda *_: None)
    assert mended.agreement['error'] < 0.95 * found(mended.profiles).agreement['error']


def test_shared_out_is_not_worse_than_uniform_in_predicted_loss():
    shared = compress(vit(), IMAGES, 0.6, **OPTIONS)
    uniform = compress(vit(), IMAGES, 0.6, uniform=True, profiles=shared.profiles, **OPTIONS)
    assert predicted(shared) <= predicted(uniform)


def test_losses_predict_what_one_site_does_to_the_outputs():
    """The curve is the outputs' squared relative error, to first order, for each site alone."""
    model = vit().double()
    images = torch.cat([IMAGES.double(), torch.randn(72, 3, 32, 32).double()])
    full = compress(model, images, 1., ['mlp_hidden'], **OPTIONS)
    for name, profile in full.profiles.items():
        path = name.rpartition('.')[0]
        where = [dict(kind='mlp_hidden', where=f'^{path}$')]
        result = compress(model, images, 0.95, where, held_out=images, profiles={name: profile},
                          **OPTIONS)
        kept = len(result.structure.sites[name].kept)
        predicted = float(profile.losses[kept])**0.5
        assert 0.25 < result.agreement['error'] / predicted < 4, name


def test_losses_of_errors_that_are_alike_at_all_positions_are_measured():
    """Attention that averages makes positions err alike; their mean is no better than each."""
    model = vit(out_type='avg_featmap').double()
    for layer in model.layers:
        layer.attn.qkv.weight.data[:64] = 0.  # queries and keys
    images = torch.cat([IMAGES.double(), torch.randn(72, 3, 32, 32).double()])
    where = [dict(kind='heads', where='^layers.0.attn$')]
    path = 'layers.0.attn.heads'
    of = {probes: compress(model, images, 0.93, where, held_out=images, probe_images=probes,
                           **OPTIONS) for probes in (0, 64)}
    assert len(of[64].structure.sites[path].kept) < 4
    predicted = {probes: float(found.profiles[path].losses[len(found.structure.sites[path].kept)])
                 for probes, found in of.items()}
    actual = of[64].agreement['error']**2
    assert 0.3 < predicted[64] / actual < 3
    assert predicted[0] < 0.3 * actual  # 17 positions, taken as independent


def test_few_images_are_held_out_too():
    for count in (2, 10, 16, 17, 24):
        used, held = map(list, split_batches(IMAGES[:count], None))
        assert torch.equal(torch.cat([*used, *held]), IMAGES[:count])
        assert len(held) == max(1, count // 10)
    # of one image there is no other
    assert [len(part) for part in split_batches(IMAGES[:1], None)] == [1, 1]


@pytest.mark.parametrize('name', every_nth(2, [
    'VAN', 'timm SigLIP 2', 'RevViT', 'MobileViT', 'MixMIM', 'MiT (SegFormer)', 'timm EVA-02']))
def test_families_with_blocks_of_their_own(name):
    """Hosts that read attributes of blocks, call layers with parameters, or keep two streams."""
    model, images, forward = family(name)
    result = compress(model, images[:12], 0.85, input_shape=images.shape[1:], divisor=2,
                      progress=False, forward=forward)
    macs = result.structure.macs
    assert 0.8 * macs['dense'] < macs['subnet'] <= 0.85 * macs['dense']
    assert result.structure.sizes().keys() == result.profiles.keys()
    assert 0 < result.agreement['error'] < 1


def test_outputs_that_a_site_does_not_reach():
    model = vit()

    def forward(network, batch):
        network(batch)
        return network.layers[0](network.patch_embed(batch)[0])

    result = compress(model, IMAGES, 0.8, ['mlp_hidden'], forward=forward, **OPTIONS)
    (_, read), (name, unread) = result.structure.sites.items()
    assert len(read.kept) < read.total and len(unread.kept) == unread.total
    assert result.structure.macs['subnet'] <= 0.8 * result.structure.macs['dense']
    assert result.structure.provenance['unread'] == [name]
    assert str(result).count('100.0%: no output depends on it') == 1


def test_a_conformer_decides_by_the_scores_of_both_branches(tmp_path):
    model = conformer()

    batches = [dict(inputs=images) for images in IMAGES.split(6)]
    images = torch.randn(120, *IMAGES.shape[1:], generator=torch.Generator().manual_seed(1))

    def predicted(network):
        with torch.no_grad():
            return torch.cat([sample.pred_label for sample in network(images, mode='predict')])

    with torch.no_grad():
        branches = [scores.argmax(1) for scores in model(images)]
        decided = task_outputs(model, dict(inputs=images)).argmax(1)
    assert decided.equal(predicted(model))
    assert not any(decided.equal(branch) for branch in branches)
    found = compress(model, batches, '97%', ['mlp_hidden'], forward=task_outputs, logits=True,
                     held_out=[dict(inputs=images)], **OPTIONS)
    same = float((predicted(found.model) == decided).float().mean())
    assert found.agreement['top1'] == pytest.approx(same) and same < 1


@pytest.mark.parametrize('width, divisor, step', [
    (3072, 8, 8), (3072, 64, 64), (64, 8, 8), (64, 16, 16), (64, 64, 16), (32, 64, 8), (31, 64, 1),
    (16, 8, 1), (64, 96, 12), (64, 33, 1), (30, 12, 6), (48, 12, 12), (3, 1, 1)])
def test_sizes_in_every_head_are_multiples(width, divisor, step):
    """So that a GPU's matrix units take them: halves of the divisor where heads are narrow."""
    for heads in (1, 3, 12):
        site = SimpleNamespace(total=width * heads, rows=heads, operators=lambda: ())
        assert size_options(site, CompressOptions(divisor=divisor, min_share=0.)) == [
            heads * size for size in sorted({*range(step, width + 1, step), width})]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_allocation_is_that_of_enumeration(data):
    curves = {}
    for name in 'abcd'[:data.draw(st.integers(1, 4))]:
        sizes = sorted(data.draw(st.sets(st.integers(1, 20), min_size=1, max_size=5)))
        losses = [data.draw(st.floats(0, 1)) for _ in sizes]
        unit = data.draw(st.integers(1, 50))
        curves[name] = Curve(sizes, losses, [size * unit for size in sizes])
    lowest, highest = (sum(curve.costs[end] for curve in curves.values()) for end in (0, -1))
    budget = data.draw(st.integers(lowest, highest + 1))
    found = allocate(curves, budget)
    places = {name: list(curve.sizes).index(found[name]) for name, curve in curves.items()}
    assert sum(curves[name].costs[place] for name, place in places.items()) <= budget
    best = min(sum(curve.losses[i] for curve, i in zip(curves.values(), chosen))
               for chosen in itertools.product(*(range(len(c.sizes)) for c in curves.values()))
               if sum(curve.costs[i] for curve, i in zip(curves.values(), chosen)) <= budget)
    assert sum(curves[name].losses[place] for name, place in places.items()) == pytest.approx(best)


class Scores(nn.Module):
    """A backbone, and a linear layer that is all zeros, as one that was not trained may be."""

    def __init__(self):
        super().__init__()
        self.backbone, self.fc = vit(), nn.Linear(32, 5)
        nn.init.zeros_(self.fc.weight)

    def forward(self, images):
        return self.fc(self.backbone(images)[-1].mean((2, 3)))


NAN = torch.full((2, 3, 32, 32), float('nan'))
NOT_FINITE = 'outputs of the dense network on held-out .* in images 1 to .* of these$'


@pytest.mark.parametrize('arguments, message', [
    (dict(target=0.01), r'expected a target within the reachable [\d.]+G to [\d.]+G MACs, found'),
    (dict(images=IMAGES[:0]), 'expected at least one calibration image, found none'),
    (dict(images=DataLoader(IMAGES)), 'or as a list of batches, found `DataLoader`'),
    (dict(images='folder'), 'or as a list of batches, found `str`'),
    (dict(images=IMAGES[0]), r'a tensor \(N, 3, H, W\) of floating point, found \(3, 32, 32\)'),
    (dict(images=IMAGES.long()), 'of floating point, found .* of torch.int64'),
    (dict(images=IMAGES.masked_fill(IMAGES > 2, float('nan'))),
     r'expected finite features of `layers\.0\.'),
    (dict(sites=['qk_mask']), r"that have a closed form, of .*, found \['qk_mask'\]"),
    (dict(sites=['mlp_hidden', 'embedding']), 'found `embedding`: the residual stream stays whole'),
    (dict(sites=['head_operator']), 'found `head_operator`: narrower heads lose less'),
    (dict(sites=['head_channels', 'heads']), 'kinds of site that share no axis of a tensor'),
    (dict(model=timm.create_model('resnet10t'), sites=None),
     r'\(ViT, .*docs/coverage.md\), found `ResNet`, whose layers have no adapter$'),
    (dict(model=KCRVisionTransformer(arch=ARCH, img_size=32, patch_size=8, gates=dict(
        type='mmkcr.GumbelChannelGate'))), 'expected a dense model to compress, found a supernet'),
    (dict(divisor=0), '`divisor` within .*, found 0'),
    (dict(held_out=IMAGES[:0]), 'at least one held-out image, found none'),
    (dict(images=torch.cat([IMAGES, NAN])), NOT_FINITE),
    (dict(held_out=[IMAGES[:2], NAN]), NOT_FINITE),
    # any choice would look perfect
    *((dict(model=Scores(), probe_images=count),
       'expected outputs that change .* none of its 2 sites') for count in (0, 64))])
def test_refuses_in_one_sentence(arguments, message):
    given = dict(OPTIONS, model=vit(), images=IMAGES, target=0.6, sites=['mlp_hidden'])
    with pytest.raises(ValueError, match=message) as error:
        compress(**{**given, **arguments})
    assert '\n' not in str(error.value)


def test_outputs_of_the_compressed_network_alone_that_are_not_finite_are_refused():
    def forward(network, batch):
        found = network(batch)[-1]
        return found if count_params(network) == count_params(vit()) or len(batch) > 2 else \
            found / 0

    with pytest.raises(ValueError, match='finite outputs of the compressed network on held-out'):
        compress(vit(), IMAGES, 0.6, forward=forward, held_out=IMAGES[:2], **OPTIONS)


@pytest.mark.parametrize('module, reason', [
    (lambda: TwoInputs(), 'TypeError: .* missing 1 required positional argument'),
    (lambda: Broken(), f'LookupError: {"of its own " * 50}fault$')])
def test_a_module_that_does_not_run_on_an_image(module, reason):
    """Its error is there, the whole text and the error itself; whose fault it is nobody knows."""
    message = rf'(` to run on |` that takes the first batch).* raised {reason}'
    with pytest.raises(ValueError, match=message) as found:
        compress(module(), [IMAGES], 0.6, forward=lambda network, batch: network(batch, 1.),
                 **OPTIONS)
    cause = found.value.__cause__
    assert f'{type(cause).__name__}: {" ".join(str(cause).split())}' in str(found.value)
    assert '\n' not in str(found.value)


class TwoInputs(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 16, 8, 8), timm.layers.Mlp(16, use_conv=True))

    def forward(self, images, factor):
        return factor * super().forward(images)


class Broken(TwoInputs):
    def forward(self, images, factor=None):
        if factor is None:
            raise LookupError(f'{"of its own " * 50}\nfault')
        return super().forward(images, factor)


def killed_and_started_again(run, blocks, monkeypatch):
    """What the second call gives, when the first was killed behind so many blocks."""
    save, saved = CompressProgress.save_block, []

    def killed(self, block, layers, ridges):
        if len(saved) == blocks:
            raise KeyboardInterrupt
        saved.append(block)
        save(self, block, layers, ridges)

    with monkeypatch.context() as patch:
        patch.setattr(CompressProgress, 'save_block', killed)
        with pytest.raises(KeyboardInterrupt):
            run()
        patch.setattr(import_module('mmkcr.closed_form.profiles'), '_profile_group', None)
        patch.setattr(CompressProgress, 'save_block', lambda self, block, *_: saved.append(block))
        again = run()
    assert len(saved) >= 2 and len(set(saved)) == len(saved)  # nothing is done again
    return again


@pytest.mark.parametrize('build, sites, target, kills', [
    (vit, ['mlp_hidden', 'heads', 'mlp_channels'], '60%', (0, 1)),
    (vit, ['mlp_hidden', 'head_channels'], '60%', (1, )),
    (swin, ['mlp_hidden', 'heads'], '60%', (2, )),
    (eva, ['mlp_hidden', 'head_channels'], '60%', (1, )),
    # means go to the norms behind its convolutions, which have no bias
    ('EfficientViT', ['mlp_hidden'], '80%', (1, ))])
def test_killed_and_started_again_it_ends_as_an_unbroken_one(build, sites, target, kills, tmp_path,
                                                             monkeypatch):
    """After any block; of Swin, at the end of a stage."""
    def run(name=None):
        model, images, _ = network(build)
        done = name and CompressProgress(tmp_path / name, dict(target=target))
        options = dict(OPTIONS, input_shape=images.shape[1:], target=target, sites=sites)
        return compress_network(model, images, CompressOptions(**options), done=done)

    unbroken = run()
    for blocks in kills:
        again = killed_and_started_again(partial(run, f'progress{blocks}'), blocks, monkeypatch)
        assert again.structure == unbroken.structure and again.agreement == unbroken.agreement
        for name, value in unbroken.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[name], value), name


def test_sites_that_are_profiled_in_groups(tmp_path, monkeypatch):
    """As in one pass; a killed call goes on behind the last group that was finished."""
    module = import_module('mmkcr.closed_form.profiles')
    whole = compress(vit(), IMAGES, '70%', **OPTIONS)
    monkeypatch.setattr(module, 'STATISTICS', 0)  # every site is a group
    profiled, seen, groups = module._profile_group, [], []

    def counted(calibration, group, part):
        assert not any(groups)  # their statistics are gone
        groups.append(group)
        if len(seen) == 1:
            seen.append(None)
            raise KeyboardInterrupt
        seen.append([one.site.name for one in group])
        return profiled(calibration, group, part)

    monkeypatch.setattr(module, '_profile_group', counted)

    def run():
        return compress_network(vit(), IMAGES, CompressOptions(target='70%', **OPTIONS),
                                done=CompressProgress(tmp_path / 'out', dict(target='70%')))

    with pytest.raises(KeyboardInterrupt):
        run()
    groups.clear()
    found = run()
    seen.remove(None)
    assert all(len(group) == 1 for group in seen)
    assert sorted(name for name, in seen) == sorted(whole.profiles)  # none of them twice
    assert found.structure.sites == whole.structure.sites
    for name, profile in whole.profiles.items():
        torch.testing.assert_close(found.profiles[name].losses, profile.losses, rtol=1e-3,
                                   atol=1e-6)
    assert [file.name for file in (tmp_path / 'out').glob('profiles*')] == ['profiles.pth']


def test_progress_of_another_compression_is_not_used(tmp_path):
    progress = CompressProgress(tmp_path / 'out/progress', dict(target='60%'))
    assert not (tmp_path / 'out').exists()
    progress.save_block('layers.0', dict(fc=nn.Linear(2, 2)), dict(fc=0.1))
    assert CompressProgress(tmp_path / 'out/progress', dict(target='60%')).read_block('layers.0')
    other = CompressProgress(tmp_path / 'out/progress', dict(target='50%'))
    assert other.read_block('layers.0') is None and not other.profiles()
    other.withdraw()  # refused before it wrote anything
    again = CompressProgress(tmp_path / 'out/progress', dict(target='60%'))
    assert again.read_block('layers.0')
    again.withdraw()  # it went on with what an earlier call had finished
    assert again.read_block('layers.0')
    other.save_block('layers.1', dict(fc=nn.Linear(2, 2)), dict(fc=0.1))
    assert other.read_block('layers.1') and again.read_block('layers.0') is None
    assert other.read_block('layers.0') is None
    other.withdraw()
    assert not (tmp_path / 'out').exists()


def predicted(found):
    return sum(float(found.profiles[name].losses[len(site.kept)])
               for name, site in found.structure.sites.items())**.5


def test_losses_between_measured_sizes_where_half_of_the_units_lose_nothing():
    """Just below that size they are not near nothing."""
    model = vit()
    for layer in model.layers:
        with_twin_units(layer)
    found = compress(model, IMAGES, '70%', ['mlp_hidden'], **dict(OPTIONS, divisor=1))
    for name, profile in found.profiles.items():
        half = (len(profile.losses) - 1) // 2
        losses = profile.losses[[half // 2, half - half // 8, half]].tolist()
        # in the logarithm the second one would be a few times the third
        assert losses[2] < 1e-3 * losses[0] and losses[1] > 1e-2 * losses[0], name
    assert predicted(found) > 0.3 * found.agreement['error']


@pytest.mark.parametrize('bias', [True, False])
def test_a_constant_unit_is_kept_where_no_bias_can_take_its_place(bias):
    """A large hidden unit that is constant, as networks without biases make one."""
    model = vit()
    for layer in model.layers:
        first, second = layer.ffn.layers[0][0], layer.ffn.layers[1]
        nn.init.normal_(first.weight, std=.02)  # GELU is linear there: units of mean 0
        nn.init.zeros_(first.bias)
        first.weight.data[0] = 0
        first.bias.data[0] = 3
        nn.init.normal_(second.weight, std=.3)
        if not bias:
            second.bias = None
    found = compress(model, IMAGES, '70%', ['mlp_hidden'], uniform=True, **OPTIONS)
    assert all((0 in site.kept) != bias for site in found.structure.sites.values())
    assert found.model.state_dict().keys() == model.state_dict().keys()


def test_the_norm_behind_a_convolution_without_a_bias_takes_the_means():
    """Units that are constant cost nothing."""
    model, images, _ = family('EfficientViT')
    bare = []
    for module in model.modules():
        if hasattr(module, 'inverted_conv'):
            bare.append(module.point_conv.conv.bias is None)
            depth = module.depth_conv
            last = depth.bn if depth.with_norm else depth.conv
            units = len(last.weight)
            last.weight.data[units // 4:] = 0
            last.bias.data[units // 4:] = 1 + torch.rand(units * 3 // 4)
    assert any(bare)
    model, images = model.double(), images.double()
    result = reduced(model, images, ['mlp_hidden'], 4)
    first, *_ = result.structure.sites.values()
    assert first.kept == list(range(first.total // 4))  # no constant unit stands for a bias
    assert_costs_nothing(result, model, images)


@pytest.mark.parametrize('padding', [dict(padding=1), dict(padding=1, padding_mode='reflect'),
                                     dict(padding=1, padding_mode='circular'),
                                     dict(padding='same')])
def test_rows_of_padded_convolutions_give_its_outputs(padding):
    layer, x = nn.Conv2d(4, 6, 3, **padding), torch.randn(2, 4, 5, 7)
    found = input_rows(layer, x) @ weight_matrix(layer).T + layer.bias
    torch.testing.assert_close(found, output_rows(layer, layer(x)), rtol=1e-4, atol=1e-5)


def test_autocast_changes_losses_a_little():
    def halved(network, batch):
        with torch.autocast('cpu', torch.bfloat16):
            return network(batch)

    errors = [compress(vit(), IMAGES, '60%', ['mlp_hidden'], forward=forward,
                       **OPTIONS).agreement['error'] for forward in (None, halved)]
    assert errors[1] == pytest.approx(errors[0], rel=0.3)


def test_profiles_of_another_network_are_refused():
    profiles = compress(vit(), IMAGES[:4], '60%', ['mlp_hidden'], **OPTIONS).profiles
    with pytest.raises(ValueError, match='of the sites of this network, found `.*heads` with no'):
        compress(vit(), IMAGES, '60%', ['mlp_hidden', 'heads'], profiles=profiles, **OPTIONS)


def test_inference_mode_around_it_changes_nothing():
    options = dict(OPTIONS, uniform=True, probe_images=16)
    expected = compress(vit(), IMAGES, '80%', **options).model.state_dict()
    with torch.inference_mode():
        found = compress(vit(), IMAGES, '80%', **options).model
    assert all(torch.equal(value, expected[key]) for key, value in found.state_dict().items())
    assert not any(parameter.is_inference() for parameter in found.parameters())
