"""ONNX files: what they compute, at which sizes, and that a wrong one is not left behind."""

import copy
import importlib
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import timm
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmpretrain.models import ImageClassifier
from mmpretrain.models.utils import ShiftWindowMSA
from torch import nn

from lab.kind_coverage import FAMILIES, randomise
from long_form import every_nth, few
from mmkcr.apis import count_macs, slim
from mmkcr.deploy import export
from mmkcr.deploy.export import compare_onnx, export_onnx, export_program
from mmkcr.deploy.prepare import MASKED, attention_mask, make_traceable, window_reverse
from mmkcr.deploy.runtimes import open_onnx
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.engine.build import build_model, load_config
from mmkcr.methods import named
from mmkcr.models.search_space import SearchSpace

GATES, OPTIONS = dict(type='mmkcr.GumbelChannelGate', min_size=2), dict(type='mmkcr.BiMaskGate')
VIT = dict(arch=dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=12, depths=[2, 2], num_heads=[2, 2]), img_size=56,
            window_size=4, patch_size=4)
MAPS, PADDED = dict(out_indices=[0, 1]), dict(pad_small_map=True, out_indices=[0, 1])
RESNET = dict(depth=50, num_stages=2, strides=(1, 2), dilations=(1, 1), base_channels=8,
              stem_channels=8, **MAPS)
MOBILE = dict(arch=[['mobilenetv2', 8, 1, 1, 2], ['mobilevit', 12, 2, 16, 24, 2, 2]],
              stem_channels=8, **MAPS)
EFFICIENT = dict(arch=dict(widths=[8, 16, 32], depths=[1, 1, 1], head_dim=8), **MAPS)
SHAPE = (3, 32, 32)
MASK_RCNN = Path(__file__).parents[2] / (
    'configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py')


def subnet(cls, seed=0, target=0.8, shape=SHAPE, gates=GATES, **kwargs):
    torch.manual_seed(seed)
    model = cls(**kwargs, gates=gates)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    return slim(model, target, 1, shape)[0]


@pytest.mark.parametrize('cls, kwargs, gates', every_nth(2, [
    (named.KCRVisionTransformer, dict(VIT, **MAPS, out_type='featmap'), GATES),
    (named.OFBVisionTransformer, dict(VIT, **MAPS, out_type='featmap'), OPTIONS),
    (named.KCRSwinTransformer, dict(SWIN, **PADDED), GATES),
    (named.OFBSwinTransformer, dict(SWIN, **PADDED), OPTIONS), (named.OFBResNet, RESNET, OPTIONS),
    (named.DCSMobileViT, MOBILE, GATES), (named.KCREfficientViT, EFFICIENT, GATES),
    (named.DCSEfficientViT, dict(EFFICIENT, local=True), GATES)]))
def test_batch_height_and_width_are_dynamic(cls, kwargs, gates, tmp_path):
    shape = SHAPE if kwargs.get('patch_size') == 8 else (3, 56, 56)
    model = subnet(cls, target=None, shape=shape, gates=gates, **kwargs)
    model.train(False)
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


def test_backbone_and_neck_of_a_detector(tmp_path):
    """With position embeddings."""
    config = load_config(MASK_RCNN)
    config.model.backbone.gates = GATES
    config.model.backbone.update(
        arch=dict(embed_dims=12, depths=[2, 2], num_heads=[2, 2]), use_abs_pos_embed=True)
    config.model.neck.update(in_channels=[12, 24], out_channels=16)
    supernet = build_model(config)
    torch.manual_seed(0)
    for name, parameter in supernet.named_parameters():
        parameter.data.normal_(0, 0.2)
        if name.endswith('alpha'):
            parameter.data.normal_(0.5)
    model = slim(supernet, 0.8, 1, (3, 64, 64))[0]
    report = export_onnx(model, tmp_path / 'detector.onnx', (3, 64, 64), batch_sizes=(1, 3))
    assert report.dynamic_size and not report.notice, report.notice
    assert max(report.errors.values()) < 1e-5
    # sizes that the export has not seen, not divisible by the window or the strides
    sizes = [(1, 3, 75, 90), (2, 3, 131, 58)]
    assert max(compare_onnx(TensorModel(model), report.path, sizes).values()) < 1e-5
    whole = TensorModel(model).count_macs((3, 64, 64))
    macs, _ = export.read_macs_and_shape(report.path)
    assert macs == whole > count_macs(model.backbone, (3, 64, 64))
    names = [entry.name for entry in onnx.load(report.path).graph.output]
    assert names == [f'output{level}' for level in range(4)]
    with torch.no_grad():
        maps = TensorModel(model)(torch.zeros(sizes[0]))
    assert [tuple(level.shape[1:]) for level in maps] == [
        (16, 19, 23), (16, 10, 12), (16, 5, 6), (16, 3, 3)]


def test_a_compiled_model_is_exported_as_it_was_before(tmp_path):
    model = subnet(named.KCRVisionTransformer, **VIT)
    report = export_onnx(torch.compile(model), tmp_path / 'model.onnx', SHAPE, False)
    assert max(report.errors.values()) < 1e-5
    assert max(compare_onnx(TensorModel(model), report.path, [(2, *SHAPE)]).values()) < 1e-5


def test_sizes_are_fixed_where_the_backbone_decides_by_them(tmp_path):
    """Without pad_small_map Swin does not shift windows that span the map."""
    model = subnet(named.KCRSwinTransformer, shape=SHAPE, **SWIN, out_indices=[1])
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE)
    assert not report.dynamic_size and 'at another size the file does not give' in report.notice
    assert 'height and width are fixed at ' in report.notice
    assert {key[1:] for key in report.errors} == {SHAPE}
    assert len(report.errors) == 3 and max(report.errors.values()) < 1e-5


def test_sizes_are_fixed_where_the_trace_froze_positions(tmp_path):
    """Rotary positions of timm's DINOv3: a comparison at other sizes finds it."""
    model = randomise(timm.create_model('vit_small_patch16_dinov3', num_classes=5, depth=2,
                                        embed_dim=64, num_heads=4))
    for block in model.blocks:  # attention that looks at positions
        block.attn.qkv.weight.data *= 4
    report = export_onnx(model, tmp_path / 'dinov3.onnx', (3, 64, 64), dynamic_size=True)
    assert not report.dynamic_size and 'height and width are fixed at ' in report.notice
    assert max(report.errors.values()) < 1e-5


def test_a_trace_that_the_runtime_does_not_compute_is_refused(tmp_path):
    model = timm.create_model('eva02_tiny_patch14_224', img_size=56, embed_dim=32, depth=1,
                              num_heads=2, dynamic_img_size=True)
    with pytest.raises(ValueError, match='can be exported to ONNX, found `Eva`, which cannot'):
        export_onnx(model, tmp_path / 'eva.onnx', (3, 56, 56))
    assert not list(tmp_path.iterdir())


def test_networks_with_norms_of_mean_squares(tmp_path):
    """ONNX of this version has no operator for them."""
    model = randomise(timm.create_model('test_vit4', img_size=32))
    assert isinstance(model.fc_norm, timm.layers.RmsNorm)
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE, False)
    assert max(report.errors.values()) < 1e-5


LINEAR = dict(type='LinearClsHead', in_channels=24, _scope_='mmpretrain')


@pytest.mark.parametrize('head, classes', [
    (dict(type='mmpretrain.VisionTransformerClsHead', num_classes=7, in_channels=24), [7]),
    (dict(type='mmpretrain.MultiTaskHead', task_heads=dict(
        colour=dict(LINEAR, num_classes=3), shape=dict(LINEAR, num_classes=5))), [3, 5])])
def test_classifiers_give_logits(head, classes, tmp_path):
    model = ImageClassifier(dict(type='mmkcr.KCRVisionTransformer', **VIT), head=head)
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE, dynamic_size=False)
    assert max(report.errors.values()) < 1e-5
    outputs = [entry.type.tensor_type.shape.dim for entry in onnx.load(report.path).graph.output]
    assert [(batch.dim_param, count.dim_value) for batch, count in outputs] == [
        ('batch', count) for count in classes]


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


class WithoutTensors(nn.Module):
    def forward(self, x):
        return dict(none=None)


def test_every_module_has_its_own_mode_afterwards(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.Dropout()))
    model[1][0].eval()
    modes = [module.training for module in model.modules()]
    assert modes == [True, True, True, False, True]
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE)
    assert max(report.errors.values()) < 1e-5  # so it was exported in eval mode
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize('wrong', [1e-3, float('inf'), float('nan')])
def test_a_file_that_differs_is_not_left_behind(wrong, tmp_path, monkeypatch):
    model = subnet(named.KCRVisionTransformer, **VIT)
    path = tmp_path / 'model.onnx'
    path.write_bytes(b'before')
    monkeypatch.setattr(export, 'compare_onnx', lambda model, path, shapes, runtime: {
        tuple(shape): wrong for shape in shapes})
    with pytest.raises(export.ExportMismatch, match='within 0.0001 of PyTorch.*at input 1x3x32x32'):
        export_onnx(model, path, SHAPE, dynamic_size=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ['model.onnx']
    assert path.read_bytes() == b'before'


def test_comparison_sees_other_weights_and_shapes(tmp_path):
    kwargs = dict(VIT, out_type='featmap')
    model = subnet(named.KCRVisionTransformer, **kwargs)
    report = export_onnx(model, tmp_path / 'model.onnx', SHAPE, dynamic_size=False)
    other = TensorModel(subnet(named.KCRVisionTransformer, seed=1, **kwargs))
    errors = compare_onnx(other, report.path, [(1, *SHAPE), (1, 3, 48, 48)])
    assert errors[1, 3, 32, 32] > 1e-2 and errors[1, 3, 48, 48] == float('inf')


def large():
    """A layer of 2 GiB that takes four bytes."""
    model = nn.Conv2d(3, 4, 1)
    model.weight = nn.Parameter(torch.zeros(1).expand(2**29, 1, 1, 1))
    return model


@pytest.mark.parametrize('build, options, message', [
    (nn.Identity, dict(input_shape=(3, 0, 32)), 'of positive numbers, found'),
    (nn.Identity, dict(input_shape=(32, 32)), 'of positive numbers, found'),
    (nn.Identity, dict(batch_sizes=(0, )), 'of positive numbers, found'),
    *((partial(nn.Conv2d, 3, 4, 1, dtype=dtype), {},
       f'weights of torch.float32 on the CPU to export, found {dtype} on cpu')
      for dtype in (torch.bfloat16, torch.float64)),
    (large, {}, 'less than 2 GiB, .* found 2.0 GiB'),
    (WithoutTensors, {}, 'returns tensors, found `WithoutTensors`, which returns `dict`')])
def test_refusals(build, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_onnx(build(), tmp_path / 'x.onnx', **{**dict(
            input_shape=SHAPE, dynamic_size=False), **options})
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


@pytest.mark.parametrize('layers, tolerance', [
    (st.builds(AdaptivePadding, st.integers(1, 4), st.integers(1, 4),
               padding=st.sampled_from(['corner', 'same'])), 0),
    (st.builds(nn.AdaptiveAvgPool2d, st.integers(1, 6) | st.tuples(st.integers(1, 6), st.just(2))),
     1e-7),
    (st.builds(nn.Unfold, st.integers(1, 3), stride=st.integers(1, 3), padding=st.integers(0, 1)),
     0)], ids=['padding', 'pooling', 'unfolding'])
@settings(max_examples=30, deadline=None)
@given(data=st.data(), height=st.integers(1, 20), width=st.integers(1, 20))
def test_traceable_layers_are_those_of_the_host(layers, tolerance, data, height, width):
    layer, x = data.draw(layers), torch.randn(2, 3, height, width, dtype=torch.float64)
    assume(min(height, width) > 2 or isinstance(layer, nn.AdaptiveAvgPool2d))
    torch.testing.assert_close(make_traceable(copy.deepcopy(layer))(x), layer(x), rtol=tolerance,
                               atol=tolerance)


@pytest.mark.parametrize('cls, kwargs, size, replaced', [
    (named.KCRSwinTransformer, dict(SWIN, **PADDED), (50, 61), 'stages.0.blocks.0.attn'),
    *((named.DCSMobileViT, MOBILE, size, 'layers.1.1') for size in ((32, 48), (33, 50)))])
def test_backbones_give_the_same_while_traceable(cls, kwargs, size, replaced):
    model = randomise(cls(**kwargs))
    model.train(False)
    x, found = torch.randn(1, 3, *size), make_traceable(copy.deepcopy(model))
    with torch.no_grad():
        for one, other in zip(found(x), model(x), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert type(found.get_submodule(replaced)) is not type(model.get_submodule(replaced))


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
    swin = named.KCRSwinTransformer(arch='tiny', pad_small_map=True)
    for side in export.find_padding_shape(swin, (3, 224, 224))[1:]:
        for stride in (4, 2, 2, 2):
            assert side % stride
            side = -(side // -stride)
            assert side % 7


@pytest.mark.parametrize('size', [(2, None), (None, None), [1, 1], [None, 4]])
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
    found = make_traceable(copy.deepcopy(layer))
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


@pytest.mark.parametrize('family', few(('SVT', 'MixMIM', 'EVA-02'), 'SVT', 'MixMIM'))
def test_files_of_subnets_and_dense_networks(family, tmp_path):
    """At other batches and sizes than the traced one; the network is not changed."""
    dense = randomise(FAMILIES[family].build())
    space = SearchSpace(copy.deepcopy(dense), ['heads'])
    space.slice_to(space.structure_for({  # without the first of every layer
        name: torch.arange(1, total) for name, total in space.totals().items()}))
    size = FAMILIES[family].size
    images = torch.randn(2, 3, size, size)
    for model in (space.host, dense):
        model.eval()
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


def test_embedding_of_window_attention(tmp_path):
    torch.manual_seed(0)
    model = named.KCRSwinTransformer(**SWIN, out_indices=(1, ))
    space = SearchSpace(model, ['embedding'])
    space.slice_to(space.structure_for({
        name: torch.arange(total // 2) for name, total in space.totals().items()}))
    report = export_onnx(space.host, tmp_path / 'net.onnx', (3, 56, 56))
    assert max(report.errors.values()) < 1e-4


class Branches(nn.Conv2d):
    """Decides by the values of its outputs."""

    def forward(self, images):
        out = super().forward(images)
        return out if out.sum() > 0 else 2 * out


def test_a_network_that_cannot_be_traced_is_one_sentence(tmp_path, capfd):
    with pytest.raises(ValueError, match='that `torch.export` takes, found `Branches`') as refused:
        export_program(Branches(3, 4, 3), tmp_path / 'model.pt2', (3, 8, 8))
    assert '\n' not in str(refused.value) and not any(capfd.readouterr())
    assert not any(tmp_path.iterdir())
