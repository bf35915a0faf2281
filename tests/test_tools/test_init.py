"""``mmkcr init``: a few lines beside a config that knows nothing of this package."""

import json
import pickle
import re
import shlex
from pathlib import Path

import pytest
import torch

from long_form import few
from mmkcr.cli.init import METHODS
from mmkcr.cli.launch import refuse_gates_without_search
from mmkcr.engine.build import build_model, load_config
from mmkcr.methods.search.search_model import SearchModel
from mmkcr.models.tasks import search_space

# one of each host, from its package, as it is
HOSTS = dict(
    mmpretrain='mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py',
    mmdet='mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    mmseg='mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py')
SEGFORMER = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
# a user's config of mmpretrain, which does not import this package
USER = """
default_scope = 'mmpretrain'
data_preprocessor = dict(num_classes=10, mean=[77.9] * 3, std=[95.9] * 3, to_rgb=False)
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='VisionTransformer', img_size=32, patch_size=8, out_type='avg_featmap',
        with_cls_token=False,
        arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=256)),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=32, topk=(1, )))
data = dict(
    batch_size=32, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_root={data!r}, data_prefix='val',
                 indices=list(range(0, 360, 3)),
                 pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
train_dataloader = val_dataloader = test_dataloader = data
del data
val_evaluator = test_evaluator = dict(type='Accuracy', topk=(1, ))
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
train_cfg = dict(by_epoch=True, max_epochs=2)
val_cfg = test_cfg = dict()
"""


@pytest.fixture
def user_config(small_digits, tmp_path, monkeypatch):
    """A user's config in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    Path('vit.py').write_text(USER.format(data=str(small_digits)))
    return 'vit.py'


def written(stage='search', method='kcr'):
    """The file that a stage is written to beside ``vit.py``."""
    return 'compress_vit.py' if stage == 'compress' else f'{method}-{stage}_vit.py'


@pytest.mark.parametrize('host', HOSTS)
def test_a_search_on_the_hosts_own_config(run_tool, host):
    out = run_tool('init', HOSTS[host], '--target-macs', '60%')
    path, = Path().glob('*.py')
    assert out.endswith(f'Wrote {path}\n') and path.name.startswith('kcr-search_')
    lines = [line for line in path.read_text().splitlines() if not line.startswith('#')]
    assert len(lines) == 2  # what a user would have to write
    config = load_config(path)
    assert config.model.price.target == '60%' and config.default_scope == host
    assert config.model.price.get('part') == (None if host == 'mmpretrain' else 'backbone')
    model = build_model(config)
    assert type(model) is SearchModel and model.gates()
    assert type(model.architecture).__module__.split('.')[0] == host


@pytest.mark.parametrize('out', few((None, 'my search.py'), 'my search.py'))
def test_from_a_users_config_to_a_retrained_subnet(run_tool, user_config, out):
    """All steps that the written files name, in their order."""
    run_tool('init', user_config, '--target-macs', '80%', *(('--out', out) if out else ()))
    search = out[:-3] if out else 'kcr-search_vit'
    run_tool('search', f'{search}.py')
    run_tool('slim', f'{search}.py', f'work_dirs/{search}/epoch_2.pth', '--target-macs', '80%')
    sizes = json.loads(Path(f'work_dirs/{search}/slim/structure.json').read_text())['macs']
    assert sizes['subnet'] <= 0.8 * sizes['dense']
    *_, step = (line for line in Path(f'{search}.py').read_text().splitlines() if 'retrain' in line)
    assert shlex.split(step)[1:4] == ['mmkcr', 'init', str(user_config)]
    run_tool('init', *shlex.split(step)[3:])
    run_tool('train', 'kcr-retrain_vit.py')
    run_tool('test', 'kcr-retrain_vit.py', 'work_dirs/kcr-retrain_vit/epoch_2.pth')
    model = build_model(load_config('kcr-retrain_vit.py'))
    assert search_space(model).state_name() == 'subnet'


def test_from_a_users_checkpoint_to_a_fine_tuned_subnet(run_tool, user_config):
    run_tool('train', user_config)
    run_tool('compress', user_config, 'work_dirs/vit/epoch_2.pth', '--target-macs', '60%',
             '--images', '40')
    run_tool('init', user_config, '--stage', 'compress')
    run_tool('train', 'compress_vit.py')
    structure = search_space(build_model(load_config('compress_vit.py'))).structure
    assert structure.sites == search_space(build_model(
        load_config('work_dirs/vit/compress/config.py'))).structure.sites
    # what is tested, and what goes on, is the given checkpoint and not `compression.weights`
    trained = torch.load('work_dirs/compress_vit/epoch_2.pth', weights_only=False)
    trained['state_dict']['head.fc.bias'][3] = 1e4
    torch.save(trained, 'threes.pth')
    for name, flags in dict(plain=(), flipped=('--tta', )).items():
        run_tool('test', 'compress_vit.py', 'threes.pth', '--out', f'{name}.pkl', *flags)
        found = pickle.loads(Path(f'{name}.pkl').read_bytes())
        assert {int(one['pred_label']) for one in found} == {3}
    run_tool('train', 'compress_vit.py', '--resume', '--cfg-options', 'train_cfg.max_epochs=3')
    assert torch.load('work_dirs/compress_vit/epoch_3.pth', weights_only=False)['meta']['iter'] \
        == 3 * trained['meta']['iter'] // 2


def test_what_the_base_says_of_its_own_run_is_left_alone(run_tool, user_config):
    """Weights that it starts from, as mmdet's on Cityscapes do; its folder, as configs from a work
    directory name it, where the search's checkpoints replaced the dense ones; and its imports,
    though two bases may not have one key."""
    with open(user_config, 'a') as file:
        file.write("load_from = 'dense.pth'\nwork_dir = './work_dirs/mine'\nresume = True\n"
                   "custom_imports = dict(imports=['colorsys'])\n")
    for stage in ('search', 'retrain', 'compress'):
        run_tool('init', user_config, '--stage', stage)
        path = written(stage)
        config, built = load_config(path, compressed=False), load_config(path)
        assert (config.work_dir, config.resume) == (f'work_dirs/{path[:-3]}', False)
        assert built.custom_imports.imports == ['colorsys', 'mmkcr']
        if stage == 'compress':  # where `mmkcr compress` writes for this config
            assert config.compression.structure == 'work_dirs/mine/compress/structure.json'
        if stage != 'retrain':
            assert Path(built.load_from).name == dict(search='dense.pth',
                                                      compress='subnet.pth')[stage]


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('stage', ['search', 'retrain'])
def test_every_method_writes_both_stages(run_tool, user_config, method, stage):
    run_tool('init', user_config, '--method', method, '--stage', stage, '--target-macs', '60%')
    text = Path(written(stage, method)).read_text()
    assert f"'mmkcr::_base_/methods/{method}_{stage}.py'" in text
    if stage == 'search':
        assert ('--target-macs' in text) == (method in ('kcr', 'dcs'))  # of slimming
        config = load_config(written(stage, method))
        assert build_model(config).gates()
        # what that does: test_balanced_terms in test_methods/test_ofb
        assert config.model.price.get('preset') == dict(ofb='balanced').get(method)


@pytest.mark.parametrize('method, path', [
    ('dcs', 'dcs/detection/dcs-ssdlite_mobilevit-mini_dense_1xb8_digit-scenes.py'),
    ('dwconv', 'dwconv/segmentation/dwconv-fcn_vit-octo_dense_1xb8_digit-scenes.py')])
def test_a_backbone_of_the_method_keeps_its_kinds(run_tool, method, path):
    run_tool('init', f'mmkcr::{path}', '--method', method, '--target-macs', '90%')
    found, = Path().glob('*.py')
    config = load_config(found)
    inner = config.model.architecture.backbone
    assert inner.type.startswith('mmkcr.DCS' if method == 'dcs' else 'mmkcr.DWConv')
    assert search_space(build_model(config)).method == method


def test_paths_are_relative_to_the_file(run_tool, user_config):
    run_tool('init', user_config, '--out', 'deep/er/mine.py')
    # its commands are for the folder that the user is in
    lines = Path('deep/er/mine.py').read_text().splitlines()
    assert '#   mmkcr search deep/er/mine.py' in lines
    assert f'#   mmkcr init {user_config} --method kcr --stage retrain --search mine' in lines
    assert "_base_ = ['../../vit.py', " in Path('deep/er/mine.py').read_text()
    assert build_model(load_config('deep/er/mine.py')).gates()


@pytest.mark.parametrize('name', ["O'Brien", 'an "other" one', 'x; `y` $z'])
def test_names_with_quotes(run_tool, user_config, name):
    """A config is Python, and its commands are for a shell."""
    Path(name).mkdir()
    mine = f'{name}/mine.py'
    Path(user_config).rename(mine)
    for stage in ('search', 'retrain', 'compress'):
        out = f'{name}/{stage}.py'
        run_tool('init', mine, '--stage', stage, '--out', out,
                 *(('--search', name) if stage == 'retrain' else ()))
        config = load_config(out, compressed=False)
        if stage == 'retrain':
            assert config.compression.weights == f'work_dirs/{name}/slim/subnet.pth'
        words = [word for line in Path(out).read_text().splitlines() if line.startswith('#   mmkcr')
                 for word in shlex.split(line[1:])]
        assert out in words


def test_a_file_that_is_there_stays(run_tool, user_config, capsys):
    run_tool('init', user_config)
    Path('kcr-search_vit.py').write_text('mine')
    with pytest.raises(SystemExit):
        run_tool('init', user_config)
    assert 'expected no file at `kcr-search_vit.py`, found one' in capsys.readouterr().err
    assert Path('kcr-search_vit.py').read_text() == 'mine'
    run_tool('init', user_config, '--force')
    assert Path('kcr-search_vit.py').read_text() != 'mine'


def test_a_backbone_that_does_not_fit(refused, search_config):
    line = refused('init', SEGFORMER, '--method', 'dcs')
    assert '`MixVisionTransformer` (`qk_mask`: ' in line
    assert line.endswith('take `--method kcr` or `--method ofb` or `--stage compress`')
    assert 'expected the config of a dense model' in refused('init', search_config)
    line = refused('init', 'mmpretrain::resnet/resnet18_8xb32_in1k.py')
    assert 'found `ResNet` (`mlp_channels`: ' in line and 'take' not in line


@pytest.mark.parametrize('method', ['kcr', 'dcs', 'ofb'])
def test_a_target_that_the_search_would_refuse(refused, user_config, method):
    line = refused('init', Path(user_config).resolve(), '--method', method, '--target-macs', '2%')
    assert 'the reachable ' in line and not list(Path().glob('*-search_*.py'))


def test_a_target_of_the_whole_segmentor(refused, run_tool):
    """Most MACs of SegFormer are not of its backbone's channels."""
    assert '(reachable: 8' in refused('init', SEGFORMER, '--part', 'model', '--target-macs', '60%')
    run_tool('init', SEGFORMER, '--part', 'model', '--target-macs', '97%')
    found, = Path().glob('*.py')
    assert load_config(found).model.price.get('part') is None


def test_gates_and_searches_belong_together(refused, user_config, search_config):
    user = Path(user_config).resolve()
    path = Path('gated.py').resolve()
    path.write_text(f"_base_ = {str(user)!r}\ncustom_imports = dict(imports=['mmkcr'])\n"
                    "model = dict(backbone=dict(type='mmkcr.KCRVisionTransformer', "
                    "gates=dict(type='mmkcr.GumbelChannelGate')))\n")
    assert 'expected `gates` of `KCRVisionTransformer` in an `mmkcr.SearchModel`, found ' \
        '`ImageClassifier`' in refused('train', path)
    assert 'found none in' in refused('search', user)
    for config in (search_config, user):  # dense models and searches pass
        refuse_gates_without_search(build_model(load_config(config)))


@pytest.mark.parametrize('name', ['pure.py', "O'Brien/pure.py"])
def test_a_config_of_classes_cannot_be_a_base(refused, tmp_path, monkeypatch, name):
    """The sentence says how to write an ordinary one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('from torch.optim import SGD\n' + USER.format(data='.').replace(
        "type='AdamW'", 'type=SGD'))
    told = refused('init', path)
    assert f"found `{path}` in MMEngine's pure Python style: write it as" in told
    *_, code = shlex.split(re.search('`(python -c .*)`', told)[1])
    exec(code)
    assert Path('plain_pure.py').is_file()


def test_files_that_no_command_would_read(refused, user_config):
    call = 'init', Path(user_config).resolve()
    assert 'a `.py` file to write a config to, found `k.txt`' in refused(*call, '--out', 'k.txt')
    assert "with the stage 'retrain', found it with 'search'" in refused(*call, '--search', 'x')


def test_a_line_break_would_end_a_comment(refused, user_config):
    assert 'expected names without line breaks' in refused(
        'init', Path(user_config).resolve(), '--out', 'a\nb.py')
