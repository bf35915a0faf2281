"""Searches without labels and replaced heads, on small ViTs."""

import pytest
import timm
import torch
from mmpretrain.models import VisionTransformer

from lab.label_free import ALL_TOKENS, SEARCHES, closed_form_scores, replaced_heads, search, taught
from lab.real_controls import METHODS, control
from lab.saliency import tokens
from mmkcr.models import Searchable
from mmkcr.models.counting import count_macs

SHAPE = (3, 32, 32)


def network(host='timm'):
    torch.manual_seed(0)
    if host == 'timm':
        return timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, depth=2,
                                 embed_dim=32, num_heads=4, num_classes=0, init_values=0.5,
                                 **ALL_TOKENS).eval()
    arch = dict(embed_dims=32, num_layers=4, num_heads=4, feedforward_channels=64)
    model = VisionTransformer(arch, img_size=32, patch_size=8, out_type='raw')
    model.eval()
    return model


def images():
    return torch.randn(24, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('method', ['kcr', 'dcs', 'ofb'])
def test_a_search_meets_its_target_and_its_subnet_loads(method, tmp_path):
    scores = closed_form_scores(method, network, images(), tmp_path)
    dense = count_macs(network(), SHAPE)
    slim, structure = search(method, network, images(), 24, int(0.75 * dense), scores, 32)
    assert 0.72 * dense < structure.macs['subnet'] <= 0.75 * dense
    again = Searchable(network(), structure.backbone['sites'], structure=structure).eval()
    again.load_state_dict(slim.state_dict())
    slim.eval()
    with torch.no_grad():
        found, wanted = tokens(slim, images()), tokens(network(), images())
        assert torch.equal(found, tokens(again, images())) and not torch.equal(found, wanted)
        assert tokens(slim, torch.randn(1, 3, 16, 16)).shape == (1, 5, 32)  # another size
        refitted = control(f'{method}-refit', network(), images(), '75%', {}, structure)
        assert refitted.structure.sizes() == structure.sizes()


def test_learned_convolutions_are_as_many_as_asked():
    _, structure = search('dsp', lambda: network('mmpretrain'), images(), 12, 2, size=32)
    assert sorted(structure.sizes().values()) == [0, 0, 4, 4]


def test_replaced_heads_go_by_their_scores_and_are_taught(tmp_path):
    path = tmp_path / 'heads.json'
    _, most = replaced_heads(network('mmpretrain'), images(), '5h', 'highest', path)
    slim, least = replaced_heads(network('mmpretrain'), images(), '11h', 'lowest', path)
    for site, kept in least.sites.items():
        assert not {*most.sites[site].kept} & {*kept.kept}
    assert sum(most.sizes().values()) == 11 and sum(least.sizes().values()) == 5
    _, blocks = replaced_heads(network('mmpretrain'), images(), '1b', 'random', path)
    assert sorted(blocks.sizes().values()) == [0, 4, 4, 4]
    assert blocks.macs['subnet'] < blocks.macs['dense'] == count_macs(network('mmpretrain'), SHAPE)
    better = taught(slim, network('mmpretrain'), images()[:20], images()[20:], 16)
    assert [one.shape for one in better.state_dict().values()] == \
        [one.shape for one in slim.state_dict().values()]


def test_every_search_has_a_name_and_a_refit():
    assert {*SEARCHES} < {*METHODS} and {f'{name}-refit' for name in SEARCHES} - {*METHODS} == \
        {'dsp-refit'}
