"""bimask_search.py on a tiny bi-mask search."""

import pytest
import torch

from mmkcr.apis import slim
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.slicing import apply_decisions

TOOL = 'analysis_tools/bimask_search'
CONFIG = """
default_scope = 'mmpretrain'
custom_imports = dict(imports=['mmkcr'])
model = dict(
    type='mmkcr.SearchModel',
    price=dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5, input_shape=(3, 16, 16)),
    architecture=dict(
        type='ImageClassifier',
        backbone=dict(type='mmkcr.OFBVisionTransformer', img_size=16, patch_size=8,
                      arch=dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32),
                      gates=dict(type='mmkcr.BiMaskGate')),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=16)))
optim_wrapper = dict(
    constructor='mmkcr.JointOptimWrapperConstructor', optimizer=dict(type='AdamW', lr=1e-3))
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'bimask-search.py'
    path.write_text(CONFIG)
    return path


def test_search_and_structure(run_tool, refused, config, tmp_path):
    model = build_model(load_config(config))
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'epoch_1.pth')
    for gate in model.gates().values():  # the second checkpoint is of a sliced network
        gate.restrict(gate.only(1))
    apply_decisions(model.architecture.backbone.search_space.sites)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'epoch_2.pth')
    structure = slim(model, None, 1, (3, 16, 16))[1]
    structure.save(tmp_path / 'structure.json')
    printed = run_tool(TOOL, str(config), str(tmp_path / 'epoch_1.pth'),
                       str(tmp_path / 'epoch_2.pth'), '--structure',
                       str(tmp_path / 'structure.json'), '--out', str(tmp_path / 'out'))
    assert sorted(path.stem for path in (tmp_path / 'out').iterdir()) == ['masks', 'widths']
    kept = len(structure.sites['layers.0.attn.head_channels'].kept)
    assert f'{kept} / 16' in printed and 'channels of each head' in printed
    assert 'found neither' in refused(TOOL, config)


def test_a_structure_runs_no_code(refused, config, tmp_path):
    """What is built is the config's network."""
    Structure.load(dict(format_version=1, backbone=dict(type='os.mkdir', path='trap'), sites=dict(
        a=dict(total=2, kept=[1])))).save(tmp_path / 'trap.json')
    line = refused(TOOL, config, '--structure', tmp_path / 'trap.json')
    assert 'expected the 3 sites of the backbone in the structure' in line
    assert not list(tmp_path.rglob('trap'))


def test_a_structure_of_other_arguments(refused, config, tmp_path):
    structure = slim(build_model(load_config(config)), 0.6, 1, (3, 16, 16))[1]
    structure.save(tmp_path / 's.json')
    options = CONFIG.replace('feedforward_channels=32', 'feedforward_channels=48')
    config.write_text(options)
    line = refused(TOOL, config, '--structure', tmp_path / 's.json')
    assert 'expected 48 units at site' in line and 'found a structure for 32' in line
