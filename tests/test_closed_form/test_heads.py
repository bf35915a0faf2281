"""Bases of heads: the network stays what it is, and the first channels of a head are the best."""

import pytest
import timm
import torch
from mmpretrain.models import SwinTransformer, VisionTransformer
from torch import nn

from mmkcr.closed_form.batches import number_batches
from mmkcr.closed_form.calibration import passes
from mmkcr.closed_form.heads import NarrowHeads, RotaryHeads, head_parts, width_order
from mmkcr.closed_form.options import CompressOptions
from mmkcr.closed_form.readers import Rows
from mmkcr.functional.attention_refit import logit_bases, value_bases
from mmkcr.models.search_space import SearchSpace

IMAGES = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()


def moments(heads, width, seed):
    rows = torch.randn(heads, 50, width, generator=torch.Generator().manual_seed(seed)).double()
    rows = rows * torch.logspace(0, -2, width).double()
    return rows.mT @ rows / 50, rows


def test_logits_stay_and_the_first_channels_are_those_of_the_truncated_svd():
    query, q = moments(3, 8, 0)
    key, k = moments(3, 8, 1)
    tq, tk, values = logit_bases(query, key, rho=1e-12)
    torch.testing.assert_close((q @ tq.mT) @ (k @ tk.mT).mT, q @ k.mT, rtol=0, atol=1e-9)
    for rank in (1, 3, 7):
        found = (q @ tq[:, :rank].mT) @ (k @ tk[:, :rank].mT).mT
        error = (found - q @ k.mT).square().mean((1, 2))
        torch.testing.assert_close(error, values[:, rank:].square().sum(1), rtol=1e-6, atol=1e-9)


def test_values_stay_and_no_projection_of_that_rank_is_nearer():
    covariance, v = moments(3, 8, 2)
    columns = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(3)).double()
    mixing, back, values = value_bases(columns, covariance, rho=1e-12)
    out = v @ columns.mT
    torch.testing.assert_close((v @ mixing.mT) @ back.mT, out, rtol=0, atol=1e-9)
    for rank in (1, 3, 7):
        found = (v @ mixing[:, :rank].mT) @ back[..., :rank].mT
        error = (found - out).square().sum((1, 2)) / 50
        torch.testing.assert_close(error, values[:, rank:].square().sum(1), rtol=1e-6, atol=1e-9)
        best = torch.linalg.svd(out)[1][:, rank:].square().sum(1) / 50  # Eckart and Young
        torch.testing.assert_close(error, best, rtol=1e-6, atol=1e-9)


def vit():
    return VisionTransformer(arch=dict(embed_dims=32, num_layers=2, num_heads=4,
                                       feedforward_channels=64), img_size=32, patch_size=8)


def swin():
    return SwinTransformer(arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=32,
                           window_size=4, patch_size=4, out_indices=(0, 1), pad_small_map=True)


def timm_vit():
    return timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, embed_dim=32,
                             depth=2, num_heads=4, num_classes=5)


def hugging_face_vit():
    transformers = pytest.importorskip('transformers')
    return transformers.ViTModel(transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8))


def observe(model, heads, forward):
    """One pass, without gradients."""
    observers = [observer for one in heads for observer in one.observers(Rows())]
    assert [*passes(model, number_batches([IMAGES]), forward, observers, False, backward=0)]


@pytest.mark.parametrize('build', [vit, swin, timm_vit, hugging_face_vit])
def test_a_rotated_network_is_the_network(build):
    """Projections in one layer or three, with windows and tables of positions or without."""
    torch.manual_seed(0)
    model = build().double()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    model.eval()

    def forward(network, images):
        out = network(images)
        return tuple(out.values()) if isinstance(out, dict) else out

    space = SearchSpace(model, ['head_channels'])
    heads = [NarrowHeads(site, CompressOptions(order_rho=1e-3)) for site in space.sites.values()]
    with torch.no_grad():
        before = forward(model, IMAGES)
        observe(model, heads, forward)
        changed = 0
        for one in heads:
            site = one.site
            old = {path: site.module(path).weight.clone() for path in one.layers()}
            order, errors, _ = one.rotate()
            changed += all(not torch.equal(old[path], site.module(path).weight) for path in old)
            assert errors[0] == 1 and errors[-1] == 0
            assert (errors.diff() <= 0).all()
            assert order.tolist() == width_order(site)
            assert sorted(width_order(site)) == list(range(site.total))
            assert {part.rows.stop - part.rows.start for part in head_parts(site)} == {site.total}
        after = forward(model, IMAGES)
    assert changed == len(space.sites)
    for one, two in zip([before] if torch.is_tensor(before) else before,
                        [after] if torch.is_tensor(after) else after):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-8 * float(one.abs().max()))


@pytest.mark.parametrize('name', ['eva02_tiny_patch14_224', 'vit_small_patch16_dinov3'])
def test_values_that_no_position_touches_are_rotated(name):
    """Channels in pairs side by side with biases of their own, or a half apart without."""
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4,
                              num_classes=5).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    model.eval()
    before = model(IMAGES).detach()
    space = SearchSpace(model, ['head_channels'])
    heads = [RotaryHeads(site, CompressOptions(rows=10**6)) for site in space.sites.values()]
    with torch.no_grad():
        torch.testing.assert_close(model(IMAGES), before)  # opened
        observe(model, heads, lambda network, images: network(images))
        for one in heads:
            site = one.site
            order, errors, _ = one.rotate()
            assert errors[0] == 1 and (errors.diff() <= 0).all()
            assert sorted(order.tolist()) == list(range(site.total))
            # what turns are is lengths that stay
            part = head_parts(site)[0]
            rows = one.moments[part.path].inputs
            mean = part.weight @ rows.mean + (0 if part.bias is None else part.bias)
            lengths = (part.weight @ rows.covariance * part.weight).sum(1) + mean.square()
            torch.testing.assert_close(
                one.turned[0].second_moment.diagonal(dim1=1, dim2=2).sum(1),
                lengths.view(4, -1).sum(1))
        torch.testing.assert_close(model(IMAGES), before, rtol=0,
                                   atol=1e-8 * float(before.abs().max()))


def test_a_bias_beside_the_projections_is_refused():
    from mmpretrain.models import BEiTViT
    model = BEiTViT(arch=dict(embed_dims=32, num_layers=1, num_heads=4, feedforward_channels=64),
                    img_size=32, patch_size=8, layer_cfgs=dict(bias='qv_bias'))
    with pytest.raises(ValueError, match='not called as modules'):
        SearchSpace(model, ['head_channels'])
