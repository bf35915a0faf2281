"""The commands on a detector: slim, train, test, and users' mistakes."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from few_scenes import FEW
from mmkcr.apis import count_macs
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.models.tasks import find_backbone

REPO = Path(__file__).parents[2]
DETECTION = REPO / 'configs/kcr/detection'


@pytest.fixture(scope='module')
def config_of(small_digits, tmp_path_factory):
    """``config_of('dense', lines)``: a config on one scene, and more lines."""
    folder = tmp_path_factory.mktemp('detection')

    def write(stage, extra='', data=None):
        path = folder / str(len(list(folder.iterdir()))) / f'detect-{stage}.py'
        path.parent.mkdir()
        base = DETECTION / f'kcr-mask-rcnn_swin-mini_{stage}_1xb8_digit-scenes.py'
        text = FEW.format(base=str(base), data=f'{data or small_digits / "scenes"}/')
        model = 'dict(backbone=dict(init_cfg=None))'
        model = f'dict(architecture={model})' if stage == 'search' else model
        path.write_text(f'{text}model = {model}\nload_from = None\n{extra}')
        return str(path)

    return write


@pytest.fixture(scope='module')
def search(config_of, make_checkpoint):
    config = config_of('search')
    return config, make_checkpoint(config, std=0.02)  # so small that boxes stay in the image


def test_slim_train_test(run_tool, search, config_of, tmp_path):
    """What was slimmed loads strictly, trains and tests by ordinary configs.

    The rates by layer are asked for as docs/running.md has it.
    """
    printed = run_tool('slim', *search, '--target-macs', '70%', '--out', tmp_path / 's')
    assert 'MACs of the backbone for one image of 128 x 128' in printed
    structure = Structure.load(tmp_path / 's' / 'structure.json')
    lines = f"model = dict(backbone=dict(init_cfg=None, structure='{tmp_path}/s/structure.json'))\n"
    slim = config_of('slim', lines + f"load_from = '{tmp_path}/s/subnet.pth'\n")
    model = build_model(load_config(slim))
    load_weights(model, tmp_path / 's' / 'subnet.pth')
    assert structure.macs == dict(
        dense=structure.macs['dense'], subnet=count_macs(model.backbone, (3, 128, 128)),
        input_shape=[3, 128, 128], part='backbone')
    assert 0.66 < structure.macs['subnet'] / structure.macs['dense'] <= 0.7
    run_tool('train', slim, '--work-dir', tmp_path / 'run', '--cfg-options',
             'optim_wrapper.paramwise_cfg.layer_decay_rate=0.5',
             'optim_wrapper.constructor=mmkcr.LayerDecayOptimWrapperConstructor')
    checkpoint = torch.load(tmp_path / 'run' / 'epoch_1.pth', weights_only=False)
    trained = checkpoint['state_dict']
    kept = find_backbone(model).get_buffer('kept_units')
    assert torch.equal(trained['backbone.kept_units'], kept)
    scales = {group['lr_scale'] for group in checkpoint['optimizer']['param_groups']}
    assert scales == {0.5**depth for depth in range(6)}  # stem, 4 blocks, heads
    run_tool('test', slim, tmp_path / 'run' / 'epoch_1.pth', '--work-dir', tmp_path / 'test',
             '--out', tmp_path / 'metrics.json', '--out-item', 'metrics')
    assert 'coco/segm_mAP' in json.loads((tmp_path / 'metrics.json').read_text())


# ---- bad input ------------------------------------------------------------------------------


def test_num_classes_that_disagree(refused, config_of):
    for head in ('bbox_head', 'mask_head'):
        config = config_of('dense', f"model['roi_head'] = dict({head}=dict(num_classes=9))\n")
        assert f'`num_classes` 10 of `roi_head.{head}`, the number of classes of the training ' \
               'set (`CocoDataset`), found 9' in refused('train', config)


@pytest.fixture
def edited_scenes(small_digits, tmp_path):
    """``edited_scenes(change)``: a copy of the scenes with other training annotations."""
    def edit(change):
        folder = tmp_path / 'edited'
        shutil.copytree(small_digits / 'scenes', folder)
        file = folder / 'annotations' / 'instances_training.json'
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))
        return folder
    return edit


NONE = ('expected `categories` in the COCO annotations of `train_dataloader`',
        'instances_training.json')


@pytest.mark.parametrize('change, messages', [
    (lambda content: content.update(categories=[]), NONE),
    (lambda content: content.pop('categories'), NONE),
    (lambda content: content['categories'].pop(),
     ('categories for the 10 classes of the training set', 'found 9'))])
def test_annotations_without_the_categories(refused, config_of, edited_scenes, change, messages):
    line = refused('train', config_of('dense', data=edited_scenes(change)))
    assert all(message in line for message in messages), line


def test_missing_annotations(refused, config_of, small_digits):
    config = config_of('dense', "train_dataloader['dataset']['ann_file'] = 'annotations/no.json'\n")
    line = refused('train', config)
    assert 'the annotations of `train_dataloader` at' in line and 'make it with' in line


def test_checkpoints_and_structures_that_do_not_fit(refused, config_of, search, run_tool,
                                                   tmp_path):
    run_tool('slim', *search, '--target-macs', '0.7', '--out', tmp_path / 's')
    structure = f'{tmp_path}/s/structure.json'
    dense = build_model(load_config(config_of('dense')))
    torch.save(dict(state_dict=dense.state_dict()), tmp_path / 'dense.pth')
    other = json.loads(Path(structure).read_text())
    other['backbone']['type'] = 'mmkcr.KCRVisionTransformer'
    (tmp_path / 'other.json').write_text(json.dumps(other))

    def line(structure, checkpoint):
        lines = "model['backbone'] = dict("
        lines += f'structure={str(structure)!r}, ' if structure else ''
        lines += f"init_cfg=dict(type='Pretrained', checkpoint={str(checkpoint)!r}))\n"
        return refused('train', config_of('dense', lines))

    assert 'which is beside its structure, found another, as of the dense network: ' in line(
        structure, tmp_path / 'dense.pth')
    assert 'of the dense `KCRSwinTransformer`, found 0 missing, 1 unexpected' in line(
        None, tmp_path / 's' / 'subnet.pth')
    assert 'for `KCRSwinTransformer`, found one for `KCRVisionTransformer`' in line(
        tmp_path / 'other.json', tmp_path / 's' / 'subnet.pth')
    assert '`no/such.pth`, found none' in line(None, 'no/such.pth')
