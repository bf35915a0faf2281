"""One folder, one line: what `mmkcr.save` writes, `mmkcr.load` builds again."""

import hashlib
import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mmkcr
from lab.kind_coverage import FAMILIES, installed, randomise
from mmkcr.core.forward import flat_tensors
from mmkcr.core.io import file_sha256
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.engine.build import build_model, load_config

CONFIGS = Path(__file__).parents[2] / 'configs'
SHAPE = (3, 64, 64)
FILES = {'config.json', 'model.safetensors', 'report.json', 'structure.json'}
#: Runs both exported files in a process that cannot import this package.
ELSEWHERE = """
import sys
sys.modules['mmkcr'] = None
import onnxruntime, torch
images, wanted = torch.load('told.pt')
found = torch.export.load('slim/model.pt2').module()(images)
torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
session = onnxruntime.InferenceSession('slim/model.onnx', providers=['CPUExecutionProvider'])
(found, ) = session.run(None, {'images': images.numpy()})
torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-4)
assert not [name for name in sys.modules if name.startswith(('mmkcr.', 'timm', 'transformers'))]
print('same')
"""


def of_timm():
    timm = pytest.importorskip('timm')
    return timm.create_model('test_vit', img_size=64, num_classes=5)


def of_transformers():
    transformers = pytest.importorskip('transformers')
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=64, patch_size=16))


def images(count=4):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def compressed(model, target='80%'):
    return mmkcr.compress(randomise(model), images(), target, input_shape=SHAPE, progress=False)


def outputs(model):
    with torch.no_grad():
        return flat_tensors(model(images(3)))


def check_same(one, other):
    assert type(one) is type(other) and not hasattr(one, 'search_space') and not one.training
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(outputs(one), outputs(other), rtol=0, atol=0)


@pytest.fixture(scope='module')
def small():
    """A compressed network of timm."""
    return compressed(of_timm())


@pytest.fixture(scope='module')
def saved_small(small, tmp_path_factory):
    """Its folder, which tests copy."""
    folder = tmp_path_factory.mktemp('saved_small') / 'slim'
    mmkcr.save(small, folder)
    return folder


@pytest.mark.parametrize('make', [of_timm, of_transformers])
def test_a_folder_and_files_that_run_without_us(make, tmp_path, after_torch):
    result = compressed(make())
    state = torch.get_rng_state()
    mmkcr.save(result, tmp_path / 'slim', export=True)
    loaded = mmkcr.load(tmp_path / 'slim')
    assert torch.equal(torch.get_rng_state(), state)
    assert {path.name for path in (tmp_path / 'slim').iterdir()} == {
        *FILES, 'model.pt2', 'model.onnx'}
    assert [path.name for path in tmp_path.iterdir()] == ['slim']
    check_same(loaded, result.model)
    report = json.loads((tmp_path / 'slim/report.json').read_text())
    assert report['macs'] == result.structure.macs and report['agreement'] == result.agreement
    assert report['target'] == '80%' and report['asked']['cost'] == 'macs'
    assert {'torch', 'mmkcr', type(result.model).__module__.split('.')[0]} < set(report['versions'])
    torch.save((images(3), outputs(result.model)[0]), tmp_path / 'told.pt')
    assert 'same' in after_torch(ELSEWHERE, tmp_path)


def test_a_folder_of_save_pretrained(tmp_path):
    result = compressed(of_transformers())
    result.structure.save(tmp_path / 'structure.json')
    result.model.save_pretrained(tmp_path)
    own = set(result.model.state_dict())
    if set(load_file(tmp_path / 'model.safetensors')) != own:  # of transformers 5
        with pytest.raises(ValueError, match='found `.*` and .*save_original_format=False'):
            mmkcr.load(tmp_path)
        result.model.save_pretrained(tmp_path, save_original_format=False)
    check_same(mmkcr.load(tmp_path), result.model)


def test_rates_of_dropout_and_stochastic_depth_come_back(tmp_path):
    timm = pytest.importorskip('timm')
    result = compressed(timm.create_model(
        'test_vit', img_size=64, drop_path_rate=.3, proj_drop_rate=.2, attn_drop_rate=.05,
        drop_rate=.1))
    mmkcr.save(result, tmp_path / 'slim')
    loaded = mmkcr.load(tmp_path / 'slim').train()
    for seed in range(3):
        trained = []
        for model in (loaded, result.model.train()):
            torch.manual_seed(seed)
            trained.append(outputs(model)[0])
        assert torch.equal(*trained)


def test_a_rate_that_does_not_come_back_is_named(tmp_path):
    result = compressed(of_timm())
    result.model.blocks[1].ls1 = nn.Sequential(nn.Dropout(.2))
    with pytest.warns(UserWarning, match=r'expected to load the rate 0.2 of `blocks.1.ls1.0.p`, '
                                         'found 0'):
        mmkcr.save(result, tmp_path / 'slim')
    report = json.loads((tmp_path / 'slim/report.json').read_text())
    for wrong in ({'blocks.1.ls1.p': 'half'}, {'blocks.1.ls1.p': 2}, ['blocks.1.ls1.p']):
        (tmp_path / 'slim/report.json').write_text(json.dumps({**report, 'drop_rates': wrong}))
        with pytest.raises(ValueError, match='expected .*rate.*, found'):
            mmkcr.load(tmp_path / 'slim')


def test_a_network_that_its_name_does_not_give(tmp_path):
    build = FAMILIES['timm ViT'].build  # of other sizes than the architecture's
    if not installed('timm ViT'):
        pytest.skip('no timm')
    result = compressed(build())
    result.model.half()
    with pytest.warns(UserWarning, match=r'load it with `mmkcr.load\(.*, dense\)`'):
        mmkcr.save(result, tmp_path / 'slim')
    assert not (tmp_path / 'slim/config.json').exists()
    with pytest.raises(ValueError, match='found neither: give the dense network'):
        mmkcr.load(tmp_path / 'slim')
    dense = build()
    loaded = mmkcr.load(tmp_path / 'slim', dense)
    assert {key: value.shape for key, value in dense.state_dict().items()} == {
        key: value.shape for key, value in build().state_dict().items()}
    result.model.float(), loaded.float()
    check_same(loaded, result.model)
    with pytest.raises(ValueError, match='structure'):
        mmkcr.load(tmp_path / 'slim', of_timm())


@pytest.mark.parametrize('config, options', [
    ('kcr/digits/kcr-dense_vit-mini_1xb64_digits.py',
     {'model.backbone.arch.feedforward_channels': 96}),
    ('kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py',
     {'model.backbone.arch.embed_dims': 16, 'model.decode_head.in_channels': [16, 32],
      'model.auxiliary_head.in_channels': 32})])
def test_a_task_model_that_carries_its_config(config, options, tmp_path):
    """The folder's config is one that commands and the hosts' tools take; narrower ones here."""
    cfg = load_config(CONFIGS / config, options)
    model = randomise(build_model(cfg))
    shape = (3, 32, 32) if 'digits/' in config else (3, 64, 64)
    batch = torch.randn(4, *shape)
    result = mmkcr.compress(model, batch, '80%', input_shape=shape, progress=False)
    with pytest.warns(UserWarning, match='found nothing that says it'):
        mmkcr.save(result, tmp_path / 'without')
    result.model.cfg = cfg
    mmkcr.save(result, tmp_path / 'slim')
    assert {path.name for path in (tmp_path / 'slim').iterdir()} == \
        FILES - {'config.json'} | {'config.py'}
    for loaded in (mmkcr.load(tmp_path / 'slim'), mmkcr.load(tmp_path / 'without', model)):
        for a, b in zip(*(flat_tensors(TensorModel(one)(batch)) for one in (
                loaded, result.model)), strict=True):
            torch.testing.assert_close(a, b)


def test_complete_or_absent(small, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr('mmkcr.apis.saved.export_program', lambda _, path, *__: path.touch())
        patch.setattr('mmkcr.apis.saved.export_onnx', lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mmkcr.save(small, tmp_path / 'slim', export=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / 'slim').mkdir()
    mmkcr.save(small, tmp_path / 'slim')
    with pytest.raises(ValueError, match='expected a new or an empty folder'):
        mmkcr.save(small, tmp_path / 'slim')
    (tmp_path / 'slim/model.safetensors').unlink()
    with pytest.raises(FileNotFoundError, match='found one without `model.safetensors`'):
        mmkcr.load(tmp_path / 'slim')
    with pytest.raises(FileNotFoundError, match='config'):
        mmkcr.load(tmp_path / 'nowhere')


def test_names_in_a_folder_are_only_names(saved_small, tmp_path):
    """No address is downloaded, and no other class is built."""
    shutil.copytree(saved_small, tmp_path / 'slim')
    config = tmp_path / 'slim/config.json'
    (tmp_path / 'slim/report.json').unlink()
    config.write_text(json.dumps(dict(architecture='hf-hub:timm/test_vit.r160_in1k')))
    with pytest.raises(ValueError, match='expected an architecture of timm'):
        mmkcr.load(tmp_path / 'slim')
    pytest.importorskip('transformers')
    config.write_text(json.dumps(dict(architectures=['logging'])))
    with pytest.raises(ValueError, match='expected a class of transformers'):
        mmkcr.load(tmp_path / 'slim')


@pytest.mark.parametrize('name', sorted(FILES))
def test_a_file_that_changed_is_refused_by_name(name, small, saved_small, tmp_path, caplog):
    """A bit of a weight, a swapped tensor or another activation loaded without a word."""
    shutil.copytree(saved_small, tmp_path, dirs_exist_ok=True)
    content = (tmp_path / name).read_bytes()
    changed = content.replace(b'64', b'32') if name.endswith('.json') else \
        content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    assert changed != content
    (tmp_path / name).write_bytes(changed)
    with pytest.raises(ValueError, match=f'expected `.*{name}` as it was saved, .*remove `report'):
        mmkcr.load(tmp_path)
    (tmp_path / name).write_bytes(content)
    check_same(mmkcr.load(tmp_path), small.model)
    assert not caplog.records
    (tmp_path / 'report.json').unlink()
    mmkcr.load(tmp_path)
    assert 'Not checked: no `report.json`' in caplog.text


@pytest.fixture(scope='module')
def of_config(tmp_path_factory):
    """A saved folder whose ``config.py`` is for all commands."""
    cfg = load_config(CONFIGS / 'kcr/digits/kcr-dense_vit-mini_1xb64_digits.py')
    result = mmkcr.compress(randomise(build_model(cfg)), torch.randn(4, 3, 32, 32), '80%',
                            ['mlp_channels'], (3, 32, 32), uniform=True, progress=False)
    result.model.cfg = cfg
    folder = tmp_path_factory.mktemp('saved') / 'slim'
    mmkcr.save(result, folder)
    return folder


@pytest.mark.parametrize('command', ['export', 'flops', 'latency', 'test'])
@pytest.mark.parametrize('name', ['config.py', 'model.safetensors', 'report.json',
                                  'structure.json'])
def test_every_command_refuses_a_changed_file(name, command, of_config, tmp_path, monkeypatch,
                                              capsys):
    """As `load` does: a flipped bit of the weights gave other outputs without a word."""
    shutil.copytree(of_config, tmp_path / 'slim')
    content = (tmp_path / 'slim' / name).read_bytes()
    (tmp_path / 'slim' / name).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        import_module(f'mmkcr.cli.{command}').main(['slim/config.py'])
    said = capsys.readouterr().err
    assert f'`slim/{name}`' in said and said.count('error: ') == 1
    assert [path.name for path in tmp_path.iterdir()] == ['slim']


def test_weights_of_a_changed_folder_are_refused_by_another_config(of_config, tmp_path):
    shutil.copytree(of_config, tmp_path / 'slim')
    (tmp_path / 'other.py').write_text("_base_ = './slim/config.py'\n")
    mmkcr.load(tmp_path / 'other.py')
    weights = tmp_path / 'slim/model.safetensors'
    weights.write_bytes(weights.read_bytes()[:-1] + b'?')
    with pytest.raises(ValueError, match='model.safetensors` as it was saved, found'):
        mmkcr.load(tmp_path / 'other.py')


def test_an_added_config_is_refused(saved_small, tmp_path):
    shutil.copytree(saved_small, tmp_path, dirs_exist_ok=True)
    (tmp_path / 'config.py').write_text('raise SystemExit')
    with pytest.raises(ValueError, match='config.py` as it was saved, found that .* added since'):
        mmkcr.load(tmp_path)


def test_sums_are_read_in_parts(tmp_path):
    content = bytes(range(256)) * 2**13
    (tmp_path / 'file').write_bytes(content)
    assert file_sha256(tmp_path / 'file') == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize('arguments', [
    dict(img_size=0), dict(img_size='x'), dict(patch_size=0), dict(depth=-1.5), dict(no_such=1),
    5, None])
def test_what_cannot_be_built_is_one_sentence(arguments, saved_small, tmp_path):
    shutil.copytree(saved_small, tmp_path, dirs_exist_ok=True)
    (tmp_path / 'report.json').unlink()
    config = json.loads((tmp_path / 'config.json').read_text())
    config['model_args'] = {**config['model_args'], **arguments} if isinstance(
        arguments, dict) else arguments
    (tmp_path / 'config.json').write_text(json.dumps(config))
    with pytest.raises(ValueError, match='`.*config.json`') as error:
        mmkcr.load(tmp_path)
    assert '\n' not in str(error.value)


def test_damaged_weights_are_one_sentence(saved_small, tmp_path):
    shutil.copytree(saved_small, tmp_path, dirs_exist_ok=True)
    (tmp_path / 'report.json').unlink()
    path = tmp_path / 'model.safetensors'
    for content in (b'', path.read_bytes()[:-1], b'x' * 99):
        path.write_bytes(content)
        with pytest.raises(ValueError, match='expected a checkpoint at `.*model.safetensors`'):
            mmkcr.load(tmp_path)


def test_no_weights_are_fetched(small, saved_small, tmp_path):
    """Neither from a hub nor from the disk."""
    shutil.copytree(saved_small, tmp_path, dirs_exist_ok=True)
    (tmp_path / 'report.json').unlink()
    config = json.loads((tmp_path / 'config.json').read_text())
    config['model_args'].update(pretrained=True, checkpoint_path='nowhere.pth', cache_dir='nowhere',
                                pretrained_cfg=dict(url='file:///nowhere.pth'))
    (tmp_path / 'config.json').write_text(json.dumps(config))
    check_same(mmkcr.load(tmp_path), small.model)


@pytest.mark.parametrize('change', [
    *(dict(one=f'{part}.{key}', by=by) for part in ('macs', 'params')
      for key in ('subnet', 'dense') for by in (1, -1)),
    *(dict(one='macs.subnet', other='macs.dense', by=by) for by in (-1, 10**6)),
    dict(one='params.subnet', other='params.dense', by=1000)])
def test_a_structure_of_other_sizes_is_refused(change, saved_small, tmp_path):
    """Their values, not their differences."""
    shutil.copytree(saved_small, tmp_path, dirs_exist_ok=True)
    (tmp_path / 'report.json').unlink()
    content = json.loads((tmp_path / 'structure.json').read_text())
    for name in filter(None, (change['one'], change.get('other'))):
        part, key = name.split('.')
        content[part][key] += change['by']
    (tmp_path / 'structure.json').write_text(json.dumps(content))
    for dense in (None, of_timm()):
        with pytest.raises(ValueError, match='as its structure says, found one of'):
            mmkcr.load(tmp_path, dense)


def test_what_cannot_be_counted_is_said(saved_small, tmp_path, caplog):
    shutil.copytree(saved_small, tmp_path, dirs_exist_ok=True)
    (tmp_path / 'report.json').unlink()
    content = json.loads((tmp_path / 'structure.json').read_text())
    content['macs']['input_shape'] = [3, 65, 64]  # which it does not run on
    (tmp_path / 'structure.json').write_text(json.dumps(content))
    mmkcr.load(tmp_path)
    assert 'Not checked: of what the structure records, the MACs' in caplog.text


def test_a_backbone_of_mmpretrain_is_given_back(tmp_path):
    """Its ``eval()`` returns None."""
    from mmpretrain.models import VisionTransformer
    arch = dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48)
    dense = VisionTransformer(arch=arch, img_size=64, patch_size=16)
    result = compressed(dense)
    mmkcr.save(result, tmp_path / 'slim')
    check_same(result.model, mmkcr.load(tmp_path / 'slim', dense))
