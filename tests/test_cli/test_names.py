"""Commands about networks of timm by their names, without a config."""

import json
import re
import shlex
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import mmkcr
from mmkcr.cli import frontier
from mmkcr.cli.console import main

timm = pytest.importorskip('timm')
NAME = 'vit_tiny_patch16_224'
TINY = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with the folder ``tiny`` of timm and the folder ``images``."""
    folder = tmp_path_factory.mktemp('work')
    torch.manual_seed(0)
    model = timm.create_model(NAME, num_classes=4, **TINY)
    (folder / 'tiny').mkdir()
    (folder / 'tiny/config.json').write_text(json.dumps(dict(
        architecture=NAME, num_classes=4, model_args=TINY,
        pretrained_cfg=dict(model.pretrained_cfg, input_size=(3, 32, 32)))))
    save_file(model.state_dict(), folder / 'tiny/model.safetensors')
    (folder / 'images').mkdir()
    for number, pixels in enumerate(torch.randint(0, 256, (8, 40, 50, 3), dtype=torch.uint8)):
        Image.fromarray(pixels.numpy()).save(folder / f'images/{number}.png')
    return folder


@pytest.fixture
def run(work, monkeypatch, capsys):
    """``run(words)``: what a command printed."""

    def call(words):
        monkeypatch.chdir(work)
        main(words.split())
        return capsys.readouterr().out

    return call


def test_from_a_name_to_a_file(run, work):
    compressed = run('compress timm::tiny --target-macs 70% 50% --calibration images --out slim')
    assert 'Wrote slim/macs-50' in compressed and not (work / '.slim.progress').exists()
    macs = [mmkcr.count_macs(mmkcr.load(folder), (3, 32, 32))
            for folder in (work / 'slim/macs-50', work / 'slim/macs-70')]
    dense = json.loads(run('flops timm::tiny --json'))
    assert macs[0] <= 0.5 * dense['macs'] < macs[1] <= 0.7 * dense['macs']
    assert json.loads(run('flops timm::slim/macs-50 --json'))['macs'] == macs[0]
    assert 'slim.onnx: dynamic batch' in run('export timm::slim/macs-50 --out slim.onnx')
    assert (work / 'slim.onnx').stat().st_size
    assert f'{macs[0] / dense["macs"]:.4g}' in run(
        'latency timm::tiny timm::slim/macs-50 --repeats 2 --warmup 0 --out times')


def test_a_printed_command_can_be_pasted(run):
    printed = run("compress timm::tiny --target-macs 70% --calibration images --out it's/slim")
    (command, ) = re.findall('`(mmkcr export .*?)`', printed)
    assert shlex.split(command) == ['mmkcr', 'export', "timm::it's/slim"]


def test_a_killed_call_goes_on(run, work, monkeypatch):
    """The finished target is not computed again."""
    from mmkcr.cli import compress
    words = 'compress timm::tiny --target-macs 80% 60% --calibration images --out again'
    compress_network, targets = compress.compress_network, []

    def compress_once(model, images, options, **settings):
        targets.append(options.target)
        if len(targets) == 2:
            raise KeyboardInterrupt
        return compress_network(model, images, options, **settings)

    monkeypatch.setattr(compress, 'compress_network', compress_once)
    with pytest.raises(KeyboardInterrupt):
        run(words)
    run(words)
    assert targets == ['60%', '80%', '80%'] and (work / 'again/macs-80/report.json').is_file()


def test_other_images_under_the_same_names_begin_anew(run, work, monkeypatch):
    from mmkcr.cli import compress
    keys = []

    def stop(_, key):
        keys.append(key['images'])
        raise KeyboardInterrupt

    monkeypatch.setattr(compress, 'CompressProgress', stop)
    files = sorted((work / 'images').iterdir())
    for changed in (None, *files):
        before = changed and changed.read_bytes()
        if changed:
            Image.new('RGB', (40, 40), 'red').save(changed)
        with pytest.raises(KeyboardInterrupt):
            run('compress timm::tiny --target-macs 60% --calibration images --out changed')
        if changed:
            changed.write_bytes(before)
    assert len(set(keys)) == len(keys) == 1 + len(files)


def test_a_frontier_gets_network_images_and_options(run, monkeypatch):
    calls = []
    monkeypatch.setattr(frontier, 'measure_frontier', lambda *given: (
        calls.append(given), SimpleNamespace(folder=given[3]))[1])
    assert 'Wrote work_dirs/tiny/frontier/frontier.md' in run(
        'frontier timm::tiny --calibration images --keep 90% --runtime onnxruntime')
    (model, images, options, _), = calls
    assert isinstance(model, timm.models.VisionTransformer) and images.images == 8
    assert options.input_shape == (3, 32, 32) and options.keep == '90%'


def test_the_help_of_a_frontier_says_its_own_share_of_images():
    described = frontier.main.parser().format_help()
    assert 'a quarter of them, 64 at most' in ' '.join(described.split())
    job = frontier.FrontierJob(config='timm::tiny', checkpoint=None)
    assert f'Default: {job.most_images}.' in described


@pytest.mark.parametrize('words, message', [
    ('compress timm::tiny --target-macs 60%', 'expected a folder of images (`--calibration '),
    ('compress timm::tiny --target-macs 60% --calibration images --out images',
     'expected a new or an empty folder at `images`'),
    ('compress timm::tiny none.pth --target-macs 60% --calibration images',
     'expected a checkpoint at `none.pth`, found none'),
    (f'compress timm::{NAME} --target-macs 60% --calibration images',
     'expected a checkpoint, or `--pretrained`'),
    ('compress transformers::tiny --target-macs 60% --calibration images', 'transformers'),
    *((f'compress timm::tiny --target-macs 60% --calibration images {option}',
       f'expected a config of mmpretrain, mmdet or mmseg for `{option.split()[0]}`, found '
       '`timm::tiny`')
      for option in ('--evaluate', '--finetune 1', '--scope model', '--distil 3',
                     '--cfg-options a=1')),
    ('frontier timm::tiny --calibration images --evaluate', 'expected a config of mmpretrain, '),
    ('frontier timm::tiny --calibration images --scopes model', 'for `--scopes model`, found'),
    ('export timm::tiny --end-to-end', 'for `--end-to-end`, found `timm::tiny`'),
    ('flops timm::tiny --cfg-options a=1', 'expected a config with `--cfg-options`'),
    ('latency timm::tiny', 'expected a second side beside `timm::tiny`'),
    ('latency timm::tiny timm::tiny --part backbone', 'for `--part backbone`'),
    ('compress config.py --target-macs 60%', 'expected a checkpoint of `config.py`, found none'),
    ('compress config.py --pretrained --target-macs 60%', 'expected a name of timm or '),
    ('test timm::tiny', 'expected a config of mmpretrain, mmdet, mmseg or mmkcr')])
def test_refusals_before_work(words, message, work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 1 and lines[-1].startswith('error: expected ')
    assert message in lines[-1]


@pytest.fixture(scope='module')
def saved(work):
    """The folder ``hf`` of a ViT of transformers and of its image processor."""
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        image_size=32, patch_size=8, num_labels=4, initializer_range=0.3))
    model.save_pretrained(work / 'hf')
    transformers.ViTImageProcessor(size=dict(height=32, width=32)).save_pretrained(work / 'hf')
    return model.eval()


@pytest.mark.usefixtures('saved')
def test_the_time_of_a_folder_of_transformers(run):
    run('compress transformers::hf --target-macs 60% --calibration images --out slim-hf')
    printed = run('latency transformers::hf transformers::slim-hf --repeats 2 --warmup 0 '
                  '--runtime eager onnxruntime --out times')
    assert printed.count('│ slim-hf │') == 2


def test_the_frontier_of_a_folder_of_transformers(run, saved, work):
    """All ways but half precision are measured; a smaller input is one of them."""
    printed = run('frontier transformers::hf --calibration images --runtime onnxruntime --targets '
                  '80% --sides 0.5 --out frontier-hf')
    assert printed.splitlines()[-1].startswith('Wrote frontier-hf/frontier.md')
    rows = (work / 'frontier-hf/frontier.csv').read_text().splitlines()[1:]
    assert [row.split(',')[0] for row in rows if 'failed' in row] == ['half precision']
    assert len(rows) == 8 and saved.config.image_size == 32
