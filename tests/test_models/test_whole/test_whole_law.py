"""Whole detectors and segmentors: masked = sliced = reloaded, and the budget is the model's."""

import copy

import pytest
import torch
from mmengine.registry import MODELS as HOSTS

from lab.kind_coverage import GATES, randomise
from long_form import every_nth
from mmkcr.closed_form.options import default_kinds
from mmkcr.core import BytesModel, MacsModel, ParamsModel, Unsupported, count_params
from mmkcr.core.products import state_bytes
from mmkcr.engine.build import build_model
from mmkcr.models.adapters import channel_views
from mmkcr.models.counting import count_macs
from mmkcr.models.searchable import Searchable
from mmkcr.models.sites import find_sites, why_not
from mmkcr.models.tasks import task_forward
from .whole_models import DETECTORS, MODELS, batches, build, config_of, outputs

SHAPE = (3, 64, 64)
#: Sites outside of the backbone, by part and kind.
EXPECTED = dict(
    upernet=dict(channels=6), upernet_batch_norm=dict(channels=6), segformer=dict(channels=3),
    mask_rcnn=dict(channels=8), cascade=dict(channels=18), cascade_of_boxes=dict(channels=9),
    short_masks=dict(channels=6), pafpn=dict(channels=8), dino=dict(heads=6, mlp_hidden=4),
    detr=dict(heads=6, mlp_hidden=5), mask2former=dict(channels=1, heads=6, mlp_hidden=4))


@pytest.mark.parametrize('name', every_nth(2, MODELS))
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
    again = Searchable(copy.deepcopy(dense), sites=kinds, structure=structure.to_dict()).double()
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


#: What else may read a pyramid.
READERS = dict(
    mask_iou_head=dict(type='MaskScoringRCNN', roi_head=dict(
        type='MaskScoringRoIHead', mask_iou_head=dict(
            type='MaskIoUHead', num_convs=2, num_fcs=1, in_channels=16, conv_out_channels=8,
            fc_out_channels=16, num_classes=3))),
    semantic_head=dict(
        type='PanopticFPN', test_cfg=dict(panoptic={}), semantic_head=dict(
            type='PanopticFPNHead', num_things_classes=3, num_stuff_classes=2, in_channels=16,
            inner_channels=32), panoptic_fusion_head=dict(
                type='HeuristicFusionHead', num_things_classes=3, num_stuff_classes=2)))


@pytest.mark.parametrize('reader', READERS)
def test_a_pyramid_with_a_reader_that_is_not_known_stays(reader):
    """Its channels would be sliced, and those that the reader expects would not."""
    pytest.importorskip('mmcv.ops')
    config = config_of('mask_rcnn')
    config.merge_from_dict(dict(model=READERS[reader]))
    model = build_model(config)
    reasons = [str(view) for view in channel_views(model) if isinstance(view, Unsupported)]
    assert reasons == [f'a feature pyramid that `{reader}` may read at ``']
    assert 'neck.fpn_convs.0.conv.channels' not in find_sites(model, ['channels'])


@pytest.mark.parametrize('activation, kept', [
    (dict(type='Sigmoid'), True), (dict(type='HSigmoid'), True), (dict(type='ELU'), False),
    (dict(type='PReLU', num_parameters=32), False)])
def test_an_activation_that_makes_something_of_nothing_keeps_the_channels(activation, kept):
    """Behind a sigmoid a channel that is masked is one half, and one that is sliced is nothing."""
    head = dict(config_of('upernet').model.decode_head, act_cfg=activation, type='mmseg.UPerHead')
    found = why_not(HOSTS.build(head), 'channels')
    assert ('which does not map 0 to 0, at' in found) == kept
    assert bool(found) == kept


def test_a_finest_map_that_the_decoder_reads_too_stays():
    pytest.importorskip('mmcv.ops')
    config = config_of('mask2former').model.panoptic_head.pixel_decoder
    config.update(in_channels=[16, 32], strides=[4, 8], feat_channels=32, out_channels=32)
    for outputs_read, reason in (1, ''), (2, 'a finest map that the decoder reads too'):
        config.num_outs = outputs_read
        decoder = HOSTS.build(dict(config, type='mmdet.MSDeformAttnPixelDecoder'))
        assert why_not(decoder, 'channels').startswith(reason or 'x') == bool(reason)
