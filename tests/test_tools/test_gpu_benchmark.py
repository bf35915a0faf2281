"""gpu.sh and gpu.py in a very short form: rows of every sort, failures, and going on."""

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest

from mmkcr.core import Structure

TIMED = ('inference', 'multiples', 'block', 'backbone')
TOOL, ROOT = 'benchmarks/gpu', Path(__file__).parents[2]
NETWORK = f'{ROOT}/configs/kcr/digits/kcr-dense_vit-mini_1xb64_digits.py=60%'


@pytest.fixture
def measure(run_tool, tmp_path):
    """``measure(*arguments)``: what it printed, and the folder of the machine."""

    def run(*arguments, runtime='eager'):
        printed = run_tool(TOOL, '--short', '--repeats', 1, '--out', tmp_path / 'out',
                           '--runtimes', runtime, *arguments)
        return printed, next((tmp_path / 'out').iterdir())

    return run


def rows_of(folder, table):
    return list(csv.DictReader((folder / f'{table}.csv').open()))


def test_rows_without_failures(measure):
    printed, folder = measure('--tables', 'inference', 'refit', 'block', '--networks', NETWORK)
    assert '15 rows are there, 0 failed now, 0 are left' in printed
    row, half = rows_of(folder, 'inference')
    assert (row['dtype'], half['dtype']) == ('fp32', 'bf16') and float(half['ratio']) > 0
    assert float(row['ratio']) > 0 and 0.5 < float(row['macs_ratio']) <= 0.6 and not row['error']
    assert {(row['mode'], row['dtype']) for row in rows_of(folder, 'block')} >= {
        ('mhsa', 'fp32'), ('mhsa', 'bf16'), ('dwconv', 'fp32'), ('dwconv', 'bf16')}
    assert float(rows_of(folder, 'refit')[0]['order']) > 0
    tables = (folder / 'tables.md').read_text()
    assert all(f'## {name}' in tables for name in ('inference', 'block', 'refit'))
    assert tables.startswith('# cpu ') and 'torch' in folder.name
    before = (folder / 'rows.jsonl').read_text()
    printed, _ = measure('--tables', 'inference', 'refit', 'block', '--networks', NETWORK)
    assert '15 rows are there' in printed and '  inference' not in printed  # none again
    assert (folder / 'rows.jsonl').read_text() == before


@pytest.mark.long
def test_steps_searches_and_backbones(measure):
    printed, folder = measure('--tables', 'step', 'search', 'backbone', 'multiples')
    assert '5 rows are there, 0 failed now, 0 are left' in printed
    row, = rows_of(folder, 'multiples')
    assert 0.5 < float(row['macs_ratio']) <= 0.6 and row['divisor'] == '8'
    assert {row['term'] for row in rows_of(folder, 'step') if float(row['ratio']) > 0} == {
        'kcr', 'ib'}
    rows = rows_of(folder, 'search')  # the whole supernet first
    assert all(float(row['images/s']) > 0 for row in rows) and rows[0]['share'] == '100.0%'
    assert len(rows) > 1 and all(25 < float(row['share'][:-1]) <= 30 for row in rows[1:])
    row, = rows_of(folder, 'backbone')
    assert (row['size'], row['runtime'], row['part']) == ('base', 'eager', 'backbone')
    assert 0 < float(row['macs_ratio']) < 1 and float(row['ratio']) > 0


@pytest.mark.long  # minutes on a CPU
def test_compiled_rows(measure):
    printed, folder = measure('--tables', 'inference', 'block', 'backbone', '--networks', NETWORK,
                              runtime='compiled')
    assert '3 rows are there, 0 failed now, 0 are left' in printed
    for table, time in (('inference', 'ratio'), ('block', 'seconds'), ('backbone', 'ratio')):
        row, = rows_of(folder, table)
        assert row['runtime'] == 'compiled' and float(row[time]) > 0 and not row['error']


def test_every_job_of_the_short_form(load_tool):
    """The short form has rows of every table and runtime, the long one those of every network."""
    tool = load_tool(TOOL)
    for short in (['--short'], []):
        args = tool.make_parser().parse_args([*short, '--repeats', '1', '--device', 'cpu'])
        names = [job.name for job in tool.all_jobs(args)]
        assert len(set(names)) == len(names)
        for table in tool.TABLES:
            found = [name for name in names if name.startswith(f'{table} ')]
            assert found
            for runtime in tool.RUNTIMES if table in TIMED else ():
                assert any(f'runtime={runtime}' in name for name in found), (table, runtime)
    for structure in tool.structure_names():
        assert sum(f'network={structure} ' in name for name in names) == 2 * len(
            tool.DTYPES) * len(tool.BATCHES)


def test_what_fails_is_a_row_and_the_rest_goes_on(measure, load_tool, monkeypatch, tmp_path):
    arguments = ('--tables', 'inference', 'refit', '--networks', 'nothing')
    printed, folder = measure(*arguments)
    assert '3 rows are there, 2 failed now' in printed  # in both precisions
    assert 'found `nothing`' in rows_of(folder, 'inference')[0]['error']
    assert rows_of(folder, 'refit')[0]['error'] == ''
    # a process that died in a row; time that is over; another try
    (folder / '.running').write_text(json.dumps(dict(name='refit a', table='refit', key={})))
    monkeypatch.setenv('MMKCR_BEGAN', '0')
    printed, _ = measure(*arguments, '--retry')
    assert '4 rows are there, 0 failed now, 2 are left (the same command goes on)' in printed
    assert 'its process died' in rows_of(folder, 'refit')[1]['error']
    monkeypatch.delenv('MMKCR_BEGAN')
    printed, _ = measure(*arguments, '--retry')
    assert '4 rows are there, 2 failed now, 0 are left' in printed
    # a GPU that answers no more ends the process, for another one
    monkeypatch.setattr(load_tool(TOOL), 'is_broken', lambda device: True)
    with pytest.raises(SystemExit) as ended:
        measure(*arguments, '--retry')
    assert ended.value.code == 75


def test_every_method_and_backbone_comes_first(load_tool):
    names = load_tool(TOOL).structure_names()
    files = {path.stem for path in (ROOT / 'configs/structures').glob('*.json')}
    assert set(names) == files and len(names) == len(files)
    for path in (ROOT / 'configs/structures').glob('*.json'):  # every one has an image's size
        shape = load_tool(TOOL).input_shape(Structure.load(path))
        assert len(shape) == 3 and shape[0] == 3 and min(shape[1:]) >= 224, path
    pairs = [tuple(name.split('_')[:2]) for name in names]
    firsts = pairs[:len(set(pairs))]
    assert len(set(firsts)) == len(firsts) and {name.split('-')[0] for name, _ in firsts} == {
        'kcr', 'dcs', 'ofb', 'dwconv'}


def test_the_script_begins_again_behind_a_broken_process(tmp_path):
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\necho "$MMKCR_BEGAN $@" >> calls\n'
                      '[ $(wc -l < calls) -ge 3 ] && exit 3\n[ $(wc -l < calls) -eq 2 ] && '
                      'kill -SEGV $$\nexit 75\n')
    python.chmod(0o755)
    script = tmp_path / 'tools/benchmarks/gpu.sh'
    script.parent.mkdir(parents=True)
    script.write_text((ROOT / 'tools/benchmarks/gpu.sh').read_text())
    ended = subprocess.run(['bash', script, '--short'], env=dict(os.environ, PYTHON=str(python)))
    calls = (tmp_path / 'calls').read_text().splitlines()
    assert ended.returncode == 3 and len(calls) == 3 and len(set(calls)) == 1
    assert calls[0].endswith('tools/benchmarks/gpu.py --short')


def test_refusals(refused, monkeypatch):
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    assert 'found none: `--short` runs on the CPU' in refused(TOOL)
    assert '`--minutes` above 0' in refused(TOOL, '--short', '--minutes', 0)
