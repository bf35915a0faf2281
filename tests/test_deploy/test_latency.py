"""Pairs, their ratio and the share of the MAC saving; nothing here depends on real time."""

import importlib.util
import time
from collections import Counter
from functools import partial
from itertools import product

import onnx
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from lab.model_zoo import random_subnet
from mmkcr.apis import count_macs
from mmkcr.deploy.export import export_onnx, read_macs_and_shape
from mmkcr.deploy.latency import PairTiming, clock_for, measure_calls, measure_pair
from mmkcr.deploy.runtimes import PACKAGES, RUNTIMES, open_onnx, set_precision
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.methods import named

VIT = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64),
           img_size=32, patch_size=8, drop_path_rate=0.1)
SWIN = dict(arch=dict(embed_dims=16, depths=[1, 2], num_heads=[2, 2]), img_size=32,
            window_size=4, patch_size=4, out_indices=[1])
EFFICIENTVIT = dict(arch=dict(widths=[8, 16, 24], depths=[1, 1, 1], head_dim=8,
                              attention_stages=1))
MOBILEVIT = dict(stem_channels=8, last_exp_factor=2, out_indices=(2, ), arch=[
    ['mobilenetv2', 8, 1, 1, 1], ['mobilenetv2', 8, 2, 1, 1],
    ['mobilevit', 16, 2, 16, 32, 2, 1]])
SHAPE = (3, 32, 32)


class Clock:
    """Time that passes only when a model runs; the machine grows slower with every call."""

    def __init__(self):
        self.now, self.calls = 0., []


class Timed(nn.Module):
    def __init__(self, clock, name, seconds, channels):
        super().__init__()
        self.clock, self.name, self.seconds = clock, name, seconds
        self.conv = nn.Conv2d(3, channels, 1)

    def forward(self, x):
        self.clock.calls.append((self.name, len(x), torch.is_grad_enabled(),
                                 torch.is_autocast_enabled('cpu'), self.training))
        self.clock.now += self.seconds * (1 + 0.001 * len(self.clock.calls))
        return self.conv(x)


def measure(clock, **kwargs):
    dense, subnet = Timed(clock, 'dense', 2., 10), Timed(clock, 'slim', 1.7, 8)
    timing = measure_pair(dense, subnet, torch.zeros(4, 3, 5, 5), clock=lambda: clock.now, **kwargs)
    assert dense.training and subnet.training  # as they were before
    return timing


@pytest.mark.parametrize('amp', [None, 'bf16'])
def test_neighbours_are_compared_in_alternating_order(amp):
    """In eval mode without gradients."""
    clock = Clock()
    timing = measure(clock, repeats=6, warmup=2, amp=amp)
    assert {call[2:] for call in clock.calls if call[1] == 4} == {(False, amp is not None, False)}
    runs = [name for name, batch, *_ in clock.calls if batch == 4]
    assert len(runs) == 2 * (6 + 2)
    pairs = [tuple(runs[i:i + 2]) for i in range(0, len(runs), 2)]
    assert set(pairs) == {('dense', 'slim'), ('slim', 'dense')}
    assert all(a != b for a, b in zip(pairs, pairs[1:]))
    assert len(timing.dense) == len(timing.slim) == 6
    # the slowing machine moves the seconds, not the ratio
    assert max(timing.dense) > 1.005 * min(timing.dense)
    assert timing.ratio == pytest.approx(0.85, rel=2e-3)
    assert (timing.macs_dense, timing.macs_slim) == (3 * 10 * 25, 3 * 8 * 25)
    assert timing.share() == pytest.approx(0.15 / 0.2, rel=2e-2)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.5, 2)), min_size=1, max_size=9),
       st.integers(50, 99))
def test_share_is_of_the_median_ratio(samples, slim_macs):
    timing = PairTiming([load for load, _ in samples], [load * r for load, r in samples], 100,
                        slim_macs)
    ratios = sorted(ratio for _, ratio in samples)
    middle = (ratios[len(ratios) // 2] + ratios[(len(ratios) - 1) // 2]) / 2
    assert timing.ratio == pytest.approx(middle)
    assert timing.share() == pytest.approx((1 - middle) / (1 - slim_macs / 100))
    first, third = timing.quartiles
    assert first <= timing.ratio + 1e-9
    assert timing.share(third) <= timing.share() + 1e-9
    assert all(PairTiming([1.], [1.], 5, macs).share() is None for macs in (5, 9))  # not fewer


@pytest.mark.parametrize(('dense', 'slim', 'ratios'), [
    ([0., 2., 2.], [2., 0., 4.], [1., 1., 2.]), ([0., 0.], [0., 0.], [1., 1.]),
    ([0., 0.], [3., 6.], [1., 2.])])
def test_a_clock_too_coarse_for_a_call_counts_its_least_step(dense, slim, ratios):
    timing = PairTiming(dense, slim, None, None)
    assert timing.ratios == ratios
    assert min(ratios) <= timing.quartiles[0] <= timing.ratio <= timing.quartiles[1] <= max(ratios)


def test_timings_of_several_visits_are_one():
    """All pairs count alike; the quartiles hold what differs between visits."""
    visits = [PairTiming([1., 1.], [ratio, ratio], 8, 4) for ratio in (0.4, 0.5, 0.6)]
    joined = PairTiming.join(visits)
    assert joined == PairTiming([1.] * 6, [0.4, 0.4, 0.5, 0.5, 0.6, 0.6], 8, 4)
    assert joined.ratio == 0.5 and joined.quartiles == (0.4, 0.6)
    assert visits[0] == PairTiming([1., 1.], [0.4, 0.4], 8, 4)


def test_each_call_of_a_round_has_its_own_times():
    """Beside those of the dense one in the same round; the warm-up does not count."""
    now, called = [0.], Counter()

    def call(seconds):
        called[seconds] += 1
        now[0] += seconds * called[seconds]  # slower in each round

    timings = measure_calls(*(partial(call, seconds) for seconds in (4., 2., 1.)), repeats=2,
                            warmup=1, clock=lambda: now[0])
    assert timings == [PairTiming([8., 12.], [4., 6.]), PairTiming([8., 12.], [2., 3.])]
    assert set(called.values()) == {3}


def test_a_round_is_in_the_opposite_order_of_the_last():
    """Each call is as far from the dense one on both sides."""
    called = []
    measure_calls(*(partial(called.append, name) for name in 'dense a b'.split()), repeats=2,
                  warmup=0)
    assert called in (order := 'dense a b b a dense'.split(), order[3:] + order[:3])


@pytest.mark.parametrize('kwargs, message', [
    (dict(repeats=0), 'at least one repeat.*repeats=0'),
    (dict(warmup=-1), 'warmup=-1'),
    (dict(amp='fp8'), "among .*bf16.*, found 'fp8'"),
    (dict(amp='bf16', runtime='openvino'), 'for PyTorch, found .* for `openvino`'),
    (dict(runtime='caffe'), "a runtime among .*, found 'caffe'")])
def test_refusals(kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure(Clock(), **kwargs)


@pytest.mark.parametrize('precision', [None, 'bf16'])
def test_openvino_computes_in_the_type_that_a_file_says(precision, tmp_path, monkeypatch):
    """In fp32 where it says none, also on processors where OpenVINO itself would take bf16."""
    openvino = pytest.importorskip('openvino')
    path, hints = export_onnx(nn.Conv2d(3, 4, 3), tmp_path / 'dense.onnx', SHAPE).path, []
    if precision:
        set_precision(path, path, precision)

    class Core(openvino.Core):
        def compile_model(self, model, device, config):
            hints.append(config['INFERENCE_PRECISION_HINT'])
            return super().compile_model(model, device)  # this processor may not have the type

    monkeypatch.setattr(openvino, 'Core', Core)
    open_onnx(path, 'openvino')
    assert hints == [precision or 'f32']


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
def test_models_and_their_files_run_in_a_runtime(runtime, tmp_path):
    pytest.importorskip(runtime)
    subnet, structure = random_subnet(named.KCRVisionTransformer(**VIT), 0.8, SHAPE, divisor=1)
    sides = named.KCRVisionTransformer(**VIT), subnet
    inputs = torch.randn(2, *SHAPE)
    timing = measure_pair(*sides, inputs, 2, 0, runtime, 1)
    assert len(timing.ratios) == 2 and min(timing.ratios) > 0
    files = [export_onnx(side, tmp_path / f'{index}.onnx', SHAPE).path
             for index, side in enumerate(sides)]
    of_files = measure_pair(*files, inputs, 1, 0, runtime, 1)
    assert [(t.macs_dense, t.macs_slim) for t in (timing, of_files)] == \
        [(structure.macs['dense'], structure.macs['subnet'])] * 2
    with pytest.raises(ValueError, match='models for the runtime `eager`, found the file'):
        measure_pair(*files, inputs)


def without_shape(path):
    """The file as it was before the input shape was read_macs_and_shape."""
    graph, old = onnx.load(path), path.with_name(f'old_{path.name}')
    kept = [entry for entry in graph.metadata_props if entry.key != 'mmkcr.input_shape']
    del graph.metadata_props[:]
    graph.metadata_props.extend(kept)
    onnx.save(graph, old)
    return old


def test_macs_of_a_file_are_those_of_its_size(tmp_path):
    """A dynamic file records them at one size; at another they are not known."""
    model = nn.Conv2d(3, 4, 3)
    macs = count_macs(model, (3, 8, 8))
    dynamic = export_onnx(model, tmp_path / 'dynamic.onnx', (3, 8, 8)).path
    fixed = export_onnx(model, tmp_path / 'fixed.onnx', (3, 8, 8), False).path
    assert read_macs_and_shape(dynamic) == read_macs_and_shape(fixed) == (macs, (3, 8, 8))
    for path, size, expected in (
            (dynamic, 8, macs), (dynamic, 12, None), (fixed, 8, macs),
            (without_shape(dynamic), 8, None), (without_shape(fixed), 8, macs)):
        timing = measure_pair(path, path, torch.randn(1, 3, size, size), 2, 0, 'onnxruntime', 1)
        assert (timing.macs_dense, timing.macs_slim) == (expected, expected)
        assert timing.macs_ratio == (None if expected is None else 1.)
        assert timing.share() is None


def test_a_runtime_that_is_not_there_is_named_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    for runtime, package in PACKAGES.items():
        with pytest.raises(ImportError, match=f'`{runtime}`, found.*: pip install {package}'):
            measure(Clock(), runtime=runtime)
    with pytest.raises(ImportError, match='pip install onnxruntime'):  # which compares any file
        export_onnx(nn.Conv2d(3, 4, 1), tmp_path / 'model.onnx', SHAPE)


def test_the_clock_is_that_of_the_process_where_it_does_the_work():
    for runtime, threads, device in product(RUNTIMES, (None, 1, 2), ('cpu', 'cuda', 'cuda:1')):
        alone = threads == 1 and device == 'cpu' and runtime != 'tensorrt'
        assert clock_for(runtime, threads, device) is (time.process_time if alone else
                                                       time.perf_counter)


def test_files_run_on_the_device_that_was_asked_for(tmp_path):
    """ONNX Runtime goes on with the processor after a warning, OpenVINO without one."""
    onnxruntime = pytest.importorskip('onnxruntime')
    model = named.KCRVisionTransformer(**VIT)
    path = export_onnx(model, tmp_path / 'model.onnx', SHAPE, False).path
    if 'CUDAExecutionProvider' not in onnxruntime.get_available_providers():
        with pytest.raises(ImportError, match='ONNX Runtime with `CUDAExecutionProvider`, found'):
            open_onnx(path, 'onnxruntime', device='cuda:0')
    if importlib.util.find_spec('openvino') is not None:
        with pytest.raises(ValueError, match="device 'cpu' for `openvino`, found 'cuda'"):
            open_onnx(path, 'openvino', device='cuda')
    with pytest.raises(ValueError, match='on the CPU to export, found torch.float32 on meta'):
        export_onnx(model.to('meta'), path, SHAPE)


@pytest.mark.parametrize('cls, kwargs', [
    (named.KCRVisionTransformer, VIT), (named.KCRSwinTransformer, SWIN)])
def test_random_subnets_keep_one_ratio_everywhere(cls, kwargs):
    _, structure = random_subnet(cls(**kwargs), 0.75, SHAPE, divisor=1)
    assert structure.macs['dense'] == count_macs(cls(**kwargs), SHAPE)
    kept = {name: len(site.kept) / site.total for name, site in structure.sites.items()}
    assert max(kept.values()) < 1
    for name, site in structure.sites.items():
        assert all(abs(kept[name] - other) <= 1.5 / site.total + 1.5 / 16
                   for other in kept.values())
        assert site.kept != list(range(len(site.kept)))


FAMILIES = ((named.KCRVisionTransformer, VIT), (named.KCRSwinTransformer, SWIN),
            (named.OFBVisionTransformer, VIT), (named.DCSMobileViT, MOBILEVIT),
            (named.DCSEfficientViT, dict(EFFICIENTVIT, local=True)))


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(FAMILIES), st.booleans(), st.floats(0.2, 1.), st.sampled_from([1, 2, 8]))
def test_random_subnets_cost_what_they_say_and_at_most_their_target(family, gated, share, divisor):
    """Counted on the network that was built, with the masks on queries and keys."""
    cls, arguments = family
    gates = dict(gates=dict(cls.unlearned_gates)) if gated else {}
    model = cls(**arguments, **gates)
    options = {name: {size for size, _ in gate.options() or ()}
               for name, gate in model.gates().items()}
    try:
        subnet, structure = random_subnet(model, share, SHAPE, divisor=divisor)
    except ValueError as error:
        assume('reachable' not in str(error))
        raise
    built = cls(**arguments, structure=structure)
    counted = count_macs(built, SHAPE)
    assert counted == count_macs(subnet, SHAPE) == structure.macs['subnet']
    assert counted == structure.macs['backbone'] <= share * structure.macs['dense']
    for name, size in structure.sizes().items():
        assert not options.get(name) or size in options[name]


def test_a_subnet_with_masks_compiles_to_one_graph():
    """Subnets of every kind do, too: test_plain.test_export_and_compile_without_a_break."""
    model = TensorModel(random_subnet(
        named.DCSMobileViT(**MOBILEVIT), 0.95, SHAPE, divisor=1)[0])
    model.eval()
    images = torch.randn(2, *SHAPE)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend='eager')
        torch.testing.assert_close(compiled(images), model(images))
