"""Every config of Once-for-Both is built, with its target, its schedules and its structure."""

import logging
import re
from contextlib import nullcontext
from pathlib import Path

import config_files as runs
import pytest
import torch
from config_files import CONFIGS, ROOT
from mmengine.registry import PARAM_SCHEDULERS

from lab.model_zoo import uninitialized
from long_form import every_nth, few
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.tasks import find_backbone, find_task
from mmkcr.registry import HOOKS

ROWS = {name: row for name, row in runs.rows_of('ofb', 'retrain').items() if '_dense_' not in name}
OFB = [path for path in CONFIGS if path.startswith('configs/ofb/')]
TARGETS = {'deit-small': (0.9, 1.1, 1.7), 'deit-base': (3.6, 8.7), 'swin-tiny': (1.0, 2.6, 3.1),
           'resnet50': (1.6, )}


def test_found():
    names = [name.split('_') for name in ROWS]
    assert {name[1]: tuple(sorted(int(n[2][:-1]) / 1000 for n in names if n[1] == name[1]))
            for name in names} == TARGETS
    assert {Path(path).stem.split('_')[1] for path in OFB if '/search/' in path} == set(TARGETS)


@pytest.mark.parametrize('path', [path for path in OFB if '/retrain/' in path])
def test_header_of_a_retraining_says_the_search_of_its_size(path):
    _, net, size, _, _ = Path(path).stem.split('_')
    header = (ROOT / path).read_text().partition('_base_')[0]
    search = f'configs/ofb/search/ofb-search_{net}_8xb128_in1k.py'
    run = f'work_dirs/ofb-search_{net}_{size}_8xb128_in1k'
    assert header.count(search) == 2 and header.count(run) == 3
    option = re.search(r'--cfg-options (\S+)=(\S+)', header)
    assert float(option[2][:-1]) * 1000 == int(size[:-1])
    assert all(f'{target}G' in header for target in TARGETS[net])
    config = load_config(ROOT / search, {option[1]: option[2]})
    assert config.model.price.target == option[2]


@pytest.mark.parametrize('name', ROWS)
def test_a_size_is_that_of_its_search(name):
    """Also where it is an option of another size's config, whose header has the command."""
    run = f'work_dirs/{name.replace("retrain", "search")}/slim'
    config = load_config(*ROWS[name])
    assert config.model.backbone.structure == f'{run}/structure.json'
    assert config.load_from == f'{run}/subnet.pth'


@pytest.mark.parametrize('path', every_nth(3, OFB))
def test_builds_and_takes_a_step(path, prepared):
    """Those on the digits, segmentors and detectors train: every parameter gets a gradient."""
    config, small = prepared(path), '/digits/' in path
    if tuple(config.model.get('price', {}).get('input_shape', ())) == (3, 800, 1280):
        config.model.price.input_shape = (3, 128, 128)  # counting the larger one takes seconds
    runner = runs.build(config, nullcontext if small else uninitialized)
    task, backbone = find_task(runner.model), find_backbone(runner.model)
    stage = runs.stage_of(path)
    runs.check_state(path, runner.model)
    head = task.decode_head if hasattr(task, 'decode_head') else \
        task.roi_head.bbox_head if hasattr(task, 'roi_head') else task.head
    assert head.num_classes == len(runner.train_dataloader.dataset.metainfo['classes']) or \
        head.num_classes == config.data_preprocessor.num_classes
    assert backbone.method == 'ofb'
    runs.check_run(runner)
    if stage == 'search':
        check_search(path, runner)
    if small:
        runner.model.init_weights()
        losses = runs.backward(runs.ready_to_train(runner), runs.labelled())
        assert ('loss_reconstruction' in losses) == (
            stage == 'search' and 'no-pmim' not in path)
    elif '/segmentation/' in path or '/detection/' in path:
        model, classes = runs.ready_to_train(runner), head.num_classes
        if '/segmentation/' in path:
            # crops of the scenes' size, 8 x 8 tokens of a stage or more, for all
            find_task(model).data_preprocessor.size = (128, 128)
            losses = runs.backward(model, runs.label_maps((128, 128), classes))
        else:
            runs.few_rois(model)
            losses = runs.backward(model, runs.objects(128, classes, masked=True, count=1))
            assert {'loss_bbox', 'loss_mask'} <= set(losses)
            assert ('loss_reconstruction' in losses) == ('search_8xb2_coco' in path)
        assert ('loss_budget' in losses) == (stage == 'search')
        runs.check_steps(runner)


def check_search(path, runner):
    """The target is reachable, gates have their own betas, hooks find what they schedule."""
    group = runner.optim_wrapper.optimizer.param_groups[-1]
    gates = runner.model.gate_parameters()
    assert [id(p) for p in group['params']] == [id(p) for p in gates]
    assert tuple(group['betas']) == (0.5, 0.999)
    hooks = {type(hook).__name__: hook for hook in runner.hooks}
    assert 'LinearScheduleHook' in hooks
    hooks['ProgressivePruningHook'].before_train(runner)
    if 'in1k' in path:
        assert float(runner.model.price.target[:-1]) == TARGETS[Path(path).stem.split('_')[1]][-1]


@pytest.mark.parametrize('path', [path for path in OFB if '/retrain/' in path and 'deit' in path])
def test_deit_is_retrained_as_published(path, load):
    """DeiT's drop path, warm-up and repeated augmentation, without mixup and cutmix, at 6e-4."""
    config = load(path)
    assert config.model.backbone.drop_path_rate == 0.1
    warmup, cosine = config.param_scheduler
    assert (warmup.end, cosine.begin, cosine.eta_min) == (5, 5, 1e-5)
    assert config.train_dataloader.sampler.type == 'RepeatAugSampler'
    assert config.optim_wrapper.optimizer.lr == 6e-4
    assert config.optim_wrapper.optimizer.weight_decay == 0.05
    assert config.train_cfg.max_epochs == 300
    assert 'augments' not in (config.model.get('train_cfg') or {})


@pytest.mark.parametrize('preset, low, high', [('reference', 100, 1e4), ('balanced', 0.4, 0.51)])
def test_pull_of_the_one_hot_term_at_a_random_start(preset, low, high, load):
    """Gradient on alpha over the budget's: with the published weights nothing else counts."""
    config = load('configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py')
    assert config.model.price.preset == 'balanced'
    config.model.price.preset = preset
    torch.manual_seed(0)
    model = build_model(config)
    losses = model.price(model.macs_model())
    one_hot, budget = (torch.cat([grad.flatten() for grad in torch.autograd.grad(
        losses[name], [gate.alpha for gate in model.gates().values()], retain_graph=True)])
        for name in ('loss_one_hot', 'loss_budget'))
    assert low <= float(one_hot.norm() / budget.norm()) < high


def search_on_alpha(config, steps=4):
    """The shipped search up to its cut, with ``steps`` an epoch and a stand-in for the task.

    The task wants some sites large and others not, a third as hard as the budget at the start,
    and is noisy. Rates are higher as steps are fewer, so that alpha goes as far.
    """
    torch.manual_seed(0)
    model = build_model(config).train()
    gates, macs, scale = model.gates(), model.macs_model(), 1251 / steps
    model.price.growth *= scale
    hook = HOOKS.build(next(h for h in config.custom_hooks if 'Pruning' in h['type']))
    settings = {**config.optim_wrapper.optimizer, **config.optim_wrapper.architecture}
    settings.pop('type')
    optimizer = torch.optim.AdamW(model.gate_parameters(), **settings)
    for group in optimizer.param_groups:
        group['lr'] *= scale
    schedulers = [PARAM_SCHEDULERS.build(dict(found, epoch_length=steps),
                                         default_args=dict(optimizer=optimizer))
                  for found in config.param_scheduler]
    wanted = {site: torch.rand(()) for site in gates}
    for step in range(int(hook.share * config.train_cfg.max_epochs) * steps):
        losses = model.price(macs)
        task = 2e-2 * sum(wanted[site] * (1 - gate.expected_size() / gate.total)
                          for site, gate in gates.items())
        optimizer.zero_grad()
        (task + model.parse_losses(losses)[0]).backward()
        for gate in gates.values():
            gate.alpha.grad += 1e-3 * torch.randn_like(gate.alpha)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        if (step + 1) % steps == 0:
            hook._prune(model)
    return model, hook, float(losses['macs']) * 1e9


@pytest.mark.parametrize('name, target', few((
    ('deit-small', '0.9G'), ('deit-small', '1.7G'), ('deit-small', '3.4G'), ('deit-base', '8.7G'),
    ('swin-tiny', '3.1G'), ('resnet50', '1.6G')), ('deit-small', '0.9G')))
def test_the_target_steers_before_anything_is_forced(name, target, load, caplog):
    """The relaxed network meets its target, and hardly a choice falls on an unlikely option."""
    config = load(f'configs/ofb/search/ofb-search_{name}_8xb128_in1k.py')
    config.model.price.target = target
    model, hook, expected = search_on_alpha(config)
    assert expected == pytest.approx(float(target[:-1]) * 1e9, rel=0.05)
    gates = model.gates().values()
    likely = [float(gate.probabilities().detach().max()) for gate in gates]
    assert sum(likely) / len(likely) > 0.9
    before = [gate.probabilities().detach() for gate in gates]
    logger = logging.getLogger('test')
    with caplog.at_level(logging.INFO, 'test'):
        hook._decide(model, logger)
    chosen = [float(p[gate.alive]) for p, gate in zip(before, gates)]
    assert sum(chosen) / len(chosen) > 0.8
    forced = sum(found < best for found, best in zip(chosen, likely))
    assert forced <= 3
    assert (forced > 0) == any(record.levelno == logging.WARNING for record in caplog.records)
