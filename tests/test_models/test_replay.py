"""What is caught of a layer is what it computed, whatever the host does with it behind it."""

import torch
from torch import nn

from mmkcr.models.replay import Replay, ResumableForward, caught


def test_an_activation_in_place_is_not_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    batches = [torch.randn(5, 6)]
    run = ResumableForward(model, model, batches, lambda network, batch: network(batch))
    found = caught(run, 0, {'0': model[0], '2': model[2]}, model[2])
    (inputs, outputs), = found['0']
    assert torch.equal(outputs, model[0](batches[0])) and float(outputs.detach().min()) < 0
    assert torch.equal(inputs, batches[0])


def test_what_is_replayed_is_not_changed():
    kept = torch.randn(4, 3)
    block = Replay(nn.Identity(), [kept.clone()], [0])
    nn.functional.relu_(block(None))
    assert torch.equal(block(None), kept)
