"""Users' mistakes: one sentence on stderr, an exit code that is not 0, nothing written."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
BACKBONE = "model['architecture']['backbone']"


def test_a_price_that_is_out_of_reach(refused, write_config):
    line = refused('train', write_config(
        "model['price'] = dict(target='1%', input_shape=(3, 32, 32))\n"))
    assert re.search(r'a price `target` within the reachable .*G to .*G MACs, found .*G '
                     r'.reachable: [\d.]+% to 100.0% of the dense network.', line), line


def test_checkpoint_of_another_width(refused, write_config, checkpoint):
    wide = f"{BACKBONE}['arch']['embed_dims'] = 48\n" \
           "model['architecture']['head'] = dict(in_channels=48)\n" \
           "model['regularizers']['kcr']['num_features'] = 48\n"
    calls = [(tool, write_config(wide), checkpoint)
             for tool in ('slim', 'analysis_tools/channel_masks', 'test')]
    for call in (*calls, ('train', write_config(wide + f'load_from = {checkpoint!r}\n'))):
        line = refused(*call)
        assert 'mis-shaped' in line and 'KCRVisionTransformer' in line


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
