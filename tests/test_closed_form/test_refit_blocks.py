"""The ridge of a refit: chosen by images that it leaves out, the same for units of any scale."""

import pytest
import torch
from mmpretrain.models import VisionTransformer
from torch import nn

from mmkcr.apis import compress
from mmkcr.closed_form.compression import compress_network
from mmkcr.closed_form.options import CompressOptions
from mmkcr.closed_form.progress import CompressProgress
from mmkcr.functional.refit import RIDGES

IMAGES = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = dict(input_shape=(3, 32, 32), progress=False, divisor=1, uniform=True)


def vit():
    torch.manual_seed(0)
    model = VisionTransformer(
        arch=dict(embed_dims=24, num_layers=2, num_heads=4, feedforward_channels=48), img_size=32,
        patch_size=8, out_type='featmap')
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    model.eval()
    return model


@pytest.mark.parametrize('factor', [1e3, 1e-3])
def test_a_unit_in_another_scale_leaves_the_result(factor):
    """A massive unit: the value and the output columns of one channel, and the same function."""
    model, other = vit().double(), vit().double()
    width, channel = 24, 7
    with torch.no_grad():
        for layer in other.layers:
            # hidden units pass a nonlinearity; values do not, so their scale is free
            layer.attn.qkv.weight[2 * width + channel] *= factor
            layer.attn.qkv.bias[2 * width + channel] *= factor
            layer.attn.proj.weight[:, channel] /= factor
    images = IMAGES.double()
    torch.testing.assert_close(other(images), model(images))
    for kind in ('heads', 'head_channels'):
        first, second = (compress(one, images, '80%', [kind], **OPTIONS)
                         for one in (model, other))
        assert first.structure.sites == second.structure.sites
        assert first.structure.provenance['ridges'] == second.structure.provenance['ridges']
        torch.testing.assert_close(second.model(images), first.model(images), rtol=0, atol=1e-4)


def test_every_refitted_layer_records_its_ridge():
    found = compress(vit(), IMAGES, '70%', **OPTIONS).structure.provenance['ridges']
    assert sorted(found) == sorted(f'layers.{block}.{layer}' for block in range(2)
                                   for layer in ('attn.proj', 'ffn.layers.1'))
    assert set(found.values()) <= set(RIDGES)
    assert 'ridges' not in compress(vit(), IMAGES, '70%', rho=0.1, **OPTIONS).structure.provenance


def test_one_image_leaves_no_other_out():
    alone = compress(vit(), IMAGES[:1], '70%', **OPTIONS)
    fixed = compress(vit(), IMAGES[:1], '70%', rho=1e-3, **OPTIONS)
    assert set(alone.structure.provenance['ridges'].values()) == {1e-3}
    for one, two in zip(alone.model(IMAGES), fixed.model(IMAGES)):
        assert torch.equal(one, two)


def test_a_chosen_ridge_is_at_least_as_good_as_the_worst_of_the_list():
    """On images of which the refit saw none; few images ask for a large ridge."""
    images = torch.randn(200, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    errors = {rho: compress(vit(), images[:6], '80%', ['mlp_hidden'], rho=rho,
                            held_out=images[6:], **OPTIONS).agreement['error']
              for rho in (1e-3, 0.1, 3., 'auto')}
    chosen = errors.pop('auto')
    assert chosen < max(errors.values()) and chosen <= 1.02 * min(errors.values())


def test_a_call_that_goes_on_keeps_the_ridges_of_finished_blocks(tmp_path, monkeypatch):
    whole = compress(vit(), IMAGES, '70%', **OPTIONS)
    save, saved = CompressProgress.save_block, []

    def killed(self, block, *rest):
        if saved:
            raise KeyboardInterrupt
        saved.append(block)
        save(self, block, *rest)

    def run():
        return compress_network(vit(), IMAGES, CompressOptions(target='70%', **OPTIONS),
                                done=CompressProgress(tmp_path, dict(target='70%')))

    with monkeypatch.context() as patch:
        patch.setattr(CompressProgress, 'save_block', killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert run().structure.provenance['ridges'] == whole.structure.provenance['ridges']
