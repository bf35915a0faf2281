"""The laws of all methods: dense = host, supernet with hard gates = subnet = its file, exact MACs.

And what channel selection (KCR) has of its own.
"""

import itertools
import json

import pytest
import torch
from mmengine.runner import load_state_dict
from mmpretrain.models import MobileViT, ResNet, SwinTransformer, VisionTransformer

from lab.model_zoo import uninitialized
from long_form import every_nth
from mmkcr.apis import count_macs, slim
from mmkcr.core import MacsModel, Structure, count_params
from mmkcr.core.products import added_layers
from mmkcr.core.sites import holders
from mmkcr.methods.named import KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models import EfficientViT
from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.selection import Put
from mmkcr.models.tasks import task_forward
from mmkcr.registry import MODELS
from .law import (
    CHANNELS,
    NETWORKS,
    OPTIONS,
    SWIN,
    VIT,
    assert_same,
    decide,
    outputs,
    randomise,
    scene,
    supernet,
)

pytestmark = pytest.mark.usefixtures('exact_positions')
HOSTS = VisionTransformer, SwinTransformer, ResNet, MobileViT, EfficientViT
#: Arguments that no host has.
OWN = 'local', 'num_registers', 'operator', 'qk_mask'
#: Ours in subnets of the hosts' layers: what takes and puts channels, and attention that is
#: narrower than its input.
LAYERS = dict(kcr={'SlicedLayerNorm', 'Put'}, ofb={'SizedWindowAttention'})
GUMBEL = [name for name, network in NETWORKS.items()
          if network.gates['type'] == 'mmkcr.GumbelChannelGate']
every = pytest.mark.parametrize('name', NETWORKS)
#: From the last one on: some of each class.
every_second = pytest.mark.parametrize('name', every_nth(2, reversed(NETWORKS)))


@every
def test_dense_is_the_host_class_bit_for_bit(name):
    cls, _, kwargs, size = NETWORKS[name]
    ours = randomise(cls(**kwargs))
    host = next(base for base in cls.__mro__ if base in HOSTS)
    theirs = host(**{key: list(value) if isinstance(value, tuple) else value
                     for key, value in kwargs.items() if key not in OWN})
    state = {key: value for key, value in ours.state_dict().items() if key != 'register_tokens'}
    assert list(state) == list(theirs.state_dict())
    theirs.load_state_dict(state, strict=True)
    theirs.train(False)
    x = torch.randn(2, 3, *size)
    registers = kwargs.get('num_registers', 0)  # tokens of ours, which all others read
    for a, b in zip(outputs(ours, x), outputs(theirs, x), strict=True):
        if registers:
            more = registers if kwargs['out_type'] == 'raw' else 0
            assert a.shape == (len(b), b.shape[1] + more, *b.shape[2:])
        else:
            assert torch.equal(a, b)
    assert not added_layers(ours) and not ours.gates()


@every
def test_supernet_with_hard_gates_equals_subnet(name):
    model, subnet, structure = scene(name)
    cls, _, _, size = NETWORKS[name]
    others = ((32, 64), (33, 47)) if structure.method == 'dcs' else ()  # masks follow the size
    for each in (size, *others):
        x = torch.randn(2, 3, *each)
        assert_same(outputs(model, x), outputs(subnet, x))
    assert sum(structure.sizes().values()) < sum(s.total for s in structure.sites.values())
    assert cls.__name__.lower().startswith(structure.method)


@pytest.mark.parametrize('name, divisor', every_nth(3, [
    *itertools.product(GUMBEL, [1, 4]),
    *((name, 1) for name, network in NETWORKS.items() if network.gates is OPTIONS)]))
def test_gates_that_a_budget_or_a_divisor_moves(name, divisor):
    model, (cls, gates, _, size) = supernet(name, divisor), NETWORKS[name]
    # elsewhere masks may cost more than channels save
    plain = cls in (KCRVisionTransformer, KCRSwinTransformer)
    target = 0.85 if plain else 0.6 if gates is OPTIONS else None
    subnet, structure = slim(model, target, divisor, (3, *size))
    if target:
        assert 0.9 * target < structure.macs['subnet'] / structure.macs['dense'] <= target
    decide(model, structure)
    x = torch.randn(2, 3, *size)
    assert_same(outputs(model, x), outputs(subnet, x))


@every_second
def test_inference_is_deterministic_and_the_same_alone_and_in_a_batch(name):
    subnet, x = scene(name)[1], torch.randn(3, 3, *NETWORKS[name].size)
    found = outputs(subnet, x)
    assert all(torch.equal(a, b) for a, b in zip(found, outputs(subnet, x)))
    alone = [outputs(subnet, image[None]) for image in x]
    assert_same(found, [torch.cat(level) for level in zip(*alone)])


@every_second
def test_subnet_from_its_file_and_state_dict(name, tmp_path):
    model, subnet, structure = scene(name)
    cls, _, kwargs, size = NETWORKS[name]
    structure.save(tmp_path / 's.json')
    again = MODELS.build(dict(kwargs, type=f'mmkcr.{cls.__name__}',
                              structure=str(tmp_path / 's.json'))).double()
    again.load_state_dict(subnet.state_dict(), strict=True)
    again.train(False)
    x = torch.randn(1, 3, *size)
    assert_same(outputs(subnet, x), outputs(again, x))
    assert not holders(again) and not again.gates()
    assert count_params(again) == structure.params['subnet']
    if structure.method in LAYERS and not issubclass(cls, EfficientViT):
        assert {type(m).__name__ for m in again.modules() if type(m).__module__.startswith('mmkcr')
                } <= LAYERS[structure.method] | {cls.__name__}
    # the file's own arguments build it too
    data = json.loads((tmp_path / 's.json').read_text())
    own = MODELS.build(dict(data['backbone'], structure=Structure.load(data)))
    assert list(own.state_dict()) == list(subnet.state_dict())
    assert own.search_space.totals() == model.search_space.totals()


@every_second
def test_dense_checkpoint_loads_into_supernet_apart_from_what_is_added(name):
    cls, gates, kwargs, _ = NETWORKS[name]
    dense, model = randomise(cls(**kwargs), 3), cls(**kwargs, gates=gates)
    missing, unexpected = model.load_state_dict(dense.state_dict(), strict=False)
    added = *added_layers(model), *(f'{site}.gate' for site in model.search_space.sites)
    assert not unexpected
    assert missing == [key for key in model.state_dict()
                       if key.startswith(tuple(f'{path}.' for path in added))]
    assert {f'{site}.gate.alpha' for site in model.search_space.sites} <= set(missing)
    assert all(torch.equal(model.state_dict()[key], value)
               for key, value in dense.state_dict().items())
    with pytest.raises(ValueError, match='checkpoint of the subnet'):
        scene(name)[1].load_state_dict(dense.state_dict(), strict=False)
    with pytest.raises(ValueError, match='checkpoint of the dense'):
        dense.load_state_dict(model.state_dict())


@every
def test_macs_and_parameters_are_exact(name):
    model, subnet, structure = scene(name)
    cls, _, kwargs, size = NETWORKS[name]
    dense, shape = cls(**kwargs), (3, *size)
    macs = MacsModel(model, model, model.search_space.gated_sites(), task_forward(model, shape))
    assert macs.dense == count_macs(dense, shape) == structure.macs['dense']
    assert macs(structure.sizes()) == count_macs(subnet, shape) == structure.macs['subnet']
    assert structure.params == dict(dense=count_params(dense), subnet=count_params(subnet))


@pytest.mark.parametrize('name', GUMBEL)
def test_gradients_reach_everything(name):
    cls, gates, kwargs, size = NETWORKS[name]
    model = randomise(cls(**kwargs, gates=gates))
    model.train()
    for module in model.modules():
        if hasattr(module, 'resample'):
            module.resample(torch.Generator().manual_seed(1))
    sum(out.square().mean() for out in model(torch.randn(2, 3, *size))).backward()
    absent = [name for name, p in model.named_parameters()
              if p.grad is None or not p.grad.any() or not p.grad.isfinite().all()]
    assert not absent


# ---- channel selection --------------------------------------------------------------------------


def test_published_architectures_have_the_expected_sites():
    with uninitialized():
        vit, swin = KCRVisionTransformer(arch='deit-small'), KCRSwinTransformer(arch='tiny')
    assert vit.search_space.totals() == {f'layers.{i}.ffn.mlp_channels': 384 for i in range(12)}
    assert swin.search_space.totals() == {
        f'stages.{s}.blocks.{b}.ffn.mlp_channels': 96 * 2**s
        for s, depth in enumerate([2, 2, 6, 2]) for b in range(depth)
    }


def test_checkpointing_changes_nothing():
    cls, gates, kwargs, size = NETWORKS['swin-dense-task']
    model = randomise(cls(**kwargs, gates=gates))
    model.train()
    for gate in model.gates().values():
        gate.resample(torch.Generator().manual_seed(1))
    x, found = torch.randn(2, 3, *size), []
    for with_cp in (False, True):
        for block in (module for module in model.modules() if hasattr(module, 'with_cp')):
            block.with_cp = with_cp
        found.append(model(x))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    sum(out.square().mean() for out in found[1]).backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


def test_subnet_keeps_frozen_stages_and_modes():
    subnet = KCRVisionTransformer(**VIT, frozen_stages=2, structure=scene('vit-cls')[2])
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


def test_wrong_checkpoints_are_refused_whole():
    other = dict(VIT, arch=dict(VIT['arch'], embed_dims=32))
    dense, wide = KCRVisionTransformer(**VIT), KCRVisionTransformer(**other)
    gated = KCRVisionTransformer(**VIT, gates=CHANNELS)
    subnet = KCRVisionTransformer(**VIT, structure=scene('vit-cls')[2])
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


@pytest.mark.parametrize('number, place', [(0, 0), (1, 5), (2, -1)])
def test_checkpoint_of_an_edited_structure_is_refused_by_site(number, place):
    """Same count, other channels: the shapes agree, the channels do not."""
    structure, name = scene('vit-cls')[2], f'layers.{number}.ffn.mlp_channels'
    data = json.loads(structure.dumps())
    kept, total = data['sites'][name]['kept'], data['sites'][name]['total']
    kept[place] = sorted(set(range(total)) - set(kept))[place]
    kept.sort()
    edited = KCRVisionTransformer(**VIT, structure=Structure.load(data))
    before = {k: v.clone() for k, v in edited.state_dict().items()}
    state = KCRVisionTransformer(**VIT, structure=structure).state_dict()
    with pytest.raises(ValueError, match='found other kept units'):
        edited.load_state_dict(state)
    assert all(torch.equal(v, before[k]) for k, v in edited.state_dict().items())


@pytest.mark.parametrize('build, message', [
    (lambda s: KCRSwinTransformer(**SWIN, out_indices=(2, ), structure=s),
     'for `KCRSwinTransformer`, found one for'),
    (lambda s: KCRVisionTransformer(**dict(VIT, arch='deit-tiny'), structure=s),
     'site `layers.0.ffn.mlp_channels`, found a structure for 24|found site `layers.10.ffn'),
    (lambda s: KCRVisionTransformer(**VIT, structure=s, gates=CHANNELS), 'found both'),
    (lambda s: KCRVisionTransformer(arch='deit-smal'), "among .*deit-small.*, found 'deit-smal'"),
    (lambda s: KCRVisionTransformer(**VIT, layer_cfgs=dict(num_fcs=3), gates=CHANNELS),
     r"has, of \['head_operator', .* found `mlp_channels` .an `FFN` of 3 layers"),
    (lambda s: KCRVisionTransformer(**VIT, structure='no/such.json'), '`no/such.json`, found none'),
])
def test_refusals(build, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        build(scene('vit-cls')[2])
