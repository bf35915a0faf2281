"""Task models that run by an exported file: the file decides, the hosts do the rest."""

from pathlib import Path

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.logging import MMLogger
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample
from torch.utils._pytree import tree_leaves

from long_form import every_nth
from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.runtimes import PACKAGES
from mmkcr.deploy.tensor_model import run_by_file
from mmkcr.engine.build import build_model, load_config

CONFIGS = Path(__file__).parents[2] / 'configs'
TASKS = dict(
    classifier=('kcr/digits/kcr-dense_vit-mini_1xb64_digits.py', 32),
    convolutions=('dcs/digits/dcs-dense_efficientvit-mini_1xb64_digits.py', 32),
    segmentor=('kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py', 128),
    detector=('kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py', 128))


def of_config(name, seed):
    config = load_config(CONFIGS / TASKS[name][0])
    config.model.pop('init_cfg', None)
    torch.manual_seed(seed)
    model = build_model(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        # norms and biases too; large enough that classes differ from image to image
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model, (3, TASKS[name][1], TASKS[name][1])


def predicted(model, data):
    """All tensors of the predictions."""
    with torch.no_grad():
        leaves = tree_leaves([sample.to_dict() for sample in model.test_step(data)])
    return [leaf.float() for leaf in leaves if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
@pytest.mark.parametrize('name', every_nth(2, TASKS))
def test_the_file_decides(name, runtime, tmp_path):
    """A model with slightly other weights gives the predictions of what was exported."""
    pytest.importorskip(PACKAGES[runtime])
    model, shape = of_config(name, 0)
    other, _ = of_config(name, 0)
    for key, parameter in other.named_parameters():
        if name != 'detector' or key.startswith(('backbone.', 'neck.')):  # its file ends there
            parameter.data *= 1 + 0.02 * torch.randn(parameter.shape)
    size = TASKS[name][1]
    meta = dict(img_shape=(size, size), ori_shape=(size, size), pad_shape=(size, size),
                batch_input_shape=(size, size), scale_factor=(1., 1.))
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8,
                           generator=torch.Generator().manual_seed(2))

    def data():
        sample = dict(detector=DetDataSample, segmentor=SegDataSample).get(name, DataSample)
        return dict(inputs=list(images), data_samples=[sample(metainfo=meta) for _ in images])

    expected, before = predicted(model, data()), predicted(other, data())
    same = [one.shape == two.shape and torch.allclose(one, two, atol=1e-3)
            for one, two in zip(expected, before)]
    assert not all(same)
    path = export_onnx(model, tmp_path / 'model.onnx', shape, False, (1, 2), runtime=runtime).path
    run_by_file(other, path, runtime)
    found = predicted(other, data())
    assert len(found) == len(expected) > 0
    for one, two in zip(found, expected):
        assert one.shape == two.shape
        # masks are 0 or 1: a pixel at the threshold may fall to either side
        assert ((one - two).abs() > 1e-3 * (1 + two.abs())).float().mean() < 1e-3


@pytest.fixture(scope='module')
def file(tmp_path_factory):
    """That of a classifier."""
    pytest.importorskip('onnxruntime')
    model, shape = of_config('classifier', 0)
    return export_onnx(model, tmp_path_factory.mktemp('file') / 'model.onnx', shape, False,
                       (1, 2)).path


def test_refusals(file):
    model, _ = of_config('classifier', 0)
    run_by_file(model, file)
    with pytest.raises(ValueError, match=r'expected images that .*model.onnx. takes, found a '
                       r'batch of shape \(1, 3, 64, 64\)'):
        model.extract_feat(torch.zeros(1, 3, 64, 64))
    with pytest.raises(ValueError, match='to run by a file, found `KCRSwinTransformer`'):
        run_by_file(of_config('segmentor', 0)[0].backbone, file)


@pytest.mark.parametrize('name', ['segmentor', 'detector'])
def test_files_of_other_outputs_are_refused(name, file):
    other, _ = of_config(name, 1)
    run_by_file(other, file)
    with pytest.raises(ValueError, match=r'a file with outputs of shape .*\(2, 10\)\]'):
        other.extract_feat(torch.rand(2, 3, 32, 32))


def test_models_of_several_heads_are_refused():
    """A file has no dict of outputs, and the heads of a cascade do not run by one another's."""
    from mmpretrain.models import ImageClassifier
    one = dict(type='mmpretrain.LinearClsHead', in_channels=8, num_classes=2)
    tasks = ImageClassifier(
        dict(type='mmpretrain.MobileNetV2'),
        head=dict(type='mmpretrain.MultiTaskHead', task_heads=dict(one=one, two=one)))
    pytest.importorskip('mmcv.ops')
    from mmseg.models import CascadeEncoderDecoder
    fcn = dict(type='mmseg.FCNHead', in_channels=8, channels=8, num_classes=2, num_convs=0,
               concat_input=False)
    ocr = dict(type='mmseg.OCRHead', in_channels=8, channels=8, ocr_channels=4, num_classes=2)
    cascade = CascadeEncoderDecoder(2, dict(type='mmseg.MobileNetV2'), [fcn, ocr])
    for model, head in ((tasks, 'MultiTaskHead'), (cascade, 'ModuleList')):
        with pytest.raises(ValueError, match='with one head that reads nothing but features, to '
                           f'run by a file, found `{type(model).__name__}` with several heads in '
                           f'`{head}`'):
            run_by_file(model, 'no.onnx')


def test_files_of_another_network_are_named(file, caplog):
    """Such as the file of an earlier subnet in the same folder: its shapes are the same."""
    model, shape = of_config('classifier', 0)
    images = torch.randn(2, *shape)
    logger = MMLogger.get_current_instance()
    logger.addHandler(caplog.handler)
    try:
        for name, share in (('same', 0.), ('near', 0.02), ('other', 10.), ('late', 10.)):
            other, _ = of_config('classifier', 0)
            generator = torch.Generator().manual_seed(1)
            for parameter in other.parameters():
                parameter.data *= 1 + share * torch.randn(parameter.shape, generator=generator)
            run_by_file(other, file)
            if name == 'late':  # a runner loads the weights behind this call
                other.load_state_dict(model.state_dict())
            caplog.clear()
            other.extract_feat(images)
            line, = (record for record in caplog.records if 'off those of' in record.getMessage())
            assert ('another network' in line.getMessage()) == (name in ('near', 'other'))
            assert (line.levelname == 'WARNING') == (name in ('near', 'other'))
    finally:
        logger.removeHandler(caplog.handler)
