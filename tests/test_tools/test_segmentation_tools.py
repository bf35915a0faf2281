"""The commands on a segmentor: search, slim, train, test, and users' mistakes."""

import json
import pickle
import re
import shutil
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from mmkcr.apis import count_macs
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.models.tasks import find_backbone

REPO = Path(__file__).parents[2]
SEGMENTATION = REPO / 'configs/kcr/segmentation'
CONFIG = """
_base_ = {base!r}
loader = dict(
    batch_size=2, num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_iters=2, val_interval=2)
"""


@pytest.fixture(scope='module')
def scenes(small_digits, tmp_path_factory):
    """Four copies of the one scene: a batch for gates and one for weights."""
    folder = tmp_path_factory.mktemp('scenes') / 'scenes'
    shutil.copytree(small_digits / 'scenes', folder)
    for kind in ('images', 'annotations'):
        first = folder / kind / 'training' / '000001.png'
        for number in range(2, 8):
            shutil.copy(first, first.with_name(f'{number:06d}.png'))
    return folder


@pytest.fixture(scope='module')
def config_of(scenes, tmp_path_factory):
    """``config_of('dense', lines)``: a config on a few scenes, and more lines."""
    folder = tmp_path_factory.mktemp('segmentation')

    def write(stage, extra='', data=None):
        path = folder / str(len(list(folder.iterdir()))) / f'segment-{stage}.py'
        path.parent.mkdir()
        base = SEGMENTATION / f'kcr-upernet_swin-mini_{stage}_1xb8_digit-scenes.py'
        model = 'dict(backbone=dict(init_cfg=None))'
        model = f'dict(architecture={model})' if stage == 'search' else model
        path.write_text(CONFIG.format(base=str(base), data=str(data or scenes))
                        + f'model = {model}\nload_from = None\n{extra}')
        return str(path)

    return write


def test_search_slim_train_test(run_tool, config_of, whole_model, tmp_path):
    """As a new user goes through it, with two iterations each."""
    search = config_of('search')
    run_tool('train', search, '--work-dir', tmp_path / 'search')
    printed = run_tool('slim', search, tmp_path / 'search' / 'iter_2.pth', '--target-macs', '70%',
                       '--divisor', '8', '--out', tmp_path / 's')
    assert 'MACs of the backbone for one image of 128 x 128' in printed
    structure = Structure.load(tmp_path / 's' / 'structure.json')
    lines = f"model = dict(backbone=dict(init_cfg=None, structure='{tmp_path}/s/structure.json'))\n"
    slim = config_of('slim', lines + f"load_from = '{tmp_path}/s/subnet.pth'\n")
    model = build_model(load_config(slim))
    load_weights(model, tmp_path / 's' / 'subnet.pth')
    assert structure.macs['subnet'] == count_macs(model.backbone, (3, 128, 128))
    assert 0.6 < structure.macs['subnet'] / structure.macs['dense'] <= 0.7
    whole = count_macs(model, (3, 128, 128))
    dense = whole + structure.macs['dense'] - structure.macs['subnet']
    assert whole_model(printed) == [f'{dense / 1e9:.4g}', f'{whole / 1e9:.4g}',
                                    f'{whole / dense:.1%}']
    assert structure.provenance['iter'] == 2
    run_tool('train', slim, '--work-dir', tmp_path / 'run')
    trained = torch.load(tmp_path / 'run' / 'iter_2.pth', weights_only=False)['state_dict']
    kept = find_backbone(model).get_buffer('kept_units')
    assert torch.equal(trained['backbone.kept_units'], kept)
    run_tool('test', slim, tmp_path / 'run' / 'iter_2.pth', '--work-dir', tmp_path / 'tested',
             '--out', tmp_path / 'metrics.json', '--out-item', 'metrics')
    assert 0 <= json.loads((tmp_path / 'metrics.json').read_text())['mIoU'] <= 100


def test_multi_scale_and_flip(run_tool, config_of, scenes, tmp_path):
    """`--tta` with the settings of ADE20K: the mean of 12 views, flipped back and resized."""
    ade20k = load_config(SEGMENTATION / 'kcr-upernet_swin-base_8xb2_ade20k.py')
    config = config_of('dense', f'tta_model = {ade20k.tta_model.to_dict()!r}\n'
                                f'tta_pipeline = {ade20k.to_dict()["tta_pipeline"]!r}\n')
    model = build_model(load_config(config)).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # biases would decide alone
            torch.nn.init.normal_(parameter, 0, 0.3)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'random.pth')
    run_tool('test', config, tmp_path / 'random.pth', '--work-dir', tmp_path / 'tta', '--tta',
             '--out', tmp_path / 'views.pkl')
    found = pickle.loads((tmp_path / 'views.pkl').read_bytes())[0]['pred_sem_seg']['data']
    image = mmcv.imread(next((scenes / 'images' / 'validation').iterdir()))
    views = [view(model, mmcv.imrescale(image, scale), flip)
             for scale in (0.5, 0.75, 1., 1.25, 1.5, 1.75) for flip in (False, True)]
    assert torch.equal(found.squeeze(), torch.stack(views).mean(0).argmax(0))
    assert not torch.equal(found.squeeze(), views[4].argmax(0))  # as it is without


@torch.no_grad()
def view(model, image, flip):
    """The probabilities (10, 128, 128) of one of the views."""
    image = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    image = (image.flip(3) if flip else image).sub(77.9).div(95.9)
    scores = model.decode_head(model.backbone(image))
    for size in (image.shape[2:], (128, 128)):
        scores = interpolate(scores, size, mode='bilinear')
        scores, flip = scores.flip(3) if flip else scores, False
    return scores[0].softmax(0)


# ---- bad input ------------------------------------------------------------------------------


def test_num_classes_that_disagree(refused, config_of):
    for head in ('decode_head', 'auxiliary_head'):
        line = refused('train', config_of('dense', f"model['{head}'] = dict(num_classes=11)\n"))
        assert f'`num_classes` 10 of `{head}`, the number of classes of the training set ' \
               '(`BaseSegDataset`), found 11' in line


@pytest.mark.parametrize('stage, workers', [('dense', 0), ('search', 1)])
def test_masks_with_labels_out_of_range(refused, config_of, scenes, tmp_path_factory, stage,
                                        workers):
    folder = tmp_path_factory.mktemp('wrong') / 'scenes'
    shutil.copytree(scenes, folder)
    for mask in (folder / 'annotations' / 'training').iterdir():
        labels = np.array(Image.open(mask))
        labels[labels > 0] = 14  # 13 with the background taken off
        Image.fromarray(labels).save(mask)
    lines = f"train_dataloader['num_workers'] = {workers}\n"
    line = refused('train', config_of(stage, lines, folder))
    assert re.search('expected labels below 10, the number of classes, or 255, found 13 in the '
                     r'mask `\S+annotations/training/00000\d.png`', line)
