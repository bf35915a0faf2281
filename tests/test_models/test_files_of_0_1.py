"""Structure files and checkpoints of version 0.1 load into today's networks and give its outputs.

The files in ``tests/data/v0.1`` were made by the ``make.py`` beside them, with the code of 0.1.
"""

import copy
import gzip
import json
from pathlib import Path

import pytest
import torch
from mmengine.runner import save_checkpoint
from torch import nn

from mmkcr import models
from mmkcr.apis import count_macs, slim
from mmkcr.core import Structure
from mmkcr.models.utils import search_space

FOLDER = Path(__file__).parents[1] / 'data' / 'v0.1'
FILES = sorted(FOLDER.glob('*.pt.gz'))
#: Kinds of site by their names in 0.1.
KINDS = dict(attn='head_operator', ffn='mlp_channels')


def read(path):
    with gzip.open(path) as file:
        return torch.load(file, weights_only=False)


def images(height, width):
    """As in ``make.py``."""
    values = torch.arange(2 * 3 * height * width, dtype=torch.float64) * 7919 % 255 - 127
    return (values / 127).view(2, 3, height, width)


def outputs(model, size):
    model = copy.deepcopy(model).double()
    model.eval()
    with torch.no_grad():
        return model(images(*size))


def assert_same(found, expected, tolerance=1e-12):
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * float(b.abs().max()))


def supernet_of(file):
    gates = {KINDS.get(key, key): value for key, value in file['gates'].items()}
    return getattr(models, file['type'])(**file['arguments'], gates=gates)


def subnet_of(file, structure=None):
    structure = json.loads(file['structure']) if structure is None else structure
    return getattr(models, file['type'])(**file['arguments'], structure=structure)


def test_every_named_backbone_is_there():
    classes = {read(path)['type'] for path in FILES}
    assert len(FILES) == 11 and classes == {
        name for name in vars(models) if name.startswith(('KCR', 'DCS', 'OFB', 'DWConv'))
    } - {'DCSBackbone'}


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name.split('.')[0])
class TestFile:
    """Of one backbone."""

    def test_subnet(self, path, tmp_path):
        file = read(path)
        (tmp_path / 's.json').write_text(file['structure'])
        model = subnet_of(file, str(tmp_path / 's.json'))
        model.load_state_dict(dict(file['subnet']), strict=True)
        assert_same(outputs(model, file['size']), file['subnet_outputs'])
        old = Structure.load(json.loads(file['structure']))
        assert sum(p.numel() for p in model.parameters()) == old.params['subnet']
        assert count_macs(model, (3, *file['size'])) == old.macs['subnet']

    def test_supernet(self, path):
        file = read(path)
        model = supernet_of(file)
        model.load_state_dict(dict(file['supernet']), strict=True)
        assert_same(outputs(model, file['size']), file['supernet_outputs'])

    def test_supernet_is_slimmed_to_the_same_subnet(self, path):
        file = read(path)
        model = supernet_of(file)
        model.load_state_dict(dict(file['supernet']), strict=True)
        subnet, structure = slim(model, None, 1, (3, *file['size']))
        old = Structure.load(json.loads(file['structure']))
        assert structure.sites == old.renamed(structure.sites).sites
        counted = {**structure.macs}
        counted.pop('backbone')  # 0.1 did not count it
        assert (counted, structure.params) == (old.macs, old.params)
        assert_same(outputs(subnet, file['size']), file['subnet_outputs'])

    def test_what_is_saved_today_has_todays_names(self, path):
        file = read(path)
        model = subnet_of(file)
        model.load_state_dict(dict(file['subnet']), strict=True)
        again = subnet_of(file, model.structure)
        again.load_state_dict(model.state_dict(), strict=True)
        assert set(model.structure.sites) == set(search_space(again).sites)
        assert {f'{name}.kept' for name in model.structure.sites} == {
            key for key in model.state_dict() if key.endswith('.kept')}

    def test_dense_checkpoint_is_still_refused_for_a_subnet(self, path):
        file = read(path)
        dense = getattr(models, file['type'])(**file['arguments'])
        with pytest.raises(ValueError, match='checkpoint of the subnet'):
            subnet_of(file).load_state_dict(dense.state_dict(), strict=False)


@pytest.mark.parametrize('prefix', ['backbone.', 'architecture.backbone.'])
@pytest.mark.parametrize('state', ['subnet', 'supernet'])
def test_within_a_task_model(prefix, state):
    """The keys' prefix is the task model's and the search wrapper's."""
    file = read(FOLDER / 'kcr_swin.pt.gz')
    backbone = subnet_of(file) if state == 'subnet' else supernet_of(file)
    model = backbone
    for name in reversed(prefix.rstrip('.').split('.')):
        model = nn.ModuleDict({name: model})
    model.load_state_dict({f'{prefix}{key}': value for key, value in file[state].items()},
                          strict=True)
    assert_same(outputs(backbone, file['size']), file[f'{state}_outputs'])


def test_as_a_pretrained_checkpoint(tmp_path):
    file = read(FOLDER / 'ofb_vit.pt.gz')
    state = {f'backbone.{key}': value for key, value in file['subnet'].items()}
    save_checkpoint(dict(state_dict=state), str(tmp_path / 'old.pth'))
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'old.pth'))
    model = models.OFBVisionTransformer(**file['arguments'], init_cfg=init_cfg,
                                        structure=json.loads(file['structure']))
    model.init_weights()
    assert_same(outputs(model, file['size']), file['subnet_outputs'])


def test_other_kept_units_of_0_1_are_refused_by_site():
    file = read(FOLDER / 'kcr_vit.pt.gz')
    data = json.loads(file['structure'])
    kept = data['sites']['layers.1.ffn']['kept']
    kept[0] = next(unit for unit in range(12) if unit not in kept)
    kept.sort()
    with pytest.raises(ValueError, match='kept units at site `layers.1.ffn.mlp_channels`'):
        subnet_of(file, data).load_state_dict(dict(file['subnet']))
