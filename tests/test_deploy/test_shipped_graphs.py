"""What is left in the graphs of shipped networks, and that their outputs are still the same."""

import functools
from pathlib import Path

import onnx
import pytest
import torch
from mmengine.config import Config

from lab.kind_coverage import randomise
from long_form import every_nth, few
from mmkcr.core import Structure
from mmkcr.deploy.export import export_onnx
from mmkcr.models.layers.head_operators import OPERATORS
from mmkcr.registry import MODELS

ROOT = Path(__file__).parents[2]
NAMES = ('kcr-search_vit-small_8xb64_in1k-100', 'dcs-search_mobilevit-small_8xb64_in1k-100',
         'kcr-search_efficientvit-b1_8xb64_in1k-100')


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """``exported(name)``: the graph of a structure file's network at its fixed size, and errors."""
    folder = tmp_path_factory.mktemp('graphs')

    @functools.cache
    def export(name):
        path = ROOT / 'configs/structures' / f'{name}.json'
        torch.manual_seed(0)
        model = MODELS.build(dict(Structure.load(path).backbone, structure=str(path)))
        report = export_onnx(model, folder / f'{name}.onnx', (3, 224, 224), False, (1, 3),
                             runtime='onnxruntime')
        return onnx.load(report.path), report

    return export


def operators_of(model):
    """Operators of the nodes of a graph."""
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize('name', few(NAMES, *NAMES[:1]))
def test_outputs_at_a_fixed_size(name, exported):
    model, report = exported(name)
    assert max(report.errors.values()) < 1e-5 and {shape[0] for shape in report.errors} == {1, 3}
    onnx.checker.check_model(model, full_check=True)
    assert 'Range' not in operators_of(model)


@pytest.mark.parametrize('name', few(NAMES[1:], NAMES[1]))
def test_batch_norms_are_in_the_convolutions(name, exported):
    model, _ = exported(name)
    path = ROOT / 'configs/structures' / f'{name}.json'
    norms = [module for module in MODELS.build(dict(Structure.load(path).backbone)).modules()
             if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(norms) > 20 and 'BatchNormalization' not in operators_of(model)
    # neither are scales of channels left over: products of two tensors of the image only
    weights = {weight.name: weight.dims for weight in model.graph.initializer}
    scaled = [node for node in model.graph.node if node.op_type in ('Mul', 'Sub')
              and any(len(weights.get(name, ())) == 4 for name in node.input)]
    assert not scaled


@pytest.mark.parametrize('operator', every_nth(2, OPERATORS))
def test_nothing_is_derived_from_the_weights_of_operators(operator, tmp_path):
    """Whole blocks and single heads are replaced in ViT-octo; kernels and ensembles are stored."""
    config = Config.fromfile(ROOT / 'configs/dwconv/digits/dwconv-dense_vit-octo_1xb64_digits.py')
    backbone = {key: value for key, value in config.model.backbone.items() if key != 'init_cfg'}
    backbone.update(operator=operator, num_registers=2)
    dense = MODELS.build(dict(backbone))
    kept = {name: [] if i % 2 else [0, 2] if i % 4 else list(range(total))
            for i, (name, total) in enumerate(dense.search_space.totals().items())}
    structure = dense.search_space.structure_for({name: torch.tensor(heads).long()
                                                  for name, heads in kept.items()})
    model = randomise(MODELS.build(dict(backbone, structure=structure.to_dict())))
    report = export_onnx(model, tmp_path / 'model.onnx', (3, 32, 32), False, (1, 3))
    assert max(report.errors.values()) < 1e-5
    written = onnx.load(report.path)
    graph = written.graph
    weights = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph.initializer}
    fixed = [node.op_type for node in graph.node
             if all(name in weights for name in node.input if name)]
    assert not fixed  # every node reads the image
    kernels = [weights[node.input[1]] for node in graph.node if node.op_type == 'Conv']
    replaced = [heads for heads in kept.values() if len(heads) < 4]
    assert len(kernels) == 1 + len(replaced)  # and the patches'
    widths = {kernel.shape[0] for kernel in kernels[1:]}
    ensembled = OPERATORS[operator].ensembled
    assert len(widths) == (1 if ensembled else 2)  # of one head, or of all replaced ones
    assert {kernel.shape[2:] for kernel in kernels[1:]} == {(3, 3)}
    # a softmax over heads is an ensemble's, those that are left are of attention
    assert operators_of(written).count('Softmax') == sum(map(bool, kept.values()))
