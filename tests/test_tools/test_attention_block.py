"""attention_block.py: the paper's block profile, and whole ViTs for gpu.py."""

import json

import pytest
import torch

from lab.attention_profile import (
    SIZES,
    PeakMemory,
    attention_block,
    replaced_blocks,
    replaced_pair,
)
from mmkcr.deploy.latency import measure_pair
from mmkcr.models import DWConvVisionTransformer

TOOL = 'benchmarks/attention_block'
ARGUMENTS = ['--sizes', 'small', '--grid', '12', '--repeats', '2', '--warmup', '0', '--threads',
             '1']


def test_block_table(run_tool, tmp_path):
    printed = run_tool(TOOL, *ARGUMENTS, '--out', 'b.json')
    result = json.loads((tmp_path / 'b.json').read_text())
    rows = {row['mode']: row for row in result['blocks']}
    width, tokens, head = 384, 144, 64
    assert {mode: row['macs'] for mode, row in rows.items()} == {
        'mhsa': 4 * width**2 * tokens + 2 * tokens**2 * width,
        'mhsa-naive': 4 * width**2 * tokens + 2 * tokens**2 * width,
        'conv': 10 * width**2 * tokens, 'dwconv': (2 * width**2 + 9 * width) * tokens,
        'spvit': 10 * width * head * tokens,
        'ensembled-dwconv': (2 * width * head + 9 * head) * tokens}
    assert all(row['seconds'] > 0 and len(row['samples']) == 2 for row in rows.values())
    assert rows['mhsa-naive']['memory'] > rows['mhsa']['memory'] > 0
    assert rows['ensembled-dwconv']['memory'] < rows['dwconv']['memory']
    assert result['machine']['threads'] == 1 and 'dwconv' in printed


@pytest.mark.parametrize('runtime', ['eager', 'onnxruntime'])
def test_whole_vits_beside_the_dense_ones(runtime, monkeypatch):
    small = dict(embed_dims=384, num_layers=6, num_heads=6, feedforward_channels=48)
    monkeypatch.setitem(DWConvVisionTransformer.arch_zoo, 'base', small)
    monkeypatch.setitem(SIZES, 'base', (384, 6))
    if runtime == 'onnxruntime':
        pytest.importorskip('onnxruntime')
    none, half = (measure_pair(*replaced_pair('base', share, 56), torch.randn(1, 3, 56, 56), 1, 0,
                               runtime, 1) for share in (0, 0.5))
    assert none.macs_ratio == 1 > half.macs_ratio
    saved = 3 * (2 * 384**2 * 16 + 2 * 16**2 * 384 - 9 * 384 * 16)
    assert half.macs_dense - half.macs_slim == saved


def test_peak_memory_counts_what_lives_at_once():
    with PeakMemory() as memory:
        x = torch.zeros(1000)
        for _ in range(5):
            x = x + 1  # the one before dies
        y = x.view(10, 100)  # a view is no copy
        del x, y
    assert memory.peak == 2 * 4000


def test_blocks_of_the_paper():
    assert replaced_blocks('large', 24, 0.5) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert len(replaced_blocks('large', 24, 2 / 3)) == 16 and replaced_blocks('base', 12, 0) == []
    assert replaced_blocks('base', 12, 0.5) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize('arguments, message', [
    (['--repeats', '0'], 'repeats'), (['--clock', 'cpu'], '`--threads 1`'),
    (['--device', 'cuda'], 'expected a CUDA device')])
def test_bad_input(refused, arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    assert message in refused(TOOL, *arguments, '--out', 'x')
    with pytest.raises(ValueError, match="found 'mlp'"):
        attention_block('mlp', 'base', (2, 2))
