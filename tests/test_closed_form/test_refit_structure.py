"""A structure that is known, with weights of the dense network that are refitted to it."""

import dataclasses

import pytest
import torch
from mmpretrain.models import MobileViT, VisionTransformer

from lab.kind_coverage import randomise
from mmkcr.apis import compress, count_macs
from mmkcr.closed_form.compression import refit_structure
from mmkcr.closed_form.options import CompressOptions
from mmkcr.core import Structure
from mmkcr.methods.dcs.qk_mask import QKMask
from mmkcr.methods.named import DCSMobileViT
from mmkcr.models import Searchable

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = dict(input_shape=(3, 32, 32), progress=False)
SETTINGS = CompressOptions(**OPTIONS)
KINDS = ['mlp_hidden', 'heads']
MOBILE = dict(arch=[['mobilenetv2', 8, 1, 1, 1], ['mobilenetv2', 8, 2, 1, 1],
                    ['mobilevit', 16, 2, 16, 32, 2, 1]], stem_channels=8, last_exp_factor=2,
              out_indices=(2, ))


def vit(**options):
    return randomise(VisionTransformer(
        arch=dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64),
        img_size=32, patch_size=8, out_type='featmap', **options))


def searched(seed=1):
    """Units as a search might keep them."""
    space = Searchable(vit(), sites=KINDS).search_space
    generator = torch.Generator().manual_seed(seed)
    return space.structure_for({
        name: torch.randperm(total, generator=generator)[:total // 2].sort().values
        for name, total in space.totals().items()})


def test_it_keeps_what_the_structure_says_and_loses_less_than_inherited_weights():
    structure = searched()
    result = refit_structure(vit(), structure, IMAGES, SETTINGS, held_out=IMAGES)
    assert result.structure.sites == structure.sites
    assert count_macs(result.model, (3, 32, 32)) == result.structure.macs['subnet']
    plain = refit_structure(vit(), structure, IMAGES, CompressOptions(refit='none', **OPTIONS),
                            held_out=IMAGES)
    sliced = Searchable(vit(), sites=KINDS, structure=structure)
    sliced.load_state_dict(plain.model.state_dict())  # strict: the same subnet
    assert result.agreement['error'] < 0.9 * plain.agreement['error']


def test_the_structure_of_compress_gives_its_weights():
    made = compress(vit(), IMAGES, '60%', KINDS, divisor=4, **OPTIONS)
    again = refit_structure(vit(), made.structure, IMAGES, SETTINGS)
    for name, value in made.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
    assert again.structure.macs == made.structure.macs


def test_channels_of_rotated_bases_are_refused():
    """The structure does not have the bases: other channels would be kept without a word."""
    made = compress(vit(), IMAGES, '80%', ['head_channels'], divisor=1, **OPTIONS)
    assert made.structure.provenance['rotated']
    with pytest.raises(ValueError, match='units of `.*head_channels` are channels'):
        refit_structure(vit(), made.structure, IMAGES, SETTINGS)


def mobilevit():
    return randomise(MobileViT(**MOBILE))


def every_other(space):
    """A structure of every other unit."""
    return space.structure_for({name: torch.arange(0, total, 2)
                                for name, total in space.totals().items()})


@pytest.mark.parametrize('kind, mask', [
    ('mlp_channels', 'qk_mask'), ('mlp_hidden', dict(kind='qk_mask', separate=True, init=0.))],
    ids=['open', 'partly shut'])
def test_a_structure_with_masks_begins_with_new_ones(kind, mask):
    """The rest is refitted beside them, and they are layers of the result."""
    structure = every_other(Searchable(mobilevit(), sites=[mask, kind]).search_space)
    found = refit_structure(mobilevit(), structure, IMAGES, SETTINGS, held_out=IMAGES)
    assert found.structure.sites == structure.sites
    assert found.structure.backbone['sites'] == [mask, kind]
    plain = refit_structure(mobilevit(), structure, IMAGES,
                            CompressOptions(refit='none', **OPTIONS), held_out=IMAGES)
    assert found.agreement['error'] < 0.9 * plain.agreement['error']
    assert sum(isinstance(module, QKMask) for module in found.model.modules()) == 2
    # what is written is built with its masks, and a repeated call makes the same ones
    again = Searchable(mobilevit(), sites=[mask, kind], structure=found.structure)
    again.load_state_dict(found.model.state_dict())
    assert count_macs(again, (3, 32, 32)) == found.structure.macs['subnet']
    repeated = refit_structure(mobilevit(), structure, IMAGES, SETTINGS, held_out=IMAGES).model
    for name, value in repeated.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    # open masks change nothing
    bare = refit_structure(mobilevit(), dataclasses.replace(structure, backbone=dict(
        structure.backbone, sites=[kind])), IMAGES, SETTINGS, held_out=IMAGES)
    same = found.agreement['error'] == pytest.approx(bare.agreement['error'], rel=1e-3)
    assert same == (mask == 'qk_mask')


@pytest.mark.parametrize('mask, count', [(dict(type='mmkcr.QKMask'), 2), (None, 0)])
def test_named_backbones_with_masks(mask, count):
    """Their structures do not list the kinds of site."""
    structure = every_other(DCSMobileViT(**MOBILE, qk_mask=mask).search_space)
    found = refit_structure(mobilevit(), structure, IMAGES, SETTINGS)
    assert sum(isinstance(module, QKMask) for module in found.model.modules()) == count


@pytest.mark.parametrize('change, message', [
    (dict(backbone=dict(type='x', sites=['none'])), 'that have a closed form, of .* found'),
    (dict(sites={'layers.0.ffn.mlp_hidden': dict(total=64, kept=[1])},
          backbone=dict(type='x')), 'found site `layers.1.ffn.mlp_hidden` only in the backbone'),
    (dict(macs=dict(dense=10**6, subnet=10**5, input_shape=[3, 32, 32], part='backbone')),
     r'expected `VisionTransformer` of 100000 MACs at .*, found one of \d+')])
def test_a_structure_that_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        structure = Structure.load({**searched().to_dict(), **change})
        refit_structure(vit(), structure, IMAGES, SETTINGS)
