"""The benchmark of the masks: two subnets with the same weights."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from mmkcr.apis.build import load_config
from mmkcr.core import count_params

REPO = Path(__file__).parents[2]
CONFIG = str(REPO / 'configs/dcs/digits/dcs-search_efficientvit-mini_1xb64_digits.py')


@pytest.fixture(scope='module')
def tool():
    spec = importlib.util.spec_from_file_location('qk_mask', REPO / 'tools/benchmarks/qk_mask.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_masks_that_are_open_change_nothing(tool):
    models = tool.variants(load_config(CONFIG), '0.85')
    masks = models['with'].backbone.masks()
    assert len(masks) == 4 and not models['without'].backbone.masks()
    assert count_params(models['with']) - count_params(models['without']) == sum(
        count_params(mask) for mask in masks.values())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        without = models['without'].eval()(x)
        for bias, same in ((9., True), (-9., False)):
            for mask in masks.values():
                mask.bias.fill_(bias)
            assert torch.equal(models['with'].eval()(x), without) == same


def test_report(tool, tmp_path, capsys):
    tool.main([CONFIG, '--target-macs', '0.85', '--batch-size', '1', '--repeats', '2', '--out',
               str(tmp_path / 'r.json')])
    content, printed = json.loads((tmp_path / 'r.json').read_text()), capsys.readouterr().out
    assert content['macs']['slim'] > content['macs']['dense'] and content['clock'] == 'cpu'
    assert len(content['samples']['slim']) == 2
    assert f'of time {content["ratio"]:.3f}' in printed


def test_a_backbone_without_masks_is_refused(tool, capsys):
    with pytest.raises(SystemExit):
        tool.main([str(REPO / 'configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py'),
                   '--target-macs', '0.8'])
    assert 'found `KCRVisionTransformer` without' in capsys.readouterr().err
