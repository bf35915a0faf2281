"""Masked image modelling against plain NumPy, its masks, and what a search does with it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.structures import DataSample

from mmkcr.methods.ofb.masked_search import MaskedImageHead
from mmkcr.models.slicing import apply_decisions
from mmkcr.models.tasks import search_space
from mmkcr.registry import MODELS

SHAPE = (3, 32, 32)


def draw(head, batch=4, size=(32, 48), seed=0, sizes=None):
    grid = [side // head.patch_size for side in size]
    return head.draw(batch, grid, torch.Generator().manual_seed(seed), sizes)


@settings(max_examples=20, deadline=None)
@given(ratio=st.floats(0.001, 1.), seed=st.integers(0, 99))
def test_every_image_has_the_same_number_of_masked_patches(ratio, seed):
    head = MaskedImageHead(8, patch_size=8, mask_ratio=ratio)
    mask = draw(head, seed=seed)
    assert mask.shape == (4, 4, 6)
    assert set(mask.sum((1, 2)).tolist()) == {max(1, round(ratio * 24))}
    assert torch.equal(mask, draw(head, seed=seed))


def test_patches_are_drawn_evenly_and_none_at_ratio_0():
    head = MaskedImageHead(8, patch_size=8, mask_ratio=0.25)
    share = torch.stack([draw(head, 64, (32, 32), seed).float().mean(0) for seed in range(20)])
    assert (share.mean(0) - 0.25).abs().max() < 0.06
    head.mask_ratio = 0.
    assert not draw(head).any()


@pytest.mark.parametrize('window', [1, 5, 13, 31])
def test_normalised_targets_and_loss_equal_plain_numpy(window):
    head, reach = MaskedImageHead(4, patch_size=4, window=window), window // 2
    images, features = torch.randn(2, 3, 8, 12), torch.randn(2, 4, 2, 3)
    mask = draw(head, 2, (8, 12), 3) | (torch.arange(6).view(2, 3) == 2)
    padded = np.pad(images.numpy().astype(float), [(0, 0)] * 2 + [(reach, reach)] * 2,
                    constant_values=np.nan)
    target = np.zeros((2, 3, 8, 12))
    for y in range(8):
        for x in range(12):
            seen = padded[:, :, y:y + window, x:x + window]
            mean, var = np.nanmean(seen, (2, 3)), np.nanvar(seen, (2, 3))
            target[:, :, y, x] = (images[:, :, y, x].numpy() - mean) / np.sqrt(var + 1e-6)
    np.testing.assert_allclose(head.normalised(images).numpy(), target, atol=1e-4)
    decoded = head.decoder(features).detach().numpy()
    errors = [abs(decoded - target)[image, :, y, x] for image in range(2) for y in range(8)
              for x in range(12) if mask[image, y // 4, x // 4]]
    found = head(features, images, mask)
    assert float(found.detach()) == pytest.approx(float(np.mean(errors)), rel=1e-4)


def test_hides_tokens_on_finer_grids_and_leaves_extra_tokens():
    head = MaskedImageHead(4, patch_size=8)
    head.mask_token.data.fill_(1.)
    hidden = head.hide(torch.zeros(1, 9, 4), (2, 4), torch.tensor([[[True, False]]]), 2)[0, :, 0]
    assert hidden.tolist() == [0, 1, 1, 0, 0, 1, 1, 0, 0]


def test_an_image_that_is_padded_in_a_batch_is_as_it_is_alone():
    head = MaskedImageHead(4, patch_size=4, window=5, mask_ratio=0.5)
    images, features = torch.randn(2, 3, 16, 16), torch.randn(2, 4, 4, 4)
    sizes = torch.tensor([[7, 12], [16, 16]])
    mask = draw(head, 2, (16, 16), 0, sizes)
    assert mask.sum((1, 2)).tolist() == [3, 8]  # of 2 x 3 and of 4 x 4 patches
    assert not mask[0, 2:].any() and not mask[0, :, 3:].any()
    padded = head(features[:1], images[:1], mask[:1], sizes[:1])
    alone = head(features[:1, :, :2, :3], images[:1, :, :7, :12], mask[:1, :2, :3])
    torch.testing.assert_close(padded, alone)
    assert torch.equal(mask[1:], draw(head, 2, (16, 16), 0)[1:])


def searching(end_when_decided=True, **reconstruction):
    torch.manual_seed(0)
    return MODELS.build(dict(
        type='mmkcr.MaskedSearchModel', end_when_decided=end_when_decided,
        reconstruction=dict(in_channels=32, patch_size=8, window=9, **reconstruction),
        price=dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5, input_shape=SHAPE),
        architecture=dict(
            type='mmpretrain.ImageClassifier',
            backbone=dict(type='mmkcr.OFBVisionTransformer', img_size=32, patch_size=8,
                          arch=dict(embed_dims=32, num_layers=2, num_heads=2,
                                    feedforward_channels=64),
                          gates=dict(type='mmkcr.BiMaskGate')),
            head=dict(type='mmpretrain.LinearClsHead', num_classes=10, in_channels=32))))


SAMPLES = [DataSample().set_gt_label(label) for label in range(2)]


@pytest.mark.parametrize('keep_position', [True, False])
def test_search_with_reconstruction(keep_position):
    """The weighted loss has the task loss's size; all parameters get gradients, also sliced."""
    model = searching(keep_position=keep_position, mask_ratio=0.5)
    for _ in range(2):
        losses = model(torch.randn(2, *SHAPE), SAMPLES, mode='loss')
        assert {name for name in losses if 'loss' in name} == {
            'loss', 'loss_one_hot', 'loss_budget', 'loss_importance', 'loss_reconstruction'}
        assert float(losses['loss_reconstruction'].detach()) == pytest.approx(
            float(losses['loss'].detach()), rel=1e-5)
        model.zero_grad()
        model.parse_losses(losses)[0].backward()
        assert not [name for name, p in model.named_parameters()
                    if p.requires_grad and (p.grad is None or not p.grad.isfinite().all())]
        assert model.reconstruction.mask_token.grad.abs().sum() > 0
        width = model.gates()['patch_embed.embedding']
        alive = torch.arange(17).view(1, 17) < 9
        width.restrict(alive)
        apply_decisions(model.architecture.backbone.search_space.sites)
        assert width.present == 24  # of 32
    plain = model(torch.randn(2, *SHAPE), mode='tensor')
    assert plain.shape == (2, 10)


@pytest.mark.parametrize('keep_position', [True, False])
def test_mask_token_is_sliced_and_folded_with_the_width(keep_position):
    """Neither changes a loss; the optimizer's moments follow."""
    model = searching(keep_position=keep_position, mask_ratio=0.5, end_when_decided=False)
    images, token = torch.randn(2, *SHAPE), model.reconstruction.mask_token
    token.data.normal_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.parse_losses(model(images, SAMPLES, mode='loss'))[0].backward()
    optimizer.step()
    moments = optimizer.state[token]['exp_avg'].clone()
    width = model.gates()['patch_embed.embedding']
    alive = torch.zeros_like(width.alive)
    alive[0, 8] = True
    width.restrict(alive)
    state = list(model._noise_state)
    before = model(images, SAMPLES, mode='loss')
    scale, kept = width.scale().detach()[width.supported()], width.kept[width.supported()]
    assert apply_decisions(search_space(model).sites, optimizer) and width.folded
    model._noise_state = state
    after = model(images, SAMPLES, mode='loss')
    for name in ('loss', 'reconstruction_error'):
        torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-5)
    sliced = model.reconstruction.mask_token
    torch.testing.assert_close(sliced, token[kept] * scale)
    torch.testing.assert_close(optimizer.state[sliced]['exp_avg'], moments[kept] / scale)


@pytest.mark.parametrize('ends', [True, False])
def test_masking_ends_with_the_last_decision(ends):
    model = searching(mask_ratio=0.5, end_when_decided=ends)
    images, gates = torch.randn(2, *SHAPE), list(model.gates().values())
    for gate in gates:
        assert 'loss_reconstruction' in model(images, SAMPLES, mode='loss')
        gate.restrict(gate.only(0))
    apply_decisions(search_space(model).sites)
    model.end_search()
    losses = model(images, SAMPLES, mode='loss')
    assert ('loss_reconstruction' in losses) == (not ends)
    total, logs = model.parse_losses(losses)
    terms = [value for name, value in logs.items() if name.startswith('loss_')]
    assert 'loss_reconstruction' in logs and sum(terms).isclose(total)
    assert all(p.requires_grad != ends for p in model.reconstruction.parameters())
    if ends:
        plain = model.architecture(images, SAMPLES, mode='loss')
        torch.testing.assert_close(losses['loss'], plain['loss'])


def test_masks_follow_seed_and_step():
    """The same state gives the same losses, the next step other masks."""
    one, two = searching(mask_ratio=0.3), searching(mask_ratio=0.3)
    two.load_state_dict(one.state_dict())
    images = torch.randn(2, *SHAPE)
    first, second = (one(images, SAMPLES, mode='loss')['reconstruction_error'] for _ in range(2))
    assert first != second
    assert two(images, SAMPLES, mode='loss')['reconstruction_error'] == first


@pytest.mark.parametrize('options', [dict(window=8), dict(patch_size=0)])
def test_refusals(options):
    with pytest.raises(ValueError, match='an odd `window` of MaskedImageHead, found'):
        MaskedImageHead(8, **options)
