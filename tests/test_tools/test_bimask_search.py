"""bimask_search.py: masks of checkpoints, widths of a structure, refusals."""

import torch

from mmkcr.apis import slim
from mmkcr.apis.build import build_model, load_config

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
"""


def test_search_and_structure(run_tool, refused, tmp_path):
    config = tmp_path / 'bimask-search.py'
    config.write_text(CONFIG)
    model = build_model(load_config(config))
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'epoch_1.pth')
    for gate in model.gates().values():  # the second checkpoint is of a sliced network
        gate.restrict(gate.only(1))
    model.architecture.backbone.settle()
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'epoch_2.pth')
    structure = slim(model, None, 1, (3, 16, 16))[1]
    structure.save(tmp_path / 'structure.json')
    printed = run_tool(TOOL, str(config), str(tmp_path / 'epoch_1.pth'),
                       str(tmp_path / 'epoch_2.pth'), '--structure',
                       str(tmp_path / 'structure.json'), '--out', str(tmp_path / 'out'))
    assert sorted(path.stem for path in (tmp_path / 'out').iterdir()) == ['masks', 'widths']
    kept = len(structure.sites['layers.0.attn'].kept)
    assert f'{kept} / 16' in printed and 'channels of each head' in printed
    assert 'found none' in refused(TOOL)
