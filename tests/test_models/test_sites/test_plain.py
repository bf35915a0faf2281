"""A subnet is as good as its host for the tools that are around: one subnet of every kind."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from lab.kind_coverage import FAMILIES, GATES, randomise
from long_form import few
from mmkcr.models import Searchable
from mmkcr.models.sites import KINDS
from ..test_backbones.law import assert_same

#: Family and kinds by name.
CASES = {
    'embedding': ('ViT', ['embedding']),
    'swin-embedding': ('Swin', ['embedding']),
    'head_operator': ('ViT', ['head_operator']),
    'heads': ('Swin', ['heads']),
    'heads-of-one-parameter': ('MiT (SegFormer)', ['heads']),
    'head_channels': ('ViT', ['head_channels']),
    'mlp_channels': ('Swin', ['mlp_channels']),
    'mlp_hidden': ('timm DINOv3', ['mlp_hidden']),
    'resnet-mlp_hidden': ('ResNet-50', ['mlp_hidden']),
    'attention_outputs': ('EfficientViT', ['attention_outputs', 'mlp_channels']),
    'qk_mask': ('ViT', ['qk_mask', 'mlp_channels']),
    'all': ('ViT', ['embedding', 'heads', 'mlp_hidden']),
}
MOST = {name for name in CASES if not name.startswith(('embedding', 'swin', 'heads-of'))}
EVERY = pytest.mark.parametrize('name', few(CASES, *sorted(MOST)))


def supernet_of(name, dtype=torch.float64):
    family, kinds = CASES[name]
    torch.manual_seed(0)
    gates = {kind: GATES[kind] for kind in kinds if kind in GATES}
    return randomise(Searchable(FAMILIES[family].build(), sites=kinds, gates=gates).to(dtype))


def subnet_of(name, dtype=torch.float64):
    """Sliced from a supernet with random gates."""
    supernet = supernet_of(name, dtype)
    space = supernet.search_space
    structure = space.structure_for({site: gate.selection()
                                     for site, gate in space.gates().items()})
    space.slice_to(structure)
    supernet.eval()
    return supernet


def dense_of(name):
    return randomise(FAMILIES[CASES[name][0]].build().double())


def images(name, dtype=torch.float64):
    size = FAMILIES[CASES[name][0]].size
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)).to(dtype)


def flat(outs):
    return [outs] if isinstance(outs, torch.Tensor) else [one for out in outs for one in flat(out)]


def outputs(model, x):
    with torch.no_grad():
        return flat(model(x))


def test_every_kind_of_a_backbone_has_a_case():
    """Channels of heads and necks are tried in whole models, in test_whole."""
    assert {kind for _, kinds in CASES.values() for kind in kinds} == set(KINDS) - {'channels'}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in tensors(part)] if isinstance(
        value, (list, tuple)) else []


def watched(model, x):
    """Paths of the modules that were called, and of those whose tensors were written to later."""
    def watch(module, args, out):
        seen.extend((path_of[module], tensor, tensor.clone())
                    for tensor in (*tensors(args), *tensors(out)))

    seen, path_of = [], {module: path for path, module in model.named_modules()}
    for module in model.modules():
        module.register_forward_hook(watch)
    outputs(model, x)
    return ({path for path, _, _ in seen},
            {path for path, tensor, then in seen if not torch.equal(tensor, then)})


@EVERY
def test_hooks_see_what_the_modules_computed(name):
    """Under ``no_grad`` nothing is written to later but by the host's own in-place activations."""
    model = subnet_of(name)
    layers = {path for path, module in model.named_modules()
              if isinstance(module, (nn.Linear, nn.Conv2d, nn.LayerNorm, nn.BatchNorm2d))}
    called, changed = watched(model, images(name))
    assert layers <= called
    assert changed <= watched(dense_of(name), images(name))[1]
    assert not changed or CASES[name][0] in ('ResNet-50', 'EfficientViT')


@EVERY
def test_copies_made_and_run_in_inference_mode(name):
    model, x = subnet_of(name), images(name)
    expected = outputs(model, x)
    with torch.inference_mode():
        again = copy.deepcopy(model)
        assert_same(flat(again(x.clone())), expected)
    assert_same(outputs(model, x), expected)
    model.train()
    sum(out.square().sum() for out in flat(model(x))).backward()  # nothing is left behind


@EVERY
def test_a_parameter_that_is_changed_in_place_changes_the_output(name):
    """Also after a forward that might have kept something derived from it: as in the host."""
    x = images(name)[:1]

    def changing(model):
        expected, found = outputs(model, x), set()
        for path, parameter in model.named_parameters():
            parameter.data.mul_(2.)
            now = outputs(model, x)
            parameter.data.div_(2.)
            if any(not torch.equal(a, b) for a, b in zip(now, expected)):
                found.add(path)
        return found

    model = subnet_of(name)
    own = {path for path, _ in model.named_parameters()}
    dense = dense_of(name)
    assert changing(model) >= changing(dense) & own
    fresh = subnet_of(name)
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    fresh.load_state_dict(model.state_dict())
    for a, b in zip(outputs(model, x), outputs(fresh, x)):
        assert torch.equal(a, b)


@EVERY
def test_dynamic_quantisation_converts_all_linear_layers(name):
    model, x = subnet_of(name, torch.float32), images(name, torch.float32)
    linear = {path for path, module in model.named_modules() if type(module) is nn.Linear}
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    found = {path for path, module in quantised.named_modules()
             if type(module) is torch.ao.nn.quantized.dynamic.Linear}
    assert found == linear
    assert bool(linear) == (CASES[name][0] not in (
        'ResNet-50', 'EfficientViT', 'MiT (SegFormer)'))
    for a, b in zip(outputs(quantised, x), outputs(model, x)):
        torch.testing.assert_close(a, b, rtol=0, atol=0.2 * float(b.abs().max()))


@pytest.mark.parametrize('name', few(
    CASES, 'head_operator', 'attention_outputs', 'qk_mask', 'all'))
def test_export_and_compile_without_a_break(name):
    model, x = subnet_of(name), images(name)
    expected = outputs(model, x)
    program = torch.export.export(model, (x, ))
    with torch.no_grad():
        assert_same(flat(program.module()(x)), expected)
    torch._dynamo.reset()
    assert_same(outputs(torch.compile(model, fullgraph=True, backend='eager'), x), expected)


# ---- copies of supernets and subnets ------------------------------------------------------------


def through_a_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@EVERY
@pytest.mark.parametrize('duplicate', [copy.deepcopy, through_a_file,
                                       lambda model: pickle.loads(pickle.dumps(model))],
                         ids=['deepcopy', 'torch.save', 'pickle'])
def test_masks_and_gates_follow_a_copy(name, duplicate):
    supernet, x = supernet_of(name), images(name)
    expected = outputs(supernet, x)
    other = duplicate(supernet)
    assert other.search_space is not supernet.search_space
    assert other.search_space.host is other
    assert_same(outputs(other, x), expected)
    for site, gate in other.search_space.gates().items():
        assert gate is other.get_submodule(f'{site}.gate')
        assert gate is not supernet.search_space.gates()[site]
        gate.alpha.data.neg_()
        if hasattr(gate, 'importance'):
            gate.importance.data.neg_()
    moved = outputs(other, x)
    assert any(not torch.allclose(a, b) for a, b in zip(moved, expected))
    assert_same(outputs(supernet, x), expected)
    # gradients go to the copy's gates alone
    other.train()
    sum(out.square().sum() for out in flat(other(x))).backward()
    assert all(gate.alpha.grad is not None for gate in other.search_space.gates().values())
    assert not any(p.grad is not None for p in supernet.parameters())
    other.eval()
    moved = outputs(other, x)  # the statistics of batch norms have moved
    # and the copy is sliced alone
    space = other.search_space
    space.slice_to(space.structure_for({site: gate.selection()
                                        for site, gate in space.gates().items()}))
    other.eval()
    assert_same(outputs(other, x), moved)
    assert_same(outputs(supernet, x), expected)
    assert_same(outputs(duplicate(other), x), moved)


@EVERY
def test_round_trip_of_a_supernets_state(name):
    supernet, again = supernet_of(name), supernet_of(name)
    for parameter in again.parameters():
        parameter.data.normal_()
    again.load_state_dict(supernet.state_dict(), strict=True)
    for a, b in zip(outputs(again, images(name)), outputs(supernet, images(name))):
        assert torch.equal(a, b)


def test_another_fixed_site_is_refused_before_anything_is_sliced():
    space = supernet_of('mlp_channels').search_space
    fixed = list(space.sites)[-1]
    space.fixed = {fixed: space.structure_for({}).sites[fixed]}  # as a structure left it
    fewer = copy.deepcopy(space.structure_for({name: torch.arange(4) for name in space.sites}))
    fewer.sites[fixed].kept = [0]
    with pytest.raises(ValueError, match=f'expected site `{fixed}` as the supernet has it'):
        space.slice_to(fewer)
    assert all(site.present == site.total for site in space.sites.values())
