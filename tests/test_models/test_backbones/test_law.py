"""The law: supernet with hard gates equals subnet; the dense state is the host's class.

The law is tested in fp64, so that it says the same on every machine.
"""

import json

import mmpretrain.models as host
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.runner import load_state_dict

from mmkcr.apis import slim
from mmkcr.core import Structure
from mmkcr.core.sites import holders
from mmkcr.models import KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models.layers import Put, SlicedLayerNorm
from mmkcr.registry import MODELS
from .law import assert_same, outputs

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)
VIT = dict(arch=dict(embed_dims=24, num_layers=3, num_heads=2, feedforward_channels=48),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=12, depths=[2, 2, 2], num_heads=[2, 2, 4]), img_size=56,
            window_size=4, patch_size=4, drop_path_rate=0.)
CASES = [
    pytest.param(KCRVisionTransformer, dict(VIT, out_indices=(0, -1)), (32, 32), id='vit-cls'),
    pytest.param(KCRVisionTransformer, dict(VIT, out_type='featmap', out_indices=[1, 2]),
                 (40, 24), id='vit-featmap'),
    pytest.param(KCRVisionTransformer, dict(VIT, out_type='avg_featmap', with_cls_token=False,
                                            layer_scale_init_value=0.3), (48, 32), id='vit-avg'),
    pytest.param(KCRVisionTransformer, dict(VIT, layer_cfgs=dict(ffn_type='swiglu_fused')),
                 (32, 32), id='vit-swiglu'),
    pytest.param(KCRSwinTransformer, dict(SWIN, out_indices=(2, )), (56, 56), id='swin-cls'),
    pytest.param(KCRSwinTransformer, dict(SWIN, out_indices=(0, 1, 2), pad_small_map=True),
                 (61, 83), id='swin-dense-task'),
]
FUSED = pytest.param(KCRSwinTransformer, dict(SWIN, out_indices=(0, 1, 2), pad_small_map=True,
                                              fused_attention=True), (61, 83), id='swin-fused')


def randomise(model, seed=0):
    """Weights and gates at random; norms too, so that slicing them wrongly shows."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    return model


def supernet(cls, kwargs, seed=0):
    model = randomise(cls(**kwargs, gates=GATES), seed).double()
    model.eval()
    return model


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_dense_is_the_host_class_bit_for_bit(cls, kwargs, size):
    ours = randomise(cls(**kwargs))
    theirs = cls.__mro__[cls.__mro__.index(getattr(host, cls.__name__[3:]))](
        **{k: list(v) if isinstance(v, tuple) else v for k, v in kwargs.items()})
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.eval(), theirs.eval()
    x = torch.randn(2, 3, *size)
    for a, b in zip(outputs(ours, x), outputs(theirs, x)):
        assert torch.equal(a, b)


@pytest.mark.parametrize('cls, kwargs, size', [*CASES, FUSED])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), divisor=st.sampled_from([1, 8]))
def test_supernet_with_hard_gates_equals_subnet(cls, kwargs, size, seed, divisor):
    model = supernet(cls, kwargs, seed)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed))
    subnet, structure = slim(model, None, 1, (3, *size))
    assert_same(outputs(model, x), outputs(subnet, x))
    assert sum(structure.sizes().values()) < sum(s.total for s in structure.sites.values())
    # a budget moves the threshold: the law holds for those gates as well
    subnet, structure = slim(model, 0.85, divisor, (3, *size))
    for site, gate in model.gates().items():
        gate.alpha.data.fill_(-1.)[structure.sites[site].kept] = 1.
    assert_same(outputs(model, x), outputs(subnet, x))


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_subnet_from_its_file_and_state_dict(cls, kwargs, size, tmp_path):
    model = supernet(cls, kwargs)
    subnet, structure = slim(model, 0.8, 1, (3, *size))
    structure.save(tmp_path / 's.json')
    config = dict(type=f'mmkcr.{cls.__name__}', structure=str(tmp_path / 's.json'), **kwargs)
    again = MODELS.build(config).double()
    again.load_state_dict(subnet.state_dict(), strict=True)
    again.eval()
    x = torch.randn(1, 3, *size)
    assert_same(outputs(subnet, x), outputs(again, x))
    assert not holders(again) and not again.gates()
    # nothing but the host's modules inside, and what takes and puts channels
    assert {type(m).__name__ for m in again.modules() if type(m).__module__.startswith('mmkcr')
            } == {cls.__name__, 'SlicedLayerNorm', 'Put'}
    total = sum(p.numel() for p in again.parameters())
    assert total == structure.params['subnet'] < structure.params['dense']
    # the file's own arguments build it too
    assert MODELS.build(dict(structure.backbone, structure=structure)).sites() == model.sites()


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_dense_checkpoint_loads_into_supernet_apart_from_gates(cls, kwargs, size):
    dense, model = randomise(cls(**kwargs), 3), cls(**kwargs, gates=GATES)
    missing, unexpected = model.load_state_dict(dense.state_dict(), strict=False)
    assert not unexpected
    assert sorted(missing) == sorted(f'{site}.gate.alpha' for site in model.sites())
    for key, value in dense.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


def test_published_architectures_have_the_expected_sites():
    vit, swin = KCRVisionTransformer(arch='deit-small'), KCRSwinTransformer(arch='tiny')
    assert vit.sites() == {f'layers.{i}.ffn.mlp_channels': 384 for i in range(12)}
    assert swin.sites() == {
        f'stages.{s}.blocks.{b}.ffn.mlp_channels': 96 * 2**s
        for s, depth in enumerate([2, 2, 6, 2]) for b in range(depth)
    }


@pytest.mark.parametrize('cls, kwargs, size', CASES[:1] + CASES[-1:])
def test_gradients_reach_everything_and_checkpointing_changes_nothing(cls, kwargs, size):
    model = randomise(cls(**kwargs, gates=GATES))
    if 'window_size' in kwargs:
        for block in (m for m in model.modules() if hasattr(m, 'with_cp')):
            block.with_cp = True
    for gate in model.gates().values():
        gate.resample(torch.Generator().manual_seed(1))
    x = torch.randn(2, 3, *size, requires_grad=True)
    with_checkpoint = model(x)
    sum(out.square().mean() for out in with_checkpoint).backward()
    absent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    allowed = {'pos_embed'} if 'window_size' not in kwargs else set()
    assert not [name for name in absent if name not in allowed]
    for block in (m for m in model.modules() if hasattr(m, 'with_cp')):
        block.with_cp = False
    for a, b in zip(with_checkpoint, model(x)):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_subnet_trains_like_the_masked_supernet():
    """Gradients of the kept entries agree, those of dropped entries are zero."""
    model = supernet(KCRVisionTransformer, VIT)
    subnet, structure = slim(model, 0.85, 1, (3, 32, 32))
    for site, gate in model.gates().items():
        gate.alpha.data.fill_(-1.)[structure.sites[site].kept] = 1.
    x = torch.randn(2, 3, 32, 32).double()
    for net in (model, subnet):
        net.zero_grad()
        net(x)[-1].square().sum().backward()
    kept = torch.tensor(structure.sites['layers.1.ffn.mlp_channels'].kept)
    dense, sliced = model.layers[1], subnet.layers[1]
    full = dense.ffn.layers[0][0].weight.grad
    torch.testing.assert_close(full[:, kept], sliced.ffn.layers[0][0].weight.grad)
    assert full.abs().sum() == pytest.approx(float(full[:, kept].abs().sum()), rel=1e-12)
    torch.testing.assert_close(dense.ffn.layers[1].bias.grad[kept],
                               sliced.ffn.layers[1].bias.grad)
    torch.testing.assert_close(dense.ln2.weight.grad[kept], sliced.ln2.weight.grad)
    torch.testing.assert_close(model.patch_embed.projection.weight.grad,
                               subnet.patch_embed.projection.weight.grad)


def test_subnet_keeps_frozen_stages_and_modes():
    structure = slim(supernet(KCRVisionTransformer, VIT), 0.8, 1, (3, 32, 32))[1]
    subnet = KCRVisionTransformer(**VIT, frozen_stages=2, structure=structure)
    frozen = {name for name, p in subnet.named_parameters() if not p.requires_grad}
    assert {n for n in frozen if '.ffn.' in n} == {
        n for n, _ in subnet.named_parameters() if '.ffn.' in n and not n.startswith('layers.2')
    }
    layer = subnet.layers[0]
    assert isinstance(layer.ln2, SlicedLayerNorm) and isinstance(layer.ffn.dropout_layer[-1], Put)
    assert not any(module.training for module in layer.modules())
    assert all(module.training for module in subnet.layers[2].modules())


def test_upgrades_keys_of_old_swin_checkpoints():
    model = KCRSwinTransformer(**SWIN, out_indices=(2, ))
    new = randomise(KCRSwinTransformer(**SWIN, out_indices=(2, ))).state_dict()
    state = {k.replace('norm2.', 'norm.') if k.startswith('norm2.') else k: v
             for k, v in new.items()}
    state['stages.0.blocks.1.attn.attn_mask'] = torch.zeros(1)
    expected = state['norm.weight'].clone()
    load_state_dict(model, dict(state), strict=True)
    assert torch.equal(model.norm2.weight, expected)


# ---- refusals ---------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def vit_structure():
    return slim(supernet(KCRVisionTransformer, VIT), 0.8, 1, (3, 32, 32))[1]


def test_wrong_checkpoints_are_refused_whole(vit_structure):
    other = dict(VIT, arch=dict(VIT['arch'], embed_dims=32))
    dense, wide = KCRVisionTransformer(**VIT), KCRVisionTransformer(**other)
    gated = KCRVisionTransformer(**VIT, gates=GATES)
    subnet = KCRVisionTransformer(**VIT, structure=vit_structure)
    partial = {k: v for k, v in dense.state_dict().items() if not k.startswith('layers.1')}
    for target, state, message in [
        (subnet, dense.state_dict(), 'checkpoint of the subnet .*0 missing.*mis-shaped'),
        (dense, subnet.state_dict(), 'checkpoint of the dense .*unexpected .*kept'),
        (dense, wide.state_dict(), 'checkpoint of the dense .*mis-shaped'),
        (dense, gated.state_dict(), '3 unexpected .layers.0.ffn.mlp_channels.gate.alpha'),
        (gated, partial, 'checkpoint of the supernet .*missing .layers.1'),
    ]:
        before = {k: v.clone() for k, v in target.state_dict().items()}
        with pytest.raises(ValueError, match=message):
            load_state_dict(target, state, strict=False)  # mmengine's loader, which only warns
        assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


@settings(max_examples=25, deadline=None)
@given(site=st.integers(0, 2), seed=st.integers(0, 99))
def test_checkpoint_of_an_edited_structure_is_refused_by_site(vit_structure, site, seed):
    """Same count, other channels: the shapes agree, the channels do not."""
    data = json.loads(vit_structure.dumps())
    name = f'layers.{site}.ffn.mlp_channels'
    kept, total = data['sites'][name]['kept'], data['sites'][name]['total']
    dropped = sorted(set(range(total)) - set(kept))
    generator = torch.Generator().manual_seed(seed)
    kept[int(torch.randint(len(kept), (), generator=generator))] = dropped[
        int(torch.randint(len(dropped), (), generator=generator))]
    kept.sort()
    edited = KCRVisionTransformer(**VIT, structure=Structure.load(data))
    original = KCRVisionTransformer(**VIT, structure=vit_structure)
    before = {k: v.clone() for k, v in edited.state_dict().items()}
    state = original.state_dict()
    with pytest.raises(ValueError, match='found other kept units'):
        edited.load_state_dict(state)
    del state['kept_units']  # as files had it before: the units of each site
    state.update({f'{site}.kept': torch.tensor(entry.kept)
                  for site, entry in vit_structure.sites.items()})
    with pytest.raises(ValueError, match=f'site `{name}`'):
        edited.load_state_dict(state)
    assert all(torch.equal(v, before[k]) for k, v in edited.state_dict().items())


@pytest.mark.parametrize('build, message', [
    (lambda s: KCRSwinTransformer(**SWIN, out_indices=(2, ), structure=s),
     'for `KCRSwinTransformer`, found one for'),
    (lambda s: KCRVisionTransformer(**dict(VIT, arch='deit-tiny'), structure=s),
     'site `layers.0.ffn.mlp_channels`, found a structure for 24|found site `layers.10.ffn'),
    (lambda s: KCRVisionTransformer(**VIT, structure=s, gates=GATES), 'found both'),
    (lambda s: KCRVisionTransformer(arch='deit-smal'), "among .*deit-small.*, found 'deit-smal'"),
    (lambda s: KCRVisionTransformer(**VIT, layer_cfgs=dict(num_fcs=3), gates=GATES),
     r"has, of \['head_operator', .* found `mlp_channels` .an `FFN` of 3 layers"),
    (lambda s: KCRVisionTransformer(**VIT, structure='no/such.json'), '`no/such.json`, found none'),
])
def test_refusals(build, message, vit_structure):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        build(vit_structure)
