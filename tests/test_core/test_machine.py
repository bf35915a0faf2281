"""What tables and files of measured times are told apart by."""

import pytest
import torch

from mmkcr.core import LatencyTable, load_table, machine


@pytest.fixture
def computer(monkeypatch):
    """``computer(processor, simd, gpu)``: this machine from now on."""
    def become(processor, simd='AVX2', gpu=None):
        monkeypatch.setattr(machine, 'processor_name', lambda: processor)
        monkeypatch.setattr(machine.os, 'cpu_count', lambda: 2)
        monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: simd)
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: gpu is not None)
        monkeypatch.setattr(torch.cuda, 'get_device_name', lambda: gpu)
    return become


@pytest.mark.parametrize('arguments, name', [
    (('AMD EPYC', ), 'amd-epyc-2-cores-avx2'),
    (('Intel(R) Xeon(R) Processor @ 2.50GHz', 'AVX512'), 'intel-xeon-2.50ghz-2-cores-avx512'),
    (('AMD EPYC', 'NO AVX'), 'amd-epyc-2-cores-no-avx'),
    (('AMD EPYC', 'AVX2', 'NVIDIA H100 80GB HBM3'),
     'nvidia-h100-80gb-hbm3-amd-epyc-2-cores-avx2')])
def test_names_of_hardware(arguments, name, computer):
    computer(*arguments)
    assert machine.hardware_name() == name == machine.this_machine()['hardware']


@pytest.mark.parametrize('gpu', [None, 'NVIDIA A100'])
@pytest.mark.parametrize('other', [('AMD EPYC', 'AVX512'), ('Intel Xeon', ),
                                   ('AMD EPYC', 'AVX2', 'NVIDIA H100'), None])
def test_a_table_of_a_processor_that_only_looks_the_same_is_refused(other, gpu, computer, tmp_path):
    path = tmp_path / 'table.json'
    computer('AMD EPYC', gpu=gpu)
    table = LatencyTable(machine.this_machine(), {}, 1000)
    table.save(path)
    assert load_table(path) == table
    if other is None:  # a table from before the name had the level of SIMD
        table.machine['hardware'] = 'amd-epyc-2-cores'
        table.save(path)
    else:
        computer(*other, *([gpu] if len(other) == 2 else []))
    with pytest.raises(ValueError) as error:
        load_table(path)
    # what differs is named, what does not is not
    this, other = (dict(hardware=name) for name in (machine.hardware_name(),
                                                    table.machine['hardware']))
    assert f'a table about {this} in' in str(error.value)
    assert f'found {other}: measure another' in str(error.value)
    assert load_table(path, force=True) == table
