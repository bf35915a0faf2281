"""int8 files: made by the libraries, close to fp32, smaller, and nothing left behind."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from mmengine.config import ConfigDict
from mmpretrain.models import ImageClassifier
from two_branches import conformer

from lab.model_zoo import random_subnet
from mmkcr.cli.compress_config import file_table
from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.int8 import (
    QUANTIZERS,
    DeployedFile,
    deploy_int8,
    quantize_onnx,
    sensitive_nodes,
)
from mmkcr.deploy.latency_table import ensure_search_space
from mmkcr.deploy.runtimes import open_onnx
from mmkcr.registry import MODELS

SHAPE = (3, 32, 32)
# wide enough that weights outweigh the names of nodes
ARCH = dict(embed_dims=128, num_layers=2, num_heads=4, feedforward_channels=512)


def classifier():
    torch.manual_seed(0)
    backbone = dict(type='mmkcr.KCRVisionTransformer', arch=ARCH, img_size=32, patch_size=8)
    model = ImageClassifier(backbone, head=dict(
        type='mmpretrain.VisionTransformerClsHead', num_classes=10, in_channels=128))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize('runtime', sorted(QUANTIZERS))
def test_four_files(runtime, tmp_path):
    pytest.importorskip(QUANTIZERS[runtime])
    pytest.importorskip(runtime)
    dense, slim = classifier(), classifier()
    ensure_search_space(slim, ['mlp_channels'])
    random_subnet(slim, '80%', SHAPE)
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(8, *SHAPE)).astype(np.float32) for _ in range(3)]
    rows = {row.name: row for row in deploy_int8(dense, slim, batches[:2], batches[2:], tmp_path,
                                                 runtime, repeats=1)}
    assert list(rows) == ['dense', 'slim', 'dense int8', 'slim int8']
    assert {row.pixels for row in rows.values()} == {None}
    assert rows['dense'].error < 1e-4 and rows['dense'].same == 1
    # weights of 8 bits are a quarter, and what is not a product stays as it is
    assert rows['dense int8'].bytes < 0.6 * rows['dense'].bytes
    assert rows['slim int8'].bytes < rows['dense int8'].bytes
    assert 1e-5 < rows['dense int8'].error < 0.2 < rows['slim'].error
    for name in ('dense int8', 'slim int8'):
        operators = [node.op_type for node in onnx.load(rows[name].path).graph.node]
        # weights of every block at least
        assert operators.count('DequantizeLinear') > 2 * 4


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="of .*openvino.*, found 'tensorrt'"):
        quantize_onnx('a.onnx', tmp_path / 'b.onnx', [], 'tensorrt')
    with pytest.raises(ValueError, match='at least one batch of calibration images'):
        quantize_onnx('a.onnx', tmp_path / 'b.onnx', [])
    for missing in ('nncf', 'openvino'):
        monkeypatch.setattr('importlib.util.find_spec',
                            lambda name, missing=missing: None if name == missing else name)
        with pytest.raises(ImportError, match=f'not installed: pip install {missing}'):
            quantize_onnx('a.onnx', tmp_path / 'b.onnx', [np.zeros(1)], 'openvino')
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_classes_of_a_conformer_are_those_of_both_branches(tmp_path):
    pytest.importorskip(QUANTIZERS['onnxruntime'])
    pytest.importorskip('onnxruntime')
    model = conformer()
    batches = [np.random.RandomState(i).randn(16, 3, 32, 32).astype(np.float32) for i in range(3)]
    rows = {row.name: row for row in deploy_int8(model, model, batches, batches[:2], tmp_path,
                                                 repeats=1)}
    images = np.concatenate(batches[:2])
    with torch.no_grad():
        wanted = sum(model(torch.from_numpy(images))).argmax(1).numpy()
    scores = open_onnx(rows['dense int8'].path)(images)
    same = float((sum(scores).argmax(1) == wanted).mean())
    assert same != float((scores[-1].argmax(1) == wanted).mean())
    assert rows['dense int8'].same == same and rows['dense'].same == 1


class Blocks(torch.nn.Module):
    """A chain of layers, one of which gets an outlier that 8 bits cannot hold beside the rest."""

    def __init__(self, outlier):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(4)])
        for number, layer in enumerate(self.blocks):
            torch.nn.init.orthogonal_(layer.weight, generator=generator)
            torch.nn.init.zeros_(layer.bias)
            if number == outlier - 1:
                layer.bias.data[0] = 3000.
            if number == outlier:
                layer.weight.data[:, 0] = 0

    def forward(self, images):
        x = images.flatten(2)
        for layer in self.blocks:
            x = layer(x)
        return x


@pytest.mark.parametrize('runtime', sorted(QUANTIZERS))
@pytest.mark.parametrize('outlier', [1, 2])
def test_the_block_that_loses_most_stays_in_fp32(runtime, outlier, tmp_path):
    pytest.importorskip(QUANTIZERS[runtime])
    pytest.importorskip(runtime)
    model, images = Blocks(outlier), torch.randn(8, 3, 4, 4)
    source = export_onnx(model, tmp_path / 'a.onnx', (3, 4, 4), False, (1, 2), runtime=runtime).path
    with torch.no_grad():
        expected = model(images)

    def judge(file):
        error = (torch.from_numpy(open_onnx(file, runtime)(images.numpy())[0].copy())
                 - expected).norm() / expected.norm()
        return float(error), 1 - float(error)

    quantize_onnx(source, tmp_path / 'b.onnx', [images.numpy()], runtime)
    before = judge(tmp_path / 'b.onnx')[0]
    assert before > 0.1
    left = 0.5 if runtime == 'onnxruntime' else 0.97  # NNCF smooths outliers
    blocks = sensitive_nodes(tmp_path / 'b.onnx', judge, 1 - left * before)
    assert len(blocks) in (1, 2)
    if runtime == 'onnxruntime':
        assert list(blocks)[0] == f'blocks.{outlier}'
    nodes = [name for names in blocks.values() for name in names]
    quantize_onnx(source, tmp_path / 'c.onnx', [images.numpy()], runtime, nodes)
    assert judge(tmp_path / 'c.onnx')[0] < before
    assert sensitive_nodes(tmp_path / 'b.onnx', judge, 1.1) == {}


def told(**fields):
    """Rows of four files: dense and slim in fp32, and both in int8, a half slower."""
    return [DeployedFile(f'{name}{form}', Path(f'{name}{form}.onnx'.replace(' ', '_')), 10**6,
                         ratio * (1.5 if form else 1), 0.1, **{'same': None, **fields})
            for form in ('', ' int8') for name, ratio in (('dense', 1.), ('slim', 0.6))]


def test_a_table_says_of_what_its_shares_are_and_that_int8_is_slower():
    text = file_table(told(same=0.5), [])
    assert 'same class' in text and 'pixels' not in text and 'time over dense fp32' in text
    assert 'warning: `slim_int8.onnx` takes 1.50 of the time of the fp32 file' in text
    assert 'pixels of the same class' in file_table(told(pixels=0.5), [])
    assert 'class' not in file_table(told(), [])  # of a detector
    assert 'warning' not in file_table(told()[:2], [])


def test_of_a_segmentor_pixels_are_compared(tmp_path):
    pytest.importorskip(QUANTIZERS['onnxruntime'])
    pytest.importorskip('onnxruntime')
    import mmseg.models  # noqa: F401
    torch.manual_seed(0)
    backbone = dict(type='mmkcr.KCRVisionTransformer', arch=ARCH, img_size=32, patch_size=8,
                    out_type='featmap')
    model = MODELS.build(ConfigDict(
        type='mmseg.EncoderDecoder', backbone=backbone, test_cfg=dict(mode='whole'),
        decode_head=dict(type='mmseg.FCNHead', in_channels=128, channels=128, num_convs=0,
                         concat_input=False, num_classes=4, norm_cfg=None))).eval()
    batches = [np.random.RandomState(i).randn(2, *SHAPE).astype(np.float32) for i in range(2)]
    row = deploy_int8(model, model, batches[:1], batches[1:], tmp_path, repeats=1)[0]
    assert row.same is None and row.pixels == 1
