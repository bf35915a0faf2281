"""The three states of MobileViT and EfficientViT: dense = host, supernet with hard gates = subnet.

The mask on queries and keys is a step function of its input: rounding that differs between two
networks may flip an entry. So the law is tested in fp64.
"""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models import MobileViT
from torch import nn

from mmkcr.apis import count_macs, slim
from mmkcr.core import MacsModel, Structure, count_params
from mmkcr.core.added import added_layers
from mmkcr.core.sites import holders
from mmkcr.models import DCSEfficientViT, DCSMobileViT, EfficientViT, KCREfficientViT
from mmkcr.models.tasks import task_forward
from mmkcr.registry import MODELS
from .law import assert_same, outputs

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=2)
SEPARATE = dict(type='mmkcr.QKMask', separate=True)
MOBILE = dict(arch=[['mobilenetv2', 8, 1, 1, 2], ['mobilevit', 12, 2, 16, 24, 2, 2],
                    ['mobilevit', 16, 2, 24, 32, 1, 2]], stem_channels=8)
EFFICIENT = dict(arch=dict(widths=[8, 8, 16, 32], depths=[1, 1, 1, 2], head_dim=8))
CASES = [
    pytest.param(KCREfficientViT, EFFICIENT, (48, 48), id='kcr-efficientvit-cls'),
    pytest.param(KCREfficientViT, dict(EFFICIENT, out_indices=(0, 1, 2)), (61, 83),
                 id='kcr-efficientvit-dense-task'),
    pytest.param(DCSEfficientViT, EFFICIENT, (48, 48), id='efficientvit-cls'),
    pytest.param(DCSEfficientViT, dict(EFFICIENT, out_indices=(0, 1, 2), local=True), (61, 83),
                 id='efficientvit-dense-task'),
    pytest.param(DCSEfficientViT, dict(EFFICIENT, qk_mask=SEPARATE), (40, 56),
                 id='efficientvit-qk-mask'),
    pytest.param(DCSEfficientViT, dict(EFFICIENT, qk_mask=None), (40, 56), id='efficientvit-arch2'),
    pytest.param(DCSMobileViT, dict(MOBILE, out_indices=(2, )), (48, 48), id='mobilevit-cls'),
    pytest.param(DCSMobileViT, dict(MOBILE, out_indices=(0, 1, 2)), (61, 83),
                 id='mobilevit-dense-task'),
    pytest.param(DCSMobileViT, dict(MOBILE, out_indices=(2, ), qk_mask=SEPARATE), (40, 56),
                 id='mobilevit-qk-mask'),
    pytest.param(DCSMobileViT, dict(MOBILE, out_indices=(2, ), qk_mask=None), (40, 56),
                 id='mobilevit-arch2'),
]
OWN = ('qk_mask', 'outputs', 'local')


def randomise(model, seed=0):
    """Weights, gates and running statistics at random, so that slicing them wrongly shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        fan = parameter[0].numel() if parameter.ndim > 1 else 10
        scale = 0.5 if name.endswith(('alpha', 'mask.bias')) else fan**-0.5
        parameter.data.normal_(0, scale, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    model.train(False)
    return model


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_dense_is_the_host_key_for_key(cls, kwargs, size):
    ours = randomise(cls(**kwargs))
    host = MobileViT if cls is DCSMobileViT else EfficientViT
    theirs = host(**{key: list(value) if isinstance(value, tuple) else value
                     for key, value in kwargs.items() if key not in OWN})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict(), strict=True)
    theirs.train(False)
    x = torch.randn(2, 3, *size)
    for a, b in zip(outputs(ours, x), outputs(theirs, x)):
        assert torch.equal(a, b)
    assert not added_layers(ours) and not ours.gates()


@pytest.mark.parametrize('cls, kwargs, size', CASES)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6), divisor=st.sampled_from([1, 4]))
def test_supernet_with_hard_gates_equals_subnet(cls, kwargs, size, seed, divisor):
    model = randomise(cls(**kwargs, gates=GATES), seed)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed)).double()
    subnet, structure = slim(model, None, divisor, (3, *size))
    for site, gate in model.gates().items():
        gate.alpha.data.fill_(-1.)[structure.sites[site].kept] = 1.
    assert_same(outputs(model.double(), x), outputs(subnet.double(), x))
    assert sum(structure.sizes().values()) < sum(s.total for s in structure.sites.values())


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_law_at_several_sizes(cls, kwargs, size):
    model = randomise(cls(**kwargs, gates=GATES), 3).double()
    subnet, structure = slim(model, None, 1, (3, *size))
    for height, width in (size, (32, 64), (33, 47)):
        x = torch.randn(2, 3, height, width)
        assert_same(outputs(model, x), outputs(subnet, x))
    assert structure.method == ('kcr' if cls is KCREfficientViT else 'dcs')


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_inference_is_deterministic_and_the_same_alone_and_in_a_batch(cls, kwargs, size):
    subnet, _ = slim(randomise(cls(**kwargs, gates=GATES), 1), None, 1, (3, *size))
    x = torch.randn(5, 3, *size)
    for a, b in zip(outputs(subnet, x), outputs(subnet, x)):
        assert torch.equal(a, b)
    subnet, x = subnet.double(), x.double()
    alone = [outputs(subnet, image[None]) for image in x]
    assert_same(outputs(subnet, x), [torch.cat(level) for level in zip(*alone)])


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_macs_are_exact_and_count_the_mask(cls, kwargs, size):
    model = randomise(cls(**kwargs, gates=GATES), 2)
    macs = MacsModel(model, model, model.search_space.gated_sites(),
                     task_forward(model, (3, *size)))
    dense = cls(**kwargs)
    assert macs.dense == count_macs(dense, (3, *size))
    masks = model.masks()
    assert bool(masks) == (cls is not KCREfficientViT and kwargs.get('qk_mask', 1) is not None)
    subnet, structure = slim(model, None, 1, (3, *size))
    assert macs(structure.sizes()) == count_macs(subnet, (3, *size)) == structure.macs['subnet']
    assert structure.macs['dense'] == macs.dense
    assert structure.params == dict(dense=count_params(dense), subnet=count_params(subnet))
    # closed form of the masks: rows x channels a position
    positions = {}
    for name, module in model.named_modules():
        if f'{name}.mask' in masks:
            module.register_forward_pre_hook(
                lambda _, args, name=name: positions.update({name: args[0]}))
    outputs(model, torch.zeros(1, 3, *size))
    added = sum(masks[f'{name}.mask'].weight.numel()
                * (x.shape[2:].numel() if masks[f'{name}.mask'].maps else x.shape[:2].numel())
                for name, x in positions.items())
    assert added == macs.added
    if masks:  # the paper's own cost is there too, and grows with the size
        for name, site in macs.sites.items():
            costs = [site.paper_cost(count, macs.shapes[name]) for count in (1, 2, 4)]
            assert costs == sorted(costs) and costs[0] > 0


def test_the_papers_cost_has_the_local_modules_width():
    """``(2 m^2 + m) + (1 + m) H W C'``; C' are 6 times the channels here, not 4 times."""
    model = DCSEfficientViT(img_size=64, gates=GATES, arch=dict(
        widths=[8, 16, 32], depths=[1, 1, 1], head_dim=8, expand_ratio=6))
    sites = [site for site in model.search_space.sites.values() if site.kind == 'attention_outputs']
    assert sites
    for site in sites:
        assert site.paper_cost(3, (1, 5, 7)) == 2 * 9 + 3 + 4 * 35 * 6 * site.owner.channels


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_subnet_from_its_file_and_state_dict(cls, kwargs, size, tmp_path):
    subnet, structure = slim(randomise(cls(**kwargs, gates=GATES)), None, 1, (3, *size))
    structure.save(tmp_path / 's.json')
    again = MODELS.build(dict(kwargs, type=f'mmkcr.{cls.__name__}',
                              structure=str(tmp_path / 's.json')))
    again.load_state_dict(subnet.state_dict(), strict=True)
    again.train(False)
    x = torch.randn(1, 3, *size)
    for a, b in zip(outputs(subnet, x), outputs(again, x)):
        assert torch.equal(a, b)
    assert not holders(again)
    data = json.loads((tmp_path / 's.json').read_text())
    own = MODELS.build(dict(data['backbone'], structure=Structure.load(data)))
    assert list(own.state_dict()) == list(subnet.state_dict())


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_dense_checkpoint_loads_into_supernet_apart_from_what_is_added(cls, kwargs, size):
    dense, model = randomise(cls(**kwargs), 3), cls(**kwargs, gates=GATES)
    missing, unexpected = model.load_state_dict(dense.state_dict(), strict=False)
    masks = [f'{name}.{key}' for name in added_layers(model) for key in ('weight', 'bias')]
    assert not unexpected
    assert sorted(missing) == sorted([*(f'{site}.gate.alpha' for site in model.sites()), *masks])
    subnet, _ = slim(randomise(model), None, 1, (3, *size), ordinary=False)  # gates at random
    with pytest.raises(ValueError, match='checkpoint of the subnet'):
        subnet.load_state_dict(dense.state_dict(), strict=False)


@pytest.mark.parametrize('cls, kwargs', [
    (DCSEfficientViT, EFFICIENT), (DCSMobileViT, dict(MOBILE, out_indices=(2, )))])
def test_arch1_has_masks_and_nothing_to_search(cls, kwargs):
    model = randomise(cls(**kwargs, outputs=False))
    x = torch.randn(2, 3, 40, 40)
    assert len(model.masks()) == 3 and not model.gates()
    model.double()
    masked = outputs(model, x)
    for a, b in zip(masked, model(x.double())):  # with gradients, the mask has one too
        assert torch.equal(a, b)
    opened = cls(**kwargs).double()
    opened.load_state_dict({key: value for key, value in model.state_dict().items()
                            if '.mask.' not in key})
    opened.train(False)
    assert not torch.allclose(outputs(opened, x)[-1], masked[-1])
    for mask in model.masks().values():
        mask.weight.data.zero_(), mask.bias.data.fill_(1.)
    assert_same(outputs(opened, x), outputs(model, x))
    with pytest.raises(ValueError, match="searchable layers, found none .*'outputs': False"):
        cls(**kwargs, outputs=False, gates=GATES)
    with pytest.raises(ValueError, match='checkpoint of the dense .*missing .*mask'):
        model.load_state_dict(opened.state_dict(), strict=False)


@pytest.mark.parametrize('cls, kwargs, size', CASES)
def test_gradients_reach_everything(cls, kwargs, size):
    model = randomise(cls(**kwargs, gates=GATES))
    model.train()
    for module in model.modules():
        if hasattr(module, 'resample'):
            module.resample(torch.Generator().manual_seed(1))
    sum(out.square().mean() for out in model(torch.randn(2, 3, *size))).backward()
    absent = [name for name, p in model.named_parameters()
              if p.grad is None or not p.grad.any() or not p.grad.isfinite().all()]
    assert not absent
