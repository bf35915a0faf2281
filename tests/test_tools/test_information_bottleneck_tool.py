"""tools/analysis_tools/information_bottleneck.py on tiny classifiers of the digits."""

import json
from pathlib import Path

import pytest
import torch

from lab.kernel_analysis import classification_scores, split_loader
from mmkcr.engine.build import build_model, load_config
from mmkcr.methods.dcs.information_bottleneck import information_statistics


@pytest.fixture(scope='module')
def runs(dcs_network):
    """Name, config and two checkpoints, of a dense and a masked network."""
    return [[name, *dcs_network(f'mobilevit-mini{kind}', 4, 2)]
            for name, kind in (('dense', ''), ('DCS', '_arch1'))]


def test_curves_of_two_runs(runs, run_tool, tmp_path):
    printed = run_tool('analysis_tools/information_bottleneck', '--run', *runs[0], '--run',
                       *runs[1], '--out', 'out')
    rows = json.loads((tmp_path / 'out/information_bottleneck.json').read_text())
    assert [(row['run'], row['epoch']) for row in rows] == [
        ('dense', 2), ('dense', 4), ('DCS', 2), ('DCS', 4)]
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {
        'information_bottleneck.json', 'ib.png', 'test_loss.png'}
    assert all(row['ib'] == pytest.approx(row['i_inputs'] - row['i_labels']) for row in rows)
    assert 'ibb' in printed and printed.count('DCS') == 2
    # what the classifier reads, of the checkpoint named
    config = load_config(runs[1][1])
    model = build_model(config)
    model.load_state_dict(torch.load(runs[1][3])['state_dict'])
    expected = information_statistics(model, split_loader(config), 10, 'head.fc:input')
    assert rows[2]['checkpoint'] == 'mobilevit-mini_arch1_2.pth'
    assert rows[2]['i_labels'] == pytest.approx(expected['i_labels'], abs=1e-6)
    scores = classification_scores(model, split_loader(config, 'val'))
    assert rows[2]['loss'] == pytest.approx(scores['loss'])
    assert rows[2]['top1'] == pytest.approx(scores['top1'])


def test_one_checkpoint_needs_no_figure(runs, run_tool):
    run_tool('analysis_tools/information_bottleneck', '--run', *runs[0][:3], '--split', 'val',
             '--out', 'out')
    assert [path.name for path in Path('out').iterdir()] == ['information_bottleneck.json']


def test_refusals(refused):
    for given in (['a', 'b.py'], ['a', 'b.py', 'c.pth', '--run', 'a', 'b.py', 'c.pth']):
        assert 'a name of its own, a config and at least one checkpoint' in refused(
            'analysis_tools/information_bottleneck', '--run', *given)
