"""tools/compress.py: a config and a checkpoint to a smaller model that the host's tools take."""

import contextlib
import functools
import http.server
import io
import json
import os
import re
import shutil
import signal
import threading
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner, load_checkpoint, save_checkpoint
from PIL import Image

from long_form import every_nth, few
from mmkcr.apis import count_macs
from mmkcr.apis.slim_files import without_initial_weights
from mmkcr.cli import compress_config
from mmkcr.cli.compress_config import go_on_tuning
from mmkcr.closed_form import images as calibration_module
from mmkcr.closed_form.progress import CompressProgress
from mmkcr.core import Structure
from mmkcr.core.structure import KEPT
from mmkcr.deploy.file_bench import DeployedFile
from mmkcr.deploy.int8 import QUANTIZERS
from mmkcr.deploy.runtimes import PACKAGES
from mmkcr.distillation.training import Training
from mmkcr.engine.build import build_model, load_config, run_folder
from mmkcr.models import Searchable
from mmkcr.models.counting import count_parts

REPO = Path(__file__).parents[2]
SHIPPED = str(REPO / 'configs/kcr/digits/kcr-dense_vit-mini_1xb64_digits.py')
DIGITS = str(REPO / 'tests/data/kcr-dense_vit-mini_1xb64_digits.py')  # the same, narrower
FILES = ['config.py', 'sensitivity.json', 'structure.json', 'subnet.pth']


def random_checkpoint(config, path):
    """Of random weights, those of norms and biases too."""
    torch.manual_seed(0)
    model = build_model(config)
    for name, parameter in model.named_parameters():
        if name.endswith('level_embed'):  # mmdet leaves what lies in memory, NaN at times
            torch.nn.init.zeros_(parameter)
        parameter.data += 0.05 * torch.randn(parameter.shape)
    save_checkpoint(dict(state_dict=model.state_dict(), meta=dict(epoch=3)), str(path))
    return str(path)


def save_half(model, kinds, path):
    """A structure file of a search that keeps half of everything."""
    space = Searchable(model.backbone, sites=kinds).search_space
    space.structure_for({name: torch.arange(total // 2) for name, total in space.totals().items()}
                        ).save(path)


#: All test images, where what they say in two runtimes is compared.
ALL = 'test_dataloader.dataset.indices=360'


@pytest.fixture(scope='module')
def data(data):
    """The last words of a command, with fewer test images: their evaluation takes the longest."""
    return [*data, 'test_dataloader.dataset.indices=60']


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """Of the digits' network; tests read it."""
    return random_checkpoint(load_config(DIGITS), tmp_path_factory.mktemp('dense') / 'dense.pth')


@pytest.fixture
def call(checkpoint, data):
    """``call(*words)``: those of a compression on 16 images that writes to ``slim``."""
    return lambda *words, of=(DIGITS, checkpoint), out='slim', more=(): [
        *map(str, of), '--images', '16', '--out', str(out), *map(str, words), *data, *more]


@pytest.fixture
def compress(run_tool, call):
    """``compress(*words)``: what such a call printed, in an empty folder."""
    return lambda *words, **options: run_tool('compress', *call(*words, **options))


@pytest.fixture(scope='module')
def calibrated(checkpoint, data, load_tool, tmp_path_factory):
    """Arguments of a call without a folder, and the folder of one that has ended."""
    folder = tmp_path_factory.mktemp('calibrated')
    call = [DIGITS, checkpoint, '--target-macs', '60%', '--images', '16', '--out']
    load_tool('compress').main([*call, str(folder / 'first'), *data])
    return call, folder / 'first'


@pytest.fixture(scope='module')
def tuned(checkpoint, data, load_tool, tmp_path_factory):
    """``tuned(out)``: arguments of a call with a fine-tuning; a folder of one, what it printed."""
    root = tmp_path_factory.mktemp('tuned')

    def call(out):
        return [DIGITS, checkpoint, '--target-macs', '50%', '--images', '8', '--finetune', '2',
                '--evaluate', '--out', str(out), *data, 'train_dataloader.dataset.indices=128']

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        load_tool('compress').main(call(root / 'unbroken'))
    return call, root / 'unbroken', printed.getvalue()


def weights_of(folder, name='subnet.pth'):
    return torch.load(folder / name, weights_only=False)['state_dict']


def assert_same_weights(folder, other, name='subnet.pth'):
    found, expected = weights_of(folder, name), weights_of(other, name)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_from_a_checkpoint_to_an_ordinary_config(run_tool, data, tmp_path, forget_runs):
    checkpoint = random_checkpoint(load_config(SHIPPED), tmp_path / 'dense.pth')
    printed = run_tool('compress', SHIPPED, checkpoint, '--target-macs', '60%', '--images', 32,
                       '--evaluate', *data)
    out = tmp_path / 'work_dirs/kcr-dense_vit-mini_1xb64_digits/compress'
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == FILES
    assert not (out / '.progress').exists()
    structure = Structure.load(out / 'structure.json')
    sensitivity = json.loads((out / 'sensitivity.json').read_text())
    for name, site in structure.sites.items():
        found = sensitivity[name]
        assert sorted(found['order'][:len(site.kept)]) == list(site.kept)
        assert found['losses'] == sorted(found['losses'], reverse=True)
        assert found['losses'][-1] == 0 and len(found['losses']) == site.total + 1

    # the config is an ordinary one, in another folder too: no word of this package but its type
    moved = out.rename(tmp_path / 'moved')
    config = load_config(moved / 'config.py')
    # all such configs have one name: a folder of their own for what is trained or exported
    assert run_folder(config, moved / 'config.py') == moved / 'train'
    model = build_model(config)
    load_checkpoint(model, str(moved / 'subnet.pth'), strict=True)
    macs = count_macs(model, structure.macs['input_shape'])
    assert macs == structure.macs['subnet'] <= 0.6 * structure.macs['dense']
    config.work_dir = str(tmp_path / 'test')
    forget_runs()
    metrics = Runner.from_cfg(config).test()
    rows = [line for line in printed.splitlines() if 'accuracy/top1' in line and '│' in line]
    assert f'{metrics["accuracy/top1"]:.4g}' in rows[0]


@pytest.mark.parametrize('part', ['macs', 'params'])
def test_a_test_names_edited_numbers(calibrated, data, load_tool, tmp_path, caplog, part):
    """Those of the whole network, whose head may be another."""
    slim = shutil.copytree(calibrated[1], tmp_path / 'slim')
    words = [str(slim / 'config.py'), str(slim / 'subnet.pth'), *data]
    load_tool('test').main(words)
    assert 'Not checked' not in caplog.text
    content = json.loads((slim / 'structure.json').read_text())
    content[part].update({key: content[part][key] + 1000 for key in ('dense', 'subnet')})
    (slim / 'structure.json').write_text(json.dumps(content))
    load_tool('test').main(words)
    assert 'has another head or the structure was edited' in caplog.text


#: Whether torchvision, which every host needs, was imported when a command said what it reads.
FIRST_LINE = """
import contextlib, sys
class Told:
    def write(self, text):
        if text.startswith('Reading'):
            print(text, 'torchvision' in sys.modules)
    def flush(self):
        pass
sys.stderr = Told()
from mmkcr.cli.console import main
with contextlib.suppress(SystemExit):
    main(['compress', 'none.py', 'weights.pth', '--target-macs', '60%'])
"""


def test_the_first_line_waits_for_no_host(after_torch, tmp_path):
    """Their import takes seconds."""
    (tmp_path / 'weights.pth').touch()
    assert after_torch(FIRST_LINE, tmp_path) == 'Reading none.py and weights.pth False\n'


def test_another_budget_needs_no_new_pass(calibrated, compress, tmp_path, capsys, monkeypatch):
    """However it is shared out: as a call that calibrates for itself."""
    words = ['--target-params', '70%', '--uniform', '--divisor', 4]
    shutil.copytree(calibrated[1], tmp_path / 'first')
    assert 'of an earlier call' not in compress(*words, out='fresh')
    # from here on a calibration fails
    monkeypatch.setattr(import_module('mmkcr.closed_form.profiles'), '_profile_group', None)
    for name in ('slim_openvino.onnx', 'slim_openvino_int8.onnx', 'dense_openvino.onnx'):
        (tmp_path / 'first' / name).touch()
    for out, more in (('other', ['--profiles', tmp_path / 'first']), ('first', [])):
        printed = compress(*words, *more, out=out)
        assert 'Profiles of the sites are those of an earlier call' in printed
        # files of the network that was there before are named
        assert ('Of an earlier network: slim_openvino.onnx, slim_openvino_int8.onnx.\n' in printed
                ) == ('Of an earlier network' in printed) == (out == 'first')
        assert_same_weights(tmp_path / out, tmp_path / 'fresh')
    with pytest.raises(SystemExit):  # for other images it begins anew
        compress(*words, '--images', 17, out='first')
    assert "'NoneType' object is not callable" in capsys.readouterr().err


@pytest.mark.parametrize('out, change, message', [
    ('slim', ['--images', '17'], 'found those of others (digest, images)'),
    ('slim', ['--sites', 'mlp_hidden'], 'found those of others (sites)'),
    ('slim', ['--profiles', 'nowhere'], 'in `nowhere`, found none'),
    (None, ['--target-macs', '8%'], 'expected a target within'),
    (None, ['--sites', 'mlp_hiden'], 'did you mean `mlp_hidden`')])
def test_what_was_calibrated_is_left_alone(out, change, message, calibrated, refused, data):
    """Profiles of others are refused, and a refused call in their folder keeps them."""
    call, first = calibrated
    before = sorted(first.rglob('*'))
    profiles = ['--profiles', first] if out else []
    assert message in refused('compress', *call, out or first, *profiles, *change, *data)
    assert sorted(first.rglob('*')) == before


LINEAR = dict(type='LinearClsHead', num_classes=4, in_channels=96)


@pytest.mark.parametrize('head', [None, dict(type='LinearRegressionHead', num_classes=1,
                                             in_channels=96),
                                  dict(type='MultiTaskHead', in_channels=96,
                                       task_heads=dict(one=LINEAR, two=LINEAR))])
def test_outputs_that_are_no_scores_of_one_set_of_classes(head, compress, tmp_path):
    """No softmax is taken of features or numbers, and no task is left out."""
    config = load_config(DIGITS)
    config.model.head = head
    config.dump(tmp_path / 'dense.py')
    checkpoint = random_checkpoint(config, tmp_path / 'dense.pth')
    printed = compress('--target-macs', '60%', of=(tmp_path / 'dense.py', checkpoint))
    assert 'Outputs on' in printed and 'have the same class' not in printed
    sensitivity = json.loads((tmp_path / 'slim/sensitivity.json').read_text())
    assert all(found['losses'][0] > 1e-6 for found in sensitivity.values())


def test_a_missing_quantiser_is_told_first(call, refused, tmp_path, monkeypatch):
    monkeypatch.setitem(QUANTIZERS, 'onnxruntime', 'no_such_package')
    said = refused('compress', *call('--target-macs', '60%', '--int8', 'onnxruntime'))
    assert 'pip install no_such_package' in said


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
def test_files_in_int8_are_evaluated_too(checkpoint, compress, run_tool, data, tmp_path, runtime):
    pytest.importorskip(PACKAGES[runtime])
    pytest.importorskip(QUANTIZERS[runtime])
    out, metrics = tmp_path / 'slim', tmp_path / 'metrics.json'
    printed = compress('--target-macs', '40%', '--evaluate', '--int8', runtime, more=[ALL])
    table = printed[printed.index('difference from dense'):]
    assert re.search(r'same class as dense \(% of images\)[ ┃]+accuracy/top1', table)
    told = {f'{name}{form}': re.search(  # behind four other numbers
        rf'{name}_{runtime}{form}.onnx(?:[ │]+[\d.%]+){{4}}[ │]+([\d.]+)', table)[1]
        for form in ('', '_int8') for name in ('dense', 'slim')}

    @functools.cache
    def tested(config, weights, *args):
        run_tool('test', config, weights, '--work-dir', tmp_path / 'test', '--out', metrics,
                 '--out-item', 'metrics', *args, *data, ALL)
        return json.loads(metrics.read_text())['accuracy/top1']

    sides_of = dict(dense=(DIGITS, checkpoint), slim=(out / 'config.py', out / 'subnet.pth'))
    for name, sides in few(sides_of, 'slim').items():
        fp32, int8 = (tested(*sides, '--onnx', out / f'{name}_{runtime}{form}.onnx',
                             '--runtime', runtime) for form in ('', '_int8'))
        assert fp32 == pytest.approx(tested(*sides), abs=0.3)  # one digit of 360
        assert [told[name], told[f'{name}_int8']] == [f'{fp32:.4g}', f'{int8:.4g}']
    said = tested(DIGITS, checkpoint, '--onnx', out / f'slim_{runtime}.onnx', '--runtime', runtime)
    assert said == pytest.approx(tested(out / 'config.py', out / 'subnet.pth'), abs=0.3)


def test_files_that_take_other_images_do_not_cost_the_report(compress, monkeypatch):
    """Files in int8 have one size, and mmdet's and mmseg's test images have several."""
    files = [DeployedFile('dense', Path('dense.onnx'), 1, 1., dict(error=0.))]

    def refusing(config, checkpoint, work_dir, onnx=None, runtime='onnxruntime'):
        if onnx is not None:
            raise ValueError('expected images that `dense.onnx` takes')
        return {'accuracy/top1': 50.}

    for name, value in dict(int8_files=lambda *_: files, evaluate=refusing,
                            require_quantizer=lambda _: None).items():
        monkeypatch.setattr(compress_config, name, value)
    printed = compress('--target-macs', '60%', '--evaluate', '--int8', 'onnxruntime')
    assert 'accuracy/top1' in printed and 'Wrote' in printed
    assert 'were not evaluated: expected images that `dense.onnx` takes' in printed


@pytest.fixture
def address(tmp_path, monkeypatch):
    """``address(file)``: where a file of the folder can be downloaded; downloads go into it too."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'downloads'))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(
            http.server.SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield lambda name: f'http://127.0.0.1:{server.server_port}/{name}'
        server.shutdown()


def test_the_config_and_the_address_of_a_run_elsewhere(compress, run_tool, tmp_path, address):
    """A config that was written by a resumed run of several processes, and weights to download."""
    config = load_config(DIGITS)
    config.update(launcher='pytorch', resume=True)
    config.dump(tmp_path / 'dumped.py')
    random_checkpoint(config, tmp_path / 'dense.pth')
    printed = compress('--target-macs', '60%', '--evaluate',
                       of=(tmp_path / 'dumped.py', address('dense.pth')))
    assert 'accuracy/top1' in printed
    written = load_config('slim/config.py')
    assert (written.launcher, written.resume) == ('none', False)
    found = Structure.load(tmp_path / 'slim/structure.json').provenance
    assert found['checkpoint'] == 'dense.pth' and found['checkpoint_sha256'] is None
    run_tool('publish', 'slim/config.py', 'slim/subnet.pth')
    assert len(list(tmp_path.glob('slim/dumped_compress-60-????????.pth'))) == 1
    printed = run_tool('publish', 'dumped.py', address('dense.pth'))
    assert len(list(tmp_path.glob('dumped-????????.pth'))) == 1 and 'MB of' in printed


def test_a_budget_of_bytes(run_tool, call, tmp_path):
    """Of the test set its transforms alone are read."""
    printed = run_tool('compress', *call('--target-bytes', '0.7MB'),
                       'test_dataloader.dataset.data_root=nowhere')
    found = sum(value.numel() * value.element_size()
                for name, value in weights_of(tmp_path / 'slim').items() if not name.endswith(KEPT))
    said = Structure.load(tmp_path / 'slim/structure.json').provenance
    assert 0.68e6 < found == said['bytes']['subnet'] <= 7e5 and said['target'] == '0.7MB'
    assert f'{found / 1e6:.4g}' in printed


def write_images(folder, sizes):
    generator = np.random.default_rng(0)
    folder.mkdir()
    for index, size in enumerate(sizes):
        Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)).save(
            folder / f'{index}.png')
    return str(folder)


#: Configs of the hosts, smaller, for the time it takes.
DENSE_TASKS = [
    ('mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
     {'model.backbone.embed_dims': 12, 'model.backbone.depths': (1, 1, 1, 1),
      'model.neck.in_channels': [12, 24, 48, 96], 'model.test_cfg.rpn.max_per_img': 50,
      'model.roi_head.bbox_head.fc_out_channels': 64,
      'test_dataloader.dataset.pipeline.1.scale': (224, 160)}),
    # mmseg does not hand its head the sizes of the images; its backbones have initial weights in
    # an argument of their own, which the subnet must not load
    ('mmseg::mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512.py',
     {'model.backbone.embed_dims': 12, 'model.backbone.depths': (1, 1, 1, 1),
      'model.decode_head.in_channels': [12, 24, 48, 96], 'model.decode_head.num_queries': 10,
      'model.decode_head.pixel_decoder.encoder.num_layers': 1,
      'model.decode_head.transformer_decoder.num_layers': 1,
      'model.backbone.pretrained': 'no/such.pth',
      'test_dataloader.dataset.pipeline.1.scale': (224, 128)}),
    # its detector adds entries to the config of its head
    ('mmdet::dino/dino-5scale_swin-l_8xb2-12e_coco.py',
     {'model.backbone.embed_dims': 24, 'model.backbone.depths': (2, 1, 1, 1),
      'model.neck.in_channels': [24, 48, 96, 192], 'model.num_queries': 20,
      'model.encoder.num_layers': 1, 'model.decoder.num_layers': 1,
      'model.encoder.layer_cfg.ffn_cfg.feedforward_channels': 64,
      'model.decoder.layer_cfg.ffn_cfg.feedforward_channels': 64,
      'test_dataloader.dataset.pipeline.1.scale': (224, 160)}),
]


@pytest.mark.parametrize('config, options', every_nth(2, DENSE_TASKS))
def test_the_hosts_own_configs(config, options, run_tool, tmp_path, whole_model):
    """From an empty folder, with a folder of images; MACs of the whole are those of the parts."""
    folder = write_images(tmp_path / 'images', [(60, 90), (90, 60), (70, 70)])
    options['model.backbone.init_cfg'] = None
    checkpoint = random_checkpoint(load_config(config, options), tmp_path / 'dense.pth')

    def compressed(out, *words):
        printed = run_tool('compress', config, checkpoint, *words, '--calibration', folder,
                           '--images', 3, '--shape', 128, 160, '--out', out, '--cfg-options', *(
                               f'{key}={value}'.replace(' ', '') for key, value in options.items()))
        model = build_model(load_config(f'{out}/config.py'))
        load_checkpoint(model, f'{out}/subnet.pth', strict=True)
        macs = Structure.load(f'{out}/structure.json').macs
        whole = sum(count_parts(model, (3, 128, 160)).values())
        assert count_macs(model.backbone, (3, 128, 160)) == macs['subnet'] < whole
        dense = whole + macs['dense'] - macs['subnet']
        assert whole_model(printed) == [f'{dense / 1e9:.4g}', f'{whole / 1e9:.4g}',
                                        f'{whole / dense:.1%}']
        assert ('The second stage is counted for' in printed) == ('mask-rcnn' in config)
        return printed, model, macs, whole / dense

    printed, model, macs, left = compressed('slim', '--target-macs', '80%')
    model.backbone.init_weights()
    assert macs['subnet'] <= 0.8 * macs['dense']
    assert f'went to {left:.1%} of its MACs: `--scope model`' in printed
    assert ('pixels of the' in printed) == config.startswith('mmseg')
    if 'mask-rcnn' in config:  # those of a given structure have its proposals, too
        save_half(build_model(load_config(config, options)), ['mlp_hidden'], 'half.json')
        compressed('given', '--structure', 'half.json')


def test_a_dense_network_with_initial_weights():
    """Only what would be loaded goes."""
    config = load_config('mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py')
    found = without_initial_weights(config).model  # several initialisations
    assert [each['type'] for each in found.init_cfg] == ['TruncNormal', 'Constant']
    config.model.init_cfg.append(dict(type='Pretrained', checkpoint='no/such.pth'))
    assert without_initial_weights(config).model.init_cfg == found.init_cfg
    config = load_config('mmdet::pvt/retinanet_pvtv2-b0_fpn_1x_coco.py')
    assert set(config.model.backbone.init_cfg) == {'checkpoint'}  # without a type
    assert 'init_cfg' not in without_initial_weights(config).model.backbone


#: Of 4 images, in the order in which they are drawn; the last one is held out.
DRAWN = torch.randperm(4, generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize('what, message', [
    ('empty folder', r'expected calibration images \(\.jpg, .*\) below `.*images`, found none'),
    ('no test set', 'expected a config with `test_dataloader`, whose'),
    ('broken image', rf'image.*{DRAWN[2]}\.png'),
    # found when all is refitted
    ('not finite', 'expected finite outputs of the dense network on held-out')])
def test_images_that_cannot_be_used(what, message, checkpoint, refused, tmp_path, monkeypatch):
    """One sentence, and nothing is written, wherever in the call it is found."""
    folder, config = tmp_path / 'images', DIGITS
    write_images(folder, [(32, 32)] * 4 if what != 'empty folder' else [])
    if what == 'no test set':
        config = tmp_path / 'config.py'
        config.write_text(f"_base_ = '{DIGITS}'\n"
                          'test_dataloader = test_cfg = test_evaluator = None\n')
    elif what == 'broken image':
        broken = folder / f'{DRAWN[2]}.png'
        broken.write_bytes(broken.read_bytes()[:40])
    elif what == 'not finite':
        prepared = calibration_module.preprocessed

        def infinite(model, batch):
            found = prepared(model, batch)
            if found['data_samples'][0].img_path.endswith(f'{DRAWN[-1]}.png'):
                found['inputs'].fill_(float('nan'))
            return found

        monkeypatch.setattr(calibration_module, 'preprocessed', infinite)
    said = refused('compress', config, checkpoint, '--target-macs', '60%', '--out', 'slim',
                   '--calibration', folder)
    assert re.search(message, said) and len(said) < 450, said


@pytest.mark.parametrize('lines, options, message', [
    ('test_dataloader = test_cfg = test_evaluator = None', ['--target-macs', '60%', '--evaluate'],
     'expected a config with `test_cfg` for `--evaluate`'),
    ("optim_wrapper = dict(_delete_=True, optimizer=dict(type='SGD'))",
     ['--target-macs', '60%', '--finetune', '1'], 'expected a config with `optim_wrapper.'),
    ("train_dataloader = dict(dataset=dict(data_root='nowhere'))",
     ['--target-macs', '60%', '--finetune', '1'],
     'expected the data of `train_dataloader` in the folder `nowhere`'),
    # what is kept is given
    ('', ['--structure', '{folder}/s.json', '--divisor', '4'], 'expected `--divisor` with a'),
    ('', ['--target-macs', '60%', '--force-table'], 'expected `--target-latency` with `--force'),
])
def test_what_cannot_follow_is_refused_first(refused, tmp_path, lines, options, message):
    """Before anything is loaded: the checkpoint is none."""
    for name in ('dense.pth', 's.json'):
        (tmp_path / name).write_text('')
    (tmp_path / 'config.py').write_text(f"_base_ = '{DIGITS}'\n{lines}\n")
    assert message in refused('compress', tmp_path / 'config.py', tmp_path / 'dense.pth',
                              *(word.format(folder=tmp_path) for word in options),
                              '--calibration', '.')


def test_fine_tuned_with_the_dense_network_as_teacher(checkpoint, tuned):
    """Its own schedule, shortened; the checkpoint is one of the compressed config."""
    _, out, printed = tuned
    assert ' tuned ' in printed and 'Few images: ' in printed  # 7 images: 119 rows
    few = Structure.load(out / 'structure.json').provenance['few_rows']
    assert 'of 7 images. Give more images that differ.' in printed
    assert all(0 < layer['rows'] < 4 * layer['inputs'] for layer in few.values())
    config = load_config(out / 'finetune.py')
    full = load_config(DIGITS)
    assert config.train_cfg.max_epochs == 2 and full.train_cfg.max_epochs > 2
    # what is right already forgets at the full rates
    assert config.optim_wrapper.optimizer.lr == 0.1 * full.optim_wrapper.optimizer.lr
    assert min(part.get('eta_min', 1) for part in config.param_scheduler) < min(
        part.get('eta_min', 1) for part in full.param_scheduler)
    assert max(part.end for part in config.param_scheduler if part.get('by_epoch', True)) == 2
    teacher = build_model(config).regularizers['teacher'].teacher.model(torch.device('cpu'))
    dense = torch.load(checkpoint, weights_only=True)['state_dict']
    assert all(torch.equal(value, dense[name]) for name, value in teacher.state_dict().items())
    model = build_model(load_config(out / 'config.py'))
    load_checkpoint(model, str(out / 'finetune/epoch_2.pth'), strict=True)


BLOCK = 'mmkcr.closed_form.progress:CompressProgress.save_block'
POINTER = 'mmkcr.engine.resume.checkpoints:point_to'


def killed(place, count, *words):
    """The command in a copy of this process, killed behind the n-th call of a function."""
    from tool_files import load_tool
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        return
    try:
        module, _, names = place.partition(':')
        *owner, name = names.split('.')
        owner = functools.reduce(getattr, owner, import_module(module))
        done, left = getattr(owner, name), [count]

        def dying(*args, **kwargs):
            done(*args, **kwargs)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, dying)
        load_tool('compress').main([str(word) for word in words])
    finally:  # never back into the tests
        os._exit(1)


@pytest.fixture
def refuse_to_begin_anew(monkeypatch):
    """``refuse_to_begin_anew()``: from then on a calibration or a refit fails."""
    def refuse():
        monkeypatch.setattr(import_module('mmkcr.closed_form.profiles'), '_profile_group', None)
        monkeypatch.setattr(import_module('mmkcr.closed_form.refit_blocks').Refits, 'refit', None)
    return refuse


def test_killed_in_the_refit_the_fine_tuning_and_the_evaluation(load_tool, tuned, tmp_path,
                                                                refuse_to_begin_anew):
    """Nothing that was finished is done again, and it ends as if it had not been killed."""
    call, unbroken, _ = tuned
    assert not (unbroken / '.progress').exists()
    # of an earlier fine-tuning in the same folder: no start
    (tmp_path / 'slim/finetune').mkdir(parents=True)
    save_checkpoint(dict(state_dict={}, meta=dict(epoch=2)), str(tmp_path / 'slim/finetune/x.pth'))
    (tmp_path / 'slim/finetune/last_checkpoint').write_text('x.pth')
    killed(BLOCK, 2, *call(tmp_path / 'slim'))
    assert not (tmp_path / 'slim/subnet.pth').exists()
    killed(POINTER, 1, *call(tmp_path / 'slim'))
    first, last = (tmp_path / f'slim/finetune/epoch_{epoch}.pth' for epoch in (1, 2))
    before = first.stat().st_mtime_ns
    refuse_to_begin_anew()
    killed('mmengine.runner:Runner.test', 1, *call(tmp_path / 'slim'))
    assert first.stat().st_mtime_ns == before < last.stat().st_mtime_ns
    before = last.stat().st_mtime_ns
    load_tool('compress').main(call(tmp_path / 'slim'))
    assert last.stat().st_mtime_ns == before
    assert_same_weights(tmp_path / 'slim', unbroken)
    assert_same_weights(tmp_path / 'slim', unbroken, 'finetune/epoch_2.pth')
    assert not (tmp_path / 'slim/.progress').exists()


def test_killed_while_it_writes(call, run_tool, tmp_path):
    """The file is absent, and what was half written goes with the next call."""
    out = tmp_path / 'slim'
    for writes, name in ((1, '.profiles/.part-*-profiles.*'), (6, '.part-*-subnet.*')):
        killed('torch:save', writes, *call('--target-macs', '50%', out=out))
        assert list(out.glob(name))
    run_tool('compress', *call('--target-macs', '50%', out=out))
    assert not list(out.rglob('.part-*'))
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == FILES


@pytest.mark.parametrize('damage', ['cut', 'flipped', 'gone', 'pointer'])
def test_a_fine_tuning_whose_checkpoint_is_damaged_begins_anew(damage, tmp_path, caplog):
    """It does not block the folder."""
    pointer, path = tmp_path / 'last_checkpoint', tmp_path / 'epoch_1.pth'
    save_checkpoint(dict(state_dict=dict(weight=torch.zeros(64)), meta=dict(epoch=1)), str(path))
    pointer.write_text(str(path))
    config = Config(dict(work_dir=str(tmp_path), load_from='dense.pth', resume=False))
    go_on_tuning(config)
    assert config.resume and config.load_from == str(path) and not caplog.text
    content = bytearray(path.read_bytes())
    if damage == 'cut':
        path.write_bytes(content[:len(content) // 2])
    elif damage == 'flipped':
        content[content.index(bytes(256))] = 1  # in the tensor
        path.write_bytes(content)
    elif damage == 'gone':
        path.unlink()
    else:
        pointer.write_bytes(b'\xff\xfe\0')
    go_on_tuning(config)
    assert not config.resume and config.load_from is None
    assert 'the fine-tuning begins anew' in caplog.text


@pytest.mark.parametrize('length, images, message', [
    ('0.0001s', 16, 'error: expected a time in which a step of'),
    ('2', 1, 'error: expected at least two images or batches to distil'),
    ('20s', 1, 'error: expected at least two images or batches to distil')])
def test_a_distillation_that_cannot_be_is_refused_before_the_compression(
        length, images, message, call, load_tool, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(compress_config, 'compress_files', None)
    words = call('--target-macs', '60%', '--distil', length, '--images', str(images),
                 out=tmp_path / 'slim')
    with pytest.raises(SystemExit):
        load_tool('compress').main(words)
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'slim').exists()


def test_killed_behind_its_distillation(call, run_tool, tmp_path, monkeypatch):
    """That is not done again, and a later one begins with what this one wrote."""
    words = call('--target-macs', '60%', '--distil', '1', '--evaluate', out=tmp_path / 'slim')
    killed('mmengine.runner:Runner.test', 1, *words)
    assert (tmp_path / 'slim/.distil/state.pth').is_file()
    monkeypatch.setattr(Training, 'take_step', None)
    assert 'after step' in run_tool('compress', *words)
    assert not (tmp_path / 'slim/.distil').exists()


def test_killed_in_the_refit_and_evaluation_of_a_structure(call, compress, run_tool, tmp_path,
                                                           monkeypatch, refuse_to_begin_anew):
    """No block is refitted twice; what is written has the masks of the structure."""
    structure, out = tmp_path / 'searched.json', tmp_path / 'slim'
    save_half(build_model(load_config(DIGITS)), ['qk_mask', 'mlp_channels'], structure)
    compress('--structure', structure, out='unbroken')
    model = build_model(load_config('unbroken/config.py'))
    load_checkpoint(model, 'unbroken/subnet.pth', strict=True)
    masks = [value for name, value in model.state_dict().items() if name.endswith('mask.bias')]
    assert len(masks) == 4 and all((bias == 2).all() for bias in masks)
    log, save = tmp_path / 'blocks.txt', CompressProgress.save_block

    def logged(self, block, layers, ridges):
        with log.open('a') as file:
            print(block, file=file)
        save(self, block, layers, ridges)

    monkeypatch.setattr(CompressProgress, 'save_block', logged)
    words = call('--structure', structure, '--evaluate', out=out)
    killed(BLOCK, 2, *words)
    assert [path.name for path in out.iterdir()] == ['.progress']
    killed('mmengine.runner:Runner.test', 1, *words)
    assert log.read_text().split() == [f'layers.{index}' for index in range(4)]
    refuse_to_begin_anew()
    assert 'accuracy/top1' in run_tool('compress', *words)
    assert_same_weights(out, tmp_path / 'unbroken')
    assert not (out / '.progress').exists()


def test_several_targets_share_one_calibration(compress, calibrated, tmp_path, capsys,
                                               monkeypatch):
    """A folder each, as one call each; what cannot be reached is refused before any other."""
    calls, module = [], import_module('mmkcr.closed_form.profiles')
    profile = module._profile_group
    monkeypatch.setattr(module, '_profile_group',
                        lambda *args: (calls.append(args), profile(*args))[1])
    assert 'outputs differ by' in compress('--target-macs', '60%', '0.5')
    assert len(calls) == 1
    compress('--target-macs', '0.5', out='single')
    singles = {'macs-60': calibrated[1], 'macs-0.5': tmp_path / 'single'}
    assert {path.name for path in (tmp_path / 'slim').iterdir()} == {*singles}
    for folder, single in singles.items():
        found, expected = (Structure.load(out / 'structure.json')
                           for out in (tmp_path / 'slim' / folder, single))
        assert found.sites == expected.sites
        assert_same_weights(tmp_path / 'slim' / folder, single)
    with pytest.raises(SystemExit):
        compress('--target-macs', '60%', '1%', out='refused')
    assert 'expected a target within the reachable' in capsys.readouterr().err
    refused = tmp_path / 'refused'
    assert not refused.exists() or not list(refused.iterdir())
