"""Noise of masks in a retraining: a function of seed and iteration."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmkcr.methods.dcs.qk_mask import QKMask
from mmkcr.methods.search.schedules import GateNoiseHook


def noise_at(iteration, seed=0):
    model = nn.Sequential(QKMask(2, 3), QKMask(2, 3))
    hook, runner = GateNoiseHook(seed), SimpleNamespace(model=model, iter=iteration)
    hook.before_train(runner)
    hook.before_train_iter(runner, 0)
    return [mask.noise_like(torch.zeros(1, 4, 3)) for mask in model]


def test_noise_is_a_function_of_seed_and_iteration():
    first = noise_at(7)
    assert all(torch.equal(a, b) for a, b in zip(first, noise_at(7)))
    assert not torch.equal(first[0], first[1])
    for other in (noise_at(8), noise_at(7, seed=1)):
        assert not torch.equal(first[0], other[0])


def test_a_model_without_gates_is_refused():
    runner = SimpleNamespace(model=nn.Linear(1, 1), iter=0)
    with pytest.raises(ValueError, match='at least one gate .*found none in `Linear`'):
        GateNoiseHook().before_train(runner)
