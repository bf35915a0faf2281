"""Networks of Hugging Face's transformers, of versions 4.57 and 5: sliced as with units at zero."""

import copy
import re
import warnings

import pytest
import torch

from lab.kind_coverage import FAMILIES, installed, randomise
from mmkcr.closed_form.compression import compress
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.base import find_sites, why_not

NAMES = [name for name, family in FAMILIES.items() if family.library == 'transformers'
         and installed(name)]


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', ['mlp_hidden', 'heads', 'head_channels'])
@pytest.mark.parametrize('name', NAMES)
def test_a_sliced_network_computes_as_with_its_units_at_zero(name, kind):
    torch.manual_seed(0)
    family, kept = FAMILIES[name], {}
    dense = randomise(family.build())
    if why_not(dense, kind):
        assert kind != 'mlp_hidden'
        pytest.skip(why_not(dense, kind))
    slim, sites = copy.deepcopy(dense), find_sites(dense, [kind])
    for path, site in sites.items():
        each = site.total // site.rows  # equally many of every head
        chosen = torch.stack([torch.rand(each).argsort()[:max(each * 3 // 4, 1)].sort()[0]
                              for _ in range(site.rows)])
        kept[path] = (chosen + each * torch.arange(site.rows)[:, None]).flatten()
        dropped = torch.tensor(sorted(set(range(site.total)) - set(kept[path].tolist())))
        for axis in site.axes():
            if axis.value is not None and axis.per == 1:
                axis.value.data.index_fill_(axis.dim, axis.entries(dropped), 0.)
    space = SearchSpace(slim, [kind])
    space.slice_to(space.structure_for(kept))
    images = torch.randn(2, 3, family.size, family.size)
    with torch.no_grad():
        for found, expected in zip(family.forward(slim, images), family.forward(dense, images)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', [name for name in NAMES if re.search('CLIP|SigLIP|DINOv3|ViT$',
                                                                      name)])
def test_lost_attention_maps_are_told_by_name(name):
    torch.manual_seed(0)
    model = FAMILIES[name].build().eval()
    model.set_attn_implementation('eager')
    images = torch.randn(6, 3, FAMILIES[name].size, FAMILIES[name].size)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        slim = compress(model, images, '95%', sites=['head_channels'], progress=False,
                        input_shape=images.shape[1:]).model
    told = [str(one.message) for one in seen if 'attention maps' in str(one.message)]
    with torch.no_grad():
        dense, maps = (network(images, output_attentions=True).attentions
                       for network in (model, slim))
    lost = not maps or any(one is None for one in maps) or len(maps) < len(dense)
    assert dense and lost == bool(told)
    assert not told or re.search(r'found \d+ compressed layers that return none, as `\w', told[0])


@pytest.mark.parametrize('name', [name for name in NAMES if re.search('SigLIP|DINOv3', name)])
def test_a_network_that_was_looked_at_is_compressed_as_before(name):
    """transformers 4.57 leaves methods on the layers whose outputs were recorded."""
    torch.manual_seed(0)
    model = FAMILIES[name].build().eval()
    images, errors = torch.randn(6, 3, FAMILIES[name].size, FAMILIES[name].size), []
    for _ in range(2):
        errors.append(compress(model, images, '95%', sites=['head_channels'], progress=False,
                               input_shape=images.shape[1:]).agreement['error'])
        model(images, output_attentions=True, output_hidden_states=True)
    assert errors[0] == errors[1]


def test_position_biases_that_layers_share_are_refused():
    """In transformers, too, where a block's own table is one of its heads alone."""
    transformers = pytest.importorskip('transformers')
    beit = transformers.BeitModel(transformers.BeitConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=64, patch_size=16, use_shared_relative_position_bias=True))
    for kind in ('heads', 'head_channels'):
        assert why_not(beit, kind).startswith('all layers share the position biases of the heads')
    assert not why_not(beit, 'mlp_hidden')


def test_an_mlp_of_experts_is_refused_by_name():
    transformers = pytest.importorskip('transformers')
    backbone = transformers.VitPoseBackbone(transformers.VitPoseBackboneConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=(64, 64),
        patch_size=(16, 16), mlp_ratio=2, num_experts=2, part_features=8))
    assert why_not(backbone, 'mlp_hidden').startswith('experts write some of its outputs at ')
    assert not why_not(backbone, 'heads')


@pytest.mark.parametrize('name', ['HF DETR', 'HF MaskFormer', 'HF Mask2Former', 'HF RT-DETR'])
def test_attention_of_a_decoder_is_compressed_or_named_as_dense(name):
    if name not in NAMES:
        pytest.skip('`transformers` is not installed')
    network = FAMILIES[name].build()
    space = SearchSpace(network, [kind for kind in ('heads', 'mlp_hidden')
                                  if not why_not(network, kind)])
    paths = [path for path, layer in network.named_modules()
             if re.search('(attn|attention)$', path) and list(layer.parameters())]
    dense = [path for paths in space.find_dense_attention().values() for path in paths]
    cut = [site.path for site in space.sites.values() if site.kind == 'heads']
    for path in paths:
        assert any(f'{path}.'.startswith(f'{other}.') or other.startswith(f'{path}.')
                   for other in dense + cut), path
    assert set(dense) <= set(paths) and not set(dense) & set(cut)
