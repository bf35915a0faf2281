"""DSP in a segmentor: blocks or single heads, end-to-end and two-stage."""

from pathlib import Path

import pytest
import torch

from lab.replace_heads import replace_heads
from mmkcr.apis import slim
from mmkcr.engine.build import build_model, load_config

CONFIGS = Path(__file__).parents[3] / 'configs/dwconv/segmentation'
NAME = 'dwconv-fcn_vit-octo_{}_1xb8_digit-scenes.py'


def random_model(stage, options=None):
    model = build_model(load_config(CONFIGS / NAME.format(stage), options)).double()
    generator = torch.Generator().manual_seed(0)
    for _, parameter in sorted(model.named_parameters()):
        parameter.data.normal_(0, 0.1, generator=generator)
    return model


@pytest.mark.parametrize('blockwise', [True, False])
def test_static_network_is_the_supernet_in_eval_mode(blockwise):
    heads = dict() if blockwise else {
        'compression.gates.count': 16, 'compression.gates.blockwise': False}
    model = random_model('search', heads)
    subnet, structure = slim(model, input_shape=(3, 128, 128))
    replaced = [site.total - len(site.kept) for site in structure.sites.values()]
    assert sum(replaced) == 16  # of 32
    assert set(replaced) == {0, 4} if blockwise else len(set(replaced)) > 2
    assert structure.macs['subnet'] < structure.macs['dense']
    for size in [(128, 128), (96, 160)]:
        images = torch.randn(2, 3, *size).double()
        with torch.no_grad():
            one, two = (net.eval()(images, mode='tensor') for net in (model, subnet))
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10 * float(one.abs().max()))
    # two-stage: the dense network with the same heads replaced
    dense = random_model('dense')
    values = dense.backbone.layers[0].attn.qkv.weight[128:].clone()
    again = replace_heads(dense, structure, (3, 128, 128))
    assert again.sites == structure.sites and again.macs['subnet'] == structure.macs['subnet']
    kept = dense.backbone.layers[0].attn.qkv.weight[-64:]  # replaced heads last
    assert torch.equal(kept.sum(1).sort().values, values.sum(1).sort().values)
