"""channel_masks.py: the heat map of a search, its evolution, and of structure files."""

import math

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


def test_temperature_is_that_of_the_last_trained_epoch(run_tool, load_tool, make_checkpoint,
                                                       search_config, monkeypatch):
    module, seen = load_tool(TOOL), {}
    monkeypatch.setattr(module, 'plot_gate_histograms',
                        lambda scores, path, temperature: seen.update(tau=temperature))
    monkeypatch.setattr(module, 'plot_curve', lambda curves, *_, **__: seen.update(curves))
    run_tool(TOOL, search_config, make_checkpoint(search_config, epoch=4), '--format', 'svg')
    assert math.isclose(seen['tau'], 4.5 * 0.9**3)  # epochs 0 to 3 are trained
    assert seen['temperature'] == [4.5]  # the tiny search has one epoch


def test_structure_files(run_tool, search_config, checkpoint, tmp_path, read_json):
    for target in ('0.8', '0.9'):
        run_tool('slim', search_config, checkpoint, '--target-macs', target, '--out', target)
    printed = run_tool(TOOL, '--structure', '0.8/structure.json', '0.9/structure.json')
    for site, cells in shares(printed).items():
        for cell, target in zip(cells, ('0.8', '0.9')):
            found = read_json(tmp_path / target / 'structure.json')['sites'][site]
            assert cell == f'{len(found["kept"]) / found["total"]:.1%}'
    assert (tmp_path / '0.8' / 'channel_masks' / 'channel_masks.png').is_file()
    assert not (tmp_path / '0.8' / 'channel_masks' / 'temperature.png').exists()


def test_refusals(refused, search_config, checkpoint, write_config):
    dense = write_config("model['architecture']['backbone']['gates'] = None\n")
    for args, message in [
        ((), 'found neither'),
        ((search_config, ), 'found neither'),
        ((search_config, checkpoint, '--structure', 'a.json'), 'found both'),
        (('--structure', 'a.json'), 'a structure file at `a.json`, found none'),
        ((search_config, 'no.pth'), 'a checkpoint at `no.pth`, found none'),
    ]:
        assert message in refused(TOOL, *args), message
    assert 'a backbone with gates' in refused(TOOL, dense, checkpoint)
