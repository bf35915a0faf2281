"""The relaxed top-k gate: one choice over all sites."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.methods.dwconv.top_k import RelaxedTopKGate, relaxed_top_k
from mmkcr.methods.search.gumbel import GumbelChannelGate


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def naive(logits, count, temperature):
    """The sum of k softmaxes, entry by entry."""
    s, w = [float(x) for x in logits], [0.] * len(logits)
    for _ in range(count):
        top = max(s)
        e = [math.exp((x - top) / temperature) for x in s]
        p = [x / sum(e) for x in e]
        w = [a + b for a, b in zip(w, p)]
        s = [x + math.log(max(1 - q, 1e-300)) for x, q in zip(s, p)]
    return w


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 9999), n=st.integers(1, 9), share=st.floats(0, 1),
       temperature=st.sampled_from([1., 0.3, 0.05]))
def test_against_the_formula(seed, n, share, temperature):
    logits, count = torch.randn(n, generator=seeded(seed), dtype=torch.float64), round(share * n)
    found = relaxed_top_k(logits, count, temperature)
    torch.testing.assert_close(found, torch.tensor(naive(logits, count, temperature),
                                                   dtype=torch.float64), atol=1e-6, rtol=1e-6)
    assert float(found.sum()) == pytest.approx(count) and (found >= 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), count=st.integers(1, 12))
def test_tends_to_the_hard_choice_with_finite_gradients(seed, count):
    logits = torch.randperm(12, generator=seeded(seed)) * 0.3 + 0.1
    logits.requires_grad_()
    soft = relaxed_top_k(logits, count, 1e-3)
    hard = torch.zeros(12).index_fill_(0, logits.topk(count).indices, 1.)
    torch.testing.assert_close(soft, hard, atol=1e-5, rtol=0)
    (soft * torch.randn(12)).sum().backward()
    assert logits.grad.isfinite().all()


def group(totals=(4, 4, 4), **kwargs):
    gates = [RelaxedTopKGate(total, **kwargs) for total in totals] + [GumbelChannelGate(16)]
    for gate in gates:
        gate.join(gates)
    return torch.nn.ModuleList(gates[:-1])


def test_no_unit_is_chosen_twice_however_far_it_is_ahead():
    logits = torch.tensor([200., 0., -1.], requires_grad=True)
    weights = relaxed_top_k(logits, 2, 1.)
    assert torch.allclose(weights, torch.cat([torch.ones(1), logits[1:].softmax(0)]))
    assert torch.isfinite(torch.autograd.grad(weights[1], logits)[0]).all()


@pytest.mark.parametrize('blockwise', [True, False])
def test_eval_mask_score_and_selection_agree(blockwise):
    gates = group(count=2 if blockwise else 5, blockwise=blockwise).eval()
    masks = torch.stack([gate() for gate in gates])
    assert int((masks == 0).sum()) == (8 if blockwise else 5)
    if blockwise:
        assert set(masks.sum(1).tolist()) == {0., 4.}
        lowest = torch.stack([gate.alpha[0] for gate in gates]).argmin()
        assert masks[lowest].all()  # the smallest logit stays attention
    for gate, mask in zip(gates, masks):
        assert gate.selection().tolist() == mask.nonzero().flatten().tolist()
        assert torch.equal(gate.scores() > 0, mask > 0)


@pytest.mark.parametrize('count', [0, 3])
def test_none_and_all(count):
    gates = group(count=count).eval()
    assert all(bool((gate() == (count == 0)).all()) for gate in gates)
    assert all(bool(((gate.scores() > 0) == (count == 0)).all()) for gate in gates)


@pytest.mark.parametrize('blockwise', [True, False])
def test_one_choice_for_all_sites_per_forward(blockwise):
    gates = group(count=2, blockwise=blockwise, temperature=0.5)
    for seed, gate in enumerate(gates):
        gate.resample(seeded(seed))
        assert len(gate.noise) == (1 if blockwise else 4)
    logits = torch.cat([gate.alpha + gate.noise for gate in gates])
    expected = 1 - relaxed_top_k(logits, 2, 0.5)
    found = torch.cat([gate()[:len(gate.alpha)] for gate in gates])
    torch.testing.assert_close(found, expected)
    sum(gate.expected_size() for gate in gates).backward(retain_graph=True)
    (found * torch.arange(len(found))).sum().backward()
    assert all(gate.alpha.grad.any() for gate in gates)
    with torch.no_grad():
        gates[0].alpha.add_(1)
    assert torch.equal(torch.cat([gate()[:len(gate.alpha)] for gate in gates]), found)
    for gate in gates:
        gate.refresh()
    assert not torch.equal(torch.cat([gate()[:len(gate.alpha)] for gate in gates]), found)


def test_a_follower_that_runs_first_sees_the_choice_of_this_step():
    """MOCA's teacher runs before the network whose gates it follows."""
    online, copied = group(count=2, blockwise=False), group(count=2, blockwise=False)
    for gate, leader in zip(copied, online):
        gate.mask_like(leader)

    def forward(gates):
        for gate in gates:
            gate.refresh()
        return torch.cat([gate() for gate in gates])

    for step in range(3):
        generator = seeded(step)
        for gate in [*online, *copied]:
            gate.resample(generator)
        with torch.no_grad():
            followed = forward(copied)
        found = forward(online)
        assert torch.equal(followed, found) and found.requires_grad


def test_a_copy_chooses_for_itself():
    gates = group(count=1)
    gates[0]()
    again = copy.deepcopy(gates).eval()
    assert again[2]._members[0] is again[0] is not gates[0]
    again[1].alpha.data.fill_(9.)
    assert not again[1]().any() and list(again.state_dict()) == list(gates.state_dict())


@pytest.mark.parametrize('build, message', [
    (lambda: RelaxedTopKGate(4, count=-1), 'of at least 0, found -1'),
    (lambda: RelaxedTopKGate(4, temperature=0.), 'positive gate `temperature`'),
    (lambda: group(count=4), 'at most the 3 blocks of the backbone, found 4'),
    (lambda: group(count=13, blockwise=False), 'at most the 12 units'),
])
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()
