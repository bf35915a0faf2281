"""channel_masks.py: the heat map of a search, its evolution, and of structure files."""

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
        'channel_masks', 'evolution', 'kept_shares']
    assert shares(printed) == {f'layers.{i}.ffn.mlp_channels': ['100.0%', '0.0%'] for i in range(2)}


@pytest.fixture
def seen(load_tool, monkeypatch):
    """What is drawn: labels of the evolution."""
    module, seen = load_tool(TOOL), {}
    monkeypatch.setattr(module, 'plot_mask_evolution',
                        lambda masks, path: seen.update(labels=[label for label, _ in masks]))
    return seen


def test_checkpoints_of_one_epoch_have_the_names_of_their_files(run_tool, make_checkpoint,
                                                                search_config, seen):
    run_tool(TOOL, search_config, *(make_checkpoint(search_config, seed=seed, epoch=4)
                                    for seed in (1, 2)), '--format', 'svg')
    assert len(set(seen['labels'])) == 2


def test_runs_that_count_iterations(run_tool, make_checkpoint, search_config, tmp_path, seen):
    """Their checkpoints all say epoch 0; they are told apart and ordered by iterations."""
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
    assert seen['labels'] == ['2', '10']
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
