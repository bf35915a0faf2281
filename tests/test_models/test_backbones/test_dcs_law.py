"""Masks on queries and keys in MobileViT and EfficientViT: their cost, and the masks alone.

The laws of these networks are in ``test_law``.
"""

import copy

import pytest
import torch

from mmkcr.core import MacsModel
from mmkcr.methods.named import DCSEfficientViT, DCSMobileViT
from mmkcr.models.search_space import leave_ordinary
from mmkcr.models.sites import QKMaskSite
from mmkcr.models.tasks import task_forward
from .law import (
    EFFICIENT,
    FEW_CHANNELS,
    MOBILE,
    NETWORKS,
    assert_same,
    outputs,
    randomise,
    scene,
)


@pytest.mark.parametrize('name', [
    name for name, network in NETWORKS.items()
    if network.cls in (DCSEfficientViT, DCSMobileViT) or 'kcr-' in name])
def test_closed_form_of_the_masks(name):
    """Rows x channels a position; the paper's own cost is there too, and grows with the size."""
    cls, _, kwargs, size = NETWORKS[name]
    model = copy.deepcopy(scene(name)[0])
    macs = MacsModel(model, model, model.search_space.gated_sites(),
                     task_forward(model, (3, *size)))
    masks, positions = QKMaskSite.masks(model), {}
    assert bool(masks) == ('kcr-' not in name and kwargs.get('qk_mask', 1) is not None)
    for path, module in model.named_modules():
        if f'{path}.mask' in masks:
            module.register_forward_pre_hook(
                lambda _, args, path=path: positions.update({path: args[0]}))
    outputs(model, torch.zeros(1, 3, *size))
    added = sum(masks[f'{path}.mask'].weight.numel()
                * (x.shape[2:].numel() if masks[f'{path}.mask'].maps else x.shape[:2].numel())
                for path, x in positions.items())
    assert added == macs.added
    for site_name, site in macs.sites.items() if masks else ():
        costs = [site.paper_cost(count, macs.shapes[site_name]) for count in (1, 2, 4)]
        assert costs == sorted(costs) and costs[0] > 0


def test_the_papers_cost_has_the_local_modules_width():
    """``(2 m^2 + m) + (1 + m) H W C'``; C' are 6 times the channels here, not 4 times."""
    model = DCSEfficientViT(img_size=64, gates=FEW_CHANNELS, arch=dict(
        widths=[8, 16, 32], depths=[1, 1, 1], head_dim=8, expand_ratio=6))
    sites = [site for site in model.search_space.sites.values() if site.kind == 'attention_outputs']
    assert sites
    for site in sites:
        assert site.paper_cost(3, (1, 5, 7)) == 2 * 9 + 3 + 4 * 35 * 6 * site.owner.channels


@pytest.mark.parametrize('cls, kwargs', [
    (DCSEfficientViT, EFFICIENT), (DCSMobileViT, MOBILE)])
def test_arch1_has_masks_and_nothing_to_search(cls, kwargs):
    model = randomise(cls(**kwargs, outputs=False))
    x = torch.randn(2, 3, 40, 40)
    assert len(QKMaskSite.masks(model)) == 3 and not model.gates()
    model.double()
    masked = outputs(model, x)
    for a, b in zip(masked, model(x.double())):  # with gradients, the mask has one too
        assert torch.equal(a, b)
    opened = cls(**kwargs).double()
    opened.load_state_dict({key: value for key, value in model.state_dict().items()
                            if '.mask.' not in key})
    opened.train(False)
    assert not torch.allclose(outputs(opened, x)[-1], masked[-1])
    for mask in QKMaskSite.masks(model).values():
        mask.weight.data.zero_(), mask.bias.data.fill_(1.)
    assert_same(outputs(opened, x), outputs(model, x))
    leave_ordinary(model)
    with pytest.raises(ValueError, match="searchable layers, found none .*'outputs': False"):
        cls(**kwargs, outputs=False, gates=FEW_CHANNELS)
    with pytest.raises(ValueError, match='checkpoint of the dense .*missing .*mask'):
        model.load_state_dict(opened.state_dict(), strict=False)
