"""A structure that is known, with weights of the dense network that are refitted to it."""

import pytest
import torch
from mmpretrain.models import VisionTransformer
from torch import nn

from mmkcr.apis import compress, count_macs
from mmkcr.apis.refit_structure import refit_structure
from mmkcr.core import Structure
from mmkcr.models import Searchable

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = dict(input_shape=(3, 32, 32), progress=False)
KINDS = ['mlp_hidden', 'heads']


def vit(**options):
    torch.manual_seed(0)
    model = VisionTransformer(
        arch=dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64),
        img_size=32, patch_size=8, out_type='featmap', **options)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3 if parameter.ndim == 2 else 0.1)
    model.eval()
    return model


def searched(seed=1):
    """Units as a search might keep them."""
    space = Searchable(vit(), sites=KINDS).search_space
    generator = torch.Generator().manual_seed(seed)
    return space.structure_for({
        name: torch.randperm(total, generator=generator)[:total // 2].sort().values
        for name, total in space.totals().items()})


def test_it_keeps_what_the_structure_says_and_loses_less_than_inherited_weights():
    structure = searched()
    result = refit_structure(vit(), structure, IMAGES, held_out=IMAGES, **OPTIONS)
    assert result.structure.sites == structure.sites
    assert count_macs(result.model, (3, 32, 32)) == result.structure.macs['subnet']
    plain = refit_structure(vit(), structure, IMAGES, held_out=IMAGES, refit='none', **OPTIONS)
    sliced = Searchable(vit(), sites=KINDS, structure=structure)
    sliced.load_state_dict(plain.model.state_dict())  # strict: the same subnet
    assert result.agreement['error'] < 0.9 * plain.agreement['error']


def test_the_structure_of_compress_gives_its_weights():
    made = compress(vit(), IMAGES, '60%', KINDS, divisor=4, **OPTIONS)
    again = refit_structure(vit(), made.structure, IMAGES, **OPTIONS)
    for name, value in made.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
    assert again.structure.macs == made.structure.macs


class Scores(nn.Module):
    """A linear layer reads the class token's features: the stream can be turned."""

    def __init__(self):
        super().__init__()
        self.backbone = vit(final_norm=True)
        self.head = nn.Linear(32, 5)

    def forward(self, images):
        return self.head(self.backbone(images)[0].mean((2, 3)))


@pytest.mark.parametrize('build, kind, target', [
    (vit, 'head_channels', '80%'), (Scores, 'embedding', '70%')])
def test_channels_of_rotated_bases_are_refused(build, kind, target):
    """The structure does not have the bases: other channels would be kept without a word."""
    made = compress(build(), IMAGES, target, [kind], divisor=1, **OPTIONS)
    assert made.structure.provenance['rotated']
    for provenance in (made.structure.provenance, {}):  # files of 0.2 do not say it
        made.structure.provenance = provenance
        with pytest.raises(ValueError, match=f'units of `.*{kind}` are channels of a rotated'):
            refit_structure(build(), made.structure, IMAGES, **OPTIONS)
    made.structure.method = 'another'
    refit_structure(build(), made.structure, IMAGES, **OPTIONS)


def test_channels_that_a_control_chose_are_the_networks_own():
    made = compress(vit(), IMAGES, '80%', ['head_channels'], divisor=1, refit='none', uniform=True,
                    choose=lambda site, moments, generator: torch.arange(site.total).view(
                        4, -1).T.flatten(), **OPTIONS)
    again = refit_structure(vit(), made.structure, IMAGES, refit='none', **OPTIONS)
    for name, value in made.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name


@pytest.mark.parametrize('change, message', [
    (dict(backbone=dict(type='x', sites=['qk_mask'])), 'that have a closed form, of .* found'),
    (dict(sites={'layers.0.ffn.mlp_hidden': dict(total=64, kept=[1])},
          backbone=dict(type='x')), 'found site `layers.1.ffn.mlp_hidden` only in the backbone'),
])
def test_a_structure_that_does_not_fit_is_refused(change, message):
    structure = Structure.load({**searched().to_dict(), **change})
    with pytest.raises(ValueError, match=message):
        refit_structure(vit(), structure, IMAGES, **OPTIONS)
