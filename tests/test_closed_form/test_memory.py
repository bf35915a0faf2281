"""Memory of a compression: the limit decides about batches, and batches about nothing."""

from importlib import import_module

import pytest
import timm
import torch
from mmpretrain.models import SwinTransformer
from torch import nn

from mmkcr.closed_form.compression import compress
from mmkcr.closed_form.given import BATCH, Survey, survey

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = dict(input_shape=(3, 32, 32), progress=False)


def vit():
    torch.manual_seed(0)
    return timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, embed_dim=32,
                             depth=2, num_heads=4, num_classes=5).eval()


class Segmentor(nn.Module):
    """Maps of many classes at full size, of a convolution that reads a narrower one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = SwinTransformer(
            arch=dict(embed_dims=8, depths=[1, 1], num_heads=[2, 2]), img_size=32, patch_size=4,
            window_size=4, out_indices=(0, 1))
        self.head = nn.Conv2d(16, 50, 3, padding=1)

    def forward(self, x):
        return nn.functional.interpolate(self.head(self.backbone(x)[-1]), x.shape[2:])


def watched():
    """A ``forward``, and the sizes of the batches that it got."""
    sizes = []

    def forward(network, batch):
        sizes.append(len(batch))
        return network(batch)

    return forward, sizes


@pytest.mark.parametrize('build, logits, sites', [
    (vit, True, None), (vit, False, ['mlp_hidden', 'heads']), (Segmentor, False, None)])
def test_the_size_of_batches_changes_nothing_but_rounding(build, logits, sites, monkeypatch):
    results = []
    for size in (1, BATCH):
        monkeypatch.setattr(Survey, 'batch', lambda self, memory, size=size: size)
        forward, sizes = watched()
        results.append(compress(build(), IMAGES, '80%', sites, forward=forward, logits=logits,
                                backward_images=7, **OPTIONS))
        assert max(sizes) == size
    first, other = results
    assert other.structure.sites == first.structure.sites
    assert other.agreement == pytest.approx(first.agreement, rel=1e-4)
    for name, profile in first.profiles.items():
        torch.testing.assert_close(other.profiles[name].losses, profile.losses, rtol=1e-3,
                                   atol=1e-4 * float(profile.losses[0]))
    for name, value in first.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], value, rtol=1e-2, atol=1e-4)


def test_the_batch_follows_from_what_a_pass_of_an_image_takes():
    """Larger images, and larger outputs, make smaller batches, down to one image."""
    def looked(model, side):
        return survey(model, torch.randn(2, 3, side, side).split(1), lambda net, x: net(x))

    small, large = (looked(Segmentor().eval(), side) for side in (32, 96))
    assert 5 * small.bytes < large.bytes < 15 * small.bytes  # 9 times the area
    outputs = 4 * 50 * 96**2
    assert large.bytes > 2 * outputs  # and their gradients
    assert large.batch(9 * large.bytes) == 2 and large.batch(4 * large.bytes) == 1
    assert small.batch(9 * large.bytes) > 2 and small.batch(2**40) == BATCH
    with pytest.raises(ValueError, match=r'an image of 3 x 96 x 96, about .*`--memory`'):
        large.batch(large.bytes - 1)


def test_a_limit_is_kept_from_the_first_pass_on(monkeypatch):
    """By default half of what is free."""
    taken = survey(vit(), IMAGES.split(1), lambda net, x: net(x)).bytes
    forward, sizes = watched()
    compress(vit(), IMAGES, '60%', forward=forward, memory=13 * taken, **OPTIONS)
    assert max(sizes) == 3
    with pytest.raises(ValueError, match='expected memory for the activations of an image of 3 x'):
        compress(vit(), IMAGES, '60%', memory=taken // 2, **OPTIONS)
    monkeypatch.setattr(import_module('mmkcr.closed_form.given'), 'free_memory',
                        lambda device: 2 * 10**4)
    with pytest.raises(ValueError, match='a limit of 9.3e-06 GB'):
        compress(vit(), IMAGES, '60%', **OPTIONS)


@pytest.mark.parametrize('build, sites', [(Segmentor, None), (vit, ['mlp_channels', 'heads'])])
def test_it_costs_at_most_eight_forward_passes_over_the_images(build, sites):
    """All that linear layers compute forward, with and without gradients, dense and slim."""
    model, images, macs = build(), torch.randn(96, 3, 32, 32), []
    for layer in model.modules():  # copies of the network have the hooks, too
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(
                lambda layer, inputs, out: macs.append(inputs[0].numel() * layer.out_features))
    model(images)
    a_pass = sum(macs)
    macs.clear()
    compress(model, images, '80%', sites, **OPTIONS)
    assert a_pass < sum(macs) <= 8 * a_pass


def test_images_that_are_all_the_same_are_refused():
    """With 40 black images outputs differed by 0.0 %, and top-1 fell by 14 points."""
    for images in (torch.zeros(40, 3, 32, 32), IMAGES[:1].repeat(9, 1, 1, 1)):
        used = len(images) - max(1, len(images) // 10)
        with pytest.raises(ValueError, match=f'images that differ, found that all {used} batches'):
            compress(vit(), images, '60%', **OPTIONS)


def test_what_the_comparison_tells_is_said():
    other = compress(vit(), IMAGES, '60%', logits=True, **OPTIONS)
    assert ' of the 2 images have the same class' in str(other) and 'all alike' not in str(other)
    alike = compress(vit(), IMAGES, '60%', held_out=IMAGES[:1].repeat(3, 1, 1, 1), **OPTIONS)
    assert 'These 3 images are all alike' in str(alike)


def test_layers_without_variance_are_said():
    """If all are so, the call is refused: outputs depend on no unit."""
    model = vit()
    nn.init.zeros_(model.blocks[0].mlp.fc1.weight)
    result = compress(model, IMAGES, '80%', ['mlp_hidden'], **OPTIONS)
    assert '1 layers see the same at all positions of all images, as `blocks.0' in str(result)


@pytest.mark.parametrize('message', ["DefaultCPUAllocator: can't allocate memory: you tried to",
                                     'CUDA out of memory. Tried to allocate 20.00 GiB'])
def test_an_error_of_memory_names_the_remedy(message):
    calls = []

    def forward(network, batch):
        calls.append(len(batch))
        if len(calls) == 4:
            raise RuntimeError(message)
        return network(batch)

    with pytest.raises(MemoryError, match='fit into memory.*; give a lower `memory`'):
        compress(vit(), IMAGES, '80%', forward=forward, **OPTIONS)
