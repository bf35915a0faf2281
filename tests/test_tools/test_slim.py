"""tools/slim.py: a search's checkpoint to a structure file and a smaller checkpoint."""

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace

import mmengine
import torch
from mmengine.hooks import EMAHook
from mmengine.runner import load_checkpoint

import mmkcr
from mmkcr.apis import count_macs
from mmkcr.core import KEPT, Structure, count_params
from mmkcr.engine.build import build_model, load_config, load_weights

SHAPE = (3, 32, 32)


def assert_same_logits(*models):
    images = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = (model.eval()(images, mode='tensor')[-1] for model in models)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def supernet(config, checkpoint, **kwargs):
    model = build_model(load_config(config))
    load_weights(model, checkpoint, **kwargs)
    return model


def test_files_load_strictly_and_compute_what_the_supernet_does(run_tool, search_config, checkpoint,
                                                                dense_config, tmp_path):
    printed = run_tool('slim', search_config, checkpoint)
    out = tmp_path / 'work_dirs' / 'tiny-search' / 'slim'
    assert sorted(path.name for path in out.iterdir()) == ['structure.json', 'subnet.pth']
    model = build_model(dense_config(out / 'structure.json'))
    load_checkpoint(model, str(out / 'subnet.pth'), strict=True)
    assert_same_logits(model, supernet(search_config, checkpoint))
    structure = Structure.load(out / 'structure.json')
    assert structure.macs == dict(dense=structure.macs['dense'], subnet=count_macs(model, SHAPE),
                                  backbone=count_macs(model.backbone, SHAPE),
                                  input_shape=list(SHAPE))
    assert structure.params['subnet'] == count_params(model) < structure.params['dense']
    for site, kept in structure.sites.items():
        row = next(line for line in printed.splitlines() if site in line)
        assert str(len(kept.kept)) in row and str(kept.total) in row


def test_budget_divisor_and_shape(run_tool, search_config, dense_config, checkpoint, tmp_path):
    macs = {}
    for target in ('90%', '0.8'):
        run_tool('slim', search_config, checkpoint, '--target-macs', target, '--divisor', 8,
                 '--shape', 48, '--out', tmp_path / target)
        structure = Structure.load(tmp_path / target / 'structure.json')
        macs[target] = structure.macs['subnet']
        assert structure.macs['input_shape'] == [3, 48, 48]
        assert all(size % 8 == 0 for size in structure.sizes().values())
        model = build_model(dense_config(tmp_path / target / 'structure.json'))
        assert count_macs(model, (3, 48, 48)) == structure.macs['subnet']
    dense = structure.macs['dense']
    assert macs['0.8'] <= 0.8 * dense < macs['90%'] <= 0.9 * dense


def test_the_file_is_plain(run_tool, search_config, checkpoint, tmp_path):
    """No storage of a dense tensor hides behind a sliced one, and nothing but data is pickled."""
    run_tool('slim', search_config, checkpoint, '--target-macs', '0.8', '--out', tmp_path / 's')
    content = torch.load(tmp_path / 's' / 'subnet.pth', weights_only=True)
    assert set(content) == {'state_dict', 'meta'}
    assert content['meta']['dataset_meta'] == dict(classes=('a', 'b'))
    for key, value in content['state_dict'].items():
        assert value.untyped_storage().nbytes() == value.nbytes, key
        assert not key.startswith(('architecture', 'regularizers')) and 'gate' not in key


def test_provenance(run_tool, search_config, checkpoint, tmp_path):
    config = tmp_path / 'configs' / 'mine.py'
    config.parent.mkdir()
    config.write_text(f'_base_ = {search_config!r}\nrandomness = dict(seed=11)\n')
    run_tool('slim', config, checkpoint)
    found = Structure.load('work_dirs/mine/slim/structure.json').provenance
    assert found == dict(
        config='configs/mine.py', checkpoint='epoch_3.pth',
        checkpoint_sha256=hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest(),
        weights='plain', seed=11, epoch=3, iter=30,
        versions=dict(torch=torch.__version__, mmengine=mmengine.__version__,
                      mmkcr=mmkcr.__version__))
    assert torch.load('work_dirs/mine/slim/subnet.pth')['meta']['provenance'] == found


def test_averaged_weights(run_tool, search_config, checkpoint, dense_config, tmp_path):
    """EMAHook itself writes the checkpoint: its ``state_dict`` is the average."""
    model = supernet(search_config, checkpoint)
    hook, runner = EMAHook(momentum=0.5), SimpleNamespace(model=model, iter=5)
    hook.before_run(runner)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    hook.after_train_iter(runner, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)
    saved = dict(state_dict=model.state_dict(), meta={})
    hook.before_save_checkpoint(runner, saved)
    torch.save(saved, tmp_path / 'ema.pth')
    run_tool('slim', search_config, tmp_path / 'ema.pth', '--out', tmp_path / 'slim')
    structure, average = Structure.load(tmp_path / 'slim/structure.json'), hook.ema_model.module
    assert structure.provenance['weights'] == 'averaged'
    kept = {site: gate.selection().tolist() for site, gate in average.gates().items()}
    assert {site: s.kept for site, s in structure.sites.items()} == kept
    subnet = build_model(dense_config(tmp_path / 'slim/structure.json'))
    load_checkpoint(subnet, str(tmp_path / 'slim/subnet.pth'), strict=True)
    assert_same_logits(subnet, average)


def test_refusals(refused, run_tool, search_config, checkpoint, tmp_path):
    run_tool('slim', search_config, checkpoint, '--out', tmp_path / 's')
    model, dense = supernet(search_config, checkpoint).architecture, tmp_path / 'dense.pth'
    torch.save(dict(state_dict={key: value for key, value in model.state_dict().items()
                                if '.gate.' not in key}), dense)
    for args, message in [
        ((tmp_path / 's' / 'subnet.pth', ), 'subnet.pth` without gates'),
        ((dense, ), f'expected a checkpoint of a search, as the config is one, found `{dense}` '
                    'without gates'),
        ((checkpoint, '--target-macs', '900G'), r'the reachable [\d.e-]+G to [\d.e-]+G MACs, f'),
        ((checkpoint, '--target-params', '1K'), r'0.0\d+M to 0.0\d+M parameters, found 0.001M'),
        ((checkpoint, '--target-bytes', '1KB'), r'reachable 0.\d+MB to 0.\d+MB, found 0.001MB'),
    ]:
        assert re.search(message, refused('slim', search_config, *args)), message


def test_budgets_of_parameters_and_bytes(run_tool, search_config, dense_config, checkpoint,
                                         tmp_path):
    for cost in ('params', 'bytes'):
        printed = run_tool('slim', search_config, checkpoint, f'--target-{cost}', '85%', '--out',
                           tmp_path / cost)
        said = Structure.load(tmp_path / cost / 'structure.json').provenance[cost]
        state = torch.load(tmp_path / cost / 'subnet.pth', weights_only=True)['state_dict']
        model = build_model(dense_config(tmp_path / cost / 'structure.json'))
        found = count_params(model) if cost == 'params' else sum(
            value.numel() * value.element_size() for name, value in state.items()
            if not name.endswith(KEPT))
        assert said['subnet'] == found and 0.8 * said['dense'] < found <= 0.85 * said['dense']
        assert 'parameters (M)' in printed
