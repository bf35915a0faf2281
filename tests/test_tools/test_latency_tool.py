"""tools/benchmarks/latency.py: which two models it compares, what it prints and writes."""

import csv

import pytest

from mmkcr.apis import count_macs
from mmkcr.core import Structure, count_params
from mmkcr.deploy.latency import PairTiming

TOOL = 'benchmarks/latency'
FAST = ('--repeats', 3, '--warmup', 1, '--batch-size', 2)


@pytest.fixture
def read_rows(tmp_path):
    """Lines of the one CSV file that was written."""
    def read(folder=tmp_path / 'work_dirs/benchmarks'):
        path, = folder.glob('*.csv')
        with path.open() as file:
            return list(csv.DictReader(file))
    return read


@pytest.fixture
def pair_of(load_tool):
    """``pair_of(*arguments)``: the two sides."""
    def make(*arguments):
        tool = load_tool(TOOL)
        args = tool.main.parser().parse_args(list(map(str, arguments)))
        return tool.make_pair(args, args.target_macs[0])
    return make


def test_a_line_for_every_pair(run_tool, search_config, read_rows):
    printed = run_tool(TOOL, search_config, '--target-macs', '90%', '80%', '--divisor', 4,
                       '--runtime', 'eager', 'onnxruntime', *FAST)
    run_tool(TOOL, search_config, '--target-macs', '80%', '--threads', 2, *FAST)
    rows = read_rows()
    assert [(row['slim'], row['runtime']) for row in rows] == [
        *((f'random, {target}', runtime) for target in ('90%', '80%')
          for runtime in ('eager', 'onnxruntime')), ('random, 80%', 'eager')]
    assert [row['clock'] for row in rows] == ['cpu'] * 4 + ['wall']
    for row in rows:
        macs, ratio = float(row['macs_ratio']), float(row['ratio'])
        assert 0.7 < macs <= float(row['slim'][-3:-1]) / 100
        assert float(row['share']) == pytest.approx((1 - ratio) / (1 - macs), rel=1e-2, abs=1e-2)
        assert (row['sites'], row['batch'], row['pairs']) == ('mlp_channels', '2', '3')
        assert float(row['gmacs_slim']) == pytest.approx(float(row['gmacs_dense']) * macs, rel=1e-2)
    assert all(f'{row["ratio"]}' in printed for row in rows[:4])


def test_both_sides_are_made_of_the_same_layers(pair_of, search_config):
    pair = pair_of(search_config, '--target-macs', '80%')
    dense, slim = ([type(module).__module__ for module in side.modules()
                    if not list(module.children()) and list(module.parameters())]
                   for side in (pair.dense, pair.slim))
    assert len(dense) == len(slim)
    assert count_macs(pair.slim, pair.shape) <= 0.8 * count_macs(pair.dense, pair.shape)
    assert count_params(pair.slim) < count_params(pair.dense)


@pytest.mark.parametrize('part', ['model', 'backbone'])
def test_an_ordinary_config_has_the_sites_that_are_asked_for(pair_of, dense_config, part,
                                                             tmp_path):
    config = dense_config()
    config.model.backbone.type = 'VisionTransformer'
    config.dump(tmp_path / 'host.py')
    pair = pair_of(tmp_path / 'host.py', '--target-macs', '80%', '--sites', 'mlp_hidden',
                   '--part', part)
    assert pair.sites == 'mlp_hidden' and hasattr(pair.dense, 'head') == (part == 'model')
    hidden = {name: value.shape for name, value in pair.slim.named_parameters()}
    changed = [name for name, value in pair.dense.named_parameters()
               if value.shape != hidden[name]]
    assert changed and all('.ffn.layers.' in name for name in changed)


def test_structure_and_config_give_the_same_pair(run_tool, slim, read_rows, tmp_path):
    networks = dict(dense=(slim / 'dense.py', slim / 'dense.pth'), slim=(slim / 'config.py', ))
    run_tool(TOOL, slim / 'config.py', *FAST)
    run_tool(TOOL, slim / 'dense.py', slim / 'config.py', *FAST)
    for name, network in networks.items():
        run_tool('deployment/export_onnx', *network, '--out', tmp_path / f'{name}.onnx',
                 '--repeats', 0)
    run_tool(TOOL, tmp_path / 'dense.onnx', tmp_path / 'slim.onnx', '--runtime', 'onnxruntime',
             *FAST)
    written = Structure.load(slim / 'structure.json').macs
    rows = read_rows()
    assert {row['height'] for row in rows} == {'32'}  # the files': no `--shape` is needed
    assert len(rows) == 3 and {row['macs_ratio'] for row in rows} == {
        f'{written["subnet"] / written["dense"]:.4g}'}


@pytest.mark.parametrize('args, message', [
    ((), 'expected a second side, `--target-macs` or a `structure`'),
    (('x.onnx', ), 'expected another ONNX file beside `x.onnx`, found `'),
    (('x.py', '--target-macs', '80%'), 'expected a second side or `--target-macs`'),
    (('x.py', '--sites', 'heads'), 'expected `--sites` with `--target-macs`, found it without'),
    (('--target-macs', '1%'), 'within the reachable'),
    (('--target-macs', '80%', '--threads', 0), '`--threads` of at least 1, found 0'),
    (('--target-macs', '80%', '--clock', 'cpu', '--threads', 2), '`--clock cpu`, found 2'),
    (('--target-macs', '80%', '--repeats', 0), 'at least one repeat'),
    (('--target-macs', '80%', '--amp', 'bf16', '--runtime', 'openvino'), 'for PyTorch'),
    (('--target-macs', '80%', '--sites', 'nothing'), 'a kind of site among'),
    (('--target-macs', '80%', '--where', 'layers.0'),  # it alone was left out without a word
     'expected `--sites` with `--where layers.0`, found none'),
])
def test_mistakes(refused, search_config, args, message):
    assert message in refused(TOOL, search_config, *args)


def test_macs_that_a_file_does_not_say(load_tool):
    tool = load_tool(TOOL)
    row = dict(dict.fromkeys((
        'slim', 'sites', 'runtime', 'threads', 'batch', 'gmacs_dense', 'gmacs_slim', 'ms_dense',
        'ms_slim', 'macs_ratio', 'ratio', 'ratio_q1', 'ratio_q3', 'share'), 1.), dense='dense')
    assert 'unknown' not in tool.latency_text([row])
    row.update(gmacs_dense='', macs_ratio='', share='')
    assert 'unknown to 1.0' in tool.latency_text([row])


@pytest.mark.parametrize('ratio', [1.25, 1.])
def test_a_slim_side_slower_than_dense_is_told_with_its_form(ratio, run_tool, load_tool,
                                                             search_config, monkeypatch):
    monkeypatch.setattr(load_tool(TOOL), 'measure_pair', lambda *args: PairTiming(
        [0.004] * 3, [0.004 * ratio] * 3, 100, 80))
    printed = run_tool(TOOL, search_config, '--target-macs', '80%', '--divisor', 4,
                       '--runtime', 'eager', 'onnxruntime', 'openvino', *FAST)
    warned = [line for line in printed.splitlines() if line.startswith('warning: ')]
    # both blocks take and put channels
    assert warned == ([] if ratio <= 1 else [
        f'warning: in `{runtime}` at batch 2 the slim side takes 1.250 of the time of the dense '
        f'one; selections of channels: {form}' for runtime, form in (
            ('eager', 'as they are'), ('onnxruntime', '4 elements'), ('openvino', '4 gather'))])
