"""tools/benchmarks/latency.py: which two models it compares, what it prints and writes."""

import pytest

from mmkcr.apis import count_macs
from mmkcr.apis.build import load_config
from mmkcr.core import count_params

TOOL = 'benchmarks/latency'
FAST = ('--repeats', 3, '--warmup', 1, '--threads', 1, '--batch-size', 2, '--memory', 'system')


def test_a_target_stands_for_one_keep_ratio(run_tool, search_config, read_json, tmp_path):
    printed = run_tool(TOOL, search_config, '--target-macs', '80%', '--divisor', 4, *FAST)
    result = read_json(tmp_path / 'work_dirs/benchmarks/latency_tiny-search.json')
    assert 0.7 < result['macs']['ratio'] <= 0.8 and 0 < result['keep_ratio'] < 1
    assert len(result['samples']['dense']) == len(result['samples']['slim']) == 3
    assert result['share'] == pytest.approx((1 - result['ratio']) / (1 - result['macs']['ratio']))
    assert (result['memory'], result['batch_size']) == ('system', 2)
    assert result['machine']['threads'] == 1
    assert f'{result["share"]:.2f}' in printed and f'{result["ratio"]:.3f}' in printed


@pytest.mark.parametrize('side', ['host', 'subnet'])
def test_both_sides_can_be_subnets(load_tool, search_config, side):
    tool = load_tool(TOOL)
    arguments = [str(search_config), '--target-macs', '80%', '--dense', side]
    dense, subnet, shape = tool.build_pair(tool.make_parser().parse_args(arguments))
    layers = [[type(module) for module in model.modules()] for model in (dense, subnet)]
    assert (layers[0] == layers[1]) == (side == 'subnet')
    assert count_macs(subnet, shape) <= 0.8 * count_macs(dense, shape)
    assert count_params(dense) == count_params(tool.task_model(
        load_config(search_config).model.architecture, gates=None))


def test_layers_that_shrink_are_timed_on_request(run_tool, search_config, read_json, tmp_path):
    printed = run_tool(TOOL, search_config, '--target-macs', '80%', '--divisor', 4, '--dense',
                       'subnet', '--layers', *FAST)
    found = read_json(tmp_path / 'work_dirs/benchmarks/latency_tiny-search.json')['layers']
    assert f'{len(found["layers"])} layers that shrink' in printed
    assert all('.ffn.layers.' in name for name in found['layers'])
    (dense, slim), macs = found['sums'], found['macs_ratio']
    assert 0 < dense < found['seconds'][0] and 0 < slim < found['seconds'][1]
    assert found['ceiling'] == pytest.approx((dense - slim) / found['seconds'][0] / (1 - macs))
    assert f'changed: {found["ceiling"]:.2f}' in printed


def test_structure_and_config_give_the_same_pair(run_tool, search_config, checkpoint, read_json,
                                                 tmp_path):
    run_tool('slim', search_config, checkpoint, '--target-macs', '80%', '--out', tmp_path / 'slim')
    structure = tmp_path / 'slim' / 'structure.json'
    config = load_config(search_config)
    config.model = config.model.architecture
    config.model.backbone.pop('gates')
    config.model.backbone.structure = str(structure)
    deploy = tmp_path / 'deploy.py'
    config.dump(deploy)
    macs = []
    for args in ((search_config, '--structure', structure), (search_config, deploy), (deploy, )):
        run_tool(TOOL, *args, *FAST, '--out', tmp_path / 'out.json')
        macs.append(read_json(tmp_path / 'out.json')['macs'])
    assert macs[0] == macs[1] == macs[2]
    written = read_json(structure)['macs']
    assert (macs[0]['dense'], macs[0]['slim']) == (written['dense'], written['subnet'])


@pytest.mark.parametrize('args, message', [
    ((), 'expected one of a second config, `--structure`, `--target-macs`'),
    (('--target-macs', '80%', '--structure', 'x.json'), 'found 2'),
    (('--structure', 'x.json'), '`x.json`, found none'),
    (('--target-macs', '1%'), 'within the reachable'),
    (('--target-macs', '80%', '--threads', 0), 'at least one thread'),
    (('--target-macs', '80%', '--batch-size', 0), '`--batch-size` of at least 1, found 0'),
    (('--target-macs', '80%', '--clock', 'cpu'), '`--threads 1`'),
    (('--target-macs', '80%', '--repeats', 0), 'at least one repeat'),
    (('--target-macs', '80%', '--layers'), '`--dense subnet`'),
    (('--target-macs', '80%', '--layers', '--dense', 'subnet', '--compile'), '--compile'),
])
def test_mistakes(refused, search_config, args, message):
    assert message in refused(TOOL, search_config, *args)
