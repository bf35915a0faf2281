"""The laws of bi-masked backbones: masked equals sliced at any time, so do AdamW's steps.

What they share with other methods is in ``test_law``.
"""

import copy

import pytest
import torch

from long_form import every_nth
from mmkcr.apis import count_macs, slim
from mmkcr.core import MacsModel
from mmkcr.methods.named import OFBVisionTransformer
from mmkcr.models.slicing import apply_decisions, copy_decisions, slice_site
from .law import NETWORKS, OFB_VIT, assert_same, outputs, randomise, scene, supernet

pytestmark = pytest.mark.usefixtures('exact_positions')
CASES = [name for name in NETWORKS if name.startswith('ofb-')]
every = pytest.mark.parametrize('name', CASES)


def drop_some(model, seed, share=0.6):
    """Let about 40 % of the options of every gate die, the largest among them."""
    generator = torch.Generator().manual_seed(seed)
    for gate in model.gates().values():
        alive = (torch.rand(gate.alive.shape, generator=generator) < share) & gate.alive
        alive[-1, -1] = False
        if not alive.any():
            alive.view(-1)[int(gate.alive.flatten().nonzero()[0])] = True
        gate.restrict(alive)


@every
def test_supernet_with_open_masks_is_the_dense_network(name):
    """w = 0 and the largest options: all masks are 1."""
    cls, gates, kwargs, size = NETWORKS[name]
    dense, model = randomise(cls(**kwargs), 3).double(), cls(**kwargs, gates=gates).double()
    model.load_state_dict(dense.state_dict(), strict=False)
    for gate in model.gates().values():
        gate.importance_weight.fill_(0.)
        gate.alpha.data[-1, -1] = 100.
    model.eval()
    x = torch.randn(2, 3, *size)
    assert_same(outputs(dense, x), outputs(model, x))


@every
@pytest.mark.parametrize('weight', every_nth(2, [0.99, 0.]))
def test_slicing_events_change_no_output(name, weight):
    model, size = supernet(name, 1, weight), NETWORKS[name].size
    x = torch.randn(2, 3, *size)
    for event in range(4):
        model.train(bool(event % 2))
        drop_some(model, event)
        model.train()
        train = outputs(model, x)
        model.eval()
        hard = outputs(model, x)
        sliced = apply_decisions(model.search_space.sites)
        assert sliced or event
        assert_same(hard, outputs(model, x))
        model.train()
        assert_same(train, outputs(model, x))
    for site, gate in model.gates().items():
        assert len(gate.importance) == gate.present <= gate.total, site
    model.eval()
    assert_same(outputs(model, x), outputs(slim(model, None, 1, (3, *size))[0], x))


# counting takes seconds, and what a backbone returns changes no count
@pytest.mark.parametrize('name', ['ofb-vit-cls', 'ofb-vit-avg', 'ofb-swin-dense-task',
                                  'ofb-resnet'])
def test_macs_of_the_expectation_are_those_of_the_built_subnet(name):
    """One-hot options: the expectation, the closed form and the counter agree exactly."""
    _, subnet, structure = scene(name)
    model, shape = supernet(name), (3, *NETWORKS[name].size)
    model.train()
    image = torch.zeros(1, *shape).double()
    sites = model.search_space.gated_sites()
    macs = MacsModel(model, model, sites, lambda: model(image))
    assert macs.dense == count_macs(model, shape)
    for gate in model.gates().values():
        gate.restrict(gate.only(int(gate.alpha.argmax())))
    expected = macs({site: gate.expected_size() for site, gate in model.gates().items()})
    assert float(expected.detach()) == pytest.approx(structure.macs['subnet'], rel=1e-12)  # fp64
    apply_decisions(model.search_space.sites)
    assert count_macs(model, shape) == count_macs(subnet, shape)
    assert MacsModel(model, model, sites, lambda: model(image)).dense == macs.dense


def step(model, optimizer, x):
    optimizer.zero_grad()
    sum(out.square().mean() for out in model(x)).backward()
    optimizer.step()


@every
def test_adamw_steps_after_slicing_are_the_masked_ones(name):
    """Moments belong to the right channels: two steps of the sliced and of the masked network."""
    # in fp64: Adam blows up rounding where a gradient is 0 in theory (the keys' bias)
    model = supernet(name)
    model.train()
    x = torch.randn(2, 3, *NETWORKS[name].size, dtype=torch.float64)

    def optimizer_of(net):
        return torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1, amsgrad=True)

    optimizer = optimizer_of(model)
    for _ in range(3):
        step(model, optimizer, x)
    masked = copy.deepcopy(model)
    masked_optimizer = optimizer_of(masked)
    masked_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    drop_some(model, 5, 0.8), drop_some(masked, 5, 0.8)
    for gate in (*model.gates().values(), *masked.gates().values()):
        if gate.decided:  # folding has a test of its own
            gate.folded.fill_(False)
    before = {name: gate.present for name, gate in model.gates().items()}
    kept = {}
    for site, gate in model.gates().items():
        supported = gate.supported()
        kept[site] = gate.kept if supported is None else gate.kept[supported]
        slice_site(model.search_space.sites[site], kept[site], optimizer=optimizer)
    assert {name: gate.present for name, gate in model.gates().items()} != before
    for _ in range(2):
        step(model, optimizer, x), step(masked, masked_optimizer, x)
    for site in kept:  # the masked network, sliced only now
        slice_site(masked.search_space.sites[site], kept[site], optimizer=masked_optimizer)
    found, wanted = dict(model.named_parameters()), dict(masked.named_parameters())
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=1e-7, msg=name)
        for key, moment in optimizer.state[value].items():
            torch.testing.assert_close(moment, masked_optimizer.state[wanted[name]][key],
                                       rtol=1e-6, atol=1e-9, msg=f'{name} {key}')


def test_folding_rescales_gradients_and_moments():
    """The gradient of a folded weight is the old one over the scale, and so are its moments."""
    model = supernet('ofb-vit-cls')
    model.train()
    x = torch.randn(2, 3, 32, 32).double()
    for gate in model.gates().values():
        gate.restrict(gate.only(gate.alpha.numel() - 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0., momentum=0.9)
    step(model, optimizer, x)
    before = outputs(model, x)
    space = model.search_space
    assert apply_decisions(space.sites, optimizer) and not apply_decisions(space.sites, optimizer)
    assert_same(before, outputs(model, x))
    folded = {name: optimizer.state[p]['momentum_buffer'].clone()
              for name, p in model.named_parameters() if p in optimizer.state}
    fresh = torch.optim.SGD(model.parameters(), lr=0., momentum=0.9)
    step(model, fresh, x)
    for name, parameter in model.named_parameters():
        if '.gate.' in name:
            assert parameter.grad is None
        elif 'kept' not in name:
            torch.testing.assert_close(folded[name], parameter.grad, rtol=1e-9, atol=1e-9,
                                       msg=name)


def test_averaged_copy_follows():
    model = supernet('ofb-vit-cls')
    average = randomise(copy.deepcopy(model), 9)
    drop_some(model, 3, 0.3), apply_decisions(model.search_space.sites)
    copy_decisions(average.search_space.sites, model.search_space.sites)
    for (name, one), two in zip(model.named_parameters(), average.parameters()):
        assert one.shape == two.shape, name
    for site, gate in model.gates().items():
        other = average.gates()[site]
        assert torch.equal(gate.kept, other.kept) and torch.equal(gate.alive, other.alive)
        assert gate.folded == other.folded


def test_state_of_a_sliced_supernet_loads_into_a_new_one():
    model = supernet('ofb-vit-cls')
    for event in range(3):
        drop_some(model, event), apply_decisions(model.search_space.sites)
    assert any(gate.folded for gate in model.gates().values())
    again = supernet('ofb-vit-cls', 9)
    again.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(1, 3, 32, 32)
    for mode in (True, False):
        model.train(mode), again.train(mode)
        assert_same(outputs(model, x), outputs(again, x))
    assert [p.requires_grad for p in model.parameters()] == [
        p.requires_grad for p in again.parameters()]


def test_ragged_heads_are_refused():
    structure = slim(supernet('ofb-vit-cls'), None, 1, (3, 32, 32))[1]
    name = 'layers.1.attn.head_channels'
    structure.sites[name].kept = [0, 1, 2, 13]
    with pytest.raises(ValueError, match=f'channels of every head at site `{name}`'):
        OFBVisionTransformer(**OFB_VIT, structure=structure)
