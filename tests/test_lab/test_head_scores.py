"""Welford's score of attention heads against two passes, over processes, and in memory."""

import copy
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models.utils import MultiheadAttention
from torch import nn

from lab.head_scores import (
    HeadStatistics,
    RunningMoments,
    attention_map,
    head_scores,
    window_grid,
)
from mmkcr.methods.named import DWConvVisionTransformer

VIT = dict(arch=dict(embed_dims=24, num_layers=2, num_heads=3, feedforward_channels=48),
           img_size=32, patch_size=8)


def two_pass(maps):
    """Standard deviation of every entry, from all maps at once, in NumPy."""
    maps = np.stack([np.asarray(m, dtype=np.float64) for m in maps])
    return np.sqrt(((maps - maps.mean(0))**2).sum(0) / (len(maps) - 1))


def moments_of(stream):
    moments = RunningMoments()
    for value in stream:
        moments.update(value)
    return moments


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 9999), count=st.integers(2, 40), offset=st.sampled_from([0., 1., 1e6]))
def test_one_pass_equals_two(seed, count, offset):
    """Also where the mean is far larger than the deviation, which sums of squares would lose."""
    generator = torch.Generator().manual_seed(seed)
    stream = offset + torch.randn(count, 2, 3, generator=generator, dtype=torch.float64)
    moments = moments_of(stream)
    np.testing.assert_allclose(moments.std().numpy(), two_pass(stream), rtol=1e-9)
    np.testing.assert_allclose(moments.mean.numpy(), stream.mean(0).numpy(), rtol=1e-12)


def test_single_precision_is_accumulated_in_double():
    stream = 1. + 1e-4 * torch.randn(500, 7)
    np.testing.assert_allclose(moments_of(stream).std().numpy(), two_pass(stream), rtol=1e-12)


@pytest.mark.parametrize('call, message', [
    (lambda m: m.update(torch.zeros(3)), r'shape \(2,\) as before, found \(3,\)'),
    (lambda m: m.std(), 'at least two images .* found 1'),
])
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call(moments_of(torch.zeros(1, 2)))


def test_map_is_the_attention_of_the_layer():
    attn = MultiheadAttention(12, 3).eval()
    x = torch.randn(1, 7, 12)
    maps = attention_map(attn, x[0])
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 7))
    v = attn.qkv(x)[0].unflatten(1, (3, 3, 4))[:, 2]  # (N, H, d)
    out = attn.proj(torch.einsum('hij,jhd->ihd', maps, v).flatten(1))
    torch.testing.assert_close(out, attn(x)[0])


@pytest.fixture(scope='module')
def backbone():
    torch.manual_seed(0)
    model = DWConvVisionTransformer(**VIT)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.eval()
    return model


def attentions(model):
    return {name: site.owner for name, site in model.search_space.sites.items()}


def grid(model):
    return next(iter(model.search_space.sites.values())).grid


def scores_of(backbone, images, batch, reduction='sum'):
    with HeadStatistics(attentions(backbone), grid(backbone)) as statistics, torch.no_grad():
        for part in images.split(batch):
            backbone(part)
    return statistics.scores(reduction)


@pytest.mark.parametrize('batch', [1, 4, 13])
def test_score_of_a_network_against_all_maps_at_once(backbone, batch):
    images, maps = torch.randn(13, 3, 32, 32), {}

    def keep(name):
        return lambda module, inputs: maps.setdefault(name, []).extend(
            attention_map(module, tokens).detach() for tokens in inputs[0])

    handles = [module.register_forward_pre_hook(keep(name))
               for name, module in attentions(backbone).items()]
    backbone(images)
    for handle in handles:
        handle.remove()
    found = scores_of(backbone, images, batch)
    assert list(found) == list(maps) == [
        f'layers.{i}.attn.head_operator' for i in range(2)]
    for name, score in found.items():
        np.testing.assert_allclose(score.numpy(), two_pass(maps[name]).sum((1, 2)), rtol=1e-5)
    for reduction, divisor in (('mean', 17 * 17), ('relative', 17)):
        other = scores_of(backbone, images, batch, reduction)
        for name in found:
            torch.testing.assert_close(other[name] * divisor, found[name], rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="found 'max'"):
        scores_of(backbone, images, batch, 'max')


def test_maps_that_are_not_finite_are_refused(backbone):
    backbone = copy.deepcopy(backbone)
    backbone.layers[0].attn.qkv.bias.data[0] = float('nan')
    with pytest.raises(ValueError, match='maps that are finite, found others in `layers.0.attn'):
        scores_of(backbone, torch.randn(3, 3, 32, 32), 3)


def test_memory_does_not_grow_with_the_images(backbone):
    def peak(count):
        images = torch.randn(4, 3, 32, 32)
        tracemalloc.start()
        with HeadStatistics(attentions(backbone), grid(backbone)) as statistics, torch.no_grad():
            for _ in range(count):
                backbone(images)
        held = sum(t.numel() * t.element_size() for m in statistics.moments.values()
                   for t in (m.mean, m.deviations))
        return held, tracemalloc.get_traced_memory()[1], tracemalloc.stop()

    few, many = peak(2), peak(40)
    assert few[0] == many[0] == 2 * 2 * 8 * 3 * 17 * 17
    assert many[1] < few[1] + 100_000  # Python objects, which hold the tensors


def test_another_grid_with_as_many_tokens_is_refused(backbone):
    """4 x 8 and 8 x 4 patches make maps of one shape."""
    wide, high = torch.randn(3, 3, 32, 64), torch.randn(2, 3, 64, 32)
    with HeadStatistics(attentions(backbone), grid(backbone)), torch.no_grad():
        backbone(wide)
        with pytest.raises(ValueError, match='one token grid .* found 8 x 4 patches after 4 x 8'):
            backbone(high)
    with HeadStatistics(attentions(backbone), grid(backbone), (4, 8)) as found, torch.no_grad():
        for images in (high, wide, high):
            backbone(images)
    assert found.others == 4
    alone = scores_of(backbone, wide, 3)
    assert all(torch.equal(score, alone[name]) for name, score in found.scores().items())
    with HeadStatistics(attentions(backbone), grid(backbone), (8, 8)) as found, torch.no_grad():
        backbone(wide)
    with pytest.raises(ValueError, match=r'grid of \(8, 8\) to score heads on, found 3 others'):
        found.scores()


class Classifier(nn.Module):
    """What a task model offers to the scores."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.calls = backbone, 0

    def test_step(self, batch):
        self.calls += 1
        self.backbone(batch)


@pytest.mark.parametrize('size, cfg, expected', [
    (32, {}, (4, 6)), (28, {}, (4, 6)), (28, dict(patch_cfg=dict(padding=0)), (3, 5))])
def test_windows_are_padded_to_whole_patches(size, cfg, expected):
    """As DINOv2's patches of 14 pixels in a window of 512; the host pads by default."""
    model = Classifier(DWConvVisionTransformer(**VIT, **cfg))
    assert window_grid(model, model.backbone) is None
    model.test_cfg = dict(mode='slide', crop_size=(size, size + 16), stride=(16, 16))
    assert window_grid(model, model.backbone) == expected
    sites = model.backbone.search_space.sites
    images = torch.randn(3, 3, size, size + 16)
    assert sorted(head_scores(model, sites, [images])) == sorted(sites)


def test_blocks_that_do_not_fit_take_further_passes(backbone):
    """With the same scores, and no more than the memory asked for."""
    images = list(torch.randn(8, 3, 32, 32).split(2))
    expected = scores_of(backbone, torch.cat(images), 8)
    block = 16 * 3 * 17 * 17  # bytes: two moments of fp64 a head
    for memory, passes in ((2 * block, 1), (2 * block - 1, 2), (1, 2)):
        model = Classifier(backbone)
        found = head_scores(model, backbone.search_space.sites, images, memory=memory)
        assert model.calls == 1 + 4 * passes  # the first looks for the number of tokens
        assert list(found) == list(expected)
        assert all(torch.equal(score, expected[name]) for name, score in found.items())


@pytest.fixture
def of_two_ranks(backbone, two_processes):
    """``of_two_ranks(shares)``: what two processes find, each on its images, which may be none."""
    def run(shares):
        def job(rank):
            with HeadStatistics(attentions(backbone), grid(backbone)) as found, torch.no_grad():
                if len(shares[rank]):
                    backbone(shares[rank])
            try:
                return found.reduce().scores()
            except ValueError as error:
                return str(error)

        return two_processes(job)

    return run


def test_a_process_without_images(backbone, of_two_ranks):
    images = torch.randn(9, 3, 32, 32)
    first, second = of_two_ranks([images, images[:0]])
    for name, score in scores_of(backbone, images, 3).items():
        assert torch.equal(first[name], second[name])
        np.testing.assert_allclose(first[name].numpy(), score.numpy(), rtol=1e-6)


def test_two_processes_do_not_mix_grids(of_two_ranks):
    assert of_two_ranks([torch.randn(2, 3, 32, 64), torch.randn(2, 3, 64, 32)]) == [
        'expected images with one token grid on all ranks to score heads on, found 4 x 8 and '
        '8 x 4 patches'] * 2
