"""latency_table.py, and compress.py with a target of time."""

import importlib.util
import re
import shlex

import pytest

from mmkcr.apis.compress_files import FileOptions, build_task, compress_files
from mmkcr.apis.slim_files import slim_files
from mmkcr.core import LatencyTable, Structure
from mmkcr.core.machine import this_machine
from mmkcr.deploy import latency_table

TOOL = 'benchmarks/latency_table'


def test_from_a_table_to_a_network_of_its_time(run_tool, refused, slim, tmp_path):
    dense, table = (slim / 'dense.py', slim / 'dense.pth'), tmp_path / 'table.json'
    arguments = (dense[0], '--sites', 'mlp_hidden', '--runtime', 'eager', '--repeats', 2, '--out',
                 table)
    printed = run_tool(TOOL, *arguments)
    assert 'Dense: ' in printed and 'of 64' in printed
    times_as_they_should_be(table)
    options = ('--latency-table', table, '--images', 16, '--sites', 'mlp_hidden')
    printed = run_tool('compress', *dense, '--target-latency', '8ms', *options, '--out',
                       tmp_path / 'slim')
    said = Structure.load(tmp_path / 'slim/structure.json').provenance['latency']
    assert 7_000_000 < said['subnet'] <= 8_000_000 and said['dense'] == 10_000_000
    assert f'predicted {said["subnet"] / 1e6:.4g} ms of 10 ms' in printed and 'measured' in printed
    for target, message in (('1ms', 'within the reachable'), ('3G', 'a target of time')):
        assert message in refused('compress', *dense, '--target-latency', target, *options)
    assert '`--target-latency` with `--latency-table`' in refused(
        'compress', *dense, '--target-macs', '80%', *options)
    assert "about {'threads': 2} in" in refused(
        'compress', *dense, '--target-latency', '8ms', *options, '--runtime', 'eager', '--threads',
        2)
    assert 'found another' in refused(TOOL, *arguments, '--threads', 2)
    assert 'at least one repeat' in refused(TOOL, dense[0], '--repeats', 0, '--runtime', 'eager')


def times_as_they_should_be(path):
    """Half of the units of every site would take 15 % less; the clock is not asked."""
    table = LatencyTable.load(path)
    table.dense = 10_000_000
    for entry in table.classes:
        entry['changes'] = {size: round(-3_000_000 / len(entry['sites']) * (
            1 - int(size) / entry['total'])) for size in entry['changes']}
    table.save(path)


@pytest.fixture(params=['compress', 'slim'])
def call(request, slim, search_config, checkpoint):
    """A command and its words, without a target."""
    words = dict(slim=(search_config, checkpoint), compress=(
        slim / 'dense.py', slim / 'dense.pth', '--sites', 'mlp_hidden', '--images', 16))
    return request.param, *words[request.param]


def test_without_a_file_the_conditions_find_the_table(call, run_tool, refused, tmp_path,
                                                      monkeypatch):
    """The literal command; where there is no table yet, the error is what makes it."""
    target = ('--target-latency', '9ms', '--runtime', 'eager', '--threads', 1, '--batch', 1)
    said = refused(*call, *target)
    command = shlex.split(re.search('found none: `(.*)` measures it', said)[1])
    assert command[:2] == ['mmkcr', 'latency-table']
    monkeypatch.chdir(tmp_path)
    run_tool(TOOL, *command[2:], '--repeats', 1)
    paths = list(tmp_path.glob('work_dirs/latency_tables/*_eager_threads1_batch1_*.json'))
    assert len(paths) == 1
    times_as_they_should_be(paths[0])
    monkeypatch.setattr(latency_table, 'time_against', lambda *_: (1e7, 0.5))
    printed = run_tool(*call, *target, '--out', tmp_path / 'slim')
    assert 'warning: the measured time is more than 5% below the prediction' in printed
    latency = Structure.load(tmp_path / 'slim/structure.json').provenance['latency']
    assert 8_000_000 < latency['subnet'] <= 9_000_000
    assert [latency[key] for key in ('runtime', 'threads', 'batch')] == ['eager', 1, 1]
    # a table of other conditions has another name
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run_tool(*call, *target[:-1], 2)
    assert 'with `--threads`, found none' in refused(*call, '--target-macs', '80%', '--threads', 1)


def test_a_runtime_that_is_not_installed(call, refused, tmp_path, monkeypatch):
    """No table is asked for that cannot be made, and nothing is built that cannot be timed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec',
                        lambda name, *rest: None if name == 'openvino' else find(name, *rest))
    path = tmp_path / 'table.json'
    LatencyTable(this_machine(), dict(runtime='openvino', threads=1, batch=1, part=None,
                                      input_shape=[3, 32, 32]), 1000).save(path)
    for words in (['--runtime', 'openvino'], ['--latency-table', path],
                  ['--latency-table', path, '--runtime', 'openvino']):
        assert refused(*call, '--target-latency', '80%', *words).rstrip().endswith(
            'expected the runtime `openvino`, found that it is not installed: pip install openvino')
    # nor from Python
    tool, config, weights, *_ = call
    with pytest.raises(ImportError, match='pip install openvino'):
        if tool == 'slim':
            slim_files(config, weights, '80%', latency=path, out=tmp_path / 'out')
        else:
            task = build_task(FileOptions(config=config, checkpoint=weights, images=16,
                                          target='80%', latency_table=path, out=tmp_path / 'out'))
            compress_files(task, task.options, task.folder)
    assert not list((tmp_path / 'out').glob('*'))
