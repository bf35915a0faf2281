"""Defaults listen to what stands beside them: size, channels and type of images and weights."""

import pytest
import torch
from torch import nn

import mmkcr
from mmkcr.apis import compress, count_macs
from mmkcr.closed_form.compression import call_network, refit_structure
from mmkcr.closed_form.options import CompressOptions
from mmkcr.distillation import distil

QUICK = dict(progress=False, divisor=1)


def vit(channels=3):
    """A network of 64 x 64 pixels alone."""
    import timm
    torch.manual_seed(0)
    return timm.create_model('vit_tiny_patch16_224', img_size=64, embed_dim=32, depth=2,
                             num_heads=4, num_classes=0, in_chans=channels)


def convnext(channels=3):
    """A network of any size."""
    import timm
    torch.manual_seed(0)
    return timm.create_model('convnext_atto', depths=(1, 1, 1, 1), dims=(8, 8, 16, 16),
                             num_classes=0, in_chans=channels)


def images(*shape, count=4):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('build, shape', [
    (vit, (3, 64, 64)), (lambda: vit(1), (1, 64, 64)), (lambda: convnext(4), (4, 96, 64))],
    ids=['fixed', 'grey', 'four channels'])
def test_a_budget_is_for_images_of_the_size_that_is_given(build, shape):
    model = build()
    result = compress(model, images(*shape), '70%', **QUICK)
    macs = result.structure.macs
    assert tuple(macs['input_shape']) == shape
    assert count_macs(result.model, shape) == macs['subnet'] <= 0.7 * count_macs(model, shape)
    assert f'one image of {shape[1]} x {shape[2]}, the size of the images.' in str(result)


def test_of_several_sizes_the_largest_counts_and_is_named():
    sizes = [images(3, *size, count=2) for size in ((64, 64), (96, 128), (64, 96))]
    result = compress(convnext(), sizes, '70%', **QUICK)
    assert result.structure.macs['input_shape'] == [3, 96, 128]
    assert 'one image of 96 x 128, the largest of the images.' in str(result)
    given = compress(convnext(), sizes, '70%', sites=['mlp_hidden'], input_shape=(3, 64, 64),
                     **QUICK)
    assert given.structure.macs['input_shape'] == [3, 64, 64]
    assert 'one image of 64 x 64.' in str(given)
    again = refit_structure(convnext(), given.structure, sizes, CompressOptions(progress=False))
    assert again.structure.macs['input_shape'] == [3, 96, 128]
    assert 'the largest of the images.' in str(again)


def test_batches_for_a_forward_show_their_images():
    batches = [dict(label=torch.zeros(2), inputs=one) for one in images(3, 96, 64).split(2)]
    result = compress(convnext(), batches, '70%', **QUICK,
                      forward=lambda model, batch: model(batch['inputs']))
    assert result.structure.macs['input_shape'] == [3, 96, 64]


def test_batches_that_show_no_images_ask_for_a_shape():
    batches = [dict(flat=one.flatten(1)) for one in images(3, 64, 64).split(2)]
    options = dict(QUICK, forward=lambda model, batch: model(batch['flat'].view(-1, 3, 64, 64)))
    with pytest.raises(ValueError, match=r'expected `input_shape` \(C, H, W\).* `flat`'):
        compress(vit(), batches, '70%', **options)
    assert compress(vit(), batches, '70%', input_shape=(3, 64, 64), **options).model


def test_exported_files_take_the_size_of_the_images(tmp_path):
    result = compress(convnext(), images(3, 96, 64), '70%', **QUICK)
    mmkcr.save(result, tmp_path / 'slim', export=True)
    program = torch.export.load(tmp_path / 'slim/model.pt2').module()
    batch = images(3, 96, 64, count=3)
    with torch.no_grad():
        torch.testing.assert_close(program(batch), result.model(batch), rtol=1e-4, atol=1e-4)
    import onnxruntime
    session = onnxruntime.InferenceSession(tmp_path / 'slim/model.onnx')
    assert session.get_inputs()[0].shape[1:] == [3, 96, 64]
    again = mmkcr.load(tmp_path / 'slim', convnext())
    assert torch.equal(again(batch), result.model(batch))


@pytest.mark.parametrize('weights, given', [
    (torch.float64, torch.float32), (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32), (torch.float32, torch.bfloat16)])
def test_images_come_in_the_type_of_the_weights(weights, given):
    """The statistics are good in every type: a refit is nearer than selected units."""
    options = dict(QUICK, sites=['mlp_hidden'], uniform=True)
    batch = images(3, 64, 64, count=8).to(given)
    errors = []
    for refit in ('least-squares', 'none'):
        result = compress(vit().to(weights), batch, '70%', held_out=batch, refit=refit, **options)
        assert {value.dtype for value in result.model.parameters()} == {weights}
        errors.append(result.agreement['error'])
    assert errors[0] < 0.9 * errors[1]


def test_a_lesson_takes_images_of_another_type_too():
    dense = vit().double()
    slim = compress(dense, images(3, 64, 64), '70%', **QUICK).model
    assert distil(slim, dense, images(3, 64, 64), 1, batch_size=2).steps == 1


def test_images_come_to_the_device_of_the_weights():
    assert call_network(nn.Linear(2, 2, device='meta'), torch.zeros(1, 2)).device.type == 'meta'
    assert call_network(nn.Linear(2, 2).double(), torch.zeros(1, 2)).dtype == torch.float64


def segmentor():
    from mmkcr.engine.build import build_model, load_config
    torch.manual_seed(0)
    model = build_model(load_config(
        'configs/kcr/segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py',
        {'model.backbone.arch.embed_dims': 16, 'model.decode_head.in_channels': [16, 32],
         'model.auxiliary_head.in_channels': 32}))
    return model.eval()


def test_a_cut_backbone_is_compared_without_the_head():
    """Its units do not depend on what the head makes of it; what is told of the result does."""
    model, results = segmentor(), []
    for _ in range(2):
        with torch.no_grad():
            model.decode_head.fpn_bottleneck.conv.weight.copy_(
                torch.randn_like(model.decode_head.fpn_bottleneck.conv.weight))
        results.append(compress(model, images(3, 64, 64, count=6), '80%', **QUICK))
    first, second = results
    assert first.structure.sizes() == second.structure.sizes()
    for one, other in zip(first.model.backbone.parameters(), second.model.backbone.parameters()):
        assert torch.equal(one, other)
    assert first.agreement['error'] != second.agreement['error']
    assert 'pixels' in first.agreement
    assert first.structure.provenance['asked']['compare'] == 'backbone'


@pytest.mark.parametrize('compare', ['backbone', 'model'])
def test_the_head_runs_for_what_is_compared(compare, monkeypatch):
    model, heads = segmentor(), []
    head = type(model.decode_head)
    forward = head.forward
    monkeypatch.setattr(head, 'forward',
                        lambda self, *args: heads.append(len(args[0][0])) or forward(self, *args))
    compress(model, images(3, 64, 64, count=20), '80%', compare=compare, **QUICK)
    # all 18 images to calibrate on, or those that tell of the result
    assert (sum(heads) < 18) == (compare == 'backbone')
