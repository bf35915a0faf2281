"""Attention and Grad-CAM commands on untrained dense and DCS nets, side by side."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from lab.side_by_side import spread_loader
from long_form import few
from mmkcr.engine.build import build_model, load_config
from tools.analysis_tools.grad_cam import grad_cam, last_map, to_maps

NETS = ('mobilevit-mini', 'efficientvit-mini')


@pytest.fixture(scope='module')
def models(dcs_network):
    """Config and checkpoint of the dense net and of DCS-Arch1, by net."""
    return {net: [*dcs_network(net, 1), *dcs_network(f'{net}_arch1', 1)] for net in NETS}


@pytest.mark.parametrize('net', few(NETS, 'efficientvit-mini'))
def test_attention(net, models, run_tool, tmp_path):
    printed = run_tool('analysis_tools/attention', *models[net], '--names', 'dense', 'DCS',
                       '--images', 5, '--shown', 2, '--out', 'out', '--query', 0.3, 0.9)
    out = tmp_path / 'out'
    content = json.loads((out / 'attention.json').read_text())
    assert content['images'] == 5 and list(content['models']) == ['dense', 'DCS']
    layers = content['models']['dense']
    assert list(layers) == list(content['models']['DCS'])
    for values in content['models']['DCS'].values():
        assert all(0 <= entropy <= values['limit'] + 1e-6 for entropy in values['entropy'])
        assert all(0 <= rank <= values['width'] for rank in values['rank'])
    assert sorted(path.name for path in out.iterdir()) == [
        'affinity.png', 'attention.json',
        *(f'entropy_{i + 1}.png' for i in range(len(layers))), 'maps.png']
    for path in out.glob('*.png'):
        with Image.open(path) as image:
            assert len(np.unique(np.asarray(image.convert('L')))) > 10, path.name
    assert printed.count('DCS') == len(layers)


def test_grad_cam(models, run_tool, tmp_path):
    run_tool('analysis_tools/grad_cam', *models['mobilevit-mini'], '--shown', 3, '--names', 'dense',
             'DCS', '--out', 'out')
    with Image.open(tmp_path / 'out' / 'grad_cam.png') as image:
        assert len(np.unique(np.asarray(image.convert('L')))) > 30


def test_the_map_is_that_of_the_paper(models):
    """ReLU of the maps, each weighted by its mean gradient (Selvaraju et al. 2017)."""
    config, checkpoint = models['mobilevit-mini'][:2]
    model = build_model(load_config(config))
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    inputs = model.data_preprocessor(next(iter(spread_loader(load_config(config), 'val', 2))))[
        'inputs']
    found = grad_cam(model, inputs, [3, 4])
    assert not model.training and all(p.grad is None for p in model.parameters())
    maps, = model.backbone(inputs)
    maps.retain_grad()
    logits = model.head(model.neck((maps, )))
    (logits[0, 3] + logits[1, 4]).backward()
    expected = torch.relu((maps.grad.mean((2, 3), keepdim=True) * maps).sum(1)).detach()
    expected = torch.nn.functional.interpolate(expected[:, None], (32, 32), mode='bilinear')[:, 0]
    expected = expected / expected.amax((1, 2), keepdim=True)
    assert found.shape == (2, 32, 32)
    assert np.corrcoef(found.ravel(), expected.numpy().ravel())[0, 1] > 0.95
    assert last_map(model, inputs)[0].startswith('conv_1x1_exp')


def test_tokens_become_maps():
    tokens = torch.arange(2 * 5 * 3.).view(2, 5, 3)
    maps = to_maps(tokens)
    assert maps.shape == (2, 3, 2, 2) and torch.equal(maps[:, :, 0, 0], tokens[:, 1])


def test_refusals(models, refused):
    config, *_ = given = models['mobilevit-mini']
    assert 'expected 2 different names and structures' in refused(
        'analysis_tools/attention', *given, '--names', 'a')
    assert 'a checkpoint after every config, found 1 files' in refused(
        'analysis_tools/grad_cam', config)
