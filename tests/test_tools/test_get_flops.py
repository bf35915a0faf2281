"""get_flops.py: any model of the three task families, from its config alone."""

import json

import pytest

from mmkcr.apis import count_macs, macs_report
from mmkcr.core import count_params
from mmkcr.engine.build import build_model, load_config

TOOL = 'analysis_tools/get_flops'


def test_a_published_classifier(run_tool):
    """Others: tests/test_core/test_macs.py."""
    config = 'mmpretrain::mobilevit/mobilevit-small_8xb128_in1k.py'
    found = json.loads(run_tool(TOOL, config, '--shape', 256, '--json'))
    assert found['input_shape'] == [3, 256, 256]
    assert found['macs'] == pytest.approx(2.0e9, rel=0.015)
    assert found['params'] == pytest.approx(5.58e6, rel=0.002)
    assert sum(found['operators'].values()) == pytest.approx(found['macs'], abs=8)


def test_supernet_dense_and_subnet(run_tool, search_config, slim):
    structure = json.loads((slim / 'structure.json').read_text())
    found = {name: json.loads(run_tool(TOOL, config, '--json')) for name, config in dict(
        dense=slim / 'dense.py', subnet=slim / 'config.py',
        supernet=search_config).items()}
    assert found['dense']['macs'] == structure['macs']['dense'] == found['supernet']['macs']
    assert found['subnet']['macs'] == structure['macs']['subnet'] <= 0.8 * found['dense']['macs']
    assert found['subnet']['params'] == structure['params']['subnet']
    assert found['dense']['params'] == structure['params']['dense']
    assert found['dense']['input_shape'] == [3, 32, 32]  # the backbone's `img_size`


@pytest.mark.parametrize('config, shape, options', [
    ('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', (96, 128),
     ('--cfg-options', 'model.test_cfg.rpn.max_per_img=8')),
    ('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', (96, 64), ()),
    ('mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py', (64, 32), ()),
])
def test_detectors_and_segmentors_with_their_heads(run_tool, config, shape, options):
    if config.startswith('mmdet'):
        pytest.importorskip('mmcv.ops')
    found = json.loads(run_tool(TOOL, config, '--shape', *shape, '--json', *options))
    model = build_model(load_config(config))
    assert found['params'] == count_params(model)
    parts = found['parts']
    assert len(parts) >= (2 if config.startswith('mmseg') else 3)  # no auxiliary heads
    assert sum(parts.values()) == found['macs'] and all(macs > 0 for macs in parts.values())
    closed = model.backbone.layer4[0].conv2.weight.numel() * (shape[0] // 32) * (shape[1] // 32)
    assert macs_report(model, (3, *shape)).modules['backbone.layer4.0.conv2'] == closed
    if options:  # a two-stage head runs on what seeded weights propose
        again = json.loads(run_tool(TOOL, config, '--shape', *shape, '--json', *options))
        assert again['macs'] == found['macs']


def test_tables(run_tool, search_config):
    model = build_model(load_config(search_config))
    macs = count_macs(model, (3, 64, 32))
    printed = run_tool(TOOL, search_config, '--shape', 64, 32)
    assert f'64 x 32: {macs / 1e9:.4g} G MACs, {count_params(model) / 1e6:.4g} M' in printed
    rows = {line.split('│')[1].strip(): line.split('│')[3].strip()
            for line in printed.splitlines() if line.count('│') == 4}
    # parts are those of the network that is searched
    parts = json.loads(run_tool(TOOL, search_config, '--json'))['parts']
    assert set(parts) == {'backbone', 'head'}
    assert float(rows['backbone'][:-1]) > 70


def test_refusals(refused, write_config, search_config):
    data = write_config('model = None\ncompression = None\n', name='no-model')
    for args, message in [
        (('mmpretrain::no/such.py', ), 'found `mmpretrain::no/such.py`'),
        (('nolib::no/such.py', ), 'found `nolib::no/such.py`'),
        ((data, ), 'expected a config with a `model`'),
    ]:
        assert message in refused(TOOL, *args), message
