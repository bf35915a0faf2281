"""The commands on a detector and a segmentor: slim, train, test, and users' mistakes."""

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

from few_scenes import FEW
from long_form import every_nth
from mmkcr.apis import count_macs
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.models.counting import count_parts
from mmkcr.models.tasks import find_backbone

CONFIGS = Path(__file__).parents[2] / 'configs/kcr'
ITERATED = """
_base_ = {base!r}
loader = dict(
    batch_size=2, num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_iters=2, val_interval=2)
"""
#: Network, few data and steps of it, its last checkpoint and a metric.
TASKS = dict(detection=('mask-rcnn', FEW, 'epoch_1.pth', 'coco/segm_mAP'),
             segmentation=('upernet', ITERATED, 'iter_2.pth', 'mIoU'))


@pytest.fixture(scope='module')
def scenes(small_digits, tmp_path_factory):
    """Copies of the one scene: of masks, a batch for gates and one for weights."""
    folder = tmp_path_factory.mktemp('scenes') / 'scenes'
    shutil.copytree(small_digits / 'scenes', folder)
    for kind in ('images', 'annotations'):
        first = folder / kind / 'training' / '000001.png'
        for number in range(2, 8):
            shutil.copy(first, first.with_name(f'{number:06d}.png'))
    return folder


@pytest.fixture(scope='module')
def config_of(scenes, tmp_path_factory):
    """``config_of('detection', 'dense', lines)``: a config on a few scenes, and more lines."""
    folder = tmp_path_factory.mktemp('dense')

    def write(task, stage, extra='', data=None):
        network, text, *_ = TASKS[task]
        base = CONFIGS / task / f'kcr-{network}_swin-mini_{stage}_1xb8_digit-scenes.py'
        model = 'dict(backbone=dict(init_cfg=None))'
        model = f'dict(architecture={model})' if stage == 'search' else model
        path = folder / str(len(list(folder.iterdir()))) / f'{stage}.py'
        path.parent.mkdir()
        path.write_text(text.format(base=str(base), data=f'{data or scenes}/')
                        + f'model = {model}\nload_from = None\n{extra}')
        return str(path)

    return write


@pytest.mark.parametrize('task', every_nth(2, TASKS))
def test_search_slim_train_test(task, run_tool, config_of, make_checkpoint, whole_model, tmp_path):
    """What was slimmed loads strictly, trains and tests by ordinary configs.

    The rates by layer are asked for as docs/running.md has it.
    """
    _, _, last, metric = TASKS[task]
    search = config_of(task, 'search')
    if task == 'detection':
        checkpoint = make_checkpoint(search, std=0.02)  # so small that boxes stay in the image
    else:
        run_tool('train', search, '--work-dir', tmp_path / 'search')
        checkpoint = tmp_path / 'search' / last
    printed = run_tool('slim', search, checkpoint, '--target-macs', '70%', '--out', tmp_path / 's')
    assert 'MACs of the backbone for one image of 128 x 128' in printed
    structure = Structure.load(tmp_path / 's' / 'structure.json')
    lines = f"model = dict(backbone=dict(init_cfg=None, structure='{tmp_path}/s/structure.json'))\n"
    slim = config_of(task, 'slim', lines + f"load_from = '{tmp_path}/s/subnet.pth'\n")
    model = build_model(load_config(slim))
    load_weights(model, tmp_path / 's' / 'subnet.pth')
    macs = structure.macs
    assert macs == dict(dense=macs['dense'], subnet=count_macs(model.backbone, (3, 128, 128)),
                        input_shape=[3, 128, 128], part='backbone')
    assert 0.66 < macs['subnet'] / macs['dense'] <= 0.7
    whole = sum(count_parts(model, (3, 128, 128)).values())
    dense = whole + macs['dense'] - macs['subnet']
    assert whole_model(printed) == [f'{dense / 1e9:.4g}', f'{whole / 1e9:.4g}',
                                    f'{whole / dense:.1%}']
    assert task == 'detection' or structure.provenance['iter'] == 2
    run_tool('train', slim, '--work-dir', tmp_path / 'run', '--cfg-options',
             'optim_wrapper.paramwise_cfg.layer_decay_rate=0.5',
             'optim_wrapper.constructor=mmkcr.LayerDecayOptimWrapperConstructor')
    trained = torch.load(tmp_path / 'run' / last, weights_only=False)
    kept = find_backbone(model).get_buffer('kept_units')
    assert torch.equal(trained['state_dict']['backbone.kept_units'], kept)
    scales = {group['lr_scale'] for group in trained['optimizer']['param_groups']}
    assert scales == {0.5**depth for depth in range(6)}  # stem, 4 blocks, heads
    run_tool('test', slim, tmp_path / 'run' / last, '--work-dir', tmp_path / 'test',
             '--out', tmp_path / 'metrics.json', '--out-item', 'metrics')
    assert metric in json.loads((tmp_path / 'metrics.json').read_text())


def test_multi_scale_and_flip(run_tool, config_of, scenes, tmp_path):
    """`--tta` with the settings of ADE20K: the mean of 12 views, flipped back and resized."""
    ade20k = load_config(CONFIGS / 'segmentation/kcr-upernet_swin-base_8xb2_ade20k.py')
    config = config_of('segmentation', 'dense', f'tta_model = {ade20k.tta_model.to_dict()!r}\n'
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


@pytest.mark.parametrize('head', ['roi_head.bbox_head', 'roi_head.mask_head', 'decode_head',
                                  'auxiliary_head'])
def test_num_classes_that_disagree(head, refused, config_of):
    task, data = ('detection', 'CocoDataset') if head.startswith('roi_head') else (
        'segmentation', 'BaseSegDataset')
    line = refused('train', config_of(task, 'dense'), '--cfg-options',
                   f'model.{head}.num_classes=9')
    assert f'`num_classes` 10 of `{head}`, the number of classes of the training set (`{data}`), ' \
           'found 9' in line


@pytest.mark.parametrize('stage, workers', [('dense', 0), ('search', 1)])
def test_masks_with_labels_out_of_range(refused, config_of, scenes, tmp_path_factory, stage,
                                        workers):
    folder = tmp_path_factory.mktemp('wrong') / 'scenes'
    shutil.copytree(scenes, folder)
    for mask in (folder / 'annotations' / 'training').iterdir():
        labels = np.array(Image.open(mask))
        labels[labels > 0] = 14  # 13 with the background taken off
        Image.fromarray(labels).save(mask)
    line = refused('train', config_of('segmentation', stage, data=folder), '--cfg-options',
                   f'train_dataloader.num_workers={workers}')
    assert re.search('expected labels below 10, the number of classes, or 255, found 13 in the '
                     r'mask `\S+annotations/training/00000\d.png`', line)


NONE = ('expected `categories` in the COCO annotations of `train_dataloader`',
        'instances_training.json')


@pytest.mark.parametrize('change, messages', [
    (lambda content: content.update(categories=[]), NONE),
    (lambda content: content.pop('categories'), NONE),
    (lambda content: content['categories'].pop(),
     ('categories for the 10 classes of the training set', 'found 9'))])
def test_annotations_without_the_categories(refused, config_of, small_digits, tmp_path, change,
                                            messages):
    shutil.copytree(small_digits / 'scenes', tmp_path / 'edited')
    file = tmp_path / 'edited/annotations/instances_training.json'
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    line = refused('train', config_of('detection', 'dense', data=tmp_path / 'edited'))
    assert all(message in line for message in messages), line


def test_missing_annotations(refused, config_of, small_digits):
    line = refused('train', config_of('detection', 'dense', data=small_digits / 'scenes'),
                   '--cfg-options', 'train_dataloader.dataset.ann_file=annotations/no.json')
    assert 'the annotations of `train_dataloader` at' in line and 'make it with' in line
