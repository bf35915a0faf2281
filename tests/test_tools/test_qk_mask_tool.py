"""The benchmark of the masks: three subnets with the same weights."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from mmkcr.apis.build import load_config
from mmkcr.compression import count_params

REPO = Path(__file__).parents[2]
CONFIG = str(REPO / 'configs/dcs/digits/dcs-search_efficientvit-mini_1xb64_digits.py')


@pytest.fixture(scope='module')
def tool():
    spec = importlib.util.spec_from_file_location('qk_mask', REPO / 'tools/benchmarks/qk_mask.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fused_and_separate_masks_give_the_same(tool):
    models = tool.variants(load_config(CONFIG), '0.85')
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        fused, separate, without = (models[name](x) for name in ('fused', 'separate', 'without'))
    torch.testing.assert_close(fused, separate, rtol=0, atol=1e-5)
    assert without.shape == fused.shape
    masks = models['fused'].backbone.masks()
    assert len(masks) == 4 and not models['without'].backbone.masks()
    assert count_params(models['fused']) - count_params(models['without']) == sum(
        count_params(mask) for mask in masks.values())


def test_report(tool, tmp_path, capsys):
    tool.main([CONFIG, '--target-macs', '0.85', '--batch-size', '1', '--repeats', '2', '--out',
               str(tmp_path / 'r.json')])
    content, printed = json.loads((tmp_path / 'r.json').read_text()), capsys.readouterr().out
    for name in ('fused', 'separate'):
        assert content[name]['macs']['slim'] > content[name]['macs']['dense']
        assert len(content[name]['samples']['slim']) == 2 and name in printed


def test_a_backbone_without_masks_is_refused(tool, capsys):
    with pytest.raises(SystemExit):
        tool.main([str(REPO / 'configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py'),
                   '--target-macs', '0.8'])
    assert 'found `KCRVisionTransformer` without' in capsys.readouterr().err
