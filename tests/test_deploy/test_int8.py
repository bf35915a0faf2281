"""int8 files: made by the libraries, with as few blocks in fp32 as must be."""

import numpy as np
import onnx
import pytest
import torch

from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.int8 import QUANTIZERS, choose_fp32_blocks, compute_in_fp32, quantize_onnx
from mmkcr.deploy.runtimes import open_onnx


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


class Attention(torch.nn.Module):
    """Pixels attend to each other, most of them to all alike, and one to itself."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv = torch.nn.Linear(3, 8), torch.nn.Linear(8, 24)
        self.out = torch.nn.Linear(8, 4)
        self.register_buffer('own', torch.zeros(1024, 1024))
        self.own[0, 0] = 20

    def forward(self, images):
        x = self.embed(images.flatten(2).transpose(1, 2))
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((0.1 * q @ k.transpose(1, 2) + self.own).softmax(-1) @ v)


def test_attention_to_many_tokens_is_neither_rounded_to_nothing_nor_saturates(tmp_path):
    """In ONNX Runtime, with and without instructions for int8."""
    torch.manual_seed(0)
    model, images = Attention(), torch.randn(8, 3, 32, 32) + torch.linspace(-2, 2, 8)[
        :, None, None, None]
    with torch.no_grad():
        expected = model(images)
    source = export_onnx(model, tmp_path / 'a.onnx', (3, 32, 32), False, (1, )).path
    quantize_onnx(source, tmp_path / 'b.onnx', list(images.numpy()[:, None]))
    session = open_onnx(tmp_path / 'b.onnx')
    found = torch.stack([torch.from_numpy(session(image[None])[0][0].copy())
                         for image in images.numpy()])
    apart = (expected - expected.mean(0)).square().sum()
    assert 1 - (found - expected).square().sum() / apart > 0.99


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
    blocks = choose_fp32_blocks(tmp_path / 'b.onnx', judge, 1 - left * before)
    assert len(blocks) in (1, 2)
    if runtime == 'onnxruntime':
        assert blocks[0] == f'blocks.{outlier}'
    compute_in_fp32(tmp_path / 'b.onnx', tmp_path / 'c.onnx', blocks)
    assert judge(tmp_path / 'c.onnx')[1] >= 1 - left * before
    assert choose_fp32_blocks(tmp_path / 'b.onnx', judge, 1.1) == []


@pytest.mark.parametrize('runtime', sorted(QUANTIZERS))
def test_a_network_inside_another_computes_the_same_blocks_in_fp32(runtime, tmp_path):
    """All blocks in fp32: what is left is the rounding of the weights."""
    pytest.importorskip(QUANTIZERS[runtime])
    pytest.importorskip(runtime)
    inner, images = Blocks(1), torch.randn(8, 3, 4, 4)
    model = torch.nn.Sequential(torch.nn.Identity(), inner)
    source = export_onnx(model, tmp_path / 'a.onnx', (3, 4, 4), False, (1, 2), runtime=runtime).path
    quantize_onnx(source, tmp_path / 'b.onnx', [images.numpy()], runtime)
    compute_in_fp32(tmp_path / 'b.onnx', tmp_path / 'c.onnx',
                    [f'blocks.{number}' for number in range(4)])
    with torch.no_grad():
        expected = model(images)
    errors = [float((torch.from_numpy(open_onnx(tmp_path / name, runtime)(images.numpy())[0].copy())
                     - expected).norm() / expected.norm()) for name in ('b.onnx', 'c.onnx')]
    assert errors[1] < 0.02 < 0.1 < errors[0]
    # no runtime dequantises weights in every run, and nothing stays that no output depends on
    graph = onnx.load(tmp_path / 'c.onnx').graph
    assert not {node.op_type for node in graph.node} & {'DequantizeLinear', 'QuantizeLinear'}
    read = {value for node in graph.node for value in node.input} | {'output'}
    assert {value for node in graph.node for value in node.output} <= read
    assert {constant.name for constant in graph.initializer} <= read
    compute_in_fp32(tmp_path / 'b.onnx', tmp_path / 'd.onnx', ['locks.1', 'blocks'])
    outputs = [open_onnx(tmp_path / name, runtime)(images.numpy())[0].copy()
               for name in ('b.onnx', 'd.onnx')]
    assert (outputs[0] == outputs[1]).all()
