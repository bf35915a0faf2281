"""EfficientViT: timm's outputs with timm's weights, published sizes, options, three states."""

import pytest
import timm
import torch
from mmpretrain.models import ImageClassifier
from tool_files import load_tool
from torch import nn

from lab.model_zoo import uninitialized
from long_form import every_nth
from mmkcr.apis import count_macs
from mmkcr.core import count_params
from mmkcr.methods.named import KCREfficientViT
from mmkcr.models import EfficientViT, EfficientViTClsHead
from .law import randomise

HEADS = dict(b0=(1024, 1280), b1=(1536, 1600), b2=(2304, 2560), b3=(2304, 2560))
CONVERTER = 'model_converters/efficientvit_timm'


def classifier(arch, **kwargs):
    head = EfficientViTClsHead(1000, EfficientViT.arch_zoo[arch]['widths'][-1], HEADS[arch])
    model = ImageClassifier(backbone=EfficientViT(arch=arch, **kwargs), head=head)
    model.train(False)
    return model


@pytest.mark.parametrize('arch', every_nth(4, HEADS))
def test_weights_of_timm_give_outputs_of_timm(arch):
    with uninitialized():
        theirs, ours = timm.create_model(f'efficientvit_{arch}'), classifier(arch)
        state = load_tool(CONVERTER).convert(randomise(theirs).state_dict())
    ours.load_state_dict(state, strict=True)
    ours, theirs = ours.double(), theirs.double()
    ours.backbone.out_indices = [0, 1, 2, 3]
    for size in ((64, 64), (52, 99)) if arch == 'b1' else ((64, 64), ):
        x = torch.randn(2, 3, *size).double()
        with torch.no_grad():
            last, stages = theirs.forward_intermediates(x)
            found = ours.backbone(x)
            pairs = [(ours.head(found), theirs.forward_head(last)), *zip(found, stages)]
        assert len(pairs) == 5
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize('arch, params, macs', [
    ('b0', 3.4, 0.10), ('b1', 9.1, 0.52), ('b2', 24., 1.6), ('b3', 49., 4.0)])
def test_published_sizes(arch, params, macs):
    """To the two digits that Cai et al. print, table 2, and exactly as timm's."""
    with uninitialized():
        model, theirs = classifier(arch), timm.create_model(f'efficientvit_{arch}')
    assert count_params(model) == count_params(theirs)
    assert count_macs(model) == count_macs(theirs)
    assert float(f'{count_params(model) / 1e6:.2g}') == params
    assert float(f'{count_macs(model) / 1e9:.2g}') == macs


def test_macs_of_b1_at_288_are_those_of_the_paper():
    """The DCS paper prints 0.86 G, which is 0.52 G of 224 px scaled by the positions."""
    assert count_macs(classifier('b1'), (3, 288, 288)) / 1e9 == pytest.approx(0.86, abs=0.006)


@pytest.mark.parametrize('size', [(16, 24), (160, 160)])
def test_quadratic_branch_and_eps_are_options(size):
    """Up to eps the two forms agree; with the official code's eps they still do."""
    linear = randomise(EfficientViT(arch='b0', eps=1e-15))
    quadratic = EfficientViT(arch='b0', eps=1e-15, quadratic=True)
    quadratic.load_state_dict(linear.state_dict())
    timm_eps = EfficientViT(arch='b0')
    timm_eps.load_state_dict(linear.state_dict())
    x = torch.randn(2, 3, *size)
    for model in (linear, quadratic, timm_eps):
        model.double().train(False)
    with torch.no_grad():
        a, b, c = (model(x.double())[0] for model in (linear, quadratic, timm_eps))
    torch.testing.assert_close(a, b)
    assert not torch.equal(a, c)
    torch.testing.assert_close(a, c, rtol=0, atol=0.05 * float(a.abs().max()))
    # the quadratic form costs N^2 where N <= d, and only there
    costs = [count_macs(model.float(), (3, *size)) for model in (linear, quadratic)]
    assert (costs[0] != costs[1]) == (size == (16, 24))


def test_out_indices_frozen_stages_and_norm_eval():
    model = EfficientViT(arch='b0', out_indices=(3, 0, -2), frozen_stages=2, norm_eval=True)
    # before `train`: a wrapper for several processes asks then
    assert not any(part.weight.requires_grad for part in model.stages[1].modules()
                   if isinstance(part, nn.Conv2d))
    model.train()
    shapes = [tuple(out.shape) for out in model(torch.randn(1, 3, 65, 96))]
    assert shapes == [(1, 16, 17, 24), (1, 64, 5, 6), (1, 128, 3, 3)]
    for name, parameter in model.named_parameters():
        frozen = name.startswith(('stem', 'stages.0', 'stages.1'))
        assert parameter.requires_grad != frozen, name
    assert not any(m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert model.stages[2].training and not model.stages[1].training


@pytest.mark.parametrize('kwargs, message', [
    (dict(arch='b9'), "among .*'b0'.*found 'b9'"),
    (dict(arch=dict(widths=[8, 16], depths=[1])), 'head_dim.*found'),
    (dict(arch=dict(widths=[8, 16], depths=[1], head_dim=8)), 'as many `depths` as `widths`'),
    (dict(arch=dict(widths=[8, 20], depths=[1, 1], head_dim=16)), '`head_dim` 16, found 20'),
    (dict(out_indices=(4, )), r'`out_indices` within \[-4, 3\], found \[4\]'),
    (dict(frozen_stages=5), r'within \[-1, 4\], found 5'),
])
def test_bad_arguments(kwargs, message):
    for cls in (EfficientViT, KCREfficientViT):
        with pytest.raises(ValueError, match=message):
            cls(**kwargs)


def test_converter_writes_what_it_knows_and_refuses_others(tmp_path, capsys):
    tool, state = load_tool(CONVERTER), timm.create_model('efficientvit_b0').state_dict()
    cases = [({k: v for k, v in state.items() if 'stages.2' not in k}, 'missing|Missing'),
             (dict(state, extra=torch.zeros(1)), 'extra'), ({'a': torch.zeros(1)}, 'keys a')]
    for content, message in cases:
        with pytest.raises(ValueError, match=message):
            tool.convert(content)
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path / 'none.pth'), str(tmp_path / 'out.pth')])
    assert 'expected a checkpoint at' in capsys.readouterr().err
    assert not (tmp_path / 'out.pth').exists()
    torch.save(state, tmp_path / 'timm.pth')
    tool.main([str(tmp_path / 'timm.pth'), str(tmp_path / 'out.pth')])
    classifier('b0').load_state_dict(torch.load(tmp_path / 'out.pth')['state_dict'], strict=True)
