"""Users' mistakes: one sentence on stderr, an exit code that is not 0, nothing written."""

import re
from pathlib import Path

import pytest

from mmkcr.core import Structure

REPO = Path(__file__).parents[2]
BACKBONE = "model['architecture']['backbone']"
DATASET = "train_dataloader['dataset']"

# lines added to a good config, and what the sentence says
TRAINING = dict(
    unknown_arch=(f"{BACKBONE}['arch'] = 'deit-smal'\n", "deit-small.* found 'deit-smal'"),
    empty_class_subset=(
        f"{DATASET} = dict(_delete_=True, type='mmkcr.ClassSubset', num_classes=0, dataset=dict("
        "type='CustomDataset', data_prefix='train', data_root={data!r}, pipeline=[]))\n",
        '`num_classes` of a class subset to be at least 1, found `0`'),
    too_many_classes=(
        f"{DATASET} = dict(_delete_=True, type='mmkcr.ClassSubset', num_classes=11, dataset=dict("
        "type='CustomDataset', data_prefix='train', data_root={data!r}, pipeline=[]))\n",
        'at most the 10 classes of the data set, found `11`'),
    rank_above_width=("model['regularizers']['kcr']['rank_ratio'] = 1.5\n", 'expected .*1.5'),
    landmarks_above_n=(
        "custom_hooks[2]['landmarks'] = 5000\n", r'at most n = \d+ landmarks, found `5000`'),
    missing_data=(
        f"{DATASET}['data_root'] = 'no/such/digits'\n",
        'in the folder `no/such/digits`, found no such folder; make it with `python tools/'),
    negative_price=("model['price'] = dict(weight=-1.)\n", 'non-negative price `weight`'),
    unreachable_price=(
        "model['price'] = dict(target='1%', input_shape=(3, 32, 32))\n",
        r'a price `target` within the reachable .*G to .*G MACs, found .*G .reachable: [\d.]+% to '
        '100.0% of the dense network.'),
    unknown_cost=("model['price'] = dict(cost='time')\n",
                  "'paper', 'latency'\\], found 'time'"),
    no_architecture_part=(
        "train_cfg['architecture_fraction'] = 1.\n", r'`architecture_fraction` within \(0, 1\)'),
    unknown_kind_of_gate=(
        f"{BACKBONE}['gates'] = dict(heads=dict(type='mmkcr.GumbelChannelGate'))\n",
        r"by kind among \['mlp_channels'\], found .*'heads'"),
    backbone_without_sites=(
        f"{BACKBONE}['layer_cfgs'] = dict(num_fcs=3)\n",
        'an `FFN` of 3 layers, where two are expected'),
    backbone_that_cannot_be_gated=(
        f"{BACKBONE} = dict(_delete_=True, type='ResNet', depth=18, gates=dict("
        "type='mmkcr.GumbelChannelGate'))\n", "unexpected keyword argument 'gates'"),
    search_without_gates=(f"{BACKBONE}['gates'] = None\n", 'a backbone with gates to search on'),
    unknown_type=(f"{BACKBONE}['type'] = 'mmkcr.KCRResNet'\n", 'KCRResNet'),
    missing_initial_weights=(
        "load_from = 'no/such.pth'\n", 'a checkpoint at `no/such.pth`, found none'),
    missing_structure=(
        f"{BACKBONE}['gates'] = None\n{BACKBONE}['structure'] = 'no/such.json'\n",
        'a structure file at `no/such.json`, found none'),
)


@pytest.mark.parametrize('case', TRAINING)
def test_training(refused, write_config, small_digits, case):
    lines, message = TRAINING[case]
    line = refused('train', write_config(lines.replace('{data!r}', repr(str(small_digits)))))
    assert re.search(message, line), line


def test_structure_of_another_backbone(refused, write_config, tmp_path):
    """Of a Swin, whose sites have other names."""
    path = tmp_path / 'structure.json'
    Structure.load(dict(
        format_version=1, method='kcr', backbone=dict(type='mmkcr.KCRSwinTransformer'),
        sites={'stages.0.blocks.0.ffn.mlp_channels': dict(total=32, kept=[1, 2])})).save(path)
    lines = f"{BACKBONE}['gates'] = None\n{BACKBONE}['structure'] = {str(path)!r}\n"
    for tool in ('train', 'analysis_tools/get_flops'):
        line = refused(tool, write_config(lines))
        assert 'a structure for `KCRVisionTransformer`, found one for `KCRSwin' in line


WIDE = f"{BACKBONE}['arch']['embed_dims'] = 48\n" \
       "model['architecture']['head'] = dict(in_channels=48)\n"


def test_structure_of_another_width(refused, run_tool, write_config, search_config, checkpoint,
                                    tmp_path):
    """The message names the site."""
    run_tool('slim', search_config, checkpoint, '--out', tmp_path / 's')
    path = str(tmp_path / 's' / 'structure.json')
    line = refused('analysis_tools/get_flops', write_config(
        f"{WIDE}{BACKBONE}['gates'] = None\n{BACKBONE}['structure'] = {path!r}\n"))
    assert '48 units at site `layers.0.ffn.mlp_channels`, found a structure for 32' in line


def test_checkpoint_of_another_width(refused, write_config, checkpoint):
    wide = WIDE + "model['regularizers']['kcr']['num_features'] = 48\n"
    config = write_config(wide)
    for tool in ('slim', 'analysis_tools/channel_masks', 'test'):
        line = refused(tool, config, checkpoint)
        assert 'mis-shaped' in line and 'KCRVisionTransformer' in line
    line = refused('train', write_config(wide + f'load_from = {checkpoint!r}\n'))
    assert 'mis-shaped' in line and 'KCRVisionTransformer' in line


@pytest.mark.parametrize('target', ['5%', '3G'])
def test_target_out_of_range(refused, search_config, checkpoint, target):
    line = refused('slim', search_config, checkpoint, '--target-macs', target)
    assert re.search(r'within the reachable [\d.e-]+G to [\d.e-]+G MACs, found', line)


#: A tool as the shell starts it: its output is its lines on stdout and stderr.
PROCESS = """
import runpy, sys
sys.argv = {command!r}
try:
    runpy.run_path(sys.argv[0], run_name='__main__')
except SystemExit as ended:
    print('status', ended.code)
"""


def test_as_a_process(after_torch, load_tool, tmp_path, checkpoint, search_config):
    """What a shell sees: a status and one line; with --debug, what is not caught."""
    command = [str(REPO / 'tools/slim.py'), search_config, checkpoint, '--target-macs', '5%']
    line, status = after_torch(PROCESS.format(command=command), tmp_path).splitlines()
    assert line.startswith('error: expected a target within the reachable')
    assert status == 'status 1' and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match='within the reachable'):  # Python prints its traceback
        load_tool('slim').main([*command[1:], '--debug'])
    assert not list(tmp_path.iterdir())
