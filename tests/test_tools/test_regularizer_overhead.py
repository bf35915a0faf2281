"""regularizer_overhead.py: what it times is what it says, and it writes its record."""

import json

import pytest
import torch


@pytest.fixture
def tool(load_tool):
    """The command as a module."""
    return load_tool('benchmarks/regularizer_overhead')


@pytest.fixture
def tiny_models(tool, monkeypatch):
    """Classifiers of the benchmark's input size that step in milliseconds."""
    def build(term, width=8):
        import mmpretrain.models  # noqa: F401

        from mmkcr.methods.search.regularized import RegularizedModel
        arch = dict(embed_dims=width, num_layers=1, num_heads=2, feedforward_channels=8)
        loss = dict(kcr=dict(type='mmkcr.KernelComplexityLoss', num_features=width),
                    ib=dict(type='mmkcr.InformationBottleneckLoss', num_features=width,
                            num_classes=10))[term]
        model = RegularizedModel(
            dict(type='mmpretrain.ImageClassifier',
                 backbone=dict(type='mmpretrain.VisionTransformer', arch=arch, img_size=224,
                               patch_size=112),
                 head=dict(type='mmpretrain.VisionTransformerClsHead', num_classes=10,
                           in_channels=width)), {term: loss})
        tool.fill(model.regularizers[term])
        return model.train()

    monkeypatch.setattr(tool, 'build_model', build)


@pytest.mark.parametrize('term, width', [('kcr', 384), ('ib', 640)])
def test_networks_of_the_benchmark(tool, term, width):
    model = tool.build_model(term)
    loss = model.regularizers[term]
    assert loss.num_features == width and loss.ready and model.training


def test_both_formulations_span_the_same_subspace(tool):
    features = torch.randn(200, 12, dtype=torch.float64)
    theirs = tool.paper_basis(features, 60, 4)
    ours = features @ tool.refresh(features[:60], 4, batch=7)
    ours *= (ours * theirs).sum(0).sign()
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_record(tool, tiny_models, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, 'in_a_fresh_process', lambda function, threads, *args:
                        function(*args))
    threads = torch.get_num_threads()
    tool.main(['--quick', '--threads', str(threads), '--out', str(tmp_path / 'kcr')])
    result = json.loads((tmp_path / 'kcr.json').read_text())
    for term, step in zip(('kcr', 'ib'), result['steps'], strict=True):
        assert (step['term'], step['pairs'], step['batch']) == (term, 2, 1)
        assert step['ratio'] == pytest.approx(step['seconds_with'] / step['seconds_without'])
    assert result['clusters']['clusters'] == 10 and result['clusters']['seconds_again'] > 0
    assert [row['form'] for row in result['formulation']] == ['paper', 'ours']
    assert result['formulation'][0]['stored_mb'] > result['formulation'][1]['stored_mb']
    assert result['machine']['torch'] == torch.__version__
    text = (tmp_path / 'kcr.md').read_text()
    assert text in capsys.readouterr().out and 'ratio of medians' in text


def test_one_term_by_the_clock_of_the_process(tool, tiny_models, tmp_path, monkeypatch):
    """Waiting is not counted, and the other term is not measured."""
    def waiting(function, threads, *args):
        found = function(*args)
        assert tool.timed(lambda: tool.time.sleep(0.5), args[0], 1)[0] < 0.4
        return found

    monkeypatch.setattr(tool, 'in_a_fresh_process', waiting)
    tool.main(['--quick', '--terms', 'ib', '--threads', '1', '--clock', 'cpu', '--out',
               str(tmp_path / 'ib')])
    result = json.loads((tmp_path / 'ib.json').read_text())
    assert [step['term'] for step in result['steps']] == ['ib'] and result['clock'] == 'cpu'
    assert result['refresh'] is None and result['clusters']['seconds_again'] > 0
    text = (tmp_path / 'ib.md').read_text()
    assert 'IB, MobileViT-S' in text and 'KCR' not in text and 'clock: cpu' in text


def test_the_clock_of_the_process_needs_one_thread(refused):
    assert 'expected `--threads 1`' in refused(
        'benchmarks/regularizer_overhead', '--quick', '--clock', 'cpu', '--threads', 2)


def test_a_worker_process_measures_too(tool):
    values = tool.in_a_fresh_process(torch.tensor, 1, [1.])  # a function that can be pickled
    assert values.tolist() == [1.]
