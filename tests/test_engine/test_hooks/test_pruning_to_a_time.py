"""The search of Once for Both to a target of time, by a table: the shipped config, shortened."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from long_form import few
from mmkcr.apis import slim
from mmkcr.core import LatencyModel, LatencyTable
from mmkcr.core.machine import this_machine
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import search_space

CONFIG = 'configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py'
TARGETS = few(('8ms', '60%'), '60%')
DENSE = 10_000_000
SHARE = dict(embedding=0.3, head_channels=0.35, mlp_hidden=0.35)  # of the time, of all such sites


def table_for(model):
    """A table in which half of the units save most, and all but an eighth take longer than all."""
    classes, sites = [], search_space(model).gated_sites()
    for kind, share in SHARE.items():
        names = [name for name in sites if name.endswith(f'.{kind}')]
        total, each = sites[names[0]].total, share * DENSE / len(names)
        changes = {total // 8: -0.8 * each, total // 4: -0.75 * each, total // 2: -0.6 * each,
                   7 * total // 8: 0.02 * each}
        classes.append(dict(sites=names, total=total, measured=[*changes], changes={
            str(size): round(change) for size, change in changes.items()}))
    return LatencyTable(this_machine(), dict(
        runtime='onnxruntime', input_shape=list(model.price.input_shape)), DENSE, classes)


@pytest.fixture(scope='module')
def job_of(tmp_path_factory):
    """``job_of(target)``: a search to a time."""
    path = tmp_path_factory.mktemp('time') / 'table.json'
    table_for(build_model(load_config(Path(__file__).parents[3] / CONFIG))).save(path)
    return lambda target: dict(config=CONFIG, options={
        'model.price.cost': 'latency', 'model.price.table': str(path),
        'model.price.target': target, 'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 3,
        # as many iterations, of a quarter of the digits
        'train_dataloader.dataset.indices': list(range(0, 1437, 4)),
        'train_dataloader.batch_size': 16})


@pytest.mark.parametrize('target', TARGETS)
def test_the_network_takes_the_time_of_the_target(target, job_of, finished, last_checkpoint,
                                                  logged):
    """The gates pull it there, and the decision leaves it there."""
    job, folder = job_of(target), finished(job_of(target))
    model = build_model(Config.fromfile(next(folder.glob('*.py'))))
    checkpoint = last_checkpoint(folder)
    model.load_state_dict(checkpoint['state_dict'])
    assert all(gate.decided for gate in model.gates().values())
    table = LatencyTable.load(job['options']['model.price.table'])
    structure = slim(model, None, 1, model.price.input_shape, latency=table)[1]
    time = LatencyModel(model.macs_model(), table)
    limit = time.parse_target(target)
    assert 0.95 * limit <= time(structure.sizes()) <= limit
    assert structure.provenance['latency']['subnet'] == time(structure.sizes())
    said = re.findall(r'time of what is there: (\S+) ms', (folder / 'output.txt').read_text())
    assert float(said[-1]) * 1e6 == pytest.approx(time(structure.sizes()), rel=1e-3)
    values = torch.tensor(logged(checkpoint)['train/latency'])
    limit = {'8ms': 8., '60%': 6.}[target]
    assert abs(values[-1] - limit) < 0.05 * limit < abs(values[0] - limit)


def test_a_time_out_of_reach_is_refused_before_training(job_of, run_jobs, tmp_path):
    assert run_jobs([dict(job_of('1ms'), work_dir=str(tmp_path))]) == [1]
    text = (tmp_path / 'output.txt').read_text()
    assert re.search('within the reachable .* ms to 10(.0)?.* ms, .* found .* to 1 ms', text)
    assert 'Epoch(train)' not in text
