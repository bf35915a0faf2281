"""The hosts' own tools/train.py and tools/test.py run our configs, in a process of their own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

ROOT = Path(__file__).parents[2]
#: Runs scripts of one host one after the other, as from a command line.
SCRIPTS = """
import runpy, sys
from mmkcr.hosts import ensure_torchvision
from yapf.yapflib import yapf_api
ensure_torchvision()  # beside the CPU's PyTorch no host can import it
yapf_api.FormatCode = lambda text, **_: (text, False)  # as in tests/conftest.py
for sys.argv in {lines}:
    runpy.run_path(sys.argv[0], run_name='__main__')
"""
LOADER = dict(num_workers=0, persistent_workers=False, dataset=dict(indices=2))
QUICK = dict(train_dataloader=dict(LOADER, batch_size=2, dataset=dict(indices=8)),
             val_dataloader=LOADER, test_dataloader=LOADER)
EPOCH, ITERS = dict(train_cfg=dict(max_epochs=1)), dict(train_cfg=dict(max_iters=2))
SCENES = 'swin-mini_search_1xb8_digit-scenes'
NOT_STARTED = dict(model=dict(backbone=dict(init_cfg=None)))


#: Config of each host, changes, the checkpoint of its search and what its test prints.
SEARCHES = dict(
    mmpretrain=('digits/kcr-search_vit-mini_1xb64_digits', dict(
        QUICK, **EPOCH, load_from=None, train_dataloader=dict(
            LOADER, batch_size=16, dataset=dict(indices=64))), 'epoch_1', 'accuracy/top1'),
    mmdet=(f'detection/kcr-mask-rcnn_{SCENES}', dict(QUICK, **EPOCH, **NOT_STARTED), 'epoch_1',
           'coco/bbox_mAP'),
    mmseg=(f'segmentation/kcr-upernet_{SCENES}', dict(QUICK, **ITERS, **NOT_STARTED), 'iter_2',
           'mIoU'))


@pytest.mark.parametrize('host', SEARCHES)
def test_a_search_of_each_host(host, digits_root, tmp_path, after_torch):
    """Bases are paths; for mmseg the config is dumped, and tested as its run writes it.

    See docs/running.md.
    """
    config, options, checkpoint, metric = SEARCHES[host]
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/digits').symlink_to(digits_root)
    shipped = ROOT / f'configs/kcr/{config}.py'
    if host == 'mmseg':
        settings = Config.fromfile(shipped)
        settings.merge_from_dict(options)
        settings.dump(tmp_path / 'config.py')
    else:
        (tmp_path / 'config.py').write_text('\n'.join(
            [f'_base_ = {str(shipped)!r}', *(f'{key} = {value!r}'
                                             for key, value in options.items())]))
    tested = 'run/config.py' if host == 'mmseg' else 'config.py'
    tools = Path(importlib.util.find_spec(host).origin).parent / '.mim/tools'
    printed = after_torch(SCRIPTS.format(lines=[
        [str(tools / words[0]), *words[1:], '--work-dir', 'run'] for words in (
            ('train.py', 'config.py'), ('test.py', tested, f'run/{checkpoint}.pth'))]), tmp_path)
    assert 'mmkcr.SearchModel' in printed
    assert metric in printed.rpartition('(test)')[2]


def test_references_that_only_our_own_tools_know(tmp_path):
    """As docs/running.md says; when a host knows them, that page can be mended."""
    (tmp_path / 'config.py').write_text("_base_ = ['mmkcr::_base_/methods/kcr_search.py']\n")
    read = "from mmengine.config import Config; Config.fromfile('config.py')"  # as they do
    done = subprocess.run([sys.executable, '-c', read], cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode and 'mmkcr' in done.stderr.splitlines()[-1]
