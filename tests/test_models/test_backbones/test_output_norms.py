"""Norms behind the last block: pretrained ones are loaded, refused or said to be unused."""

import re

import pytest
import torch
from mmpretrain.models import SwinTransformer, VisionTransformer

from mmkcr.methods.named import (
    DWConvVisionTransformer,
    KCRSwinTransformer,
    KCRVisionTransformer,
    OFBVisionTransformer,
)

VIT = dict(arch=dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48),
           img_size=16, patch_size=8)
SWIN = dict(arch=dict(embed_dims=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2]), img_size=32,
            patch_size=2, window_size=4)
CLASSES = [KCRVisionTransformer, OFBVisionTransformer, DWConvVisionTransformer]


@pytest.fixture
def said(monkeypatch):
    """Sentences of the log."""
    found = []
    monkeypatch.setattr('mmengine.logging.print_log',
                        lambda text, *_, **__: text.startswith('Expected') and found.append(text))
    return found


def foreign(host, **kwargs):
    """A checkpoint of the host's own class, each value another."""
    return {key: torch.rand_like(value) if value.is_floating_point() else value
            for key, value in host(**kwargs).state_dict().items()}


def load(model, state):
    model.load_state_dict(dict(state), strict=False)
    return model


@pytest.mark.parametrize('cls', CLASSES)
@pytest.mark.parametrize('out_type', ['cls_token', 'featmap', 'avg_featmap', 'raw'])
def test_the_final_norm_is_loaded(cls, out_type, said):
    """A new norm of pooled patches is said."""
    state = foreign(VisionTransformer, **VIT)
    model = load(cls(**VIT, out_type=out_type), state)
    assert torch.equal(model.ln1.weight, state['ln1.weight'])
    assert [re.findall(r'\d (?:missing|surplus)[^)]*\)', text) for text in said] == (
        [['2 missing (ln2.weight, ln2.bias)']] if out_type == 'avg_featmap' else [])


@pytest.mark.parametrize('cls', CLASSES)
def test_a_checkpoint_without_the_final_norm_is_refused(cls):
    """Such as one that was fine-tuned with `final_norm=False`."""
    state = foreign(VisionTransformer, **VIT, final_norm=False, out_type='avg_featmap')
    with pytest.raises(ValueError, match=r'2 missing \(ln1.weight, ln1.bias\)'):
        load(cls(**VIT), state)
    model = load(cls(**VIT, final_norm=False, out_type='avg_featmap'), state)
    assert torch.equal(model.ln2.weight, state['ln2.weight'])


@pytest.mark.parametrize('cls', CLASSES)
def test_a_final_norm_that_the_arguments_leave_out_is_said(cls, said):
    """As in the fine-tuning of MAE, whose mean of the patches has a norm of its own."""
    load(cls(**VIT, final_norm=False, out_type='avg_featmap'), foreign(VisionTransformer, **VIT))
    assert len(said) == 1 and '2 missing (ln2.weight, ln2.bias)' in said[0]
    assert '2 surplus (ln1.weight, ln1.bias)' in said[0]


@pytest.mark.parametrize('cls', CLASSES)
def test_a_missing_norm_before_the_blocks_is_refused(cls):
    """CLIP's, and the bias that its patch embedding does not have."""
    plain, clip = VIT, dict(VIT, pre_norm=True)
    with pytest.raises(ValueError, match='pre_norm.weight'):
        load(cls(**clip), foreign(VisionTransformer, **plain))
    with pytest.raises(ValueError, match='pre_norm.weight'):
        load(cls(**plain), foreign(VisionTransformer, **clip))


@pytest.mark.parametrize('levels, missing, surplus', [
    ((3, ), None, None), ((0, 1, 3), 'norm0.weight, norm0.bias, norm1.weight', None),
    ((0, 1), 'norm0.weight, norm0.bias, norm1.weight', 'norm3.weight, norm3.bias')])
def test_norms_of_other_levels(levels, missing, surplus, said):
    state = foreign(SwinTransformer, **SWIN)
    load(KCRSwinTransformer(**SWIN, out_indices=levels), state)
    assert len(said) == bool(missing)
    assert (f'missing ({missing}' in ''.join(said)) == bool(missing)
    assert (f'surplus ({surplus})' in ''.join(said)) == bool(surplus)


def test_the_last_norm_of_a_swin_is_never_missing():
    state = foreign(SwinTransformer, **SWIN, out_indices=[0, 1])
    with pytest.raises(ValueError, match=r'2 missing \(norm3.weight, norm3.bias\)'):
        load(KCRSwinTransformer(**SWIN, out_indices=(0, 1, 3)), state)
    load(KCRSwinTransformer(**SWIN, out_indices=(0, 1)), state)
