"""Profiles of sites: a site says the bases that its units may be moved to."""

import pytest
from mmpretrain.models import VisionTransformer

from mmkcr.closed_form.heads import NarrowHeads
from mmkcr.closed_form.options import CompressOptions
from mmkcr.closed_form.profiles import units_of
from mmkcr.closed_form.units import Units
from mmkcr.models.search_space import SearchSpace


@pytest.mark.parametrize('kind, form', [('head_channels', NarrowHeads), ('mlp_hidden', Units)])
def test_a_kind_that_derives_from_another_is_profiled_as_it(kind, form):
    model = VisionTransformer(arch=dict(embed_dims=32, num_layers=1, num_heads=4,
                                        feedforward_channels=64), img_size=32, patch_size=8)
    for site in SearchSpace(model, [kind]).sites.values():
        site.__class__ = type('Derived', (type(site), ), {})
        assert type(units_of(site, CompressOptions())) is form
