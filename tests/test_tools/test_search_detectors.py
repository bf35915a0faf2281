"""DCS and Once for Both on detectors, from the shipped searches to the training of subnets."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from few_scenes import FEW
from lab.digit_scenes import write_scenes
from lab.digit_sources import source_digits
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import search_space

REPO = Path(__file__).parents[2]
SEARCHES = dict(dcs='configs/dcs/detection/dcs-ssdlite_mobilevit-mini_search_1xb8_digit-scenes.py',
                ofb='configs/ofb/detection/ofb-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py')
CONFIG = FEW + """model = dict(backbone=dict(init_cfg=None))
load_from = None
{extra}
"""
# patches of images of several sizes are masked, and an average follows the slicing
MASKED = """
custom_hooks = [dict(type='EMAHook', momentum=0.1, update_buffers=True)]
compression = dict(wrapper=dict(_delete_=True, type='mmkcr.MaskedSearchModel', reconstruction=dict(
    in_channels=96, token_channels=48, patch_size=8, window=9, mask_ratio=0.2)))
"""


@pytest.fixture
def few(tmp_path):
    """``few(name, base, extra)``: a file with a config on five scenes and one to test on."""
    rng = np.random.default_rng(0)
    for part, count in (('training', 5), ('validation', 1)):
        write_scenes(tmp_path / 'scenes', part, count, 128, *source_digits(), rng)

    def write(name, base, extra=''):
        (tmp_path / f'{name}.py').write_text(CONFIG.format(
            base=str(REPO / base), data=f'{tmp_path}/scenes/', extra=extra))
        return f'{name}.py'
    return write


@pytest.mark.parametrize('method', [pytest.param('dcs', marks=pytest.mark.long), 'ofb'])
def test_search_slim_and_train(method, run_tool, few):
    search = few('search', SEARCHES[method], MASKED if method == 'ofb' else '')
    run_tool('search', search)
    target = load_config(search).model.price.target
    budget = ['--target-macs', target] if method == 'dcs' else []  # Once for Both is in it already
    run_tool('slim', search, 'work_dirs/search/epoch_1.pth', *budget)
    structure = Structure.load('work_dirs/search/slim/structure.json')
    assert structure.macs['part'] == 'backbone'
    assert 0.97 * target <= structure.macs['subnet'] / structure.macs['dense'] <= target
    # as the header has it
    header = (REPO / SEARCHES[method]).read_text().partition('_base_')[0]
    base = re.findall(r'tools/train.py (configs\S+)', header)[-1]
    options = re.findall(r'(\S+)=(\$RUN/slim/\S+|None|mmkcr\S+)', header)
    retrain = few('retrain', base)
    given = [f'{key}={value.replace("$RUN", "work_dirs/search")}' for key, value in options]
    run_tool('train', retrain, '--cfg-options', *given)
    model = build_model(load_config(retrain, dict(option.split('=') for option in given
                                                  if not option.endswith('None'))))
    assert search_space(model).structure.sites == structure.sites
    trained = torch.load('work_dirs/retrain/epoch_1.pth', weights_only=False)['state_dict']
    model.load_state_dict(trained, strict=True)
