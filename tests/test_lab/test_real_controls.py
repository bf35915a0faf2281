"""Controls of the real network, on a small ViT of timm."""

import pytest
import timm
import torch
from mmpretrain.registry import MODELS

from lab.corp import corp
from lab.grail import grail
from lab.real_controls import METHODS, SAME_SIZES, control
from lab.saliency import tokens
from lab.snapvit import snapvit_structure
from lab.torch_pruning import PRUNED, torch_pruning_structure
from mmkcr.apis.compress_files import task_outputs
from mmkcr.closed_form.compression import refit_structure
from mmkcr.closed_form.options import CompressOptions
from mmkcr.models.counting import count_macs

SHAPE = (3, 32, 32)


def network():
    torch.manual_seed(0)
    model = timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, depth=3,
                              embed_dim=32, num_heads=2, num_classes=0, init_values=0.5)
    return model.eval(), torch.randn(40, *SHAPE)


def lost(model, slim, images):
    with torch.no_grad():
        wanted = tokens(model, images)
        return float((tokens(slim, images) - wanted).norm() / wanted.norm())


def test_corp_keeps_what_stays_and_compensates_for_what_goes():
    model, images = network()
    whole, macs = corp(model, images, '100%')
    assert macs['subnet'] == macs['dense'] == count_macs(model, SHAPE)
    assert lost(model, whole, images) < 1e-5
    slim, macs = corp(model, images, '70%')
    assert 0.68 * macs['dense'] < macs['subnet'] <= 0.7 * macs['dense']
    hidden = [int((block.mlp.fc2.weight != 0).any(0).sum()) for block in slim.blocks]
    rows = [int((block.attn.qkv.weight != 0).any(1).sum()) for block in slim.blocks]
    assert len(set(hidden)) == len(set(rows)) == 1 and hidden[0] < 128 and rows[0] < 96
    without = network()[0]
    for block, cut in zip(without.blocks, slim.blocks):
        block.mlp.fc2.weight.data *= (cut.mlp.fc2.weight != 0).any(0)
    assert lost(model, slim, images) < lost(model, without, images)


def test_grail_folds_the_units_that_go_into_the_others():
    model, images = network()
    slim, macs = grail(model, images, '80%')
    assert 0.77 * macs['dense'] < macs['subnet'] <= 0.8 * macs['dense']
    hidden = [int((block.mlp.fc2.weight != 0).any(0).sum()) for block in slim.blocks]
    assert len(set(hidden)) == 1 and hidden[0] < 128
    without = network()[0]
    for block, cut in zip(without.blocks, slim.blocks):
        block.mlp.fc2.weight.data *= (cut.mlp.fc2.weight != 0).any(0)
    assert lost(model, slim, images) < lost(model, without, images)
    with pytest.raises(ValueError, match='expected a target that GRAIL reaches without hidden '
                       'units, found 20%'):
        grail(model, images, '20%')


def test_snapvit_ranks_units_over_all_blocks_by_their_gradients():
    model, images = network()
    with torch.no_grad():  # units and a head that nothing reads have no gradient
        model.blocks[1].mlp.fc2.weight[:, :100] = 0
        model.blocks[2].attn.proj.weight[:, :16] = 0
    structure = snapvit_structure(model, images, '75%')
    kept = {name: set(site.kept) for name, site in structure.sites.items()}
    units = {name: value for name, value in kept.items() if name.endswith('mlp_hidden')}
    fewest = min(units, key=lambda name: len(units[name]))
    assert 'blocks.1' in fewest and not units[fewest] & set(range(100))
    heads = next(value for name, value in kept.items() if 'blocks.2' in name and name not in units)
    assert heads == {1}
    assert all(kept.values())


def test_controls_have_as_many_units_as_the_closed_form():
    model, images = network()
    profiles = {}
    like = control('closed-form', model, images, '70%', profiles).structure
    assert set(profiles) == set(like.sites)
    for method in SAME_SIZES:
        found = control(method, model, images, '70%', profiles, like)
        assert found.structure.sizes() == like.sizes()
        assert found.structure.macs == like.macs
        assert {name: site.kept for name, site in found.structure.sites.items()} != \
            {name: site.kept for name, site in like.sites.items()}
    uniform = control('uniform', model, images, '70%', profiles).structure.sizes()
    assert len({size for name, size in uniform.items() if name.endswith('mlp_hidden')}) == 1


def test_every_method_has_a_name():
    assert set(SAME_SIZES) < set(METHODS) and len(set(METHODS.values())) == len(METHODS)


def classifier(**backbone):
    return MODELS.build(dict(
        type='ImageClassifier', backbone=backbone, neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=64)))


def test_torch_pruning_meets_the_budget_with_the_units_that_it_keeps():
    """The weights that stay are those of the dense network."""
    model = classifier(
        type='TIMMBackbone', model_name='vit_tiny_patch16_224', img_size=32, patch_size=8,
        embed_dim=64, depth=3, num_heads=8, features_only=True, out_indices=(2, ))
    batch = dict(inputs=torch.rand(8, *SHAPE))
    dense = count_macs(model, SHAPE)
    structure = torch_pruning_structure(model, PRUNED, dense // 2, batch)
    result = refit_structure(model, structure, [batch], CompressOptions(
        input_shape=SHAPE, refit='none', progress=False), forward=task_outputs)
    assert 0.45 * dense < count_macs(result.model, SHAPE) <= dense // 2
    before, after = (network.backbone.timm_model.model.blocks[0].mlp.fc1.weight
                     for network in (model, result.model))
    kept = structure.sites['timm_model.model.blocks.0.mlp.mlp_hidden'].kept
    assert torch.equal(before[list(kept)], after)
    norms = before.square().sum(1)
    lost = [unit for unit in range(len(norms)) if unit not in kept]
    assert norms[list(kept)].mean() > norms[lost].mean()  # of both layers: larger ones stay


def test_torch_pruning_refuses_other_networks():
    model = classifier(type='VisionTransformer', arch=dict(
        embed_dims=64, num_layers=1, num_heads=8, feedforward_channels=64), img_size=32)
    with pytest.raises(ValueError, match='expected a ViT of timm for Torch-Pruning, found a '
                       '`VisionTransformer`'):
        torch_pruning_structure(model, ('heads', ), 1, {})
