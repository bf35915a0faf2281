"""tools/model_zoo/release.py: assets that can be used where they are, with hashes and a table."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights

REPO = Path(__file__).parents[2]
DENSE = 'kcr-dense_vit-mini_1xb64_digits'


@pytest.fixture(scope='module')
def work_dirs(load_tool, small_digits, tmp_path_factory):
    """A work directory as a training leaves it, and what compress makes of its checkpoint."""
    folder = tmp_path_factory.mktemp('runs')
    run = folder / 'run'
    (run / '20260101_000000/vis_data').mkdir(parents=True)
    config = load_config(REPO / f'configs/kcr/digits/{DENSE}.py', {
        f'{part}_dataloader.{key}': value for part in ('train', 'val', 'test')
        for key, value in (('dataset.data_root', str(small_digits)), ('num_workers', 0))})
    config.dump(run / f'{DENSE}.py')
    torch.manual_seed(0)
    model = build_model(config)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(epoch=2, seed=4)), run / 'epoch_2.pth')
    (run / '20260101_000000/20260101_000000.log').write_text('a log\n')
    (run / '20260101_000000/vis_data/scalars.json').write_text(
        '{"loss": 1.0}\n{"accuracy/top1": 12.0, "step": 1}\n{"accuracy/top1": 34.0, "step": 2}\n')
    load_tool('compress').main([str(run / f'{DENSE}.py'), str(run / 'epoch_2.pth'),
                                '--target-params', '60%', '--images', '16', '--sites',
                                'mlp_hidden', '--divisor', '4', '--uniform',
                                '--out', str(folder / 'slim')])
    return run, folder / 'slim'


def test_assets_are_whole_and_can_be_moved(run_tool, work_dirs, tmp_path):
    run, slim = work_dirs
    printed = run_tool('model_zoo/release', run, f'half={slim}', '--out', 'release', '--runtime',
                       'eager', '--repeats', '2')
    release = shutil.move(tmp_path / 'release', tmp_path / 'moved')
    rows = json.loads((release / 'models.json').read_text())['models']
    assert [row['name'] for row in rows] == [DENSE, 'half']
    for line in (release / 'SHA256SUMS').read_text().splitlines():
        digest, name = line.split('  ')
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
    listed = {name for row in rows for name in row['files']} | {
        'models.json', 'README.md', 'SHA256SUMS'}
    assert {path.name for path in release.iterdir()} == listed
    assert {Path(name).suffix for name in rows[0]['files']} == {'.pth', '.py', '.log'}
    assert {Path(name).suffix for name in rows[1]['files']} == {'.pth', '.py', '.json'}

    # the configs find weights and structure beside them, and fit them whole
    images = torch.rand(2, 3, 32, 32)
    for row, source in zip(rows, (run / 'epoch_2.pth', slim / 'subnet.pth')):
        config = load_config(release / f'{row["name"]}.py')
        assert Path(config.load_from) == release / row['files'][0]
        model = build_model(config)
        load_weights(model, config.load_from)
        first = build_model(load_config(run / f'{DENSE}.py' if source.parent == run
                                        else slim / 'config.py'))
        load_weights(first, source)
        model.eval(), first.eval()
        torch.testing.assert_close(model(images), first(images), rtol=0, atol=0)

    # the row: what the log says last, sizes, a command and the times of both sides
    assert rows[0]['metrics'] == {'accuracy/top1': 34.} and rows[1]['metrics'] == {}
    assert rows[0]['command'] == f'mmkcr train configs/kcr/digits/{DENSE}.py'
    assert rows[1]['command'].endswith(
        ' CHECKPOINT --target-params 60% --sites mlp_hidden --divisor 4 --uniform '
        '--images 16 --seed 0')
    structure = Structure.load(release / 'half.json')
    assert rows[1]['macs'] == structure.macs['subnet'] and rows[1]['dense_macs'] == rows[0]['macs']
    assert all(row['ms'] > 0 and row['ratio'] > 0 for row in rows)
    assert 'top-1 34.0 %' in printed and 'not evaluated' in printed


def test_refusals(refused, work_dirs, tmp_path):
    run, slim = work_dirs
    assert 'different names' in refused('model_zoo/release', f'a={run}', f'a={slim}')
    assert 'expected a work directory at `none`' in refused('model_zoo/release', 'none')
    assert 'expected one config' in refused('model_zoo/release', run.parent)
    assert 'at least 0' in refused('model_zoo/release', run, '--repeats', '-1')
