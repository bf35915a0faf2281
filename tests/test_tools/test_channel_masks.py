"""channel_masks.py: the heat map of a search, its evolution, and of structure files."""

import math

import pytest
import torch

from mmkcr.core import Structure

TOOL = 'analysis_tools/channel_masks'


def shares(printed):
    """Cells of the printed table by site."""
    rows = [[cell.strip() for cell in line.split('│')[1:-1]] for line in printed.splitlines()
            if line.startswith('│')]
    return {row[0]: row[1:] for row in rows}


def test_checkpoints_of_a_search(run_tool, make_checkpoint, search_config, tmp_path):
    """Ordered by epoch, whatever the order of the files."""
    late = make_checkpoint(search_config, seed=1, epoch=10, shift=-9.)
    early = make_checkpoint(search_config, seed=2, epoch=2, shift=9.)
    printed = run_tool(TOOL, search_config, late, early)
    out = tmp_path / 'work_dirs' / 'tiny-search' / 'channel_masks'
    assert sorted(path.stem for path in out.iterdir()) == [
        'channel_masks', 'evolution', 'gate_histogram', 'kept_shares', 'temperature']
    assert shares(printed) == {f'layers.{i}.ffn.mlp_channels': ['100.0%', '0.0%'] for i in range(2)}


@pytest.fixture
def seen(load_tool, monkeypatch):
    """What is drawn: labels of the evolution, the temperature, its curve."""
    module, seen = load_tool(TOOL), {}
    monkeypatch.setattr(module, 'plot_mask_evolution',
                        lambda masks, path: seen.update(labels=[label for label, _ in masks]))
    monkeypatch.setattr(module, 'plot_gate_histograms',
                        lambda scores, path, temperature: seen.update(tau=temperature))
    monkeypatch.setattr(module, 'plot_curve', lambda curves, *_, **options: seen.update(
        curves, **options))
    return seen


def test_temperature_is_that_of_the_last_trained_epoch(run_tool, make_checkpoint, search_config,
                                                       seen):
    """And checkpoints of one epoch have the names of their files."""
    run_tool(TOOL, search_config, *(make_checkpoint(search_config, seed=seed, epoch=4)
                                    for seed in (1, 2)), '--format', 'svg')
    assert math.isclose(seen['tau'], 4.5 * 0.9**3)  # epochs 0 to 3 are trained
    assert seen['temperature'] == [4.5]  # the tiny search has one epoch
    assert len(set(seen['labels'])) == 2


def test_runs_that_count_iterations(run_tool, make_checkpoint, search_config, tmp_path, seen):
    """Their checkpoints all say epoch 0; the temperature follows the iterations."""
    config = tmp_path / 'iterations.py'
    config.write_text(f"_base_ = {str(search_config)!r}\n"
                      "train_cfg = dict(_delete_=True, by_epoch=False, max_iters=12)\n"
                      "custom_hooks = [dict(type='mmkcr.TemperatureDecayHook', initial=4.,\n"
                      "                     decay=0.5, interval=3, by_epoch=False)]\n")
    paths = []
    for iteration, shift in ((10, -9.), (2, 9.)):
        path = make_checkpoint(search_config, epoch=0, shift=shift)
        state = torch.load(path, weights_only=False)
        state['meta'].update(epoch=0, iter=iteration)
        paths.append(tmp_path / f'iter_{iteration}.pth')
        torch.save(state, paths[-1])
    printed = run_tool(TOOL, config, *paths)
    assert seen['labels'] == ['2', '10'] and seen['xlabel'] == 'iteration'
    assert seen['tau'] == 4. * 0.5**3  # iterations 0 to 9 are trained
    assert seen['temperature'] == [4. * 0.5**(i // 3) for i in range(12)]
    assert set(map(tuple, shares(printed).values())) == {('100.0%', '0.0%')}


def test_structure_files(run_tool, search_config, checkpoint, tmp_path):
    for target in ('0.8', '0.9'):
        run_tool('slim', search_config, checkpoint, '--target-macs', target, '--out', target)
    printed = run_tool(TOOL, '--structure', '0.8/structure.json', '0.9/structure.json')
    for site, cells in shares(printed).items():
        for cell, target in zip(cells, ('0.8', '0.9')):
            found = Structure.load(tmp_path / target / 'structure.json').sites[site]
            assert cell == f'{len(found.kept) / found.total:.1%}'
    assert (tmp_path / '0.8' / 'channel_masks' / 'channel_masks.png').is_file()
    assert not (tmp_path / '0.8' / 'channel_masks' / 'temperature.png').exists()


def test_refusals(refused, search_config, checkpoint, write_config):
    dense = write_config("model['architecture']['backbone']['gates'] = None\n")
    for args, message in [
        ((search_config, ), 'found neither'),
        ((search_config, checkpoint, '--structure', 'a.json'), 'found both'),
    ]:
        assert message in refused(TOOL, *args), message
    assert 'a backbone with gates' in refused(TOOL, dense, checkpoint)
    # a bi-mask is above 0 for every unit that some option keeps: all would count as kept
    bimask = write_config("""
model['architecture']['backbone'].update(type='mmkcr.OFBVisionTransformer',
                                         gates=dict(_delete_=True, type='mmkcr.BiMaskGate'))
""")
    assert 'found bi-masks' in refused(TOOL, bimask, checkpoint)
