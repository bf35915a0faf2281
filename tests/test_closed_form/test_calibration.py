"""What calibration reads off a network, against gradients and finite changes of small ones."""

import copy
from functools import partial

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.models import SwinTransformer
from mmpretrain.models import SwinTransformerV2, VisionTransformer
from torch import nn

from mmkcr.closed_form.batches import number_batches
from mmkcr.closed_form.calibration import (
    ReaderMoments,
    WeightChange,
    _projection,
    flat_tensors,
    output_changes,
    output_scales,
    passes,
)
from mmkcr.closed_form.readers import Rows, input_rows, output_energy, output_rows, pick
from mmkcr.closed_form.replay import ResumableForward, output_factors
from moments import moments_of

IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()


def forward(model, images):
    return model(images)


def collect(model, batches, layers, **options):
    """Moments of layers' inputs and of the gradients of their outputs, by name."""
    moments = {name: ReaderMoments(layer, name, Rows(), True) for name, layer in layers.items()}
    hooks = [(layers[name], one.hook) for name, one in moments.items()]
    assert [*passes(model, number_batches(batches), forward, hooks, False, **options)]
    return moments


def vit():
    torch.manual_seed(0)
    model = VisionTransformer(
        arch=dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32), img_size=32,
        patch_size=8, out_type='featmap')
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    model.double().eval()  # the host's returns None
    return model


def test_changes_of_outputs_are_the_directional_derivatives_of_every_image():
    """dz of an image: the gradient of its projected outputs along the change of the weights."""
    model = vit()
    layers = dict(first=[model.layers[0].ffn.layers[1]],
                  both=[model.layers[0].attn.proj, model.layers[1].ffn.layers[0][0]])
    generator = torch.Generator().manual_seed(1)
    changes = {name: [WeightChange(
        layer, torch.randn(layer.in_features, generator=generator).double(),
        torch.randn(3, *layer.weight.shape, generator=generator).double()) for layer in group]
        for name, group in layers.items()}
    found = output_changes(model, number_batches([IMAGES[:4], IMAGES[4:]]), forward, changes,
                           False, seed=5)

    # the same projections; a pass for every image
    expected = {name: torch.zeros(3).double() for name in changes}
    for first, batch in ((0, IMAGES[:4]), (4, IMAGES[4:])):
        scales = output_scales(flat_tensors(model(batch)), len(batch))
        for image in range(len(batch)):
            one = flat_tensors(model(batch[image:image + 1]))
            signs = _projection(one, False, range(first + image, first + image + 1), 5, scales)
            assert all((sign * scale * len(one)**0.5).abs().allclose(torch.ones(()).double())
                       for sign, scale in zip(signs, scales))
            z = sum((out * sign).sum() for out, sign in zip(one, signs))
            for name, group in changes.items():
                tensors = [tensor for change in group
                           for tensor in (change.layer.weight, change.layer.bias)]
                gradients = torch.autograd.grad(z, tensors, retain_graph=True)
                dz = torch.zeros(3).double()
                for change, weight, bias in zip(group, gradients[::2], gradients[1::2]):
                    dz += (change.deltas * weight).sum((1, 2))
                    dz -= change.deltas @ change.mean @ bias
                expected[name] += dz.square() / len(IMAGES)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=0)


@pytest.mark.parametrize('reentrant', [True, False])
def test_activation_checkpointing_changes_nothing(reentrant, monkeypatch):
    """It runs blocks twice; DINO's Swin-L has it, and timm's models. Every layer counts once."""
    monkeypatch.setattr(torch.utils.checkpoint, 'checkpoint', partial(
        torch.utils.checkpoint.checkpoint, use_reentrant=reentrant))
    measured = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        model = SwinTransformer(embed_dims=8, depths=[1, 1], num_heads=[2, 2], window_size=4,
                                out_indices=(0, 1), strides=(4, 2), with_cp=with_cp)
        model.double().eval()
        layers = {f'{stage}': model.stages[stage].blocks[0].ffn.layers[1] for stage in range(2)}
        layers['merging'] = model.stages[0].downsample.reduction
        changes = {name: [WeightChange(layer, torch.zeros(layer.in_features).double(),
                                       layer.weight.detach()[None])]
                   for name, layer in layers.items()}
        found = collect(model, [IMAGES], layers)
        measured.append({name: (
            torch.tensor([moments.positions, moments.inputs.count, moments.gradients.count]),
            moments.inputs.mean, moments.gradients.mean, moments.inputs.covariance, losses)
            for (name, moments), losses in zip(found.items(), output_changes(
                model, number_batches([IMAGES]), forward, changes, False).values())})
    torch.testing.assert_close(*measured, rtol=1e-9, atol=1e-12)


def test_a_host_may_work_in_place_on_what_its_first_layer_gives():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 6, 1)]
    losses = []
    for inplace in (False, True):
        layers[1].inplace = inplace
        model = nn.Sequential(*layers).double()
        change = WeightChange(layers[2], torch.zeros(8).double(),
                              layers[2].weight.detach()[None, ..., 0, 0])
        losses.append(output_changes(model, number_batches([IMAGES]), forward, {'1x1': [change]},
                                     False)['1x1'])
    assert torch.equal(*losses) and float(losses[0]) > 0


def test_sensitivities_of_maps_in_half_precision():
    """The sum of the squares of a map is larger than the largest number."""
    torch.manual_seed(0)
    model, energies = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 64, 1)), []
    nn.init.normal_(model[1].weight)
    for dtype in (torch.float32, torch.float16):
        found = collect(model.to(dtype), [10 * IMAGES.to(dtype)], dict(last=model[1]))
        energies.append(found['last'].gradients.second_moment.trace())
    torch.testing.assert_close(*energies, rtol=0.05, atol=0)


def test_changes_of_some_outputs_are_those_of_whole_rows_of_zeros():
    model = vit()
    layer, generator = model.layers[0].attn.qkv, torch.Generator().manual_seed(1)
    keys = slice(16, 32)
    deltas = torch.randn(2, 16, 16, generator=generator).double()
    whole = torch.zeros(2, 48, 16).double()
    whole[:, keys] = deltas
    mean = torch.randn(16, generator=generator).double()
    some, every = (output_changes(model, number_batches([IMAGES[:5]]), forward,
                                  {'keys': [change]}, False)['keys']
                   for change in (WeightChange(layer, mean, deltas, outputs=keys),
                                  WeightChange(layer, mean, whole)))
    torch.testing.assert_close(some, every, rtol=1e-12, atol=0)
    assert float(some.min()) > 0


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 9), st.integers(1, 6))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_rows_of_an_image_are_picked_the_same_in_every_batch(images, each, most, size):
    def picked(first, count):
        found = pick(count * each, most, range(first, first + count))
        return torch.arange(count * each) if found is None else found

    found = [first * each + picked(first, min(size, images - first))
             for first in range(0, images, size)]
    assert torch.equal(torch.cat(found), picked(0, images))
    assert len(picked(0, images)) == images * min(each, most)


def test_rows_of_an_image_are_few_for_wide_layers_unless_few_images_have_to_do():
    assert [Rows(256, 4., images).of(inputs) for images, inputs in (
        (256, 96), (256, 1536), (16, 1536), (1, 1536))] == [256, 42, 384, 6144]


def test_some_images_are_run_backward_and_all_forward():
    """Gradients are those of the first images; inputs are of all."""
    model = vit()
    layers = dict(fc=model.layers[0].ffn.layers[1])
    batches = list(IMAGES.split(2))

    def found(batches, **backward):
        return collect(model, batches, layers, scales=[1.], **backward)['fc']

    every, first, some = found(batches), found(batches[:2]), found(batches, backward=4)
    assert torch.equal(some.inputs.covariance, every.inputs.covariance)
    assert torch.equal(some.gradients.second_moment, first.gradients.second_moment)
    assert (some.gradients.count, every.gradients.count) == (4 * 17, 6 * 17)
    assert some.positions == every.positions == 17


@pytest.mark.parametrize('layer', [nn.Linear(5, 3), nn.Conv2d(5, 3, 1, bias=False)])
def test_energy_of_outputs_from_the_moments_of_inputs(layer):
    torch.manual_seed(0)
    layer = layer.double()
    x = 2 + torch.randn(4, 5, 6, 6).double()
    x = x.movedim(1, -1) if isinstance(layer, nn.Linear) else x
    found = output_energy(layer, moments_of(input_rows(layer, x)))
    expected = output_rows(layer, layer(x).detach()).square().mean(0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize('scale', [None, 0.3])
def test_how_a_layer_is_added_to_its_block(scale):
    model = timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, embed_dim=16,
                              depth=2, num_heads=2, num_classes=5, init_values=scale)
    model = model.double().eval()
    block = model.blocks[1]
    if scale is not None:
        block.ls2.gamma.data.uniform_(0.5, 2.)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        run = ResumableForward(model, model, [IMAGES], forward)
        factors = output_factors(run, 'blocks.1', 'blocks.1.mlp.fc2')
        assert output_factors(run, 'blocks.1', 'blocks.1.attn.proj') is None  # the MLP reads it
        assert output_factors(run, 'blocks.1', 'blocks.1') is None
        assert output_factors(run, 'blocks.1', 'blocks.0.mlp.fc2') is None
        run.close()
    expected = torch.ones(16).double() if scale is None else block.ls2.gamma
    torch.testing.assert_close(factors, expected.detach(), rtol=1e-9, atol=0)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_layer_before_a_norm_is_not_added():
    """Swin V2 normalises behind the MLP: its outputs move the block's in no fixed ratio."""
    model = SwinTransformerV2(arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4],
                                        extra_norm_every_n_blocks=0), img_size=32, patch_size=4,
                              window_size=[4, 4], out_indices=(0, 1), pad_small_map=True)
    model.eval()
    with torch.no_grad():
        run = ResumableForward(model, model, [IMAGES.float()], forward)
        assert output_factors(run, 'stages.0.blocks.0', 'stages.0.blocks.0.ffn.layers.1') is None
        run.close()
