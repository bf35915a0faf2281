"""The adaptive one-hot loss against plain NumPy, at its poles, and its presets."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models.utils import MultiheadAttention

from mmkcr.core import MacsModel
from mmkcr.methods.named import OFBVisionTransformer
from mmkcr.methods.ofb.adaptive_one_hot import one_hot_terms
from mmkcr.models import Searchable
from mmkcr.registry import MODELS

VIT = dict(arch=dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32),
           img_size=16, patch_size=8)


def supernet(seed):
    torch.manual_seed(seed)
    model = OFBVisionTransformer(**VIT, gates=dict(type='mmkcr.BiMaskGate')).double()
    for gate in model.gates().values():
        gate.alpha.data.normal_(0, 2.)
        alive = torch.rand(gate.alive.shape) < 0.7
        alive[0, 0] = True
        gate.restrict(alive)
    image = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    return model, MacsModel(model, model, model.search_space.gated_sites(),
                            lambda: model(image))


def softmax(alpha):
    exps = np.exp(alpha - alpha.max())
    return exps / exps.sum()


def naive(model, macs, preset, entropy=1., tangents=1.):
    """The terms of equation 6, site by site, and the MACs of the expected sizes."""
    one_hot, importance, sizes = 0., 0., {}
    for site, gate in model.gates().items():
        alive = gate.alive.numpy()
        p = softmax(gate.alpha.detach().numpy()[alive].astype(float))
        sizes[site] = float(p @ gate.option_sizes().numpy()[alive])
        d = len(p)
        if d == 1:
            continue
        variance = np.mean((p - p.mean())**2)
        ratio = np.clip(variance / ((d - 1) / d**2), 1e-3, 1 - 1e-3)
        tangent = np.tan(np.pi / 2 - np.pi * ratio)
        one_hot += entropy * -(p * np.log(p)).sum()
        one_hot += tangents * tangent / (d if preset == 'reference' else 1)
        attention = site.endswith('.head_channels')
        weight = 2e-5 if preset == 'paper' else 2e-4 if attention else 5e-5
        sigmoid = 1 / (1 + np.exp(-gate.importance.detach().numpy().astype(float)))
        importance += weight * sigmoid.sum()
    width, tokens = sizes['patch_embed.embedding'], 5
    heads = sizes['layers.0.attn.head_channels']
    cost = 4 * 3 * 64 * width + 4 * tokens * width * heads + 2 * tokens**2 * heads
    cost += 2 * tokens * width * sizes['layers.0.ffn.mlp_hidden']
    dense = 4 * 3 * 64 * 16 + 4 * 5 * 16 * 16 + 2 * 25 * 16 + 2 * 5 * 16 * 32
    budget = 5 * ((cost - 0.5 * dense) / dense)**2 if preset == 'reference' else \
        1e2 * abs(cost - int(0.5 * dense)) / 1e9
    assert dense == macs.dense
    return 0.5 * one_hot, budget, importance, cost


@pytest.mark.parametrize('preset', ['paper', 'reference'])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), entropy=st.sampled_from([0., 1.]),
       tangent=st.sampled_from([0., 0.3, 1.]))
def test_equals_plain_numpy(preset, seed, entropy, tangent):
    model, macs = supernet(seed)
    loss = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5, preset=preset,
                             entropy=entropy, tangent=tangent))
    found = loss(macs)
    one_hot, budget, importance, cost = naive(model, macs, preset, entropy, tangent)
    for name, value in dict(loss_one_hot=one_hot, loss_budget=budget, loss_importance=importance,
                            macs=cost / 1e9).items():
        assert float(found[name].detach()) == pytest.approx(value, rel=1e-5, abs=1e-8), name


def pulls(model, losses, name):
    """Length of a term's gradient on every site's alpha."""
    gradients = torch.autograd.grad(losses[name], [g.alpha for g in model.gates().values()],
                                    retain_graph=True)
    return torch.stack([gradient.norm() for gradient in gradients])


@pytest.mark.parametrize('target', [0.45, 0.9])
def test_balanced_terms(target):
    """At every site the one-hot term pulls half as hard as the budget, and at most with mu_1."""
    torch.manual_seed(0)
    model = OFBVisionTransformer(**VIT, gates=dict(type='mmkcr.BiMaskGate'))
    macs = MacsModel(model, model, model.search_space.gated_sites(),
                     lambda: model(torch.zeros(1, 3, 16, 16)))
    loss = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=target)).train()
    losses = loss(macs)
    one_hot, budget = pulls(model, losses, 'loss_one_hot'), pulls(model, losses, 'loss_budget')
    torch.testing.assert_close(one_hot, 0.5 * budget, rtol=1e-3, atol=0)
    ratio = float(losses['macs']) * 1e9 / int(target * macs.dense)
    distance = abs(np.log(ratio)) - 0.01  # far outside of the band
    assert float(losses['loss_budget'].detach()) == pytest.approx(distance, rel=1e-3)
    assert float(losses['budget_weight']) == pytest.approx(1 + 1e-3 * distance)
    # where the tangent is flat, mu_1 is the weight
    for gate in model.gates().values():
        gate.alpha.data.zero_()
    losses = loss(macs)
    assert float(losses['one_hot_weight']) == pytest.approx(0.5)


def test_within_the_band_the_budget_is_a_parabola():
    torch.manual_seed(0)
    model = OFBVisionTransformer(**VIT, gates=dict(type='mmkcr.BiMaskGate'))
    macs = MacsModel(model, model, model.search_space.gated_sites(),
                     lambda: model(torch.zeros(1, 3, 16, 16)))
    expected = macs({site: gate.expected_size() for site, gate in model.gates().items()})
    for share in (0.985, 1., 1.01):
        target = int(float(expected.detach()) / share)
        ratio = np.log(float(expected.detach()) / target)
        loss = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=target, budget=3.)).eval()
        found = float(loss(macs)['loss_budget'].detach())
        assert found == pytest.approx(3 * ratio**2 / (2 * 0.02), rel=1e-3, abs=1e-6)
        assert float(loss.budget) == 3  # it grows in training only


def test_growth_is_in_the_checkpoint():
    grown = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5))
    grown.budget.fill_(4.)
    again = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5))
    again.load_state_dict(grown.state_dict())
    assert float(again.budget) == 4
    for preset in ('paper', 'reference'):
        published = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5, preset=preset,
                                      growth=None, balance=None))  # as a base may be overridden
        assert not published.state_dict()


@settings(max_examples=40, deadline=None)
@given(options=st.integers(2, 33), towards=st.floats(0, 1), eps=st.sampled_from([1e-6, 1e-3]))
def test_finite_from_uniform_to_one_hot(options, towards, eps):
    uniform, one_hot = torch.full((options, ), 1 / options), torch.eye(options)[0]
    p = (uniform + towards * (one_hot - uniform))[None].requires_grad_()
    terms = one_hot_terms(p, torch.tensor([float(options)]), eps)
    assert all(torch.isfinite(term) for term in terms)
    gradient = torch.autograd.grad(terms[1] + 0 * p.sum(), p)[0]
    assert torch.isfinite(gradient).all()
    assert -1e-6 <= float(terms[2].detach()) <= 1 + 1e-6
    assert abs(float(terms[1].detach())) <= 1.1 / (np.pi * eps)


@pytest.mark.parametrize('preset', ['balanced', 'paper', 'reference'])
def test_logits_of_any_size_give_finite_gradients(preset):
    model, macs = supernet(0)
    loss = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5, preset=preset))
    for scale in (0., 1e-4, 30., 200.):
        for gate in model.gates().values():
            gate.alpha.data.copy_(scale * torch.rand_like(gate.alpha))
        losses = loss(macs)
        total = sum(value for name, value in losses.items() if name.startswith('loss'))
        gradients = torch.autograd.grad(total, [g.alpha for g in model.gates().values()])
        assert torch.isfinite(total) and all(torch.isfinite(g).all() for g in gradients)


def test_descent_reaches_one_option_at_the_target():
    model, macs = supernet(3)
    loss = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.6))
    alphas = [gate.alpha for gate in model.gates().values()]
    optimizer = torch.optim.Adam(alphas, lr=0.1, betas=(0.5, 0.999))
    for _ in range(200):
        losses = loss(macs)
        optimizer.zero_grad()
        (losses['loss_one_hot'] + losses['loss_budget']).backward()
        optimizer.step()
    assert float(losses['one_hot']) > 0.8
    assert float(losses['macs']) * 1e9 == pytest.approx(0.6 * macs.dense, rel=0.1)


def test_decided_sites_cost_nothing():
    model, macs = supernet(1)
    for gate in model.gates().values():
        gate.restrict(gate.only(0))
    losses = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5))(macs)
    assert losses['loss_one_hot'] == losses['loss_importance'] == 0
    assert losses['one_hot'] == losses['options'] == 1


class Host(torch.nn.Module):
    """An attention layer under a name of its own, as in CLIP (``self_attn``)."""

    def __init__(self):
        super().__init__()
        self.mixer = MultiheadAttention(16, 4)

    def forward(self, x):
        return self.mixer(x)


def test_attention_is_known_by_its_kind_of_site():
    host = Searchable(Host(), sites=['heads'], gates=dict(type='mmkcr.BiMaskGate'))
    macs = MacsModel(host, host, host.search_space.gated_sites(),
                     lambda: host(torch.zeros(1, 5, 16)))
    loss = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5,
                             importance=dict(attn=1., other=0.)))
    gate = host.search_space.gates()['mixer.heads']
    assert torch.equal(loss(macs)['loss_importance'], gate.importance.sigmoid().sum())


def test_other_gates_are_refused():
    host = Searchable(Host(), sites=['heads'], gates=dict(type='mmkcr.GumbelChannelGate'))
    macs = MacsModel(host, host, host.search_space.gated_sites(),
                     lambda: host(torch.zeros(1, 5, 16)))
    loss = MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5))
    with pytest.raises(ValueError, match='expected gates of type `mmkcr.BiMaskGate` .*, found '
                                         '`GumbelChannelGate` at site `mixer.heads`'):
        loss(macs)


@pytest.mark.parametrize('options, message', [
    (dict(preset='ours'), "among .'balanced', 'paper', 'reference'.*, found 'ours'"),
    (dict(preset='paper', balance=0.5), "`balance` with `preset='balanced'` only, found 0.5"),
    (dict(one_hot=-1.), 'weights of at least 0'),
    (dict(eps=0.5), r'`eps` and `band` within \(0, 0.5\)'),
])
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        MODELS.build(dict(type='mmkcr.AdaptiveOneHotLoss', target=0.5, **options))
