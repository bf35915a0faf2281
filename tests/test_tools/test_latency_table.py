"""latency_table.py, and compress.py with a target of time."""

import pytest

from mmkcr.apis.build import load_config
from mmkcr.core import LatencyTable, Structure

TOOL = 'benchmarks/latency_table'


@pytest.fixture
def dense(search_config, tmp_path):
    """Config and weights of a dense classifier."""
    import torch

    from mmkcr.apis.build import build_model
    config = load_config(search_config)
    config.model = config.model.architecture
    config.model.backbone.pop('gates')
    config.dump(tmp_path / 'dense.py')
    torch.save(dict(state_dict=build_model(config).state_dict()), tmp_path / 'dense.pth')
    return tmp_path / 'dense.py', tmp_path / 'dense.pth'


def test_from_a_table_to_a_network_of_its_time(run_tool, refused, dense, tmp_path, read_json):
    table = tmp_path / 'table.json'
    arguments = (dense[0], '--sites', 'mlp_hidden', '--runtime', 'eager', '--repeats', 2, '--out',
                 table)
    printed = run_tool(TOOL, *arguments)
    assert 'Dense: ' in printed and 'of 64' in printed
    content = read_json(table)  # times as they should be, not as they were
    content['dense'] = 10_000_000
    for entry in content['classes']:
        entry['changes'] = {size: round(-3_000_000 * (1 - int(size) / entry['total']))
                            for size in entry['changes']}
    LatencyTable(**content).save(table)
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
    assert 'found another' in refused(TOOL, *arguments, '--threads', 2)
    assert 'repeats and a divisor of at least 1' in refused(TOOL, *arguments, '--repeats', 0)
