"""AttentionTap: what it captures is what the layer used, and it leaves no trace."""

import pytest
import torch
from mmpretrain.models import MobileViT, SwinTransformer, VisionTransformer
from mmpretrain.models.utils import MultiheadAttention
from torch import nn

from lab.attention_tap import AttentionTap
from mmkcr.methods.named import DCSEfficientViT, DCSMobileViT
from mmkcr.models.searchable import Searchable
from mmkcr.models.sites import QKMaskSite

VIT = dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32)
MOBILE = [['mobilenetv2', 8, 2, 1, 2], ['mobilevit', 12, 1, 16, 32, 2, 2]]
EFFICIENT = dict(widths=[8, 16, 32], depths=[1, 1, 1], head_dim=16)
MODELS = dict(
    vit=lambda: VisionTransformer(VIT, img_size=32, patch_size=8),
    mobilevit=lambda: MobileViT(MOBILE, out_indices=(1, )),
    swin=lambda: SwinTransformer(dict(embed_dims=16, depths=[2, 1], num_heads=[2, 4]),
                                 img_size=32, patch_size=4, window_size=4, out_indices=(1, )),
    dcs_mobilevit=lambda: DCSMobileViT(MOBILE, out_indices=(1, ), outputs=False),
    dcs_efficientvit=lambda: DCSEfficientViT(EFFICIENT, outputs=False))
LAYERS = dict(vit=2, mobilevit=2, swin=3, dcs_mobilevit=2)


def traces(model):
    """Attributes and hooks of all modules."""
    return ([set(vars(module)) for module in model.modules()],
            [dict(module._forward_hooks) for module in model.modules()])


@pytest.mark.parametrize('name', MODELS)
def test_rows_sum_to_one_and_outputs_do_not_change(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    model.eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)[-1]
        keys, hooks = traces(model)
        with AttentionTap(model) as tap:
            found = model(x)[-1]
        assert torch.equal(found, expected)
        assert torch.equal(model(x)[-1], expected)
    assert traces(model) == (keys, hooks)
    assert len(tap.attention) == LAYERS.get(name, len(tap.layers)) and tap.attention
    for attention in tap.attention.values():
        rows, expected = attention.weights.sum(-1), torch.tensor(1.)
        if 'efficient' in name:  # up to its eps; 0 where every channel is closed
            total = attention.product.sum(-1)
            expected = total / (total + 1e-5)
            assert (expected > 0).any()
        assert torch.allclose(rows, expected.expand_as(rows), atol=1e-4)
        assert attention.product.shape == attention.weights.shape
        assert torch.linalg.matrix_rank(attention.product).max() <= attention.width


def test_weights_are_those_of_the_definition():
    torch.manual_seed(0)
    layer = MultiheadAttention(12, 3).eval()
    model = nn.Sequential(layer)
    x = torch.randn(2, 5, 12)
    with torch.no_grad(), AttentionTap(model) as tap:
        out = model(x)
    q, k, v = layer.qkv(x).view(2, 5, 3, 3, 4).permute(2, 0, 3, 1, 4)
    attention = tap.attention['0']
    assert torch.allclose(attention.product, q @ k.transpose(-2, -1), atol=1e-6)
    assert torch.allclose(attention.weights, (q @ k.transpose(-2, -1) / 2).softmax(-1), atol=1e-6)
    again = layer.proj((attention.weights @ v).transpose(1, 2).flatten(2))
    assert torch.allclose(out, again, atol=1e-5)


def test_narrower_heads_keep_the_scale_of_the_dense_ones():
    torch.manual_seed(0)
    model = Searchable(MODELS['vit'](), sites=['head_channels'])
    for parameter in model.parameters():
        parameter.data.normal_()
    model.eval()
    image, seen = torch.randn(1, 3, 32, 32), []
    hook = model.layers[0].attn.qkv.register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.no_grad():
        model(image)
    hook.remove()
    q, k, _ = seen[0].unflatten(-1, (3, 2, 8))[..., :2].permute(2, 0, 3, 1, 4)  # of the dense one
    expected = (q @ k.transpose(-2, -1) * 8**-0.5).softmax(-1)  # 2 of 8 channels are left
    space, kept = model.search_space, torch.arange(16)[torch.arange(16) % 8 < 2]
    space.slice_to(space.structure_for(dict.fromkeys(space.sites, kept)))
    with torch.no_grad(), AttentionTap(model) as tap:
        model(image)
    assert torch.allclose(tap.attention['layers.0.attn'].weights, expected, atol=1e-5)


def test_linear_attention_is_its_weights_times_the_values(monkeypatch):
    torch.manual_seed(0)
    model = MODELS['dcs_efficientvit']()
    model.eval()
    name, (layer, *_) = next(iter(AttentionTap(model).layers.items()))
    seen, attend = [], type(layer).attend
    monkeypatch.setattr(type(layer), 'attend', lambda self, q, k, v: seen.append(
        (v, attend(self, q, k, v))) or seen[-1][1])
    with torch.no_grad(), AttentionTap(model) as tap:
        model(torch.randn(1, 3, 32, 32))
    values, out = seen[0]
    found = values @ tap.attention[name].weights.transpose(-2, -1)
    assert torch.allclose(found, out, atol=1e-4)


def test_masked_channels_do_not_enter_the_product():
    torch.manual_seed(0)
    model = MODELS['dcs_mobilevit']()
    model.eval()
    for mask in QKMaskSite.masks(model).values():
        mask.weight.data.zero_()
        mask.bias.data.fill_(-1.)
        mask.bias.data[::4] = 1.  # one open channel of the four of a head
    with torch.no_grad(), AttentionTap(model) as tap:
        model(torch.randn(1, 3, 32, 32))
    for attention in tap.attention.values():
        assert torch.linalg.matrix_rank(attention.product).unique().tolist() == [1]


def test_a_model_without_attention_is_refused():
    with pytest.raises(ValueError, match='expected a model with attention .* found none'):
        AttentionTap(nn.Linear(2, 2))
