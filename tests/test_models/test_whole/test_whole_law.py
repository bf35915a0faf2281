"""Whole detectors and segmentors: masked = sliced = reloaded, and the budget is the model's."""

import copy

import pytest
import torch

from lab.kind_coverage import GATES, randomise
from mmkcr.apis.build import state_bytes
from mmkcr.apis.compress import default_kinds
from mmkcr.apis.count import count_macs
from mmkcr.core import BytesModel, MacsModel, ParamsModel, count_params
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.searchable import Searchable
from mmkcr.models.utils import task_forward
from .whole_models import DETECTORS, MODELS, batches, build, config_of, outputs

SHAPE = (3, 64, 64)
#: Sites outside of the backbone, by part and kind.
EXPECTED = dict(
    upernet=dict(channels=6), upernet_batch_norm=dict(channels=6), segformer=dict(channels=3),
    mask_rcnn=dict(channels=8), pafpn=dict(channels=8), dino=dict(heads=6, mlp_hidden=4),
    detr=dict(heads=6, mlp_hidden=5), mask2former=dict(channels=1, heads=6, mlp_hidden=4))


@pytest.mark.parametrize('name', MODELS)
def test_the_law_on_a_whole_model(name):
    if name in DETECTORS:
        pytest.importorskip('mmcv.ops')
    torch.manual_seed(0)
    dense = build(name).double()
    kinds = default_kinds(dense)
    names = {kind if isinstance(kind, str) else kind['kind'] for kind in kinds}
    supernet = Searchable(copy.deepcopy(dense), sites=kinds,
                          gates={kind: GATES[kind] for kind in names}).double()
    space = randomise(supernet).search_space
    beyond = [site.kind for site in space.sites.values() if not site.path.startswith('backbone.')]
    assert {kind: beyond.count(kind) for kind in sorted(set(beyond))} == EXPECTED[name]
    found = batches(supernet, dtype=torch.float64)
    chooser = copy.deepcopy(supernet).float()
    expected = outputs(supernet, chooser, found)
    macs = MacsModel(supernet, supernet, space.gated_sites(), task_forward(supernet, SHAPE))
    kept = {site: gate.selection() for site, gate in space.gates().items()}
    structure = space.structure_for(kept)
    assert all(len(structure.sites[site].kept) < total for site, total in space.totals().items()
               if total > 4 and not site.startswith('backbone.'))
    subnet = copy.deepcopy(supernet)
    subnet.search_space.slice_to(structure)
    again = Searchable(build(name), sites=kinds, structure=structure.to_dict()).double()
    again.load_state_dict(subnet.state_dict())
    scale = max(float(out.abs().max()) for out in expected)

    def error(model):
        return max(float((one - other).abs().max())
                   for one, other in zip(outputs(model, chooser, found), expected)) / scale

    assert max(error(subnet.eval()), error(again.eval())) < 1e-11
    assert macs(structure.sizes()) == count_macs(subnet, SHAPE) < macs.dense
    assert macs.dense == count_macs(dense, SHAPE)
    for cost, count in ((ParamsModel, count_params), (BytesModel, state_bytes)):
        model = cost(supernet, space.gated_sites())
        over = model(structure.sizes()) - count(subnet)  # an entry of heads that went whole
        assert over == 0 or over > 0 and any(
            len(site.group_counts(kept[name])) < site.rows for name, site in space.sites.items())
        assert model.dense == count(dense)
    for site in space.sites.values():  # and what was dropped is missed
        site.detach()
    assert error(supernet) > 1e-3


def test_a_config_builds_the_whole_subnet():
    config = config_of('upernet')
    space = SearchSpace.of_dense(build('upernet'), ['channels'])
    structure = space.structure_for({site: torch.arange(total // 2)
                                     for site, total in space.totals().items()})
    config.model = dict(type='mmkcr.Searchable', backbone=dict(config.model,
                                                              type='mmseg.EncoderDecoder'),
                        sites=['channels'], structure=structure.to_dict())
    from mmkcr.apis.build import build_model
    model = build_model(config)
    assert model.decode_head.fpn_bottleneck.conv.out_channels == 16
    assert model.decode_head.fpn_bottleneck.gn.num_groups == 4
    assert model.decode_head.conv_seg.in_channels == 16
