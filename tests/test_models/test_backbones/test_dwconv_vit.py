"""Foundation ViTs with replaced heads: tokens, sizes, files, and channels beside them.

The laws of these networks are in ``test_law``.
"""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.runner import save_checkpoint
from mmpretrain.models import VisionTransformer
from mmpretrain.models.utils import resize_pos_embed

from long_form import every_nth
from mmkcr.apis import count_macs, slim
from mmkcr.core import Structure
from mmkcr.core.sites import holders
from mmkcr.deploy.export import export_onnx
from mmkcr.methods.named import (
    DWConvVisionTransformer,
    KCRDWConvVisionTransformer,
    KCRVisionTransformer,
)
from mmkcr.models.layers.head_operators import folded_name
from mmkcr.models.layers.operator_attention import OperatorAttention
from .law import (
    BLOCKS,
    CHANNELS,
    HEADS,
    NETWORKS,
    OPERATORS,
    assert_same,
    outputs,
    randomise,
    scene,
)
from .law import DWCONV_VIT as VIT

pytestmark = pytest.mark.usefixtures('exact_positions')
CASES = [name for name, network in NETWORKS.items() if network.cls is DWConvVisionTransformer]


def build(kwargs, seed=0, cls=DWConvVisionTransformer, **more):
    return randomise(cls(**kwargs, **more), seed)


def structure(model, kept):
    """By block the heads that stay attention."""
    return model.search_space.structure_for({f'layers.{i}.attn.head_operator': torch.tensor(
        heads).long() for i, heads in enumerate(kept)})


@pytest.mark.parametrize('name', CASES)
def test_heads_are_replaced_and_folded(name):
    """Plain layers: nothing is left to fold."""
    network, (_, subnet, found) = NETWORKS[name], scene(name)
    replaced = [site.total - len(site.kept) for site in found.sites.values()]
    assert sum(replaced) == (8 if network.gates is BLOCKS else 5)
    assert {site.operator for site in found.sites.values() if len(site.kept) < 4} == {
        folded_name(network.kwargs['operator'])}
    plain = copy.deepcopy(subnet)
    assert not any('logits' in key for key in plain.state_dict())
    for module in plain.modules():
        if isinstance(module, OperatorAttention):
            module.fold()
    assert list(plain.state_dict()) == list(subnet.state_dict())


def test_conversion_inherits_the_weights():
    """A replaced block keeps v and the projection of the dense one; the others are as they were."""
    model = build(dict(VIT, out_indices=(0, 1)))
    subnet = copy.deepcopy(model)
    subnet.search_space.slice_to(structure(model, [[0, 1, 2, 3], [], [1, 3]]))
    dense, blockwise, scattered = model.layers[1].attn, subnet.layers[1].attn, subnet.layers[2].attn
    assert torch.equal(blockwise.qkv.weight, dense.qkv.weight[48:])
    assert torch.equal(blockwise.proj.weight, dense.proj.weight)
    assert scattered.qkv.weight.shape == (3 * 12 + 12, 24)
    x = torch.randn(1, 3, 32, 32)
    first, second = outputs(subnet, x), outputs(model, x)
    torch.testing.assert_close(first[0], second[0])
    assert not torch.allclose(first[1], second[1])


@settings(max_examples=15, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9))
def test_any_height_and_width(height, width):
    model = build(dict(VIT, out_type='featmap', num_registers=1))
    model.search_space.slice_to(structure(model, [[], [0, 2], [1, 2, 3]]))
    x = torch.randn(1, 3, 8 * height, 8 * width)
    out = outputs(model, x)[0]
    assert out.shape == (1, 24, height, width) and torch.isfinite(out).all()


@pytest.mark.parametrize('gates', [None, HEADS])
def test_gradient_checkpointing_changes_nothing_even_across_sizes(gates):
    """Two forwards of other sizes, then one backward."""
    kept = [[], [0, 2], [0, 1, 2, 3]]
    models = []
    for with_cp in (False, True):
        model = build(dict(VIT, out_type='featmap'), gates=gates, with_cp=with_cp)
        if gates is None:
            model.search_space.slice_to(structure(model, kept))
        models.append(randomise(copy.deepcopy(model), 1))
        models[-1].train()
    plain, checkpointed = models
    one, two = torch.randn(2, 3, 16, 64), torch.randn(1, 3, 32, 32)
    for model in models:
        torch.manual_seed(0)
        for gate in model.gates().values():
            gate.resample(torch.Generator().manual_seed(1))
        inputs = (one, ) if gates else (one, two)
        sum(out.square().sum() for x in inputs for out in model(x)).backward()
    for (name, a), b in zip(plain.named_parameters(), checkpointed.parameters()):
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, msg=name)
    assert plain.layers[0].attn.operator.conv.weight.grad.any()
    with torch.no_grad():
        assert torch.equal(plain(two)[0], checkpointed(two)[0])


@pytest.mark.parametrize('kwargs, operator', [
    (dict(VIT, out_type='featmap', with_cls_token=False), 'spvit'),
    (dict(VIT, num_registers=2), 'spvit'), (dict(VIT, num_registers=2), 'dwconv')])
def test_onnx_with_dynamic_sizes(kwargs, operator, tmp_path):
    pytest.importorskip('onnxruntime')
    model = build(kwargs, operator=operator)
    model.search_space.slice_to(structure(model, [[], [0, 2], [0, 1, 2, 3]]))
    report = export_onnx(model, tmp_path / 'm.onnx', (3, 32, 32), batch_sizes=(1, 3))
    assert report.dynamic_size and not report.notice
    assert len(report.errors) == 4 and max(report.errors.values()) < 1e-4


@pytest.mark.parametrize('dynamic', [False, True])
def test_onnx_with_another_position_embedding(dynamic, tmp_path):
    onnx = pytest.importorskip('onnx')
    model = build(dict(VIT, out_type='featmap'))
    model.search_space.slice_to(structure(model, [[], [0, 2], [0, 1, 2, 3]]))
    before = copy.deepcopy(model.state_dict())
    report = export_onnx(model, tmp_path / 'm.onnx', (3, 48, 40), dynamic, batch_sizes=(2, ))
    operators = {node.op_type for node in onnx.load(tmp_path / 'm.onnx').graph.node}
    assert report.dynamic_size == dynamic and ('Resize' in operators or not dynamic)
    assert max(report.errors.values()) < 1e-4
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_subnet_compiles_without_a_break():
    model = build(dict(VIT, out_type='featmap', num_registers=1))
    model.search_space.slice_to(structure(model, [[], [0, 2], [0, 1, 2, 3]]))
    x = torch.randn(2, 3, 32, 32)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], model(x)[0])


@pytest.mark.parametrize('with_cls_token', [True, False])
@pytest.mark.parametrize('size', [32, 48])
def test_foundation_checkpoint_at_another_size_with_or_without_its_class_token(
        with_cls_token, size, tmp_path):
    theirs = randomise(VisionTransformer(**dict(VIT, img_size=48)))
    state = {f'backbone.{key}': value for key, value in theirs.state_dict().items()}
    state['backbone.mask_token'] = torch.zeros(1, 1, 24)
    save_checkpoint(dict(state_dict=state), str(tmp_path / 'foundation.pth'))
    model = DWConvVisionTransformer(
        **dict(VIT, img_size=size), with_cls_token=with_cls_token, out_type='featmap',
        init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'foundation.pth')))
    model.init_weights()
    expected = resize_pos_embed(theirs.pos_embed, (6, 6), (size // 8, size // 8))
    torch.testing.assert_close(model.pos_embed, expected[:, 0 if with_cls_token else 1:])
    assert torch.equal(model.layers[2].attn.qkv.weight, theirs.layers[2].attn.qkv.weight)
    if with_cls_token:
        assert torch.equal(model.cls_token, theirs.cls_token)


# ---- heads chosen by blocks or scores ---------------------------------------------------------


def scores_file(path, seed=0):
    scores = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed))
    names = [f'layers.{i}.attn.head_operator' for i in range(3)]
    path.write_text(json.dumps(dict(images=9, scores=dict(zip(names, scores.tolist())))))
    return scores, names


@pytest.mark.parametrize('name', every_nth(3, CASES))
@pytest.mark.parametrize('choice', ['blocks', 'scores', 'scattered'])
def test_chosen_heads_start_from_the_dense_network(name, choice, tmp_path):
    """By init_cfg, from a list or scores: what replacement makes of the dense network."""
    kwargs, size = dict(NETWORKS[name].kwargs), NETWORKS[name].size
    operator = kwargs.pop('operator')
    scores, names = scores_file(tmp_path / 'scores.json')
    dense = build(kwargs, 1)
    if choice == 'scattered':
        lowest = scores.flatten().sort().indices[:5].tolist()
        kept = [[head for head in range(4) if 4 * i + head not in lowest] for i in range(3)]
        given = dict(scores=str(tmp_path / 'scores.json'), replace=5, scattered=True)
    elif choice == 'scores':
        first = int(scores.mean(1).argmax())
        kept = [[] if i == first else [0, 1, 2, 3] for i in range(3)]
        given = dict(scores=str(tmp_path / 'scores.json'), replace=1 / 3, which='highest')
    else:
        kept, given = [[], [0, 1, 2, 3], []], dict(blocks=[2, 0])
    save_checkpoint(dict(state_dict=dense.state_dict()), str(tmp_path / 'dense.pth'))
    model = DWConvVisionTransformer(
        **kwargs, structure=dict(given, operator=operator),
        init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'dense.pth')))
    model.init_weights()
    model.eval()
    for site in dense.search_space.sites.values():
        site.operator = operator
    wanted = structure(dense, kept)
    assert model.search_space.structure.sites == wanted.sites
    dense.search_space.slice_to(wanted)
    x = torch.randn(2, 3, *size)
    for found, expected in zip(outputs(model, x), outputs(dense, x)):
        assert torch.equal(found, expected)
    # its own checkpoint is loaded as it is
    randomise(model, 5)
    again = build(kwargs, structure=dict(given, operator=operator))
    again.load_state_dict(copy.deepcopy(model.state_dict()), strict=True)
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), outputs(again, x)))


@pytest.mark.parametrize('gates', [dict(mlp_channels=CHANNELS), None])
def test_chosen_heads_beside_channels(gates):
    dense = build(VIT, 1)
    model = KCRDWConvVisionTransformer(**VIT, gates=gates, structure=dict(blocks=[1]))
    missing, surplus = model.load_state_dict(dense.state_dict(), strict=False)
    assert not surplus and all('.gate.' in key for key in missing)
    assert torch.equal(model.layers[1].attn.qkv.weight, dense.layers[1].attn.qkv.weight[48:])


@pytest.mark.parametrize('choice, message', [
    (dict(blocks=[3]), r'different numbers from 0 to 2, found \[3\]'),
    (dict(blocks=[1, 1]), r'found \[1, 1\]'), (dict(blocks='all'), "found 'all'"),
    (dict(blocks=[1], which='lowest'), r"found \['blocks', 'which'\]"),
    (dict(blocks=[1], operator='pool'), "found 'pool'"),
    (dict(scores='scores.json'), 'blocks to replace, found None'),
    (dict(scores='scores.json', replace=4), 'from 0 to 3 blocks'),
    (dict(scores='scores.json', replace=13, scattered=True), 'from 0 to 12 heads'),
    (dict(scores='other.json', replace=1), '4 numbers at site `layers.2.attn.head_operator`'),
    (dict(scores='list.json', replace=1), '4 numbers at site `layers.0.attn.head_operator`'),
    (dict(blocks=[1], scores='scores.json'), 'with `blocks` and'),
])
def test_bad_choices_of_heads(choice, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores, names = scores_file(tmp_path / 'scores.json')
    (tmp_path / 'other.json').write_text(json.dumps(dict(
        scores=dict(zip(names[:2], scores.tolist())))))
    (tmp_path / 'list.json').write_text('[1]')
    with pytest.raises(ValueError, match=message):
        DWConvVisionTransformer(**VIT, structure=choice)


# ---- channels of the MLPs beside heads --------------------------------------------------------


@pytest.mark.parametrize('operator, target', [
    (None, None), (None, 0.7), ('dwconv', 0.7), *((operator, None) for operator in OPERATORS)])
def test_one_structure_file_for_heads_and_channels(operator, target, tmp_path):
    """Searched together, or channels on a network whose heads a file has replaced."""
    gates, fixed = dict(mlp_channels=CHANNELS), None
    if operator is None:
        gates['head_operator'] = BLOCKS
    else:
        heads = build(VIT, operator=operator)  # the parent class, which has no sites at the MLPs
        fixed = structure(heads, [[], [0, 2], [0, 1, 2, 3]])
        heads.search_space.slice_to(fixed)
    model = build(VIT, cls=KCRDWConvVisionTransformer, gates=gates, structure=fixed).double()
    if fixed is not None:
        own = [f'{site}.gate.' for site in model.gates()]
        missing, unexpected = model.load_state_dict(heads.state_dict(), strict=False)
        assert not unexpected and all(key.startswith(tuple(own)) for key in missing)
    before, x = list(model.state_dict()), torch.randn(2, 3, 40, 32)
    subnet, found = slim(model, target, 1, (3, 40, 32))
    assert list(found.sites) == [f'layers.{i}.{kind}' for i in range(3)
                                 for kind in ('attn.head_operator', 'ffn.mlp_channels')]
    for site, gate in model.gates().items():
        if not gate.decided:
            gate.alpha.data.fill_(-1.)[found.sites[site].kept] = 1.
    assert_same(outputs(model, x), outputs(subnet, x))
    assert count_macs(subnet, (3, 40, 32)) == found.macs['subnet']
    assert found.params['subnet'] == sum(p.numel() for p in subnet.parameters())
    if target:
        assert found.macs['subnet'] <= target * found.macs['dense']
    if fixed is not None:  # heads that are fixed are folded
        assert {site.operator for site in found.sites.values()} == {None, folded_name(operator)}
        assert all(found.sites[name].kept == site.kept for name, site in fixed.sites.items())
        assert not any('logits' in key for key in subnet.state_dict())
        assert before == list(model.state_dict())  # the search itself goes on as it was
    found.save(tmp_path / 's.json')
    again = KCRDWConvVisionTransformer(**VIT, structure=str(tmp_path / 's.json')).double()
    again.load_state_dict(subnet.state_dict(), strict=True)
    again.eval()
    assert_same(outputs(subnet, x), outputs(again, x))
    assert not holders(again)


def published():
    """The foundation models by the arguments that a config gives them."""
    clip = dict(pre_norm=True, norm_cfg=dict(type='LN', eps=1e-5),
                layer_cfgs=dict(act_cfg=dict(type='mmpretrain.QuickGELU')))
    return {
        'dinov2-base': dict(patch_size=14, layer_scale_init_value=1e-5),
        'dinov2-large': dict(patch_size=14, layer_scale_init_value=1e-5),
        'base': clip, 'large': dict(clip, patch_size=14), 'deit-small': {},
    }


@pytest.mark.parametrize('arch', published())
def test_published_architectures(arch):
    from lab.model_zoo import uninitialized
    kwargs = published()[arch]
    with uninitialized():
        model = DWConvVisionTransformer(arch=arch, **kwargs)
        expected = VisionTransformer(arch=dict(model.arch_settings), **kwargs).state_dict()
    depth, heads = {'dinov2-large': (24, 16), 'large': (24, 16), 'deit-small': (12, 6)}.get(
        arch, (12, 12))
    assert model.search_space.totals() == {
        f'layers.{i}.attn.head_operator': heads for i in range(depth)}
    assert list(model.state_dict()) == list(expected)


@pytest.mark.parametrize('build_it, message', [
    (lambda s: DWConvVisionTransformer(**VIT, operator='dw'), "found 'dw'"),
    (lambda s: DWConvVisionTransformer(**VIT, gates=dict(mlp_channels=CHANNELS)),
     "by kind among .'head_operator'., found"),
    (lambda s: DWConvVisionTransformer(**VIT, gates=BLOCKS, structure=s), 'found both'),
    (lambda s: DWConvVisionTransformer(**VIT, gates=dict(BLOCKS, count=4)), 'at most the 3 blocks'),
    (lambda s: DWConvVisionTransformer(**VIT, structure=edited(s, 'operator', 'pool')),
     '`operator` among .*at site `layers.0.attn.head_operator`, found `pool`'),
    (lambda s: DWConvVisionTransformer(**VIT, structure=edited(s, 'total', 8)), 'expected 4 units'),
    (lambda s: KCRVisionTransformer(**VIT, structure=dict(blocks=[1])),
     'replaceable heads for `blocks`, found `KCRVision'),
    (lambda s: KCRDWConvVisionTransformer(**VIT, structure=s),
     'found site `layers.0.ffn.mlp_channels` only in the backbone'),
    (lambda s: KCRDWConvVisionTransformer(**VIT, gates=dict(mlp_channels=CHANNELS),
                                          structure=edited(s, 'name', 'layers.9.attn')),
     'site `layers.0.attn.head_operator` only in the backbone'),
])
def test_refusals(build_it, message):
    with pytest.raises(ValueError, match=message):
        build_it(structure(build(VIT), [[], [0, 2], [0, 1, 2, 3]]))


def edited(found, key, value):
    data = found.to_dict()
    site = data['sites'].pop('layers.0.attn.head_operator')
    name = value if key == 'name' else 'layers.0.attn.head_operator'
    data['sites'][name] = site if key == 'name' else dict(site, **{key: value})
    return Structure.load(data)


def test_positions_of_a_map_whose_patches_are_a_square_and_one():
    """5 x 2 patches without a class token are as many entries as 3 x 3 with one."""
    vit = dict(VIT, img_size=(40, 16), with_cls_token=False, out_type='featmap')
    model = DWConvVisionTransformer(**vit)
    model.pos_embed.data.normal_()
    again = DWConvVisionTransformer(**vit)
    again.load_state_dict(model.state_dict(), strict=True)
    assert model.pos_embed.shape[1] == 10 and torch.equal(again.pos_embed, model.pos_embed)
