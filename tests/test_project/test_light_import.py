"""Importing the package imports no host and changes none; compressing needs none of them."""

import subprocess
import sys

import pytest

HOSTS = ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg')
IMPORT = """
import sys
import torch
before = set(sys.modules)
import mmkcr
third = {name.partition('.')[0] for name in set(sys.modules) - before}
assert third - set(sys.stdlib_module_names) == {'mmkcr'}, third
"""
COMPRESS = """
import sys
import torch
import mmkcr.hosts
mmkcr.hosts.ensure_torchvision()  # `timm` imports it
{network}
from mmkcr import compress
images = [torch.rand(4, 3, 32, 32) for _ in range(2)]
result = compress(model, images, '80%', input_shape=(3, 32, 32))
assert isinstance(result.model, type(model)) and result.structure.sites
import tempfile
import warnings
import mmkcr.deploy.export
with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    warnings.simplefilter('ignore')
    mmkcr.save(result, folder)
    assert isinstance(mmkcr.load(folder, model), type(model))
found = {{name for name in sys.modules if name.partition('.')[0] in {hosts}}}
assert not found, sorted(found)[:5]
"""
TIMM = """
import timm
model = timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, embed_dim=32, depth=2,
                          num_heads=2, num_classes=4)
"""
TRANSFORMERS = """
from transformers import ViTConfig, ViTForImageClassification
model = ViTForImageClassification(ViTConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    image_size=32, patch_size=8))
"""
DISTIL = """
import sys
import torch
import mmkcr.hosts
mmkcr.hosts.ensure_torchvision()  # `timm` imports it
sys.modules.update(dict.fromkeys({hosts}))  # importing one fails
{network}
from mmkcr import compress
from mmkcr.closed_form.compression import refit_structure
from mmkcr.closed_form.options import CompressOptions
from mmkcr.distillation import distil
images, shape = torch.rand(4, 3, 32, 32), (3, 32, 32)
structure = compress(model, images, '80%', ['mlp_hidden'], shape).structure
small = refit_structure(model, structure, images, CompressOptions(input_shape=shape)).model
assert distil(small, model, images, 2, batch_size=2).steps == 2
"""
#: Commands about a network of timm, for a process in which no host can be imported.
COMMANDS = """
import sys
sys.modules.update(dict.fromkeys({hosts}))  # importing one fails
import torch
import mmkcr.hosts
mmkcr.hosts.ensure_torchvision()  # `timm` imports it
{network}
import json
import os
from PIL import Image
os.mkdir('tiny')
arguments = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
with open('tiny/config.json', 'w') as file:
    json.dump(dict(architecture='vit_tiny_patch16_224', num_classes=4, model_args=arguments,
                   pretrained_cfg=dict(model.pretrained_cfg, input_size=(3, 32, 32))), file)
torch.save(model.state_dict(), 'weights.pth')
os.mkdir('images')
for number, pixels in enumerate(torch.randint(0, 256, (4, 40, 50, 3), dtype=torch.uint8)):
    Image.fromarray(pixels.numpy()).save(f'images/{{number}}.png')
from mmkcr.cli.console import main
main('compress timm::tiny weights.pth --target-macs 60% --calibration images --out slim'.split())
main('flops timm::slim'.split())
main('latency timm::tiny timm::slim --repeats 1 --warmup 0 --out times'.split())
main('export timm::slim --out slim.onnx'.split())
import mmkcr.cli.frontier
for command in ('compress', 'frontier', 'init'):
    try:
        main([command, 'config.py', 'weights.pth'] + ['--target-macs=60%'] * (command[0] == 'c'))
    except SystemExit as stopped:
        assert stopped.code == 1, command
    else:
        raise AssertionError(command)
"""
#: What the package replaces for commands, see `mmkcr.hosts.prepare_hosts`.
UNCHANGED = """
import mmengine.config.config, mmengine.logging, mmengine.runner.checkpoint
import mmengine.fileio.handlers.registry_utils as handlers
from mmengine.fileio.backends import registry_utils
from mmcv.transforms import LoadImageFromFile
from mmengine.config.utils import MODULE2PACKAGE

def objects():
    return dict(
        image=LoadImageFromFile.transform, print_log=mmengine.logging.print_log,
        path=mmengine.config.Config._get_cfg_path,
        external=mmengine.config.config._get_external_cfg_path,
        filters=list(mmengine.logging.MMLogger.get_current_instance().filters),
        packages=dict(MODULE2PACKAGE), yaml=handlers.file_handlers['yaml'],
        backends={name for name in registry_utils.backends if 'mmkcr' not in name},
        reader=mmengine.runner.checkpoint.CheckpointLoader.load_checkpoint)

before = objects()
import mmkcr, mmkcr.registry, mmkcr.datasets, mmkcr.engine.registered, mmkcr.cli.compress
from mmkcr import compress
assert objects() == before
from mmkcr import prepare_hosts
prepare_hosts()
changed = {name for name, value in objects().items() if value != before[name]}
assert changed == {
    'image', 'path', 'external', 'packages', 'print_log', 'filters', 'reader'}, changed
after = objects()
prepare_hosts()
assert objects() == after
"""


def test_the_package_imports_pytorch_alone():
    subprocess.run([sys.executable, '-c', IMPORT], check=True)


@pytest.mark.parametrize('library, network', [('timm', TIMM), ('transformers', TRANSFORMERS)])
def test_no_host_for_networks_of_others(library, network, after_torch):
    pytest.importorskip(library)
    after_torch(COMPRESS.format(network=network, hosts=HOSTS))


def test_distillation_and_refits_need_no_host(after_torch):
    pytest.importorskip('timm')
    after_torch(DISTIL.format(network=TIMM, hosts=HOSTS))


def test_commands_about_a_network_of_timm_need_no_host(after_torch, tmp_path):
    pytest.importorskip('timm')
    printed = after_torch(COMMANDS.format(network=TIMM, hosts=HOSTS), tmp_path)
    assert 'Traceback' not in printed and (tmp_path / 'slim.onnx').is_file()


def test_hosts_are_changed_by_no_import(after_torch):
    after_torch(UNCHANGED)
