"""What compress returns is as ordinary a network as its dense parent: both side by side."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

from lab.kind_coverage import FAMILIES, installed, randomise
from long_form import LONG, every_nth, few
from mmkcr.apis import compress, slim
from mmkcr.core.forward import flat_tensors
from mmkcr.deploy.prepare import prepare
from mmkcr.models.searchable import Searchable
from mmkcr.models.sites import why_not


def some(count, *names):
    """The networks that can be built here; in the short form, of the first ones."""
    return [name for name in few(names, *names[:count]) if installed(name.partition(', ')[0])]


#: Families whose own layers express every narrower form that is the default.
PLAIN = some(5, 'timm ViT', 'timm SigLIP 2', 'timm Swin', 'HF DINOv2', 'ViT', 'timm DeiT III',
             'HF ViT')
#: Networks with parts that are graphs of torch's own operators: selections of channels of MLPs,
#: and attention whose host cannot compute with fewer or narrower heads.
GRAPHS = some(7, 'timm ViT, mlp_channels', 'ViT, mlp_channels', 'Swin, head_channels',
              'MiT (SegFormer), heads', 'timm EVA-02, head_channels', 'timm Swin V2, heads',
              'HF DINOv3, head_channels', 'Swin V2, heads', 'BEiT, heads', 'MixMIM, head_channels',
              'PCPVT, head_channels', 'SVT, heads', 'XCiT, heads', 'TNT, heads',
              'mmdet Swin, heads', 'timm DINOv3, head_channels', 'timm BEiT, heads',
              'timm PVT v2, head_channels', 'HF CLIP, head_channels')


@functools.cache
def pair(name):
    """A dense network and the compressed one, by family."""
    family, _, kind = name.partition(', ')
    dense = randomise(FAMILIES[family].build())
    kinds = [kind] if kind else [kind for kind in ('mlp_hidden', 'head_channels')
                                 if not why_not(dense, kind)]
    return dense, compress(dense, images(name), '90%' if kind else '80%', kinds,
                           (3, ) + images(name).shape[2:]).model


def images(name):
    size = FAMILIES[name.partition(', ')[0]].size
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(1))


def tensor(outs):
    """The first tensor of whatever a host returns."""
    return flat_tensors(outs)[0]


def ours(value):
    modules = type(value).__module__, getattr(value, '__module__', None)
    return any(str(module).split('.')[0] == 'mmkcr' for module in modules)


@pytest.mark.parametrize('name', PLAIN)
def test_nothing_of_ours_is_on_it(name):
    dense, small = pair(name)
    assert list(small.state_dict()) == list(dense.state_dict())
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in dense.parameters())
    for one, other in zip(dense.modules(), small.modules(), strict=True):
        assert type(one) is type(other)
        assert set(vars(one)) == set(vars(other))
        for key, value in vars(other).items():
            assert not ours(value), key
            if 'hooks' in key:
                assert len(value) == len(vars(one)[key]), key


@pytest.mark.parametrize('name', GRAPHS)
def test_what_the_host_cannot_is_a_graph_of_torch(name):
    dense, small = pair(name)
    assert small.state_dict().keys() == dense.state_dict().keys()
    copied = pickle.loads(pickle.dumps(copy.deepcopy(small)))
    assert [path for path, _ in copied.named_parameters()] == \
        [path for path, _ in small.named_parameters()]  # as an optimizer's state expects
    torch.testing.assert_close(tensor(copied(images(name))), tensor(small(images(name))))
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in dense.parameters())
    assert any(isinstance(module, torch.fx.GraphModule) for module in small.modules())
    for module in small.modules():
        assert not ours(module) and not any(map(ours, vars(module).values()))
    if 'mlp' in name:  # exporters give them the forms of their runtimes
        assert any(getattr(module, 'form', '') == 'gather'
                   for module in prepare(small, 'any').modules())


def distributed(model, x):
    return nn.parallel.DistributedDataParallel(copy.deepcopy(model))


def sharded(model, x):
    """Each block by itself, and the rest together (FSDP2)."""
    from torch.distributed.fsdp import fully_shard  # of PyTorch 2.6
    model = copy.deepcopy(model)
    mesh = torch.distributed.init_device_mesh('cpu', (1, ))
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.fixture(scope='module')
def group():
    """A process group of this process alone."""
    torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    yield
    torch.distributed.destroy_process_group()


FORMS = dict(
    scripted=lambda model, x: torch.jit.script(model),
    traced=lambda model, x: torch.jit.trace(model, x, strict=False),
    exported=lambda model, x: torch.export.export(model, (x, )).module(),
    compiled=lambda model, x: torch.compile(model, backend='aot_eager', fullgraph=True),
    quantised=lambda model, x: torch.ao.quantization.quantize_dynamic(
        copy.deepcopy(model), {nn.Linear}, torch.qint8))
#: Some take long: plain networks have the classes of their dense parents, and graphs are alike.
SLOW = dict(scripted=('timm ViT', *GRAPHS), exported=('timm ViT', *GRAPHS),
            traced=('timm ViT', 'Swin, head_channels', 'timm EVA-02, head_channels'),
            compiled=('timm ViT', 'timm EVA-02, head_channels'))


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name, form', every_nth(3, [
    (name, form) for name in PLAIN + GRAPHS for form in FORMS
    if LONG or name in SLOW.get(form, PLAIN + GRAPHS)]))
def test_what_the_dense_network_can_the_small_one_can(name, form):
    (dense, small), x, make = pair(name), images(name), FORMS[form]
    torch.compiler.reset()
    with torch.no_grad():
        try:
            expected = tensor(make(dense, x)(x))
        except Exception as error:
            pytest.skip(f'the dense network cannot: {type(error).__name__}')
        torch.compiler.reset()
        found = tensor(make(small, x)(x))
        assert found.shape == expected.shape
        if form != 'quantised':
            torch.testing.assert_close(found, tensor(small(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('form', [distributed, sharded])
@pytest.mark.parametrize('name', PLAIN + GRAPHS)
def test_it_trains_in_wrappers_of_several_processes(group, name, form):
    x, grads = images(name), []
    for model in pair(name):
        try:
            again = form(model, x)
            found = tensor(again(x))
            found.square().sum().backward()
        except (TypeError, ValueError, RuntimeError) as error:
            assert form is sharded and model is pair(name)[0]
            pytest.skip(f'the dense network cannot: {type(error).__name__}')
        torch.testing.assert_close(found, tensor(model(x)), rtol=1e-4, atol=1e-4)
        grads.append({path for path, value in again.named_parameters() if value.grad is not None})
    assert grads[0] and grads[0] == grads[1]


def test_whole_files_load_without_us(after_torch, tmp_path):
    names = [name for name in PLAIN + GRAPHS if name.startswith(('timm ViT', 'timm EVA', 'Swin'))]
    torch.save([pair(name)[1] for name in names], tmp_path / 'whole.pt')
    torch.save([(images(name), pair(name)[1](images(name))) for name in names],
               tmp_path / 'told.pt')
    # imported for the operators that a torchvision for CUDA lacks, then out of reach
    after_torch("""
import sys, torch
from mmkcr.hosts import ensure_torchvision; ensure_torchvision()
sys.modules.update({name: None for name in sys.modules if 'mmkcr' in name})
models = torch.load('whole.pt', weights_only=False)
for model, (x, y) in zip(models, torch.load('told.pt'), strict=True):
    torch.testing.assert_close(model(x), y)
""", tmp_path)


@pytest.mark.parametrize('name', [name for name in FAMILIES if name.startswith('timm ')
                                  and installed(name)])
def test_switching_fused_attention_changes_nothing(name):
    kind = 'heads' if why_not(FAMILIES[name].build(), 'head_channels') else 'head_channels'
    host = Searchable(FAMILIES[name].build(), [kind], dict(type='mmkcr.BiMaskGate')).double()
    fused = [module.fused_attn for module in host.modules() if hasattr(module, 'fused_attn')]
    if not fused:
        return
    small, _ = slim(randomise(host), None, 1, (3, ) + images(name).shape[2:])
    x, outs = images(name).double(), []
    switches = [module for module in small.modules() if hasattr(module, 'fused_attn')]
    assert all(module.fused_attn for module in switches) == all(fused)
    for choice in (True, False):
        for module in switches:
            module.fused_attn = choice
        outs.append(tensor(small(x)).detach())
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)


def test_a_searched_network_is_as_ordinary():
    dense = pair('timm ViT')[0]
    supernet = Searchable(copy.deepcopy(dense), ['mlp_hidden', 'heads'],
                          dict(type='mmkcr.GumbelChannelGate', min_size=1))
    small, structure = slim(randomise(supernet), None, 1, (3, 64, 64))
    assert list(small.state_dict()) == list(dense.state_dict())
    torch.jit.script(small)
    assert b'mmkcr' not in pickle.dumps(small)
    again = Searchable(copy.deepcopy(dense), ['mlp_hidden', 'heads'], structure=structure)
    again.load_state_dict(small.state_dict())
    x = images('timm ViT')
    torch.testing.assert_close(again(x), small(x))
