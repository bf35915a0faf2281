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


def test_a_line_for_every_pair(run_tool, slim, read_rows):
    written = Structure.load(slim / 'structure.json').macs
    printed = run_tool(TOOL, slim / 'config.py', '--runtime', 'eager', 'onnxruntime', *FAST)
    run_tool(TOOL, slim / 'config.py', '--threads', 2, *FAST)
    rows = read_rows()
    assert [(row['slim'], row['runtime'], row['clock']) for row in rows] == [
        ('its structure', 'eager', 'cpu'), ('its structure', 'onnxruntime', 'cpu'),
        ('its structure', 'eager', 'wall')]
    for row in rows:
        macs, ratio = float(row['macs_ratio']), float(row['ratio'])
        assert macs == pytest.approx(written['subnet'] / written['dense'], rel=1e-3)
        assert float(row['share']) == pytest.approx((1 - ratio) / (1 - macs), rel=1e-2, abs=1e-2)
        assert (row['part'], row['batch'], row['pairs']) == ('model', '2', '3')
        assert float(row['gmacs_slim']) == pytest.approx(float(row['gmacs_dense']) * macs, rel=1e-2)
    assert all(f'{row["ratio"]}' in printed for row in rows[:2])


def test_both_sides_are_made_of_the_same_layers(load_tool, slim):
    tool = load_tool(TOOL)
    *sides, shape = tool.make_pair(tool.main.parser().parse_args([str(slim / 'config.py')]))
    layers = [[type(module).__module__ for module in side.modules()
               if not list(module.children()) and list(module.parameters())] for side in sides]
    assert len(layers[0]) == len(layers[1])
    assert count_macs(sides[1], shape) < count_macs(sides[0], shape)
    assert count_params(sides[1]) < count_params(sides[0])


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
    ((), 'expected a second side, or a `structure` in'),
    (('x.onnx', ), 'expected another ONNX file beside `x.onnx`, found `'),
    (('{slim}/subnet.pth', ), 'expected a config file (.py, .json or .yaml), or '),
    (('{slim}/config.py', '--threads', 0), '`--threads` of at least 1, found 0'),
    (('{slim}/config.py', '--repeats', 0), 'at least one repeat'),
    (('{slim}/config.py', '--amp', 'bf16', '--runtime', 'openvino'), 'for PyTorch')])
def test_mistakes(refused, search_config, slim, args, message):
    assert message in refused(TOOL, search_config, *(str(word).format(slim=slim) for word in args))


def test_lines_with_other_columns_stay(load_tool, tmp_path):
    for row in (dict(a=1), dict(b=1), dict(a=2)):
        load_tool(TOOL).append(row, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_macs_that_a_file_does_not_say(load_tool):
    tool = load_tool(TOOL)
    row = dict(dict.fromkeys((
        'slim', 'runtime', 'threads', 'batch', 'gmacs_dense', 'gmacs_slim', 'ms_dense',
        'ms_slim', 'macs_ratio', 'ratio', 'ratio_q1', 'ratio_q3', 'share'), 1.), dense='dense')
    assert 'unknown' not in tool.latency_text([row])
    row.update(gmacs_dense='', macs_ratio='', share='')
    assert 'unknown to 1.0' in tool.latency_text([row])


@pytest.mark.parametrize('ratio', [1.25, 1.])
def test_a_slim_side_slower_than_dense_is_told_with_its_form(ratio, run_tool, load_tool, slim,
                                                             monkeypatch):
    monkeypatch.setattr(load_tool(TOOL), 'measure_pair', lambda *args: PairTiming(
        [0.004] * 3, [0.004 * ratio] * 3, 100, 80))
    printed = run_tool(TOOL, slim / 'config.py', '--runtime', 'eager', 'onnxruntime', 'openvino',
                       *FAST)
    warned = [line for line in printed.splitlines() if line.startswith('warning: ')]
    # both blocks take and put channels
    assert warned == ([] if ratio <= 1 else [
        f'warning: in `{runtime}` at batch 2 the slim side takes 1.250 of the time of the dense '
        f'one; selections of channels: {form}' for runtime, form in (
            ('eager', 'as they are'), ('onnxruntime', '4 elements'), ('openvino', '4 gather'))])
