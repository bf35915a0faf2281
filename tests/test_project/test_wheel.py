"""The wheel holds the package, its configs and its tools, and building it leaves no traces."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tool_files import file_of

from mmkcr.cli.command import COMMANDS as COMMANDS_OF_USERS
from mmkcr.version import __version__

ROOT = Path(__file__).parents[2]
SOURCES = ('mmkcr', 'configs', 'tools', 'requirements', 'setup.py', 'setup.cfg',
           'pyproject.toml', 'MANIFEST.in', 'README.md', 'LICENSE', 'model-index.yml',
           'dataset-index.yml')
# a config of the user's, built as a host's own tools build it: model, a sample and its losses; the
# process has imported no models of a host (of every host: test_end_to_end/test_hosts_tools.py)
BUILD = """
import mmkcr.hosts
mmkcr.prepare_hosts()
mmkcr.hosts.ensure_torchvision()  # a CPU's PyTorch beside torchvision for CUDA
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, HOOKS, MODELS, init_default_scope
cfg = Config.fromfile('search.py')
init_default_scope(cfg.default_scope)
assert HOOKS.build(dict(type='mmkcr.FiniteHook'))  # nothing has imported it
model = MODELS.build(dict(dict(data_preprocessor=cfg.data_preprocessor), **cfg.model))
dataset = DATASETS.build(cfg.train_dataloader.dataset)
batch = model.data_preprocessor(pseudo_collate([dataset[0], dataset[1]]), True)
losses = model(**batch, mode='loss')
print(mmkcr.__file__, type(model).__module__.split('.')[0], type(model).__name__,
      type(model.backbone).__name__, len(dataset) > 1, any('loss' in name for name in losses))
"""
# the README's lines with a small network, where no host can be imported
TIMM = """
import sys
sys.modules.update(dict.fromkeys(('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg')))
import torch
import mmkcr.hosts
mmkcr.hosts.ensure_torchvision()
import timm
from mmkcr import compress, load, save
model = timm.create_model('test_vit', img_size=32).eval()
images = torch.rand(8, 3, 32, 32)
result = compress(model, images, '60%', progress=False)
save(result, 'slim')
assert result.structure.macs['subnet'] <= 0.6 * result.structure.macs['dense']
print(mmkcr.__file__, torch.equal(load('slim')(images), result.model(images)))
"""
END = '---- end of a command'
COMMANDS = """
from mmkcr.cli.console import main
for number, words in enumerate({commands}):
    print({end!r} if number else '', end='', flush=True)
    main(words)
"""


def names_in(folder):
    """Relative paths of the files and links of a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*')
            if path.is_symlink() or path.is_file()}


@pytest.fixture(scope='module')
def build(tmp_path_factory):
    """Copy of the sources, its files before the build, and the wheel."""
    clone, out = tmp_path_factory.mktemp('clone'), tmp_path_factory.mktemp('out')
    ignored = shutil.ignore_patterns('__pycache__', '.mim')
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, clone / name, **({'ignore': ignored} if copy is shutil.copytree else {}))
    before = names_in(clone)
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--no-index',
                    '--no-build-isolation', '--wheel-dir', str(out), str(clone)], check=True)
    wheel, = out.glob('mmkcr-*.whl')
    return clone, before, wheel


def test_contents(build):
    clone, before, wheel = build
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in before if name.startswith('mmkcr/')}
    laboratory = {name for name in before if name.startswith('tools/') and (
        name.startswith('tools/lab/') or 'from lab' in (clone / name).read_text(errors='ignore')
        or name == 'tools/quickstart.py')}
    assert {'tools/lab/digits.py', 'tools/quickstart.py'} < laboratory
    shipped = {f'mmkcr/.mim/{name}' for name in before - laboratory
               if name.startswith(('configs/', 'tools/')) or name.endswith('-index.yml')}
    assert len(package) > 20 and len(shipped) > 6
    commands = {f'mmkcr/.mim/tools/{file_of(name)}.py' for name in COMMANDS_OF_USERS}
    assert commands <= shipped  # none of them needs the laboratory
    inside = {name for name in names if '.dist-info/' not in name}
    assert inside == package | shipped  # no tests, nothing else at the top level
    assert any(name.endswith('.dist-info/licenses/LICENSE') for name in names)
    # the tree stays clean
    assert {name for name in names_in(clone) - before if '.egg-info/' not in name} == set()


def versions_of(name):
    """Versions in a file of requirements by package."""
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    return dict(line.lower().split('==') for line in lines if '==' in line and line[0] != '#')


def test_ranges_end_at_versions_that_were_tested(build):
    wheel = zipfile.ZipFile(build[2])
    metadata, = (name for name in wheel.namelist() if name.endswith('.dist-info/METADATA'))
    required = [Requirement(line.removeprefix('Requires-Dist: '))
                for line in wheel.read(metadata).decode().splitlines()
                if line.startswith('Requires-Dist: ')
                and ('extra ==' not in line or 'extra == "openmmlab"' in line)]
    tested, others = versions_of('constraints'), [
        versions_of(name) for name in ('oldest', 'oldest_torch', 'newest')]
    bounded = {found.name: found.specifier for found in required if found.specifier}
    assert {'torch', 'torchvision', 'onedl-mmcv'} < set(bounded)
    assert {name for other in others for name in other} < set(bounded)
    assert {found.name for found in required} <= set(tested)
    for name, specifier in bounded.items():
        known = [tested[name], *(other[name] for other in others if name in other)]
        ends = {find(known, key=Version) for find in (min, max)}
        assert {part.version for part in specifier} == ends, name
        assert all(specifier.contains(version) for version in known)
    assert any(len(specifier) == 2 for specifier in bounded.values())


@pytest.fixture(scope='module')
def site(build, tmp_path_factory):
    """Folder that the wheel is installed to."""
    folder = tmp_path_factory.mktemp('installed') / 'site'
    subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index',
                    '--target', str(folder), str(build[2])], check=True, capture_output=True)
    return folder


@pytest.fixture
def run(site, tmp_path, after_torch):
    """``run(program)``: in an empty folder, with what is installed; gives what it printed."""
    return lambda program: after_torch(f'import sys; sys.path.insert(0, {str(site)!r})\n{program}',
                                       tmp_path)


def test_a_users_config_is_built_in_an_empty_folder(run, site, tmp_path, digits_root):
    """Model and data; names of the hosts are those of the run's scope, not of this package."""
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/digits').symlink_to(digits_root)
    (tmp_path / 'search.py').write_text(
        "_base_ = 'mmkcr::dcs/digits/dcs-search_mobilevit-mini_1xb64_digits.py'\n"
        'randomness = dict(seed=3)\n')
    assert run(BUILD).splitlines()[-1].split() == [
        str(site / 'mmkcr/__init__.py'), 'mmpretrain', 'ImageClassifier', 'DCSMobileViT', 'True',
        'True']


def test_the_snippet_of_timm_needs_no_host(run, site):
    pytest.importorskip('timm')
    assert run(TIMM).split() == [str(site / 'mmkcr/__init__.py'), 'True']


@pytest.mark.long
def test_a_released_wheel_in_an_empty_environment(build, tmp_path):
    """What an index has beside it is all that it needs: the wheel, timm, and nothing of ours."""
    subprocess.run([sys.executable, '-m', 'venv', str(tmp_path / 'empty')], check=True)
    python = tmp_path / 'empty/bin/python'
    subprocess.run([python, '-m', 'pip', 'install', '--quiet', str(build[2]), 'timm'], check=True)
    result = subprocess.run([python, '-c', TIMM], cwd=tmp_path, text=True, capture_output=True,
                            env={key: value for key, value in os.environ.items()
                                 if key != 'PYTHONPATH'})
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split()[-1] == 'True'


def test_commands_from_the_installed_wheel(run, site, tmp_path):
    """With tools, configs and methods that the wheel carries, and no clone.

    A host's own config, a checkpoint and a folder of images are all that is needed to compress.
    """
    import torch
    from PIL import Image

    from mmkcr.engine.build import build_model, load_config
    version = subprocess.run([site / 'bin/mmkcr', '--version'], cwd=tmp_path, text=True, check=True,
                             capture_output=True, env=dict(os.environ, PYTHONPATH=str(site)))
    assert version.stdout == f'mmkcr {__version__}\n'
    dense, host = 'kcr-dense_vit-mini_1xb64_digits', 'mmpretrain::deit/deit-tiny_4xb256_in1k.py'
    path = site / f'mmkcr/.mim/configs/kcr/digits/{dense}.py'
    torch.save(dict(state_dict=build_model(load_config(host)).state_dict(), meta={}),
               tmp_path / 'deit.pth')
    (tmp_path / 'images').mkdir()
    noise = torch.randint(0, 256, (4, 224, 224, 3), dtype=torch.uint8)
    for number, image in enumerate(noise):
        Image.fromarray(image.numpy()).save(tmp_path / 'images' / f'{number}.png')
    commands = (
        ['zoo', dense, '--path'], ['flops', str(path)],
        ['init', 'mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py'],
        ['compress', host, 'deit.pth', '--target-macs', '90%', '--sites', 'heads', '--calibration',
         'images', '--images', '4', '--out', 'slim'], ['flops', 'slim/config.py'])
    found, counted, _, compressed, slim = run(
        COMMANDS.format(commands=commands, end=END)).split(END)
    assert Path(found.strip()) == path and path.is_file()
    assert '0.00757' in counted  # G of MACs
    assert {file.name for file in tmp_path.iterdir()} == {
        'kcr-search_swin-tiny_16xb64_in1k.py', 'deit.pth', 'images', 'slim'}
    assert 'Wrote slim/config.py' in compressed and 'G MACs' in slim
    assert {file.name for file in (tmp_path / 'slim').iterdir()} >= {
        'config.py', 'structure.json', 'subnet.pth'}


def test_editable_install_links_to_the_sources(build, tmp_path):
    clone = shutil.copytree(build[0], tmp_path / 'clone')
    subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index',
                    '--no-build-isolation', '--target', str(tmp_path / 'site'), '-e', str(clone)],
                   check=True, capture_output=True)
    mim = clone / 'mmkcr' / '.mim'
    assert {path.name for path in mim.iterdir()} == {
        'configs', 'tools', 'model-index.yml', 'dataset-index.yml'}
    assert all(path.is_symlink() and path.exists() for path in mim.iterdir())
