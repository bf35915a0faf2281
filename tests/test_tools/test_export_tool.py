"""tools/deployment/export_onnx.py: from a config and a checkpoint to a checked file."""

import re
import shutil

import onnx
import pytest

from mmkcr.core import Structure
from mmkcr.deploy.latency import PairTiming

TOOL = 'deployment/export_onnx'


@pytest.fixture
def deploy(slim):
    """Config and checkpoint of a subnet."""
    return slim / 'config.py', slim / 'subnet.pth'


def test_a_subnet_is_exported_whole(run_tool, deploy, tmp_path):
    """Beside its files; a config that has no structure beside it, into its folder of runs."""
    for name in ('structure.json', 'config.py'):
        shutil.copy(deploy[0].with_name(name), tmp_path / name)
    printed = run_tool(TOOL, tmp_path / 'config.py', deploy[1], '--repeats', 0)
    assert f'{tmp_path / "config.onnx"}: dynamic batch' in printed
    shutil.copy(deploy[0].with_name('dense.py'), tmp_path / 'dense.py')
    (tmp_path / 'structure.json').unlink()
    printed = run_tool(TOOL, tmp_path / 'dense.py', deploy[0].with_name('dense.pth'))
    path = tmp_path / 'work_dirs/dense/dense.onnx'
    assert 'dynamic batch, height and width dynamic' in printed
    graph = onnx.load(path).graph
    assert [output.name for output in graph.output] == ['output']
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_backbone_at_a_fixed_size(run_tool, deploy, tmp_path):
    printed = run_tool(TOOL, *deploy, '--backbone', '--static-size', '--shape', 40, 24,
                       '--out', tmp_path / 'b.onnx')
    assert '2x3x40x24' in printed and 'height and width 40 x 24' in printed
    sides = onnx.load(tmp_path / 'b.onnx').graph.input[0].type.tensor_type.shape.dim
    assert [side.dim_param or side.dim_value for side in sides] == ['batch', 3, 40, 24]


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
def test_for_a_runtime_sizes_are_fixed_and_the_dense_network_is_timed(run_tool, deploy, runtime):
    pytest.importorskip(runtime)
    printed = run_tool(TOOL, *deploy, '--runtime', runtime, '--repeats', 2)
    assert 'height and width 32 x 32' in printed
    assert f'of its MACs, in `{runtime}`: batch 1, 2 pairs' in printed
    structure = Structure.load(deploy[1].with_name('structure.json')).macs
    assert f'{structure["subnet"] / structure["dense"]:.3f} of its MACs' in printed
    printed = run_tool(TOOL, *deploy, '--runtime', runtime, '--dynamic-size', '--repeats', 0)
    assert 'width dynamic' in printed and 'of its MACs' not in printed


@pytest.mark.parametrize('ratio, runtime', [(1.25, 'onnxruntime'), (1.25, 'any'), (1., 'any')])
def test_a_file_slower_than_the_dense_one_is_told_with_its_form(ratio, runtime, run_tool,
                                                                load_tool, deploy, monkeypatch):
    monkeypatch.setattr(load_tool(TOOL), 'measure_pair', lambda *args, **options: PairTiming(
        [0.004] * 3, [0.004 * ratio] * 3, 100, 80))
    printed = run_tool(TOOL, *deploy, '--runtime', runtime, '--static-size')
    assert f'{ratio:.3f} of the time of the dense network, at 0.800 of its MACs' in printed
    found = re.findall(r'^warning: slower than the dense network; selections of channels: '
                       rf'4 {"elements" if runtime == "onnxruntime" else "gather"}$', printed,
                       re.M)  # of two blocks
    assert len(found) == (ratio > 1) == ('warning' in printed)


def test_mistakes(refused, deploy, search_config, checkpoint):
    found = refused(TOOL, *deploy, '--end-to-end')
    assert 'a detector of mmdet or segmentor of mmseg, found' in found
    for options in (('--evaluate', ), ('--end-to-end', '--backbone')):
        assert 'another combination' in refused(TOOL, *deploy, *options)
    assert 'supernet with 2 gates' in refused(TOOL, search_config, checkpoint)
    assert 'within 0 of PyTorch' in refused(TOOL, *deploy, '--tolerance', 0, '--static-size')
