"""Checkpoints of short retrainings on the digits, in every command that reads one.

README's stages with the shipped configs: slim, retrain with the regulariser and an average of the
weights, and then the deploy config.
"""

import hashlib
import json
import os
from pathlib import Path

import mmengine
import pytest
import torch
from mmengine.registry import init_default_scope

from long_form import LONG, every_nth
from mmkcr.apis.publish import publish
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.methods.dcs.qk_mask import QKMask
from mmkcr.models.loading import TRAINING_STATE, load_task
from mmkcr.models.slicing import apply_decisions
from mmkcr.models.tasks import find_task, search_space
from mmkcr.registry import MODELS

REPO = Path(__file__).parents[2]
# by kind: the folder of the configs, their names, and the stages of their pipeline; regularised
# retrainings are named after their term
KINDS = dict(
    kcr=('kcr', 'kcr-{}_vit-mini_1xb64_digits', ('search', 'retrain', 'deploy')),
    ib=('dcs', 'dcs-{}_mobilevit-mini_1xb64_digits', ('search', 'retrain', 'deploy')),
    ofb=('ofb', 'ofb-{}_vit-mini_1xb64_digits', ('search', 'retrain', 'retrain')),
    dwconv=('dwconv', 'dwconv-{}_vit-octo_1xb64_digits', ('dense', 'replace', 'deploy')))
REGULARISED = ('kcr', 'ib')
# the shipped config, two epochs of it on every 24th digit, with all it has switched on
RETRAIN = """
_base_ = {base!r}
train_cfg = dict(max_epochs=2)
train_dataloader = dict(batch_size=20, num_workers=0, persistent_workers=False,
                        dataset=dict(indices=list(range(0, 1437, 24))))
val_dataloader = dict(num_workers=0, persistent_workers=False,
                      dataset=dict(indices=list(range(0, 360, 12))))
test_dataloader = val_dataloader
custom_hooks = {hooks}
custom_hooks += [dict(type='EMAHook', momentum=0.1)]
"""
HOOKS = dict(
    kcr="[dict(type='mmkcr.WarmupSwitchHook', begin=1),"
        " dict(type='mmkcr.NystromRefreshHook', interval=1)]",
    ib="[dict(type='mmkcr.GateNoiseHook'), dict(type='mmkcr.InformationBottleneckHook'),"
       " dict(type='mmkcr.WarmupSwitchHook', begin=1, losses='ib')]",
    ofb='[]', dwconv='[]')
#: The command that writes a subnet from random weights of the first stage.
FIRST = dict(
    kcr=('slim', '--target-macs', '90%'), ib=('slim', '--target-macs', '90%'),
    ofb=('slim', '--target-macs', '60%'),
    dwconv=('analysis_tools/score_heads', '--replace', '4', '--images', '4'))


@pytest.fixture(scope='module', params=KINDS)
def retrained(request, load_tool, small_digits, tmp_path_factory):
    """Folder with data and work_dirs; deploy config, retraining config and its checkpoint."""
    folder, kind = tmp_path_factory.mktemp(request.param), request.param
    (folder / 'data').mkdir()
    (folder / 'data/digits').symlink_to(small_digits)
    place, name, stages = KINDS[kind]
    first, retrain, deploy = (REPO / f'configs/{place}/digits/{name.format(stage)}.py'
                              for stage in stages)
    here = os.getcwd()
    os.chdir(folder)  # the shipped configs name files relative to where a command is run
    try:
        torch.manual_seed(1)
        model = build_model(load_config(first))
        torch.save(dict(state_dict=model.state_dict()), 'first.pth')
        tool, *args = FIRST[kind]
        load_tool(tool).main([str(first), 'first.pth', *args])
        own = folder / 'retrain.py'
        own.write_text(RETRAIN.format(base=str(retrain), hooks=HOOKS[kind]))
        load_tool('train').main([str(own), '--work-dir', 'run'])
    finally:
        os.chdir(here)
    return folder, deploy, own, folder / 'run/epoch_2.pth'


@pytest.fixture
def within(retrained, run_tool, monkeypatch):
    """The same, and ``run(tool, *args)`` in the folder."""
    folder, *others = retrained
    monkeypatch.chdir(folder)
    return (run_tool, *others)


@pytest.mark.parametrize('bases', [
    ['ofb/digits/ofb-search_vit-mini_1xb64_digits.py'],
    # a class that has sites of its own
    ['kcr/digits/kcr-dense_vit-mini_1xb64_digits.py', '_base_/methods/ofb_search.py']])
def test_a_search_that_was_sliced_is_evaluated(bases, load_tool, data, tmp_path):
    """No optimizer is there that could follow."""
    config = tmp_path / 'search.py'
    config.write_text(f'_base_ = {[str(REPO / "configs" / base) for base in bases]}\n'
                      "compression = dict(price=dict(target='60%'))\n")
    model = build_model(load_config(config))
    space = search_space(model)
    for gate in space.gates().values():
        alive = gate.alive.clone()
        alive.view(-1)[-1] = False  # the largest option
        gate.restrict(alive)
    assert apply_decisions(space.sites)
    torch.save(dict(state_dict=model.state_dict(), meta={}), tmp_path / 'sliced.pth')
    load_tool('test').main([str(config), str(tmp_path / 'sliced.pth'), '--work-dir',
                            str(tmp_path / 'run'), *data])


def test_loads_exactly(within, retrained):
    """All but the state of the term, where there is one; the network is smaller than at first."""
    (_, *configs, checkpoint), (folder, *_) = within, retrained
    content = torch.load(checkpoint, weights_only=False)
    assert {'optimizer', 'ema_state_dict', 'message_hub', 'param_schedulers'} <= content.keys()
    state, first = content['state_dict'], torch.load(folder / 'first.pth')['state_dict']
    terms = {key.split('.')[1] for key in state if key.startswith('regularizers.')}
    assert terms == {kind for kind in REGULARISED if folder.name.startswith(kind)}
    sizes = [sum(value.numel() for key, value in weights.items()
                 if 'backbone.' in key and '.gate.' not in key) for weights in (state, first)]
    assert 0 < sizes[0] < sizes[1]
    for config in configs:
        model = build_model(load_config(config))
        load_weights(model, checkpoint)
        loaded = find_task(model).state_dict()
        assert set(loaded) == {key for key in state if not key.startswith('regularizers.')}
        assert all(torch.equal(value, state[key]) for key, value in loaded.items())


#: In the short form each with one method, in turn.
COMMANDS = {
    'deployment/export_onnx': ['{config}', '{checkpoint}', '--out', 'subnet.onnx'],
    'test': ['{config}', '{checkpoint}', '--work-dir', 'tested'],
    'analysis_tools/attention': ['{config}', '{checkpoint}', '--images', '2', '--shown', '1'],
    'analysis_tools/grad_cam': ['{config}', '{checkpoint}', '--shown', '1'],
    'analysis_tools/kernel_complexity': ['{config}', '{checkpoint}', '--split', 'val'],
    'publish': ['{config}', '{checkpoint}', '--out', 'published'],
    'analysis_tools/get_flops': ['{config}'],
    'benchmarks/latency': ['{config}', '--repeats', '2', '--warmup', '1', '--batch-size', '1'],
    'analysis_tools/information_bottleneck': ['--run', 'own', '{config}', '{checkpoint}',
                                              '--split', 'val'],
}
HELD_OUT = ['--cfg-options', 'val_dataloader.num_workers=0', 'test_dataloader.num_workers=0',
            'val_dataloader.dataset.indices=20', 'test_dataloader.dataset.indices=20']


@pytest.mark.parametrize('tool', every_nth(2, COMMANDS))
def test_every_command_takes_it(within, retrained, tool):
    """Also with the retraining's config, where its model is a wrapper."""
    run, deploy, retrain, checkpoint = within
    kind = list(KINDS)[list(COMMANDS).index(tool) % len(KINDS)]
    if not LONG and not retrained[0].name.startswith(kind):
        pytest.skip('MMKCR_LONG_TESTS is not set')
    for config in (deploy, retrain)[:1 + retrained[0].name.startswith(REGULARISED)]:
        args = [arg.format(config=config, checkpoint=checkpoint) for arg in COMMANDS[tool]]
        few = tool in ('test', 'analysis_tools/kernel_complexity')
        run(tool, *args, *(HELD_OUT if few else ()))


def test_published_file(within, tmp_path):
    """Only weights and plain values, named by its hash, equal for equal models."""
    run, deploy, _, checkpoint = within
    printed = run('publish', deploy, checkpoint, '--out', tmp_path / 'one', '--name', 'slim')
    (path, ) = (tmp_path / 'one').iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f'slim-{digest[:8]}.pth' and path.name in printed
    content = torch.load(path, weights_only=True)  # PyTorch's own list of what is harmless
    assert content.keys() == {'state_dict', 'meta'}
    assert not [key for key in content['state_dict'] if key.startswith(TRAINING_STATE)]
    assert content['meta']['dataset_meta']['classes'] == [str(digit) for digit in range(10)]
    assert content['meta']['provenance']['weights'] == 'averaged'
    assert path.stat().st_size < 0.4 * checkpoint.stat().st_size
    again = publish(deploy, checkpoint, tmp_path / 'again', 'slim')
    assert again.path.name == path.name and again.path.read_bytes() == path.read_bytes()

    # it is model and structure in one
    found = Structure.load(path)
    assert found.sites == Structure.load(load_config(deploy).model.backbone.structure).sites
    results = []
    for name, weights, words in (('a', checkpoint, ()),
                                 ('b', path, (f'model.backbone.structure={path}', ))):
        out = tmp_path / f'{name}.json'
        run('test', deploy, weights, '--work-dir', tmp_path / name, '--out', out, '--out-item',
            'metrics', *HELD_OUT, *words)
        results.append(out.read_text())
    assert results[0] == results[1] and 'accuracy/top1' in results[0]
    model = MODELS.build(dict(found.backbone, structure=str(path)))
    load_task(model, {key.removeprefix('backbone.'): value for key, value
                      in content['state_dict'].items() if key.startswith('backbone.')}, str(path))


def test_a_search_is_not_published(refused, search_config, checkpoint):
    assert 'slim its checkpoint first' in refused('publish', search_config, checkpoint)


def test_state_of_every_wrapper_is_known():
    """What a wrapper adds to the task model's keys is what ``TRAINING_STATE`` names."""
    init_default_scope('mmpretrain')
    config = load_config(REPO / 'configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py')
    config.model.regularizers = dict(kcr=dict(type='mmkcr.KernelComplexityLoss', num_features=64))
    names = [name for name, cls in MODELS.module_dict.items() if name.endswith('Model')
             and cls.__module__.startswith('mmkcr.methods.')]
    assert {'RegularizedModel', 'SearchModel', 'MaskedSearchModel'} <= set(names)
    seen = set()
    for name in names:
        arguments = {key: value for key, value in config.model.items() if name.startswith('Masked')
                     or key in ('architecture', 'regularizers')}
        model = MODELS.build(dict(arguments, type=f'mmkcr.{name}',
                                  data_preprocessor=config.data_preprocessor))
        extra = set(model.state_dict()) - set(find_task(model).state_dict())
        assert extra and all(key.startswith(TRAINING_STATE) for key in extra), (name, extra)
        seen |= {prefix for prefix in TRAINING_STATE for key in extra if key.startswith(prefix)}
    assert {'regularizers.', 'reconstruction.', '_extra_state'} <= seen


def test_masks_forced_open(within, tmp_path, monkeypatch):
    """Openness is that of the first test; in the second one every mask is 1 wherever it is used."""
    run, deploy, _, checkpoint = within
    out = tmp_path / 'metrics.json'
    args = ['--work-dir', tmp_path, '--out', out, '--out-item', 'metrics', '--masks', *HELD_OUT]
    if 'dcs' not in deploy.name:
        with pytest.raises(SystemExit):
            run('test', deploy, checkpoint, *args)
        return
    content = torch.load(checkpoint, weights_only=False)
    for key in ('state_dict', 'ema_state_dict'):
        for name, value in content[key].items():
            if name.endswith('.mask.weight'):  # masks that do not look at the image
                value[:] = 0.
            if name.endswith('.mask.bias'):  # a quarter of the channels is never open
                value[:] = 1.
                value[::4] = -1.
    torch.save(content, tmp_path / 'constant.pth')
    shares, binarize = [], QKMask.binarize

    def seen(mask, theta):
        found = binarize(mask, theta)
        if theta.any():  # else MACs are counted, without data
            shares.append(float(found.mean()))
        return found

    monkeypatch.setattr(QKMask, 'binarize', seen)
    plain, with_masks = tmp_path / 'plain.pkl', tmp_path / 'masks.pkl'
    printed = run('test', deploy, tmp_path / 'constant.pth', *args)
    found = json.loads(out.read_text())
    assert {key: found[f'masks/{key}'] for key in ('open', 'always', 'never')} == dict(
        open=75., always=75., never=25.)
    layers = {name.split('/')[1] for name in found if name.count('/') == 2}
    assert len(layers) == 4 and 'layers.3.1.global_rep.0.attn' in layers
    assert all(found[f'masks/{layer}/{key}'] == value for layer in layers
               for key, value in dict(open=75., always=75., never=25.).items())
    assert 'always open (%)' in printed and all(layer in printed for layer in layers)
    half = len(shares) // 2
    assert half and shares == [0.75] * half + [1.] * half
    assert {'accuracy/top1', 'accuracy/top1_open'} <= found.keys()
    # predictions are those of the network itself
    for file, words in ((plain, ()), (with_masks, ('--masks', ))):
        run('test', deploy, tmp_path / 'constant.pth', '--work-dir', tmp_path, '--out', file,
            '--out-item', 'pred', *words, *HELD_OUT)
    one, two = ([sample['pred_score'] for sample in mmengine.load(file)]
                for file in (plain, with_masks))
    assert len(one) == len(two) and all(map(torch.equal, one, two))
