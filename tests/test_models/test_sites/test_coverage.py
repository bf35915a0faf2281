"""The law over all families of backbones and all kinds of site, and the table of the docs.

In fp64, where a supernet with hard gates, its subnet and the reloaded subnet agree to 1e-12 and
are not the dense network.
"""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_files import load_tool

from lab.kind_coverage import (
    FAMILIES,
    GATES,
    HOLDS,
    cell,
    format_cells,
    installed,
    law_error,
    randomise,
    read_cells,
    run,
)
from long_form import LONG
from mmkcr.apis import count_macs
from mmkcr.closed_form.readers import output_rows, readers
from mmkcr.core import MacsModel
from mmkcr.models import Searchable
from mmkcr.models.adapters import attention_adapter
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites import KINDS, find_sites
from mmkcr.models.sites.heads import _scaled

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / 'docs' / 'coverage.md'
NAMES = [pytest.param(name, marks=pytest.mark.skipif(
    not installed(name), reason=f'`{family.library}` is not installed'))
    for name, family in FAMILIES.items()]
THERE = [name for name in FAMILIES if installed(name)]
GATED = [kind for kind, cls in KINDS.items() if cls.gated]
every_family = pytest.mark.parametrize('name', NAMES)


def offered(name, kinds=GATED):
    """Kinds that a family has."""
    return [kind for kind in kinds if cell(name, kind) == HOLDS]


def some(name):
    """One or two of them, in turn; in the long form all."""
    kinds = offered(name)
    return kinds if LONG else kinds[THERE.index(name) % 3::3] or kinds


def assert_law(name, kinds, seed, size=None):
    error, moved = law_error(FAMILIES[name], kinds, seed, size)
    assert error < 1e-12, (kinds, size, error)
    return moved


@every_family
def test_the_law_holds_or_there_is_a_reason(name):
    for kind in KINDS:
        assert 'law broken' not in cell(name, kind), kind
    assert offered(name)


@pytest.mark.parametrize('name', NAMES if LONG else NAMES[::3])
@settings(max_examples=1, deadline=None)
@given(seed=st.integers(1, 10**6))
def test_structures_drawn_at_random(name, seed):
    kind = offered(name)[seed % len(offered(name))]
    assert_law(name, [kind], seed)


@pytest.mark.parametrize('name', [name for name in THERE if FAMILIES[name].other])
def test_another_size_of_the_image(name):
    for kind in some(name):
        assert assert_law(name, [kind], 1, FAMILIES[name].other) > 1e-6, kind


@every_family
def test_readers_of_a_subnet_have_the_rows_of_the_supernets(name):
    """In the same order: a refit compares the two row by row."""
    family = FAMILIES[name]
    height, width = family.other or (family.size, family.size)
    images = torch.randn(2, 3, height, width, dtype=torch.float64)
    for kind in some(name):
        supernet = randomise(Searchable(family.build(), sites=[kind], gates={
            kind: GATES[kind]}).double(), 1)
        subnet, space = copy.deepcopy(supernet), supernet.search_space
        subnet.search_space.slice_to(space.structure_for(
            {site: gate.selection() for site, gate in space.gates().items()}))
        seen = []
        for model in (supernet, subnet):
            outputs = {}
            for path in {reader.path for site in space.sites.values() for reader in readers(site)
                         if not reader.path.startswith('/')}:
                model.get_submodule(path).register_forward_hook(
                    lambda layer, _, out, path=path, outputs=outputs:
                    outputs.setdefault(path, []).append(output_rows(layer, out)))
            run(family, model, images)
            seen.append(outputs)
        assert seen[0].keys() == seen[1].keys() and seen[0], kind
        for path, calls in seen[0].items():
            for one, other in zip(calls, seen[1][path], strict=True):
                assert len(one) == len(other), (kind, path)
                if one.shape == other.shape:  # some readers write another narrower stream
                    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9, msg=(kind, path))


TOGETHER = [('mlp_channels', 'heads'), ('mlp_hidden', 'head_channels'),
            ('mlp_channels', 'mlp_hidden'), ('embedding', 'head_channels', 'mlp_hidden'),
            ('embedding', 'heads', 'mlp_hidden'), ('head_operator', 'mlp_channels', 'mlp_hidden'),
            ('attention_outputs', 'mlp_channels', 'qk_mask'), ('qk_mask', 'mlp_channels')]


@pytest.mark.parametrize('kinds', TOGETHER, ids='+'.join)
def test_kinds_together(kinds):
    """At another size where there is one; on a third of those that have them, or in long on all."""
    found = [name for name in THERE if set(kinds) <= set(offered(name, KINDS))]
    assert len(found) >= 1
    if not LONG:
        found = found[TOGETHER.index(kinds) % min(3, len(found))::3]
    for number, name in enumerate(found):
        assert assert_law(name, kinds, number, FAMILIES[name].other) > 1e-6, name


# ---- heads that a host splits in a way of its own -----------------------------------------------

SPLIT = ['TNT', 'PCPVT', 'SVT', 'XCiT', 'LeViT', 'TinyViT', 'ViT-SAM', 'MiT (SegFormer)', 'PVT']


@pytest.mark.parametrize('name', SPLIT)
def test_macs_of_fewer_heads_are_those_of_the_built_subnet(name):
    family = FAMILIES[name]
    shape, host = (3, family.size, family.size), family.build()
    dense = count_macs(host, shape)
    space = SearchSpace(host, ['heads'])
    macs = MacsModel(host, host, space.sites, lambda: host(torch.zeros(1, *shape)))
    sizes = {site: max(total // 2, 1) for site, total in space.totals().items()}
    assert macs.dense == dense == macs(space.totals()) > macs(sizes)
    space.slice_to(space.structure_for(
        {site: torch.arange(size) for site, size in sizes.items()}))
    assert count_macs(host, shape) == macs(sizes)


# ---- conflicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize('kinds', [('heads', 'head_channels'), ('embedding', 'mlp_channels'),
                                   ('head_operator', 'heads'), ('head_operator', 'embedding'),
                                   ('qk_mask', 'heads'), ('qk_mask', 'head_operator'),
                                   ('qk_mask', 'embedding'), ('head_channels', 'qk_mask')],
                         ids='+'.join)
def test_kinds_that_claim_one_axis_are_refused(kinds):
    host = FAMILIES['ViT'].build()
    before = list(host.state_dict())
    with pytest.raises(ValueError, match='share no axis of a tensor, found `.*` and `.*` along'):
        find_sites(host, kinds)
    assert list(host.state_dict()) == before


def test_every_pair_of_kinds_works_or_is_refused():
    """On the first of three families that has both; in the long form on all of them."""
    tried = set()
    for name in ('ViT', 'Swin', 'EfficientViT'):
        for kinds in itertools.combinations(offered(name, KINDS), 2):
            if kinds in tried and not LONG:
                continue
            tried.add(kinds)
            try:
                find_sites(FAMILIES[name].build(), kinds)
            except ValueError as error:
                assert 'share no axis' in str(error)
            else:
                assert_law(name, kinds, 2)


@pytest.mark.parametrize('name, kind, message', [
    ('ResNet-50', 'mlp_channels', r"of \['embedding', 'mlp_hidden'\], found `mlp_channels` \(a bo"),
    ('MViT', 'heads', r"a kind of site that `MViT` has, of \['mlp_hidden'\]"),
    ('XCiT', 'embedding', r'the residual width of `XCiT` has no adapter'),
    ('EVA-02', 'head_channels', 'positions are no rotations of pairs of channels at `layers.0'),
    ('ViT', 'mlp_chanels', "among .*'mlp_channels'.*, found 'mlp_chanels'"),
    ('ViT', dict(where='layers'), 'a kind of site among .*, found None'),
])
def test_what_a_family_does_not_have_is_refused_with_what_it_has(name, kind, message):
    with pytest.raises(ValueError, match=message):
        Searchable(FAMILIES[name].build(), sites=[kind])


def test_heads_whose_rotary_positions_differ_stay():
    """timm's tables of angles are then of all heads."""
    timm = pytest.importorskip('timm')
    family = FAMILIES['timm DINOv3']
    family = family._replace(build=lambda: timm.create_model(
        'vit_small_patch16_rope_mixed_224', img_size=64, embed_dim=32, depth=2, num_heads=4))
    with pytest.raises(ValueError, match='each head has rotary positions of its own at `blocks.0'):
        Searchable(family.build(), sites=['heads'])
    for kind in ('head_channels', 'mlp_hidden'):
        assert law_error(family, [kind], 0, None)[0] < 1e-12, kind


class TemperedAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(32, 32) for _ in range(4))
        self.temperature = torch.nn.Parameter(torch.ones(4, 1, 1))


@attention_adapter(f'{__name__}.TemperedAttention')
def tempered_attention(module):
    return dict(projections=('q', 'k', 'v'), output='out', heads=4)


def test_attention_that_does_not_show_its_width():
    site, = find_sites(torch.nn.Sequential(TemperedAttention()), ['head_channels']).values()
    assert site.total == 32


def test_queries_are_scaled_as_exactly_as_their_weights():
    out = torch.arange(1., 2, 1 / 128).bfloat16()
    scale = torch.full(out.shape, 0.625**0.5)
    assert torch.equal(_scaled(scale, None, (), out), out * 0.625**0.5)


def test_a_backbone_without_an_adapter():
    with pytest.raises(ValueError, match='MLPs or attention that an adapter knows .* `ReLU`'):
        Searchable(torch.nn.ReLU(), sites=['heads'])


@pytest.mark.parametrize('gate', ['mmkcr.GumbelChannelGate', 'mmkcr.RelaxedTopKGate'])
def test_gates_that_may_leave_heads_of_unequal_widths_are_refused(gate):
    host = FAMILIES['ViT'].build()
    with pytest.raises(ValueError, match=f'such as `mmkcr.BiMaskGate`, found `{gate}`'):
        Searchable(host, sites=['mlp_hidden', 'head_channels'], gates=dict(type=gate))
    assert cell('timm DINOv3', 'head_channels') == HOLDS  # all heads lose the same pairs


@pytest.mark.parametrize('config, message', [
    (dict(kind='heads', operator='dwconv'), r"options of the kind `heads` among \['where'\]"),
    (dict(kind='heads', where='nowhere'), 'match some of 2 modules .such as `layers.0.attn`.'),
    (dict(kind='head_operator', operator='dw'), "among .*'dwconv'.*, found 'dw'"),
])
def test_options_of_a_kind(config, message):
    with pytest.raises(ValueError, match=message):
        Searchable(FAMILIES['ViT'].build(), sites=[config])


# ---- fp32 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('name, kinds', [
    ('ViT', ['mlp_channels']), ('Swin', ['heads', 'mlp_hidden']), ('ResNet-50', ['embedding']),
    ('timm DINOv3', ['mlp_channels', 'heads']), ('EfficientViT', ['attention_outputs'])])
def test_in_fp32_the_subnet_is_as_near_to_fp64_as_the_supernet(name, kinds):
    """Within 8 times its distance, so that the test is the same on every machine."""
    family = FAMILIES[name]
    supernet = randomise(Searchable(family.build(), sites=kinds, gates={
        kind: GATES[kind] for kind in kinds}))
    subnet, space = copy.deepcopy(supernet), supernet.search_space
    kept = {site: gate.selection() for site, gate in space.gates().items()}
    subnet.search_space.slice_to(space.structure_for(kept))
    images = torch.randn(2, 3, family.size, family.size)
    exact = run(family, copy.deepcopy(supernet).double(), images.double())
    rounding, error = (
        max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(run(
            family, model, images), exact)) for model in (supernet, subnet))
    assert error <= 8 * max(rounding, torch.finfo(torch.float32).eps)


# ---- the table ----------------------------------------------------------------------------------


def test_the_document_is_what_the_command_writes(tmp_path, capsys):
    tool = load_tool('model_zoo/kind_coverage')
    assert tool.render(DOCUMENT.read_text()) == DOCUMENT.read_text()
    (tmp_path / 'c.md').write_text(DOCUMENT.read_text().replace('| ✓ |', '| no |', 1))
    for arguments, status, word in (['--check'], 1, 'stale'), ([], 0, 'written'):
        with pytest.raises(SystemExit) as end:
            tool.main([*arguments, '--path', str(tmp_path / 'c.md')])
        assert end.value.code == status and word in capsys.readouterr().out
    assert (tmp_path / 'c.md').read_text() == DOCUMENT.read_text()


def test_the_command_prepares_the_hosts(tmp_path, after_torch):
    """In a process of its own, where no test has done so: with one family and one kind."""
    (tmp_path / 'c.md').write_text('<!-- table -->\n<!-- /table -->')
    program = (f'import sys; sys.path.insert(0, {str(ROOT / "tools")!r})\n'
               'from lab import kind_coverage as lab\n'
               'for name in {*lab.FAMILIES} - {"ViT"}: del lab.FAMILIES[name]\n'
               'for kind in {*lab.KINDS} - {"heads"}: del lab.KINDS[kind]\n'
               'from model_zoo.kind_coverage import main\n'
               f'main(["--path", {str(tmp_path / "c.md")!r}])\n')
    after_torch(program, tmp_path)
    assert '| ViT | mmpretrain | ✓ |' in (tmp_path / 'c.md').read_text()


def test_rows_of_a_missing_library_stay():
    text = DOCUMENT.read_text()
    cells = read_cells(text[text.index('<!-- table -->'):])
    assert set(cells) == set(FAMILIES)
    assert read_cells(format_cells(cells)) == cells
    assert {kind for kind, value in cells['HF FLAVA'].items() if value == HOLDS} == {
        'heads', 'head_channels', 'mlp_channels', 'mlp_hidden', 'qk_mask'}
