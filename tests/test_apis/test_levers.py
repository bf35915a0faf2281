"""A whole frontier on a small network: rows, files, what goes on after a kill, and failures."""

import contextlib
import itertools
import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from mmkcr import frontier
from mmkcr.apis import levers
from mmkcr.apis.levers import FrontierOptions
from mmkcr.deploy import file_bench, latency
from mmkcr.deploy.frontier import Row, drop_failed, find_better_row
from mmkcr.deploy.latency import PairTiming
from mmkcr.deploy.runtimes import open_onnx
from mmkcr.hosts import ensure_torchvision

ensure_torchvision()
timm = pytest.importorskip('timm')
SIDE = 64
FEW = dict(targets=['60%'], sides=[0.5], runtime=['onnxruntime'], keep=0.9)


@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    network = timm.create_model('test_vit', pretrained=False, img_size=SIDE, num_classes=7, depth=2)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.15)
    return network.eval()


@pytest.fixture(scope='module')
def images():
    return torch.rand(20, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope='module')
def result(model, images, tmp_path_factory):
    with warnings.catch_warnings():
        warnings.filterwarnings('error', '.*mmkcr.load')  # of a folder that is not there in the end
        return frontier(model, images, tmp_path_factory.mktemp('frontier'), **FEW)


READ = """
import json
import numpy as np, onnxruntime, torch
import mmkcr.hosts
mmkcr.hosts.ensure_torchvision()  # a CPU's PyTorch beside torchvision for CUDA
images = np.load('images.npy')
outputs = {{}}
for path in {paths}:
    if path.endswith('.onnx'):
        session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
        name = session.get_inputs()[0].name
        outputs[path] = session.run(None, {{name: images}})[0].tolist()
    else:
        with torch.no_grad():
            outputs[path] = mmkcr.load(path)(torch.from_numpy(images)).tolist()
print(json.dumps(outputs))
"""


@pytest.fixture
def read_elsewhere(after_torch, tmp_path):
    """Outputs of networks on images, by path, from a process that knows nothing but files."""
    def read(paths, images):
        np.save(tmp_path / 'images.npy', images.numpy())
        printed = after_torch(READ.format(paths=paths), tmp_path).splitlines()[-1]
        return {path: torch.tensor(outputs) for path, outputs in json.loads(printed).items()}

    return read


def test_rows_and_files(result):
    names = [row.levers for row in result.rows]
    assert names == [
        'dense', 'int8', 'half precision', 'input 32 x 32', '60% of the MACs',
        'int8 with input 32 x 32', 'int8 with 60% of the MACs',
        'input 32 x 32 with 60% of the MACs']
    rows = dict(zip(names, result.rows))
    assert rows['half precision'].note.startswith('failed: ')
    measured = [row for row in result.rows if row.ratio is not None]
    assert len(measured) == 7 and rows['dense'].agreement == 1
    assert rows['60% of the MACs'].bytes < rows['dense'].bytes
    assert rows['int8'].bytes < 0.6 * rows['dense'].bytes
    for row in measured:
        assert row.quartiles[0] <= row.ratio <= row.quartiles[1]
        # times of rows that were measured one after the other are in the order of the ratios
        assert row is measured[0] or row.ms == pytest.approx(row.ratio * measured[0].ms)
        assert bool(row.file) == (find_better_row(row, result.rows) is None)
    assert {'frontier.csv', 'frontier.md', 'frontier.png', 'frontier-dark.png', 'networks'} == {
        path.name for path in result.folder.iterdir()}


def test_every_network_reproduces_its_row_in_another_process(images, tmp_path, monkeypatch,
                                                             read_elsewhere):
    """Of int8 and in pairs too: none counts as beaten here, so that all are left."""
    torch.manual_seed(0)
    network = timm.create_model('test_vit', pretrained=False, img_size=SIDE, num_classes=0)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.15)
    network.eval()
    monkeypatch.setattr(levers, 'drop_beaten', drop_failed)
    found = frontier(network, images, tmp_path / 'out', **dict(FEW, keep=0.01))
    rows = {str(found.folder / row.file): row for row in found.rows if row.ratio is not None}
    assert {row.levers for row in rows.values()} >= {'dense', 'int8', 'int8 with 60% of the MACs'}
    cut = str(found.folder / 'networks/60-of-the-macs')
    rows[cut] = next(row for row in rows.values() if row.levers == '60% of the MACs')
    outputs = read_elsewhere(list(rows), images[-5:])
    with torch.no_grad():
        expected = network(images[-5:])
    apart = (expected - expected.mean(0)).square().sum()
    for path, row in rows.items():
        kept = 1 - float((outputs[path] - expected).square().sum() / apart)
        assert kept == pytest.approx(row.agreement, abs=2e-3), row.levers
    assert rows[cut].agreement < 0.999


def test_a_beaten_network_of_a_name_that_is_part_of_another_is_not_left(model, images, tmp_path):
    bench = levers._Bench(model, images, FrontierOptions(**FEW), tmp_path, None, None)
    names = 'dense', '60% of the MACs', 'int8 with 60% of the MACs of the whole model'
    files = dict(zip(names, ('onnxruntime-dense.onnx', 'onnxruntime-60-of-the-macs.onnx',
                             'onnxruntime-int8-with-60-of-the-macs-of-the-whole-model.onnx')))
    for file in files.values():
        (bench.progress.folder / file).touch()
    for folder in ('60-of-the-macs', '60-of-the-macs-of-the-whole-model'):
        (bench.progress.folder / folder).mkdir()
    bench.rows = [Row(name, 'onnxruntime', 1, ratio=ratio, ms=ratio, agreement=agreement,
                      file=files[name])
                  for name, ratio, agreement in zip(names, (1., 0.9, 0.5), (1., 0.7, 0.8))]
    bench.finish()
    assert {path.name for path in (tmp_path / 'networks').iterdir()} == {
        files[names[0]], files[names[2]], '60-of-the-macs-of-the-whole-model'}


def test_images_of_equal_features_have_no_frontier(images, tmp_path):
    with pytest.raises(ValueError, match='features differ, found that those of 2 images are equal'):
        frontier(nn.Conv2d(3, 4, 8, 8), images[:1].repeat(8, 1, 1, 1), tmp_path, **FEW)


def test_nothing_is_fitted_to_the_images_that_are_compared(model, images, tmp_path, monkeypatch):
    fitted, looked = [], []

    def compress_network(network, fit, options, forward, held_out, **_):
        fitted.append([image[0] for image in fit])
        raise ValueError('no need')

    class Bench(levers.FileBench):
        def __init__(self, *args):
            super().__init__(*args)
            fitted.append([image[0] for image in (*self.ranges, *self.looked_at)])
            looked.append(len(self.looked_at))

    monkeypatch.setattr(levers, 'compress_network', compress_network)
    monkeypatch.setattr(levers, 'FileBench', Bench)
    found = frontier(model, images, tmp_path, **FEW)
    # a pair with a lever that failed alone is no row
    assert {row.levers: row.note for row in found.rows if '60%' in row.levers} == {
        '60% of the MACs': 'failed: no need'}
    assert len(fitted) == 2 and looked == [4]
    for fit in fitted:
        torch.testing.assert_close(torch.stack(fit), images[:15], rtol=0, atol=1e-6)


@pytest.fixture
def done(monkeypatch):
    """Work on files that ended, as (method, file); ``done.kill`` is killed when it begins."""
    class Done(list):
        kill = None

    done = Done()

    def note(name, place):
        method = getattr(file_bench.FileBench, name)

        def noted(bench, *args, **options):
            paths = args[place] if name == 'time' else [args[place]]
            files = [path.name.rpartition('onnxruntime-')[2] for path in paths]  # temporary, too
            if done.kill in [(name, file) for file in files]:
                raise KeyboardInterrupt
            result = method(bench, *args, **options)
            if name != 'compare' or len(args) == 2:  # others look at blocks in int8
                done.extend((name, file) for file in files)
            return result

        monkeypatch.setattr(file_bench.FileBench, name, noted)

    for name, place in dict(export=1, quantize=1, compare=0, time=1).items():
        note(name, place)
    whole = levers.compress_network
    monkeypatch.setattr(levers, 'compress_network', lambda *args, **options: (
        whole(*args, **options), done.append(('cut', '')))[0])
    monkeypatch.setattr(levers, 'drop_beaten', drop_failed)
    monkeypatch.setattr(levers, 'TIMED', 2)
    return done


@pytest.mark.parametrize('kill', [
    ('export', '60-of-the-macs.onnx'), ('quantize', 'int8-with-60-of-the-macs.onnx'),
    ('time', '60-of-the-macs.onnx')])
def test_a_killed_call_goes_on(kill, model, images, tmp_path, done):
    """What was cut, made, compared or timed is not again."""
    few = dict(FEW, sides=[])
    done.kill = kill
    with pytest.raises(KeyboardInterrupt):
        frontier(model, images, tmp_path, **few)
    assert done and kill not in done
    done.kill = None
    found = frontier(model, images, tmp_path, **few)
    files = ['60-of-the-macs', 'dense', 'int8', 'int8-with-60-of-the-macs']
    visits = ['time'] * file_bench.VISITS
    assert sorted(done) == sorted([
        ('cut', ''), *((name, f'{file}.onnx') for file in files for name in (
            'quantize' if 'int8' in file else 'export', 'compare', *visits)
            if (name, file) != ('compare', 'dense'))])  # the export compared it
    assert len(found.rows) == 5 and not (tmp_path / '.progress').exists()
    assert (tmp_path / 'networks/60-of-the-macs').is_dir()  # its file may be from before


def test_half_precision_is_paired_with_all_others(model, images, tmp_path, monkeypatch):
    """A file of half precision is another row's, and says its type; int8 stays int8."""
    monkeypatch.setattr(levers, 'half_precision', lambda runtime: 'bf16')
    monkeypatch.setattr(levers, 'drop_beaten', drop_failed)
    quantize = file_bench.FileBench.quantize
    monkeypatch.setattr(file_bench.FileBench, 'quantize', lambda *args: (
        quantize(*args) or ['blocks.0']))
    found = frontier(model, images, tmp_path, **FEW)
    rows = {row.levers: row for row in found.rows}
    others = ['int8', 'input 32 x 32', '60% of the MACs']
    half = ['half precision', 'int8 with half precision',
            *(f'half precision with {name}' for name in others[1:])]
    assert set(rows) == {'dense', *others, *half, *(
        f'{first} with {second}' for first, second in itertools.combinations(others, 2))}
    for name, row in rows.items():
        graph = onnx.load(found.folder / row.file)
        assert [note.value for note in graph.metadata_props if note.key == 'mmkcr.precision'] \
            == ['bf16'] * ('half precision' in name)
        assert ('DequantizeLinear' in {node.op_type for node in graph.graph.node}) == row.int8
    for name, full in zip(half, ['dense', *others]):
        assert rows[name].agreement == rows[full].agreement  # ONNX Runtime reads no type
        assert rows[name].int8 == rows[full].int8
    assert rows['int8'].note == 'blocks.0 compute in fp32'
    assert rows['int8 with half precision'].note == 'blocks.0 compute in half precision'


def test_times_are_of_several_visits_with_all_others_in_between(model, images, tmp_path, done,
                                                                monkeypatch):
    """The ratio is the median of the pairs of all visits, in each of which a file is opened."""
    opened, open_file, numbers = [], latency.open_onnx, iter(range(1, 9))
    monkeypatch.setattr(latency, 'open_onnx', lambda path, *args: (
        opened.append(path.stem.removeprefix('onnxruntime-')), open_file(path, *args))[1])
    time = file_bench.FileBench.time

    def timed(*args):
        ratio = next(numbers)  # of a visit
        return [PairTiming([1.] * len(timing.dense), [ratio] * len(timing.slim))
                for timing in time(*args)]

    monkeypatch.setattr(file_bench.FileBench, 'time', timed)
    found = frontier(model, images, tmp_path, **dict(FEW, targets=[]))
    groups = ['dense', 'dense', 'int8'], ['dense', 'input-32-x-32', 'int8-with-input-32-x-32']
    assert opened == [*itertools.chain(*groups)] * file_bench.VISITS
    assert [(row.levers, row.ratio, row.quartiles) for row in drop_failed(found.rows)] == [
        ('dense', 4, (1.5, 6.5)), ('int8', 4, (1.5, 6.5)), ('input 32 x 32', 5, (2.5, 7.5)),
        ('int8 with input 32 x 32', 5, (2.5, 7.5))]


def test_nothing_computes_beside_files_that_are_timed(model, images, tmp_path, done, monkeypatch):
    """All comparisons, which run beside the making of files, end before the first timing."""
    compared, time = [], file_bench.FileBench.time

    def timed(*args):
        compared.append({file for name, file in done if name == 'compare'})
        return time(*args)

    monkeypatch.setattr(file_bench.FileBench, 'time', timed)
    frontier(model, images, tmp_path, **dict(FEW, targets=[]))
    assert compared[0] == {'int8.onnx', 'input-32-x-32.onnx', 'int8-with-input-32-x-32.onnx'}


@pytest.mark.parametrize('failing', ['int8', 'dense'])
def test_a_file_that_cannot_be_timed_is_a_row_that_says_why(failing, model, images, tmp_path,
                                                            monkeypatch):
    """Others of its rounds are timed. Without times of the dense network there is no frontier."""
    time = file_bench.FileBench.time

    def timed(bench, dense, files, *args):
        if any(path.stem == f'onnxruntime-{failing}' for path in files):
            raise RuntimeError('no memory is left\nfor this file')
        return time(bench, dense, files, *args)

    monkeypatch.setattr(file_bench.FileBench, 'time', timed)
    if failing == 'dense':
        with pytest.raises(RuntimeError, match='no memory is left'):
            frontier(model, images, tmp_path, **dict(FEW, targets=[]))
        return
    found = frontier(model, images, tmp_path, **dict(FEW, targets=[]))
    rows = {row.levers: row for row in found.rows}
    assert rows['int8'].note.startswith('failed: no memory is left') and not rows['int8'].file
    assert [name for name, row in rows.items() if row.ratio is None] == ['int8', 'half precision']


@pytest.mark.parametrize('killed', [False, True])
def test_threads_are_as_many_as_before(killed, model, images, tmp_path, monkeypatch):
    """Comparisons limit PyTorch's threads beside them alone, not in cuts."""
    def compress_network(*_, **__):
        seen.append(torch.get_num_threads())
        raise ValueError('no need')

    def quantize(*_):
        raise KeyboardInterrupt if killed else ValueError('no need')

    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(levers, 'compress_network', compress_network)
    monkeypatch.setattr(file_bench.FileBench, 'quantize', quantize)
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt) if killed else contextlib.nullcontext():
            frontier(model, images, tmp_path, **dict(FEW, sides=[]))
        with ThreadPoolExecutor(1) as others:
            seen.append(others.submit(torch.get_num_threads).result())
        assert [*seen, torch.get_num_threads()] == [2] * (2 if killed else 3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize('runtimes', [['onnxruntime'], ['onnxruntime', 'openvino']])
def test_agreement_is_measured_once_for_all_threads_and_in_fp32_for_all_runtimes(
        runtimes, model, images, tmp_path, monkeypatch):
    for package in ('openvino', 'nncf') * ('openvino' in runtimes):
        pytest.importorskip(package)
    def half_precision(runtime):
        raise ValueError('none')

    monkeypatch.setattr(levers, 'half_precision', half_precision)  # this processor may have it
    judged, compare = [], file_bench.FileBench.compare

    def noted(bench, path, runtime, images=None, threads=None):
        if images is None:
            judged.append(path.stem)
        return compare(bench, path, runtime, images, threads)

    monkeypatch.setattr(file_bench.FileBench, 'compare', noted)
    found = frontier(model, images, tmp_path, runtime=runtimes, threads=[1, 2], targets=[],
                     sides=[0.5], keep=0.01)
    fp32, int8 = ('input-32-x-32', ), ('int8', 'int8-with-input-32-x-32')
    assert sorted(judged) == sorted([
        *(f'onnxruntime-{name}' for name in fp32),
        *(f'{runtime}-{name}' for runtime in runtimes for name in int8)])
    agreements = {(row.levers, row.runtime, row.agreement) for row in found.rows if row.ratio}
    assert len(agreements) == 4 * len(runtimes)


def test_a_dense_network_that_is_not_exported_has_no_frontier(model, images, tmp_path, monkeypatch):
    def export_onnx(*_, **__):
        raise ValueError('expected a model that the exporter takes')

    monkeypatch.setattr(file_bench, 'export_onnx', export_onnx)
    with pytest.raises(ValueError, match='that the exporter takes'):
        frontier(model, images, tmp_path, **dict(FEW, targets=[]))


@pytest.mark.parametrize('keep', ['much', '0%', 1.5, 95, '101%', 'nan'])
def test_keep_is_a_share(keep):
    with pytest.raises(ValueError, match='expected `keep` such as'):
        FrontierOptions(keep=keep)


def test_files_open_as_they_say(result):
    """A written network takes any number of images."""
    row = next(row for row in result.rows if row.file)
    session = open_onnx(result.folder / row.file)
    assert session(np.zeros((3, 3, SIDE, SIDE), np.float32))[0].shape == (3, 7)
    assert onnxruntime.get_available_providers()
