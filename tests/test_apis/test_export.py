"""ONNX files: what they compute, at which sizes, and that a wrong one is not left behind."""

import copy
import importlib

import numpy as np
import onnx
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmpretrain.models import ImageClassifier
from mmpretrain.models.utils import ShiftWindowMSA
from torch import nn

from lab.kind_coverage import FAMILIES, randomise
from long_form import few
from mmkcr.apis import slim
from mmkcr.deploy import export
from mmkcr.deploy.export import ExportMismatch, compare_onnx, export_onnx
from mmkcr.deploy.layers import MASKED, attention_mask, traceable, window_reverse
from mmkcr.deploy.runtimes import open_onnx
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.models import KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models.search_space import SearchSpace

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)
VIT = dict(arch=dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=12, depths=[2, 2], num_heads=[2, 2]), img_size=56,
            window_size=4, patch_size=4)
SHAPE = (3, 32, 32)


def subnet(cls, seed=0, target=0.8, shape=SHAPE, **kwargs):
    torch.manual_seed(seed)
    model = cls(**kwargs, gates=GATES)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    return slim(model, target, 1, shape)[0]


@pytest.mark.parametrize('cls, kwargs, shape', [
    (KCRVisionTransformer, dict(VIT, out_type='featmap', out_indices=[0, 1]), SHAPE),
    (KCRSwinTransformer, dict(SWIN, pad_small_map=True, out_indices=[0, 1]), (3, 56, 56)),
    (KCRSwinTransformer, dict(SWIN, pad_small_map=True, out_indices=[0, 1], fused_attention=True),
     (3, 56, 56)),
])
def test_batch_height_and_width_are_dynamic(cls, kwargs, shape, tmp_path):
    model = subnet(cls, shape=shape, **kwargs)
    report = export_onnx(model, tmp_path / 'new' / 'model.onnx', shape)
    assert report.dynamic_size and not report.notice
    assert len(report.errors) >= 5 and len({key[0] for key in report.errors}) >= 3
    assert max(report.errors.values()) < 1e-5
    # sizes that the export has not seen: multiples of everything, primes, tall and flat
    others = [(1, 3, 64, 64), (3, 3, 37, 53), (1, 3, 88, 41), (2, 3, 40, 96)]
    assert max(compare_onnx(TensorModel(model), report.path, others).values()) < 1e-5
    graph = onnx.load(report.path)
    onnx.checker.check_model(graph, full_check=True)
    assert {node.domain for node in graph.graph.node} == {''}
    assert [entry.name for entry in graph.graph.output] == ['output0', 'output1']
    assert [path.name for path in report.path.parent.iterdir()] == ['model.onnx']


def test_a_compiled_model_is_exported_as_it_was_before(tmp_path):
    model = subnet(KCRVisionTransformer, **VIT)
    report = export_onnx(torch.compile(model), tmp_path / 'model.onnx', SHAPE, False)
    assert max(report.errors.values()) < 1e-5
    assert max(compare_onnx(TensorModel(model), report.path, [(2, *SHAPE)]).values()) < 1e-5


def test_sizes_are_fixed_where_the_backbone_decides_by_them(tmp_path):
    """Without pad_small_map Swin does not shift windows that span the map."""
    model = subnet(KCRSwinTransformer, shape=SHAPE, **SWIN, out_indices=[1])
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE)
    assert not report.dynamic_size and 'height and width are fixed' in report.notice
    assert {key[1:] for key in report.errors} == {SHAPE}
    assert len(report.errors) == 3 and max(report.errors.values()) < 1e-5


def test_sizes_of_whole_patches_where_the_backbone_takes_no_others(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model('vit_small_patch16_dinov3', num_classes=5, depth=2, embed_dim=64,
                              num_heads=4)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    report = export_onnx(model, tmp_path / 'dinov3.onnx', (3, 64, 64))
    assert report.dynamic_size and 'height and width are multiples of 16' in report.notice
    assert (1, 3, 96, 64) in report.errors and (2, 3, 80, 80) in report.errors
    assert compare_onnx(TensorModel(model), report.path, [(3, 3, 48, 112)])[3, 3, 48, 112] < 1e-4


def test_networks_with_norms_of_mean_squares(tmp_path):
    """ONNX of this version has no operator for them."""
    torch.manual_seed(0)
    model = timm.create_model('test_vit4', img_size=32)
    assert isinstance(model.fc_norm, timm.layers.RmsNorm)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE, False)
    assert max(report.errors.values()) < 1e-5


def test_a_classifier_gives_logits(tmp_path):
    backbone = dict(type='mmkcr.KCRVisionTransformer', **VIT)
    model = ImageClassifier(backbone, head=dict(
        type='mmpretrain.VisionTransformerClsHead', num_classes=7, in_channels=24))
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE, dynamic_size=False)
    assert max(report.errors.values()) < 1e-5
    shape = onnx.load(report.path).graph.output[0].type.tensor_type.shape
    assert shape.dim[0].dim_param == 'batch' and shape.dim[1].dim_value == 7


class Nested(nn.Module):
    """Maps in a dict, its lists and their tuples, and a map of whole numbers."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, width, 3) for width in (2, 3, 4, 5)])

    def forward(self, x):
        a, b, c, d = (conv(x) for conv in self.convs)
        return dict(maps=[(a, b), [c]], none=None, deepest=d, whole=(0 * d).long())


def test_nested_outputs_lie_flat_in_their_order(tmp_path):
    torch.manual_seed(0)
    report = export_onnx(Nested(), tmp_path / 'model.onnx', SHAPE)
    assert report.dynamic_size and max(report.errors.values()) < 1e-5
    outputs = onnx.load(report.path).graph.output
    assert [entry.name for entry in outputs] == [f'output{index}' for index in range(5)]
    assert [out.shape[1] for out in open_onnx(report.path)(np.zeros((1, *SHAPE), np.float32))] \
        == [2, 3, 4, 5, 5]


def test_heads_of_several_tasks(tmp_path):
    head = dict(type='LinearClsHead', in_channels=24, _scope_='mmpretrain')
    model = ImageClassifier(
        dict(type='mmkcr.KCRVisionTransformer', **VIT),
        head=dict(type='mmpretrain.MultiTaskHead', task_heads=dict(
            colour=dict(head, num_classes=3), shape=dict(head, num_classes=5))))
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE, False)
    assert max(report.errors.values()) < 1e-5
    outputs = onnx.load(report.path).graph.output
    assert [entry.type.tensor_type.shape.dim[1].dim_value for entry in outputs] == [3, 5]


def test_a_model_without_tensors_is_refused(tmp_path):
    model = nn.Conv2d(3, 4, 1)
    model.register_forward_hook(lambda *_: dict(none=None))
    with pytest.raises(ValueError, match='returns tensors, found `Conv2d`, which returns `dict`'):
        export_onnx(model, tmp_path / 'model.onnx', SHAPE, False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('dynamic', [None, False])
def test_every_module_has_its_own_mode_afterwards(dynamic, tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.Dropout()))
    model[1][0].eval()
    modes = [module.training for module in model.modules()]
    assert modes == [True, True, True, False, True]
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE, dynamic)
    assert max(report.errors.values()) < 1e-5  # so it was exported in eval mode
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RuntimeError):  # too few channels
        export_onnx(model, tmp_path / 'wrong.onnx', (2, 8, 8), dynamic)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize('wrong', [1e-3, float('inf'), float('nan')])
def test_a_file_that_differs_is_not_left_behind(wrong, tmp_path, monkeypatch):
    model = subnet(KCRVisionTransformer, **VIT)
    path = tmp_path / 'model.onnx'
    path.write_bytes(b'before')
    monkeypatch.setattr(export, 'compare_onnx', lambda model, path, shapes, runtime: {
        tuple(shape): wrong for shape in shapes})
    with pytest.raises(ExportMismatch, match='within 0.0001 of PyTorch.*at input 1x3x32x32'):
        export_onnx(model, path, SHAPE, dynamic_size=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ['model.onnx']
    assert path.read_bytes() == b'before'


def test_comparison_sees_other_weights_and_shapes(tmp_path):
    kwargs = dict(VIT, out_type='featmap')
    report = export_onnx(subnet(KCRVisionTransformer, **kwargs), tmp_path / 'model.onnx', SHAPE,
                         dynamic_size=False)
    other = TensorModel(subnet(KCRVisionTransformer, seed=1, **kwargs))
    errors = compare_onnx(other, report.path, [(1, *SHAPE), (1, 3, 48, 48)])
    assert errors[1, 3, 32, 32] > 1e-2 and errors[1, 3, 48, 48] == float('inf')


@pytest.mark.parametrize('shape, batches', [((3, 0, 32), (1, )), ((32, 32), (1, )),
                                            (SHAPE, (0, ))])
def test_refusals(shape, batches, tmp_path):
    with pytest.raises(ValueError, match='of positive numbers, found'):
        export_onnx(torch.nn.Identity(), tmp_path / 'x.onnx', shape, batch_sizes=batches)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64])
def test_other_precisions_are_refused(dtype, tmp_path):
    with pytest.raises(ValueError, match=f'weights of torch.float32 to export, found {dtype}'):
        export_onnx(torch.nn.Conv2d(3, 4, 1).to(dtype), tmp_path / 'x.onnx', (3, 8, 8))
    assert not list(tmp_path.iterdir())


def test_weights_too_large_for_one_file_are_told_before_work_begins(tmp_path):
    model = torch.nn.Conv2d(3, 4, 1)
    model.weight = torch.nn.Parameter(torch.zeros(1).expand(2**29, 1, 1, 1))  # of four bytes
    with pytest.raises(ValueError, match='less than 2 GiB, .* found 2.0 GiB'):
        export_onnx(model, tmp_path / 'large.onnx')
    assert not list(tmp_path.iterdir())


# ---- the host's functions, rewritten so that they can be traced --------------------------------


@settings(max_examples=30, deadline=None)
@given(window=st.integers(2, 7), rows=st.integers(1, 4), columns=st.integers(1, 4),
       batch=st.integers(1, 3), data=st.data())
def test_traceable_windows_and_masks_are_those_of_the_host(window, rows, columns, batch, data):
    height, width = rows * window, columns * window
    x = torch.randn(batch, height, width, 2)
    windows = ShiftWindowMSA.window_partition(x, window)
    assert torch.equal(window_reverse(windows, height, width, window), x)
    shift = data.draw(st.integers(0, window - 1))
    host = ShiftWindowMSA.get_attn_mask((height, width), window, shift)  # of 0 and -100
    found = attention_mask((height, width), window, shift)
    assert (host is None) == (found is None) == (shift == 0)
    assert host is None or torch.equal(found, host * MASKED / -100)


@settings(max_examples=30, deadline=None)
@given(height=st.integers(3, 20), width=st.integers(3, 20), kernel=st.integers(1, 4),
       stride=st.integers(1, 4), mode=st.sampled_from(['corner', 'same']))
def test_traceable_padding_is_that_of_the_host(height, width, kernel, stride, mode):
    layer = AdaptivePadding(kernel, stride, padding=mode)
    x = torch.randn(1, 2, height, width)
    assert torch.equal(traceable(copy.deepcopy(layer))(x), layer(x))


def test_a_backbone_gives_the_same_while_traceable():
    model = subnet(KCRSwinTransformer, shape=(3, 56, 56), **SWIN, pad_small_map=True,
                   out_indices=[1])
    model.eval()
    x = torch.randn(1, 3, 50, 61)
    with torch.no_grad():
        found = traceable(copy.deepcopy(model))
        torch.testing.assert_close(found(x)[0], model(x)[0])
    assert type(found.stages[0].blocks[0].attn) is not type(model.stages[0].blocks[0].attn)


@pytest.mark.parametrize('library', few(('mmdet', 'mmseg'), 'mmdet'))
def test_swin_of_another_host_at_any_batch(library, tmp_path):
    """What README exports: a trace froze the batch of these windows."""
    pytest.importorskip('mmcv.ops')
    swin = importlib.import_module(f'{library}.models.backbones.swin')
    model = swin.SwinTransformer(embed_dims=8, depths=(2, 1), num_heads=(2, 2), window_size=4,
                                 strides=(4, 2), out_indices=(1, ))
    report = export_onnx(model, tmp_path / 'swin.onnx', (3, 36, 32), False)
    assert {shape[0] for shape in report.errors} == {1, 2, 5}
    assert max(report.errors.values()) < 1e-5


def test_swin_tiny_is_traced_where_every_map_is_padded():
    """Even maps at a merging would leave its padding out of the graph."""
    from mmkcr.deploy.export import padded_shape
    from mmkcr.models import KCRSwinTransformer
    swin = KCRSwinTransformer(arch='tiny', pad_small_map=True)
    for side in padded_shape(swin, (3, 224, 224))[1:]:
        for stride in (4, 2, 2, 2):
            assert side % stride
            side = -(side // -stride)
            assert side % 7


@settings(max_examples=30, deadline=None)
@given(height=st.integers(1, 20), width=st.integers(1, 20), bins=st.integers(1, 6),
       square=st.booleans())
def test_traceable_pooling_is_that_of_the_host(height, width, bins, square):
    layer = nn.AdaptiveAvgPool2d(bins if square else (bins, 2))
    x = torch.randn(2, 3, height, width, dtype=torch.float64)
    torch.testing.assert_close(traceable(copy.deepcopy(layer))(x), layer(x))


@pytest.mark.parametrize('size', [(None, 1), (2, None), (None, None), [1, 1], [2, 3], [None, 4]])
def test_pooling_to_sizes_in_lists_or_of_none(size, tmp_path):
    """An axis of size None keeps its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(size))
    report = export_onnx(model, tmp_path / 'model.onnx', (3, 14, 12))
    assert report.dynamic_size and max(report.errors.values()) < 1e-5
    others = [(1, 3, 9, 31), (2, 3, 40, 8)]
    assert max(compare_onnx(TensorModel(model), report.path, others).values()) < 1e-5
    fixed = export_onnx(model, tmp_path / 'fixed.onnx', (3, 14, 12), False)
    assert max(fixed.errors.values()) < 1e-5


@settings(max_examples=30, deadline=None)
@given(tiles=st.tuples(st.integers(1, 4), st.integers(1, 4)), kernel=st.integers(1, 3),
       stride=st.integers(1, 3), padding=st.integers(0, 1))
def test_traceable_unfolding_is_that_of_the_host(tiles, kernel, stride, padding):
    layer = nn.Unfold(kernel, stride=stride, padding=padding)
    x = torch.randn(2, 3, tiles[0] * kernel, tiles[1] * kernel)
    assert torch.equal(traceable(copy.deepcopy(layer))(x), layer(x))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('layer', [
    lambda: nn.RMSNorm(6), lambda: nn.RMSNorm((5, 6), eps=1e-3),
    lambda: nn.RMSNorm((4, 5, 6), elementwise_affine=False), lambda: timm.layers.RmsNorm(6),
    lambda: timm.layers.RmsNorm(6, affine=False), lambda: timm.layers.RmsNormFp32(6)])
def test_traceable_norms_of_mean_squares_are_those_of_the_host(layer, dtype):
    torch.manual_seed(0)
    layer = layer().to(dtype)
    if layer.weight is not None:
        nn.init.normal_(layer.weight)
    found = traceable(copy.deepcopy(layer))
    assert type(found) is not type(layer) and isinstance(found, type(layer))
    # down to entries where the added number decides
    for scale in (1., 1e-3, 1e-7):
        x = scale * torch.randn(2, 4, 5, 6, dtype=dtype)
        torch.testing.assert_close(found(x), layer(x), rtol=1e-5, atol=1e-6)


def test_a_layer_of_torch_with_its_fast_path(tmp_path):
    """It is one operator in evaluation, which ONNX does not have."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Conv2d(3, 16, 8, 8), nn.LayerNorm(16)
            self.attn = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, images):
            tokens = self.norm(self.embed(images).flatten(2).transpose(1, 2))
            return self.attn(tokens, tokens, tokens, need_weights=False)[0]

    before = torch.backends.mha.get_fastpath_enabled()
    result = export_onnx(Block().eval(), tmp_path / 'model.onnx', (3, 32, 32))
    assert max(result.errors.values()) < 1e-5
    assert torch.backends.mha.get_fastpath_enabled() == before


def silent_first(family, kinds):
    """The subnet without the first unit of every site, and the dense network."""
    dense = randomise(FAMILIES[family].build())
    space = SearchSpace.of_dense(copy.deepcopy(dense), kinds)
    space.slice_to(space.structure_for({
        name: torch.arange(1, total) for name, total in space.totals().items()}))
    return space.host, dense


@pytest.mark.parametrize('family, kinds', [
    ('SVT', ['heads']), ('MixMIM', ['heads']), ('EVA-02', ['heads'])])
def test_files_of_subnets_and_dense_networks(family, kinds, tmp_path):
    """At other batches and sizes than the traced one; the network is not changed."""
    for model in silent_first(family, kinds):
        model.eval()
        size = FAMILIES[family].size
        images = torch.randn(2, 3, size, size)
        with torch.no_grad():
            before = model(images)[0]
            export_onnx(model, tmp_path / 'net.onnx', (3, size, size), family != 'MixMIM')
            assert torch.equal(model(images)[0], before)


def test_heads_with_a_scale_of_their_own(tmp_path):
    """The host's product for them traces a dropout in training mode, which OpenVINO refuses."""
    model = randomise(FAMILIES['T2T-ViT'].build())
    report = export_onnx(model, tmp_path / 'net.onnx', (3, 64, 64), False)
    assert max(report.errors.values()) < 1e-4
    assert 'Dropout' not in {node.op_type for node in onnx.load(report.path).graph.node}


def test_embedding_of_fused_window_attention(tmp_path):
    torch.manual_seed(0)
    model = KCRSwinTransformer(**SWIN, out_indices=(1, ), fused_attention=True)
    space = SearchSpace.of_dense(model, ['embedding'])
    space.slice_to(space.structure_for({
        name: torch.arange(total // 2) for name, total in space.totals().items()}))
    report = export_onnx(space.host, tmp_path / 'net.onnx', (3, 56, 56))
    assert max(report.errors.values()) < 1e-4
