"""A layer that takes over the parts of another one computes as its own class does."""

import copy
import types
from functools import partial

import pytest
import torch
from torch import nn

from lab.kind_coverage import FAMILIES, installed, randomise
from mmkcr.closed_form.given import copy_network
from mmkcr.core.forward import flat_tensors
from mmkcr.models.layers.take_over import is_patched
from mmkcr.models.search_space import SearchSpace

#: With attention that is replaced by one of ours.
NAMES = [name for name in ('timm EVA-02', 'Swin', 'timm ViT') if installed(name)]


def sliced(model, kind, size):
    """The outputs of a network without its last unit of every group."""
    space = SearchSpace(model, [kind])
    each = {name: site.total // site.groups for name, site in space.sites.items()}
    space.slice_to(space.structure_for({name: torch.tensor(
        [unit for unit in range(site.total) if (unit + 1) % each[name] or each[name] == 1
         and unit]) for name, site in space.sites.items()}))
    with torch.no_grad():
        return flat_tensors(model(torch.ones(2, 3, size, size)))


@pytest.mark.parametrize('kind', ['heads', 'head_channels'])
@pytest.mark.parametrize('name', NAMES)
def test_methods_on_instances_change_nothing(name, kind):
    torch.manual_seed(0)
    model = randomise(FAMILIES[name].build())
    looked_at = copy.deepcopy(model)
    for module in looked_at.modules():
        module.forward = module.forward
    assert not any(map(is_patched, looked_at.modules()))
    size = FAMILIES[name].size
    small = sliced(copy_network(looked_at), kind, size)
    for found, expected in zip(small, sliced(model, kind, size)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize('forward', [
    lambda layer: lambda x: x, lambda layer: types.MethodType(lambda self, x: x, layer),
    lambda layer: partial(type(layer).forward, layer)], ids=['function', 'method', 'partial'])
def test_attention_with_another_forward_is_refused(forward):
    model = FAMILIES['timm ViT'].build()
    model.blocks[1].attn.forward = forward(model.blocks[1].attn)
    with pytest.raises(ValueError, match='`blocks.1.attn` with another `forward`'):
        SearchSpace(model, ['heads'])


def test_a_copy_that_would_compute_with_the_originals_weights_is_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    own = model[0].forward
    model[0].forward = lambda x: own(x)
    with pytest.raises(ValueError, match='Linear` at `0` with another `forward`'):
        copy_network(model)
