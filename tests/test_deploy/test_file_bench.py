"""Files of a dense and a slim network: made, close to PyTorch, smaller, told in a table."""

from pathlib import Path

import onnx
import pytest
import torch
from mmengine.config import ConfigDict
from mmpretrain.models import ImageClassifier
from torch import nn
from two_branches import conformer

from lab.model_zoo import random_subnet
from mmkcr.cli.compress_config import file_table
from mmkcr.deploy import file_bench
from mmkcr.deploy.file_bench import (
    LOOKED_AT,
    RANGES,
    VISITS,
    DeployedFile,
    FileBench,
    read_images,
    tell_blocks,
)
from mmkcr.deploy.int8 import QUANTIZERS
from mmkcr.deploy.latency import PairTiming
from mmkcr.deploy.latency_table import ensure_search_space
from mmkcr.deploy.runtimes import open_onnx
from mmkcr.registry import MODELS

SHAPE = (3, 32, 32)
# wide enough that weights outweigh the names of nodes
ARCH = dict(embed_dims=128, num_layers=2, num_heads=4, feedforward_channels=512)


def noise(count, shape=SHAPE, seed=0):
    """Images (1, C, H, W)."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed)).split(1)


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
def test_four_files(runtime, tmp_path, monkeypatch):
    pytest.importorskip(QUANTIZERS[runtime])
    pytest.importorskip(runtime)
    dense, slim = classifier(), classifier()
    ensure_search_space(slim, ['mlp_channels'])
    random_subnet(slim, '80%', SHAPE)
    bench = FileBench(dense, noise(8), noise(16, seed=1), SHAPE, logits=True)
    visits, time = [], bench.time
    monkeypatch.setattr(bench, 'time', lambda *args: visits.append(time(*args)) or visits[-1])
    rows = {row.name: row for row in bench.deploy(slim, tmp_path, runtime)}
    assert len(visits) == VISITS
    assert [row.ratio for row in rows.values()] == [
        PairTiming.join(timings).ratio for timings in zip(*visits)]
    assert list(rows) == ['dense', 'slim', 'dense int8', 'slim int8']
    assert not any('pixels' in row.agreement for row in rows.values())
    error = {name: row.agreement['error'] for name, row in rows.items()}
    assert error['dense'] < 1e-4 and rows['dense'].agreement['top1'] == 1
    # weights of 8 bits are a quarter, and what is not a product stays as it is
    assert rows['dense int8'].bytes < 0.6 * rows['dense'].bytes
    assert rows['slim int8'].bytes < rows['dense int8'].bytes
    assert 1e-5 < error['dense int8'] < 0.2 < error['slim']
    for name in ('dense int8', 'slim int8'):
        operators = [node.op_type for node in onnx.load(rows[name].path).graph.node]
        # weights of every block at least
        assert operators.count('DequantizeLinear') > 2 * 4


@pytest.mark.long
def test_classes_of_a_conformer_are_those_of_both_branches(tmp_path):
    pytest.importorskip(QUANTIZERS['onnxruntime'])
    pytest.importorskip('onnxruntime')
    model = conformer()
    images = torch.cat(noise(32))
    bench = FileBench(model, images.split(1), noise(16, seed=1), SHAPE, logits=True)
    rows = {row.name: row for row in bench.deploy(model, tmp_path, 'onnxruntime')}
    with torch.no_grad():
        wanted = sum(model(images)).argmax(1).numpy()
    scores = open_onnx(rows['dense int8'].path)(images.numpy())
    same = float((sum(scores).argmax(1) == wanted).mean())
    assert same != float((scores[-1].argmax(1) == wanted).mean())
    assert rows['dense int8'].agreement['top1'] == same and rows['dense'].agreement['top1'] == 1


def told(**agreement):
    """Rows of four files: dense and slim in fp32, and both in int8, a half slower."""
    return [DeployedFile(f'{name}{form}', Path(f'{name}{form}.onnx'.replace(' ', '_')), 10**6,
                         ratio * (1.5 if form else 1), dict(error=0.1, **agreement))
            for form in ('', ' int8') for name, ratio in (('dense', 1.), ('slim', 0.6))]


def test_a_table_says_of_what_its_shares_are_and_that_int8_is_slower():
    text = file_table(told(top1=0.5, variance=0.7), [])
    assert 'same class' in text and 'pixels' not in text and 'time over dense fp32' in text
    assert 'variance' not in text and ' 50 ' in text
    assert 'warning: `slim_int8.onnx` takes 1.50 of the time of the fp32 file' in text
    assert 'pixels' in file_table(told(pixels=0.5), [])
    of_detector = file_table(told(variance=0.7), [])
    assert 'class' not in of_detector and 'explained variance' in of_detector
    assert 'variance' not in file_table(told(), [])  # of a single image
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
    bench = FileBench(model, noise(2), noise(2, seed=1), SHAPE)
    row = bench.deploy(model, tmp_path, 'onnxruntime')[0]
    assert row.agreement['pixels'] == 1 and 'top1' not in row.agreement


def test_images_of_batches_are_single_and_of_one_size():
    batches = [dict(inputs=torch.full((2, 3, 8, 8), 1.)), torch.full((1, 3, 4, 12), 2.).double()]
    images = read_images(batches, (4, 8))
    assert [float(image.mean()) for image in images] == [1, 1, 2]
    assert {(*image.shape, image.dtype) for image in images} == {(1, 3, 4, 8, torch.float32)}


def test_blocks_are_chosen_on_images_that_no_range_was_made_from(tmp_path, monkeypatch):
    """On the images of its ranges int8 keeps more than on others."""
    looked = []

    class Bench(FileBench):
        def compare(self, path, runtime, images=None):
            looked.append(images)
            return dict(error=0.1, top1=0.9)

    monkeypatch.setattr(file_bench, 'quantize_onnx', lambda source, path, images, runtime:
                        path.write_bytes(b'int8'))
    chosen = iter([['blocks.1'], []])
    monkeypatch.setattr(file_bench, 'choose_fp32_blocks', lambda path, judge, enough: (
        judge(path), next(chosen))[1])
    made = []
    monkeypatch.setattr(file_bench, 'compute_in_fp32', lambda *args: made.append(args[2]))
    bench = Bench(nn.Conv2d(3, 2, 4, 4), noise(2), fit := noise(8, seed=1), SHAPE)
    assert torch.equal(torch.cat([*bench.ranges, *bench.looked_at]), torch.cat(fit))
    assert len(bench.looked_at) == 3
    file = tmp_path / 'a.onnx'
    assert bench.quantize(file, file, 'onnxruntime', 0.9) is None
    assert bench.quantize(file, file, 'onnxruntime', 0.95) == ['blocks.1']
    assert bench.quantize(file, file, 'onnxruntime', 0.95) == []
    assert len(looked) == 5 and all(images is bench.looked_at for images in looked)
    assert bench.quantize(file, file, 'onnxruntime', blocks=['blocks.2']) == ['blocks.2']
    assert len(looked) == 5 and made == [['blocks.1'], ['blocks.2']]


def test_ranges_are_of_few_images_and_other_sources_are_looked_at():
    model = nn.Conv2d(3, 2, 4, 4)
    bench = FileBench(model, noise(2), noise(60, seed=1), SHAPE)
    assert (len(bench.ranges), len(bench.looked_at)) == (RANGES, LOOKED_AT)
    bench = FileBench(model, noise(2), noise(60, seed=1), SHAPE, most=60)
    assert len(bench.ranges) == 60 - LOOKED_AT
    single = FileBench(model, noise(2), noise(1, seed=1), SHAPE)
    assert torch.equal(single.ranges[0], single.looked_at[0])
    large = FileBench(model, noise(2), torch.cat(noise(60, seed=1)).split(20), SHAPE)
    assert (len(large.ranges), len(large.looked_at)) == (RANGES, LOOKED_AT)


@pytest.mark.parametrize(('blocks', 'note'), [
    (None, ''), ([], 'half of the blocks in fp32 are not enough for int8 alone'),
    (['blocks.1', 'blocks.3'], 'blocks.1, blocks.3 compute in fp32')])
def test_notes_of_blocks(blocks, note):
    assert tell_blocks(blocks) == note
