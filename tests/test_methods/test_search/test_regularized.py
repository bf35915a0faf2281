"""Training wrappers: their losses, their keys, their noise."""

import copy
import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.model import ExponentialMovingAverage
from mmengine.registry import DefaultScope
from mmengine.runner import load_state_dict, set_random_seed
from mmpretrain.structures import DataSample
from torch.multiprocessing import start_processes

from mmkcr.apis import count_macs, slim
from mmkcr.methods.search.regularized import labels_of
from mmkcr.models.tasks import find_backbone
from mmkcr.registry import MODELS

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)
KCR = dict(type='mmkcr.KernelComplexityLoss', num_features=24, weight=0.5)


@pytest.fixture(autouse=True)
def _scope():
    DefaultScope.get_instance('test', scope_name='mmpretrain')


def classifier(**backbone):
    return dict(
        type='ImageClassifier',
        backbone=dict(type='mmkcr.KCRVisionTransformer', img_size=16, patch_size=8,
                      arch=dict(embed_dims=24, num_layers=2, num_heads=2,
                                feedforward_channels=48), **backbone),
        head=dict(type='VisionTransformerClsHead', num_classes=5, in_channels=24))


def test_hooks_reach_the_head_of_the_task_model():
    """mmdet's hook of YOLOX failed fifteen epochs before the end of a run."""
    from mmdet.engine.hooks import YOLOXModeSwitchHook
    model = build()
    assert model.head is model.architecture.head
    task, told = torch.nn.Module(), []
    task.bbox_head = torch.nn.Module()
    model.architecture = task
    loader = SimpleNamespace(dataset=SimpleNamespace(update_skip_type_keys=told.append))
    YOLOXModeSwitchHook(15).before_train_epoch(SimpleNamespace(
        epoch=285, max_epochs=300, model=model, train_dataloader=loader, logger=Mock()))
    assert task.bbox_head.use_l1 and told
    for name in ('backbone', 'unknown', 'unknown_head'):
        assert not hasattr(model, name)


def build(kind='RegularizedModel', gates=None, **kwargs):
    return MODELS.build(dict(type=f'mmkcr.{kind}', architecture=classifier(gates=gates), **kwargs))


def batch(n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    samples = [DataSample(metainfo=dict(sample_idx=i)).set_gt_label(i % 5) for i in range(n)]
    return torch.randn(n, 3, 16, 16, generator=generator), samples


def test_regulariser_sees_the_features_of_the_same_forward():
    model = build(regularizers=dict(kcr=KCR))
    term = model.regularizers['kcr']
    term.set_basis(torch.linalg.qr(torch.randn(24, 5))[0])
    inputs, samples = batch()
    losses = model(inputs, samples, mode='loss')
    features = model.architecture.backbone(inputs)[-1].detach().double().numpy()
    basis = term.basis.double().numpy()
    residual = features - features @ basis @ basis.T
    expected = 0.5 * np.mean(np.sum(residual**2, axis=1))
    assert float(losses['loss_kcr']) == pytest.approx(expected, rel=1e-5)
    assert float(losses['kcr_energy_outside']) == pytest.approx(
        (residual**2).sum() / (features**2).sum(), rel=1e-5)
    total, logs = model.parse_losses(losses)
    assert float(total) == pytest.approx(float(losses['loss'] + losses['loss_kcr']))
    assert logs['loss'] == total and logs['loss_task'] == losses['loss']
    # what is switched off costs and changes nothing
    term.active = False
    plain = model(inputs, samples, mode='loss')
    assert set(plain) == {'loss'} and plain['loss'] == losses['loss']
    # a log would go on with the last value of what is not told
    total, logs = model.parse_losses(plain)
    assert logs == {'loss': total, 'loss_task': total, 'loss_kcr': 0}


def test_sample_form_gets_the_indices():
    model = build(regularizers=dict(kcr=dict(KCR, form='sample', num_samples=6)))
    inputs, samples = batch()
    with torch.no_grad():
        features = model.architecture.backbone(inputs)[-1]
    model.regularizers['kcr'].refresh_from_features(features)
    projection = MODELS.build(KCR)
    projection.refresh_from_features(features)
    loss = model(inputs, samples[::-1], mode='loss')['loss_kcr']
    assert float(loss) != pytest.approx(float(projection(features)), rel=1e-3)
    loss = model(inputs, samples, mode='loss')['loss_kcr']
    assert float(loss) == pytest.approx(float(projection(features)), rel=1e-4)


@pytest.mark.parametrize('kind, gates', [('RegularizedModel', None), ('SearchModel', GATES)])
def test_checkpoint_has_the_keys_of_the_task_model(kind, gates):
    model = build(kind, gates, regularizers=dict(kcr=KCR))
    state = model.state_dict()
    task = MODELS.build(classifier(gates=gates))
    own = {k for k in state if k.startswith(('regularizers.kcr.', '_extra_state'))}
    assert set(state) - own == set(task.state_dict())
    load_state_dict(task, {k: v for k, v in state.items() if k not in own}, strict=True)
    again = build(kind, gates, regularizers=dict(kcr=KCR))
    load_state_dict(again, copy.copy(state), strict=True)
    for (name, a), (_, b) in zip(again.named_parameters(), model.named_parameters()):
        assert torch.equal(a, b), name
    # the bare task model's checkpoint loads too, as do averaged weights
    again = build(kind, gates)
    missing, unexpected = again.load_state_dict(task.state_dict(), strict=False)
    assert not unexpected and not [k for k in missing if k != '_extra_state']
    average = ExponentialMovingAverage(model)
    keys = {k for k in average.state_dict() if k.startswith('module.')}
    assert {k[len('module.'):] for k in keys} == set(state)


def test_metadata_follows_the_keys():
    metadata = build().state_dict()._metadata
    task = MODELS.build(classifier()).state_dict()._metadata
    assert set(task) <= set(metadata) and not [k for k in metadata if k.startswith('architecture.')]


@pytest.mark.parametrize('target', [None, 0.8])
@pytest.mark.parametrize('cost', ['macs', 'paper'])
def test_price_against_its_formulas(cost, target):
    model = build('SearchModel', GATES, price=dict(type='mmkcr.MacsPrice', weight=0.3, cost=cost,
                                                   target=target))
    for gate in find_backbone(model).gates().values():
        gate.alpha.data.normal_()
    losses = model(*batch(), mode='loss')
    gates = list(model.gates().values())
    dense = count_macs(MODELS.build(classifier()), (3, 16, 16))
    # 12 of 24 are far from the floor of 4
    expected = [float(torch.sigmoid(g.alpha).sum()) for g in gates]
    sampled = [float(torch.sigmoid((g.alpha + g.noise) / 4.5).sum()) for g in gates]
    kept = [int((g.alpha > 0).sum()) for g in gates]

    def macs(sizes):
        return dense - sum(2 * 5 * 48 * (24 - size) for size in sizes)

    def paper(sizes):
        return sum(2 * (2 * size**2 + size) for size in sizes)

    count, full = (macs, dense) if cost == 'macs' else (paper, paper([24, 24]))
    if target is None:
        price = math.log(count(expected if cost == 'macs' else sampled) / full)
    else:  # what the open gates cost
        price = abs(math.log(count(kept) / int(target * full)))
    assert float(losses['loss_price']) == pytest.approx(0.3 * price, rel=1e-3)
    assert float(losses['macs']) == pytest.approx(macs(expected) / 1e9, rel=1e-5)
    assert float(losses['macs_open']) == pytest.approx(macs(kept) / 1e9, rel=1e-5)
    assert float(losses['kept']) == pytest.approx(sum(kept) / 48)
    if target is not None:
        assert float(losses['price_weight']) == pytest.approx(0.3 + 0.02 * price)
    # the gradient is that of the expected, or sampled, cost
    model.parse_losses({'loss_price': losses['loss_price']})[0].backward()
    for gate, size in zip(gates, expected if cost == 'macs' else sampled):
        if cost == 'macs':
            keep = torch.sigmoid(gate.alpha.detach())
            slope = keep * (1 - keep) * 2 * 5 * 48
        else:
            keep = torch.sigmoid((gate.alpha.detach() + gate.noise) / 4.5)
            slope = keep * (1 - keep) / 4.5 * 2 * (4 * size + 1)
        at = count(kept) if target else count(expected if cost == 'macs' else sampled)
        sign = 1 if not target or count(kept) > target * full else -1
        torch.testing.assert_close(gate.alpha.grad, 0.3 * sign * slope / at, rtol=1e-3, atol=1e-9)


def test_price_grows_until_the_target_is_met():
    """However hard the task loss pulls: here 100 times as hard as the price at the start."""
    shape = (3, 16, 16)
    model = build('SearchModel', GATES, price=dict(type='mmkcr.MacsPrice', weight=1e-3,
                                                   growth=0.1, target='85%')).train()
    macs, gates = model.macs_model(shape), list(model.gates().values())
    optimizer = torch.optim.Adam(model.gate_parameters(), lr=0.04)
    wanted = torch.linspace(0.5, 1, 24)  # by how much a channel is
    for _ in range(300):
        optimizer.zero_grad()
        task = -sum((wanted * torch.sigmoid(gate.alpha)).mean() for gate in gates)
        (0.1 * task + model.price(macs)['loss_price']).backward()
        optimizer.step()
    kept = macs({site: len(gate.selection()) for site, gate in model.gates().items()})
    assert kept == pytest.approx(0.85 * macs.dense, rel=0.02)
    assert all(gate.selection().tolist() == list(range(24))[-len(gate.selection()):]
               for gate in gates)
    strength = float(model.price.weight)
    assert strength > 1e-3
    model.eval()
    model.price(macs)
    assert float(model.price.weight) == strength  # only training steps count
    state = model.state_dict()
    again = build('SearchModel', GATES, price=dict(type='mmkcr.MacsPrice', target='85%'))
    again.load_state_dict(state)
    assert float(again.price.weight) == strength


def test_price_refuses_a_target_out_of_reach():
    for cost, target in (('macs', 0.5), ('paper', 0.02)):
        model = build('SearchModel', GATES, price=dict(type='mmkcr.MacsPrice', target=target,
                                                       cost=cost))
        with pytest.raises(ValueError, match='price `target` within the reachable .* to .*, found'):
            model(*batch(), mode='loss')


def test_price_pulls_towards_its_target():
    """Gradient descent on the price alone ends at the target from both sides."""
    for start in (3., -3.):
        model = build('SearchModel', GATES, price=dict(type='mmkcr.MacsPrice', weight=1.,
                                                       target='85%'))
        gates = model.gates().values()
        for gate in gates:
            gate.alpha.data.normal_(start, 0.5)
        macs = model.macs_model((3, 16, 16))
        optimizer = torch.optim.Adam(model.gate_parameters(), lr=0.1)
        for _ in range(150):
            optimizer.zero_grad()
            out = model.price(macs)
            out['loss_price'].backward()
            optimizer.step()
        assert float(out['macs_open']) * 1e9 == pytest.approx(0.85 * macs.dense, rel=0.02)


def test_paper_cost_when_all_masks_underflow():
    """At the end of the published schedule a whole sample of masks can be 0."""
    model = build('SearchModel', GATES, price=dict(type='mmkcr.MacsPrice', cost='paper'))
    for gate in model.gates().values():
        gate.alpha.data.fill_(-6)
        gate.temperature = 4.5 * 0.95**199
    losses = model(*batch(), mode='loss')
    assert all(float(gate.soft_mask().sum()) == 0 for gate in model.gates().values())
    floor, dense = 2 * 4**2 + 4, 2 * 24**2 + 24
    assert float(losses['loss_price']) == pytest.approx(0.2 * math.log(floor / dense))
    model.parse_losses(losses)[0].backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize('kind', ['gate', 'price', 'loss'])
def test_what_is_not_finite_stops_the_run(kind):
    model = build('SearchModel', GATES)
    MessageHub.get_current_instance().update_info('iter', 11)
    losses = model(*batch(), mode='loss')
    model.parse_losses(losses)
    if kind == 'gate':
        list(model.gates().values())[1].alpha.data[3] = float('nan')
        losses = model(*batch(), mode='loss')
        message = ('expected finite gates at iteration 12, found nan in '
                   '`layers.1.ffn.mlp_channels.gate.alpha`')
    else:
        name, value = ('loss_price', float('inf')) if kind == 'price' else ('loss', float('nan'))
        losses[name] = torch.tensor(value)
        message = (f'expected finite losses and prices at iteration 12, found {value} in '
                   f'`{"loss_price" if kind == "price" else "loss_task"}`')
    with pytest.raises(ValueError) as error:
        model.parse_losses(losses)
    assert str(error.value) == message


def test_slim_refuses_gates_that_are_not_finite():
    model = build('SearchModel', GATES).eval()
    slim(model, 0.9, input_shape=(3, 16, 16))
    for gate in model.gates().values():
        gate.alpha.data.fill_(float('nan'))
    for target in (0.9, None):
        with pytest.raises(ValueError, match='expected finite gates, found nan in `layers.0.ffn'):
            slim(model, target, input_shape=(3, 16, 16))


def test_noise_goes_on_after_a_resume_and_differs_each_step():
    model = build('SearchModel', GATES)
    inputs, samples = batch()

    def noises(net, steps):
        out = []
        for _ in range(steps):
            net(inputs, samples, mode='loss')
            out.append(torch.cat([g.noise for g in net.gates().values()]))
        return out

    noises(model, 2)
    state = copy.deepcopy(model.state_dict())
    unbroken = noises(model, 3)
    torch.manual_seed(123)
    resumed = build('SearchModel', GATES)
    resumed.load_state_dict(state)
    for a, b in zip(unbroken, noises(resumed, 3)):
        assert torch.equal(a, b)
    assert not torch.equal(unbroken[0], unbroken[1])
    assert not torch.equal(unbroken[0][:24], unbroken[0][24:])
    other = build('SearchModel', GATES)  # another seed, other noise
    assert other._noise_state != [state['_extra_state'].tolist()[0], 0]
    assert not torch.equal(noises(other, 3)[2], unbroken[0])


def noise_of_a_rank(rank, folder):
    """Two steps of a search on one of two ranks whose seeds differ."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/init', rank=rank,
                                         world_size=2)
    set_random_seed(3, diff_rank_seed=True)
    DefaultScope.get_instance(f'rank {rank}', scope_name='mmpretrain')
    model = build('SearchModel', GATES)
    for _ in range(2):
        model(*batch(seed=rank), mode='loss')
    torch.save((torch.initial_seed(), model.get_extra_state(), torch.cat(
        [gate.noise for gate in model.gates().values()])), f'{folder}/{rank}.pth')
    torch.distributed.destroy_process_group()


def test_noise_is_the_same_on_all_ranks_though_their_seeds_differ(tmp_path):
    start_processes(noise_of_a_rank, (str(tmp_path), ), 2, start_method='fork')
    one, two = (torch.load(tmp_path / f'{rank}.pth') for rank in range(2))
    assert one[0] != two[0]
    assert torch.equal(one[1], two[1]) and torch.equal(one[2], two[2])


def test_entropy_term_and_gate_parameters():
    model = build('SearchModel', GATES, entropy_weight=2.)
    inputs, samples = batch()
    p = 1 / (1 + math.exp(-2.))
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    losses = model(inputs, samples, mode='loss')
    assert float(losses['loss_entropy']) == pytest.approx(2 * entropy, rel=1e-5)
    assert [id(p) for p in model.gate_parameters()] == [
        id(p) for name, p in model.named_parameters() if '.gate.' in name]
    assert len(model.gate_parameters()) == 2


def test_refusals():
    with pytest.raises(ValueError, match='a backbone with gates to search on .* without'):
        build('SearchModel', None)
    plain = dict(type='ImageClassifier', backbone=dict(type='VisionTransformer', arch='deit-tiny'),
                 head=dict(type='VisionTransformerClsHead', num_classes=5, in_channels=192))
    with pytest.raises(ValueError, match='expected one searchable backbone .* found 0'):
        MODELS.build(dict(type='mmkcr.SearchModel', architecture=plain))
    with pytest.raises(ValueError, match="'paper', 'latency'\\], found 'x'"):
        build('SearchModel', GATES, price=dict(type='mmkcr.MacsPrice', cost='x'))
    with pytest.raises(ValueError, match='with sites, found none in `KCRVisionTransformer`'):
        slim(MODELS.build(classifier()), 0.8, input_shape=(3, 16, 16))


IB = dict(type='mmkcr.InformationBottleneckLoss', num_features=24, num_classes=5, weight=3.)


@pytest.mark.parametrize('kind', ['RegularizedModel', 'SearchModel'])
def test_regularisers_ask_for_labels_and_have_layers_of_their_own(kind):
    gates = GATES if kind == 'SearchModel' else None
    model = build(kind, gates, regularizers=dict(kcr=KCR, ib=IB))
    model.regularizers['kcr'].set_basis(torch.linalg.qr(torch.randn(24, 5))[0])
    term = model.regularizers['ib']
    term.refresh(torch.randn(5, 24), torch.randn(5, 5).log_softmax(1))
    term.feature_layer = 'head.layers.head:input'
    inputs, samples = batch()
    labels = torch.tensor([int(sample.gt_label) for sample in samples])
    model.eval()
    losses = model(inputs, samples, mode='loss')
    features = model.architecture.head.pre_logits(model.architecture.backbone(inputs))
    assert float(losses['loss_ib']) == pytest.approx(float(term(features, labels)), rel=1e-5)
    assert {'loss', 'loss_kcr', 'loss_ib', 'ib_variational'} <= set(losses)
    total, logs = model.parse_losses(losses)
    assert float(total.detach()) == pytest.approx(sum(
        float(value.detach()) for key, value in losses.items() if 'loss' in key), rel=1e-5)


def test_labels_are_scores_where_the_samples_have_them_and_refused_where_there_are_none():
    samples = [DataSample().set_gt_label(i) for i in (3, 1)]
    assert labels_of(samples).tolist() == [3, 1]
    mixed = [sample.set_gt_score(torch.eye(4)[i]) for i, sample in enumerate(samples)]
    assert torch.equal(labels_of(mixed), torch.eye(4)[:2])
    for none in ([DataSample()], None, []):
        with pytest.raises(ValueError, match='a `gt_label` or a `gt_score`, found'):
            labels_of(none)
