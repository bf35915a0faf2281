"""Networks of Hugging Face's transformers, of versions 4.57 and 5: sliced as with units at zero."""

import copy

import pytest
import torch

from lab.kind_coverage import FAMILIES, installed, randomise
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
