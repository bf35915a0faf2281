"""mmpretrain's, mmdet's and mmseg's inferencers on dense and slimmed models."""

import functools

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tool_files import load_tool
from torch.utils._pytree import tree_leaves

from long_form import few
from mmkcr.apis import inferencer, list_models, model_config, slim
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import find_backbone

CLASSIFIER = 'kcr-deploy_swin-mini_1xb64_digits'
DETECTOR = 'kcr-mask-rcnn_swin-mini_{}_1xb8_digit-scenes'
SEGMENTOR = 'kcr-upernet_swin-mini_{}_1xb8_digit-scenes'
DIGITS = tuple('0123456789')


@pytest.fixture(scope='module')
def scenes(written_digits):
    """Folder with digits and two scenes."""
    from lab.digits import DigitsOptions
    return written_digits(DigitsOptions(train_scenes=1, val_scenes=2))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """``trained(name)``: dense checkpoint, subnet's checkpoint and structure of random weights."""
    @functools.cache
    def make(name):
        folder = tmp_path_factory.mktemp('weights')
        config = load_config(model_config(name.format('dense')).filename)
        config.model.backbone.update(gates=dict(type='mmkcr.GumbelChannelGate'), init_cfg=None)
        torch.manual_seed(1)
        model = build_model(config)
        for gate in find_backbone(model).gates().values():
            torch.nn.init.normal_(gate.alpha)
        subnet, structure = slim(model, target_macs=0.8, input_shape=(3, 128, 128), part='backbone')
        structure.save(folder / 'structure.json')
        palette = [[25 * index] * 3 for index in range(10)]
        meta = dict(meta=dict(dataset_meta=dict(classes=DIGITS, palette=palette)))
        dense = {key: value for key, value in model.state_dict().items() if '.gate.' not in key}
        torch.save(dict(meta, state_dict=dense), folder / 'dense.pth')
        torch.save(dict(meta, state_dict=subnet.state_dict()), folder / 'slim.pth')
        return [str(folder / file) for file in ('dense.pth', 'slim.pth', 'structure.json')]

    return make


def test_names():
    names = list_models()
    assert CLASSIFIER in names and len(names) == len(set(names)) > 50
    assert list_models('kcr-mask-rcnn_swin-mini_*') == [
        DETECTOR.format(stage) for stage in ('dense', 'search', 'slim')]
    reference = model_config('mmkcr::kcr/digits/kcr-dense_swin-mini_1xb64_digits.py')
    assert model_config('kcr-dense_swin-mini_1xb64_digits').model == reference.model
    with pytest.raises(FileNotFoundError, match='`mmkcr.apis.list_models.*found `kcr-deploy_swim`'):
        model_config('kcr-deploy_swim')


def test_a_model_that_differs_from_its_config_by_options(capsys):
    """They hold wherever it is known by its name: here and for commands."""
    name = 'kcr-retrain_swin-base_eta01_8xb64_in1k'
    assert model_config(name).model.regularizers.kcr.weight == 0.1
    load_tool('zoo').main([name, '--path'])
    path, *options = capsys.readouterr().out.split()
    assert path.endswith('kcr-retrain_swin-base_8xb64_in1k.py')
    assert options == ['--cfg-options', 'compression.regularizers.kcr.weight=0.1']


def test_classifier_in_mmpretrain(scenes, tmp_path):
    """mmpretrain's own functions take the config, and one and the same network answers."""
    from mmpretrain import get_model
    from mmpretrain.apis import ImageClassificationInferencer
    name = 'kcr-dense_swin-mini_1xb64_digits'
    config = model_config(name)
    path = str(tmp_path / 'dense.pth')
    torch.manual_seed(0)
    torch.save(dict(state_dict=get_model(config).state_dict(),
                    meta=dict(dataset_meta=dict(classes=DIGITS))), path)
    image = str(next((scenes / 'val').rglob('*.png')))
    theirs, = ImageClassificationInferencer(config, pretrained=path)(image)
    ours, = inferencer(name, path)(image)
    assert theirs['pred_class'] == ours['pred_class'] in DIGITS
    assert theirs['pred_score'] == ours['pred_score']


@pytest.mark.parametrize('name', [DETECTOR, SEGMENTOR])
def test_dense_and_slim(name, trained, scenes):
    """The hosts' classes take our configs; the slimmed model is another network."""
    from mmdet.apis import DetInferencer
    from mmseg.apis import MMSegInferencer
    dense, subnet, structure = trained(name)
    host = DetInferencer if name == DETECTOR else MMSegInferencer
    image = str(next((scenes / 'scenes/images/validation').glob('*')))
    theirs = host(model_config(name.format('dense')), dense, device='cpu')
    ours = inferencer(name.format('dense'), dense)
    after = inferencer(name.format('slim'), subnet, structure)
    assert type(ours) is type(after) is host
    assert ours.model.dataset_meta['classes'] == DIGITS
    found = [np.concatenate([np.ravel(leaf) for leaf in tree_leaves(model(image)['predictions'])])
             for model in (theirs, ours, after)]
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].size and not np.array_equal(found[1], found[2])


def test_checkpoint_of_another_model(trained, tmp_path):
    """What the hosts only warn of: other shapes, missing entries."""
    dense, subnet, _ = trained(DETECTOR)
    with pytest.raises(ValueError, match='checkpoint of the dense `KCRSwinTransformer`, found .*'
                                         'mis-shaped'):
        inferencer(DETECTOR.format('dense'), subnet)
    headless = torch.load(dense)
    del headless['state_dict']['rpn_head.rpn_cls.bias']
    torch.save(headless, tmp_path / 'headless.pth')
    with pytest.raises(ValueError, match='MaskRCNN in .*headless.pth`, found 1 missing '
                                         r'\(rpn_head.rpn_cls.bias\)'):
        inferencer(DETECTOR.format('dense'), str(tmp_path / 'headless.pth'))


@pytest.mark.parametrize('name', few((DETECTOR, SEGMENTOR), DETECTOR))
def test_pictures(name, trained, scenes, tmp_path, capsys):
    dense, subnet, structure = trained(name)
    load_tool('demo/before_after').main([
        '--dense', name.format('dense'), dense, '--slim', name.format('slim'), subnet,
        '--structure', structure, '--images', str(scenes / 'scenes/images/validation'),
        '--count', '1', '--out', str(tmp_path), '--score-thr', '0.05'])
    picture, = tmp_path.glob('*.png')
    assert str(picture) in capsys.readouterr().out
    pixels = imread(picture)[..., :3]
    left, right = np.array_split(pixels, 2, axis=1)
    assert pixels.shape[:2] == (528, 960) and left.std() > 0 and right.std() > 0
    assert not np.array_equal(left, right)


@pytest.mark.parametrize(('change', 'message'), [
    (dict(images='no/images'), 'expected images at `no/images`, found nothing'),
    (dict(dense=CLASSIFIER), "a detector or a segmentor, found `default_scope = 'mmpretrain'`"),
    (dict(dense='kcr-mask'), 'expected a config file or a model')])
def test_wrong_arguments(scenes, tmp_path, capsys, change, message):
    given = dict(dense=DETECTOR.format('dense'),
                 images=str(scenes / 'scenes/images/validation')) | change
    with pytest.raises(SystemExit):
        load_tool('demo/before_after').main([
            '--dense', given['dense'], 'x.pth', '--slim', DETECTOR.format('slim'), 'x.pth',
            '--images', given['images'], '--count', '1', '--out', str(tmp_path)])
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith('error: ') and message in line and not list(tmp_path.iterdir())
