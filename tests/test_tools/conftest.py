"""Commands run in this process, on a tiny search of the digits."""

import functools
import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SEARCH = REPO / 'configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py'

# the search on the digits with a smaller network, on one CPU within seconds
TINY = """
_base_ = {base!r}
train_dataloader = dict(
    batch_size=8, num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
val_dataloader = dict(
    num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=1)
custom_hooks = [
    dict(type='mmkcr.TemperatureDecayHook', initial=4.5, decay=0.9),
    dict(type='mmkcr.WarmupSwitchHook', begin=0),
    dict(type='mmkcr.NystromRefreshHook', interval=4)]
model = dict(
    architecture=dict(
        backbone=dict(
            img_size=32, patch_size=8, gates=dict(
                _delete_=True, type='mmkcr.GumbelChannelGate', min_size=4),
            arch=dict(
                _delete_=True, embed_dims=32, num_layers=2, num_heads=2,
                feedforward_channels=64)),
        head=dict(in_channels=32)),
    regularizers=dict(kcr=dict(num_features=32)))
"""

# a network of DCS on few of the digits
DCS = """
_base_ = {base!r}
val_dataloader = dict(
    num_workers=0, persistent_workers=False,
    dataset=dict(data_root={data!r}, indices=list(range(0, 360, 12))))
test_dataloader = val_dataloader
train_dataloader = dict(dataset=dict(data_root={data!r}, indices=list(range(0, 1437, 40))))
custom_hooks = []
"""


@pytest.fixture(scope='session')
def whole_model():
    """``whole_model(printed)``: the cells of that row of a table of MACs by part, G MACs."""

    def read(printed):
        row, *_ = [line for line in printed.splitlines() if 'whole model' in line]  # a hint follows
        return [cell.strip() for cell in row.split('│') if cell.strip()][1:]

    return read


@pytest.fixture(scope='session')
def small_digits(written_digits):
    """A folder with the digits, and one scene each."""
    from lab.digits import DigitsOptions
    return written_digits(DigitsOptions(train_scenes=1, val_scenes=1))


@pytest.fixture(scope='session')
def data(small_digits):
    """Last words of a command, which may be followed by more options of the config."""
    return ['--cfg-options', *(f'{part}_dataloader.{key}' for part in ('train', 'val', 'test')
                               for key in (f'dataset.data_root={small_digits}', 'num_workers=0',
                                           'persistent_workers=False'))]


@pytest.fixture(scope='session')
def write_config(small_digits, tmp_path_factory):
    """``write_config(extra)``: a file with the tiny search config and more lines."""
    folder = tmp_path_factory.mktemp('configs')

    def write(extra='', base=SEARCH, name='tiny-search'):
        path = folder / f'{len(list(folder.iterdir()))}' / f'{name}.py'
        path.parent.mkdir()
        path.write_text(TINY.format(base=str(base), data=str(small_digits)) + extra)
        return str(path)

    return write


@pytest.fixture(scope='session')
def search_config(write_config):
    """The tiny search config's file."""
    return write_config()


@pytest.fixture(scope='session')
def dense_config(search_config):
    """``dense_config(structure=None)``: of the network that is searched, or of a subnet of it."""
    from mmkcr.engine.build import load_config

    def make(structure=None):
        config = load_config(search_config)
        config.model = config.model.architecture
        config.model.backbone.pop('gates')
        if structure is not None:
            config.model.backbone.structure = str(structure)
        return config

    return make


@pytest.fixture(scope='session')
def dense_training(dense_config):
    """``dense_training()``: the same with a schedule of its own, of one epoch."""
    def make():
        config = dense_config()
        config.train_cfg = dict(by_epoch=True, max_epochs=1)
        config.optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
        config.custom_hooks, config.param_scheduler = [], []
        return config

    return make


@pytest.fixture(scope='session')
def make_checkpoint(tmp_path_factory):
    """``make_checkpoint(config, seed, epoch)``: a checkpoint with random weights, as saved."""
    import torch

    from mmkcr.engine.build import build_model, load_config

    def make(config, seed=0, epoch=3, shift=0.5, std=0.3):
        torch.manual_seed(seed)
        model = build_model(load_config(config))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0, std)
        for gate in (model.gates() if hasattr(model, 'gates') else {}).values():
            torch.nn.init.normal_(gate.alpha, shift)
        path = tmp_path_factory.mktemp('checkpoint') / f'epoch_{epoch}.pth'
        meta = dict(epoch=epoch, iter=10 * epoch, seed=5, dataset_meta=dict(classes=('a', 'b')))
        torch.save(dict(state_dict=model.state_dict(), meta=meta), path)
        return str(path)

    return make


@pytest.fixture(scope='session')
def checkpoint(make_checkpoint, search_config):
    """A checkpoint of the tiny search."""
    return make_checkpoint(search_config)


@pytest.fixture(scope='session')
def dcs_network(small_digits, tmp_path_factory):
    """``dcs_network(net, *epochs)``: its config, and a checkpoint of random weights for each."""
    import torch

    from mmkcr.engine.build import build_model, load_config
    folder = tmp_path_factory.mktemp('dcs')

    def make(net, *epochs):
        files = [folder / f'dcs-dense_{net}_1xb64_digits.py']
        files[0].write_text(DCS.format(base=str(REPO / 'configs/dcs/digits' / files[0].name),
                                       data=str(small_digits)))
        for epoch in epochs:
            torch.manual_seed(epoch)
            model = build_model(load_config(files[0]))
            for module in model.modules():
                if hasattr(module, 'running_var'):
                    module.running_var.fill_(0.5)
            files.append(folder / f'{net}_{epoch}.pth')
            torch.save(dict(state_dict=model.state_dict(), meta=dict(epoch=epoch)), files[-1])
        return files

    return make


@pytest.fixture(scope='session')
def slim(load_tool, search_config, dense_config, checkpoint, tmp_path_factory):
    """A folder that tests read: files of a subnet, and its dense network in two others.

    They are ``config.py``, which names the weights, ``dense.py`` and ``dense.pth``.
    """
    import torch

    from mmkcr.engine.build import build_model
    folder = tmp_path_factory.mktemp('subnet')
    load_tool('slim').main([search_config, checkpoint, '--target-macs', '80%', '--out',
                            str(folder)])
    dense, config = dense_config(), dense_config(folder / 'structure.json')
    torch.save(dict(state_dict=build_model(dense).state_dict()), folder / 'dense.pth')
    dense.dump(folder / 'dense.py')
    config.load_from = str(folder / 'subnet.pth')
    config.dump(folder / 'config.py')
    return folder


@pytest.fixture(scope='session')
def load_tool():
    """``load_tool('slim')``: a command's file as a module."""
    from tool_files import load_tool
    return functools.cache(load_tool)


@pytest.fixture
def run_tool(load_tool, capsys, monkeypatch, tmp_path):
    """``run_tool('slim', *args)`` in an empty folder; gives what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name, *args):
        load_tool(name).main([str(arg) for arg in args])
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(load_tool, capsys, monkeypatch, tmp_path, forget_runs):
    """``refused('slim', *args)``: the one sentence of a command that writes nothing but a log."""

    def run(name, *args):
        forget_runs()
        folder = tmp_path / f'empty{len(list(tmp_path.iterdir()))}'
        folder.mkdir()
        monkeypatch.chdir(folder)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            load_tool(name).main([str(arg) for arg in args])
        assert ended.value.code == 1
        # the log of a run that did not start says why
        assert not [path for path in folder.rglob('*') if path.is_file() and not re.search(
            r'/\d{8}_\d{6}/', str(path))]
        lines = capsys.readouterr().err.splitlines()
        # what a compression is about to do is said before
        lines = [line for line in lines if not line.startswith(('Calibration: ', 'Reading '))]
        assert len(lines) == 1 and lines[0].startswith('error: '), lines
        return lines[0]

    return run


@pytest.fixture(scope='session')
def forget_runs():
    """``forget_runs()``: drop what MMEngine keeps by name and second, for one run a process."""

    def forget():
        from mmengine.utils import ManagerMixin
        managers = [ManagerMixin]
        for manager in managers:  # to which its subclasses are added meanwhile
            managers += manager.__subclasses__()
            manager._instance_dict.clear()

    return forget
