"""Losses of a narrower stream: readers see the norms that it will have; which width is best."""

import pytest
import torch
from mmpretrain.models import SwinTransformer, VisionTransformer

from mmkcr.apis.compression import macs_model
from mmkcr.apis.share_out import _lost, share_out, shared_sizes, size_options
from mmkcr.apis.site_profiles import CompressOptions, SiteProfile
from mmkcr.functional.pivots import UnitOrder
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.stream_losses import NarrowStream, stream_loss

IMAGES = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()


def vit():
    return VisionTransformer(
        arch=dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64), img_size=32,
        patch_size=8, out_type='avg_featmap', with_cls_token=False)


def swin():
    return SwinTransformer(
        arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=32, window_size=4,
        patch_size=4, drop_path_rate=0., out_indices=(0, 1), pad_small_map=True)


def spaced(build, kinds):
    torch.manual_seed(0)
    model = build().double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape).double()
    model.eval()
    return SearchSpace.of_dense(model, kinds)


def called(model, images):
    return model(images)


@pytest.mark.parametrize('build, name, reader', [
    (vit, 'patch_embed.embedding', 'layers.0.attn.qkv'),
    (swin, 'patch_embed.embedding', 'stages.0.blocks.0.attn.w_msa.qkv'),
    (swin, 'stages.0.downsample.reduction.embedding', 'stages.1.blocks.0.attn.w_msa.qkv')])
def test_the_first_reader_sees_what_it_does_in_the_narrow_network(build, name, reader):
    """Of a stream whose embedding has no norm, or one that is left as it is."""
    space = spaced(build, ['embedding'])
    if build is swin:
        space.host.patch_embed.norm = None
    site, expected = space.sites[name], space.host(IMAGES)
    kept = torch.tensor([unit for unit in range(site.total) if unit % 3])
    narrow = NarrowStream(space.host, site, kept, called)
    dense = narrow.run(IMAGES)
    for found, wanted in zip(space.host(IMAGES), expected):  # nothing stays behind
        assert torch.equal(found, wanted)
    found = narrow.inputs[reader][0]
    assert found.shape == dense[reader][0].shape
    other = spaced(build, ['embedding'])
    if build is swin:
        other.host.patch_embed.norm = None
    other.slice_to(other.structure_for({name: kept}))
    seen = []
    other.host.get_submodule(reader).register_forward_hook(
        lambda _, args, out: seen.append(args[0]))
    other.host(IMAGES)
    torch.testing.assert_close(found[..., kept], seen[0])
    dropped = [unit for unit in range(site.total) if unit % 3 == 0]
    assert not found[..., dropped].any()


def test_a_whole_stream_loses_nothing_and_a_narrow_one_more_and_more():
    space = spaced(vit, ['embedding'])
    site, = space.sites.values()
    batches = IMAGES.split(4)
    losses = [stream_loss(NarrowStream(space.host, site, torch.arange(count), called), batches,
                          batches, False, 4096, 4, 2, 1e-3, 0) for count in (32, 24, 8)]
    assert losses[0] < 1e-20 and losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize('seed', range(3))
def test_no_width_is_better_than_the_one_that_is_shared_out(seed):
    """Of all widths, with the best of everything else for each; and never worse than the whole."""
    space = spaced(vit, ['embedding', 'mlp_hidden'])
    space.host.float()
    settings = CompressOptions(divisor=4)
    macs = macs_model(space.host, space, (3, 32, 32), None)
    generator = torch.Generator().manual_seed(seed)
    losses = {name: torch.cat([torch.zeros(1), torch.rand(site.total, generator=generator)**3])
              .double().cumsum(0).flip(0) for name, site in space.sites.items()}
    profiles = {name: SiteProfile(UnitOrder(torch.arange(site.total), losses[name], ()),
                                  losses[name]) for name, site in space.sites.items()}
    target = int((0.4 + 0.2 * seed) * macs.dense)
    found = share_out(space, profiles, macs, target, settings)
    assert macs(found) <= target
    offered = {name: size_options(site, settings) for name, site in space.sites.items()}
    stream = 'patch_embed.embedding'
    for width in offered[stream]:
        fixed = {**offered, stream: [width]}
        if macs({name: options[0] for name, options in fixed.items()}) <= target:
            assert _lost(found, losses) <= _lost(shared_sizes(fixed, losses, macs, target), losses)
