"""The structure file: round trips, edits, refusals."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.core import Structure

FFN_0, FFN_1 = (f'layers.{i}.ffn.mlp_channels' for i in range(2))
WIDTHS = {FFN_0: 12, FFN_1: 8}
GOOD = dict(
    format_version=1,
    method='kcr',
    backbone=dict(type='mmkcr.KCRVisionTransformer', arch='base'),
    sites={FFN_0: dict(total=12, kept=[0, 3, 11]),
           FFN_1: dict(total=8, kept=[1, 2])},
    macs=dict(dense=10, subnet=5, input_shape=[3, 32, 32]))


def test_round_trip(tmp_path):
    structure = Structure.load(GOOD)
    structure.save(tmp_path / 'deep' / 's.json')
    again = Structure.load(str(tmp_path / 'deep' / 's.json'))
    assert again == structure and again.sizes() == {FFN_0: 3, FFN_1: 2}
    lines = (tmp_path / 'deep' / 's.json').read_text().splitlines()
    assert sum('"kept"' in line for line in lines) == 2  # a line a site
    again.validate(WIDTHS, 'KCRVisionTransformer')


@pytest.mark.parametrize('kept', [[], [2, 5], 0, 8])
def test_an_operator_may_compute_what_is_not_kept(kept, tmp_path):
    """A count stands for the first units."""
    data = copy.deepcopy(GOOD)
    data['sites'][FFN_0]['kept'] = 4
    assert Structure.load(data).sites[FFN_0].kept == [0, 1, 2, 3]
    data = copy.deepcopy(GOOD)
    data['sites'][FFN_1] = dict(total=8, kept=kept, operator='other')
    Structure.load(data).save(tmp_path / 's.json')
    again = Structure.load(tmp_path / 's.json')
    assert again.sites[FFN_1].operator == 'other'
    assert again.sizes()[FFN_1] == (kept if isinstance(kept, int) else len(kept))
    assert json.loads(again.dumps())['sites'][FFN_0] == dict(total=12, kept=[0, 3, 11])


bad_kept = st.one_of(
    st.lists(st.integers(0, 7), min_size=2, max_size=8).filter(
        lambda kept: any(a >= b for a, b in zip(kept, kept[1:]))),  # not ascending
    st.lists(st.integers(-20, 20), min_size=1).filter(
        lambda kept: any(unit < 0 or unit >= 8 for unit in kept)),
    st.just([]), st.just(0), st.integers(9, 99), st.integers(max_value=-1), st.none(),
    st.booleans(), st.text(max_size=3), st.just([1.0]), st.just([True, 2]))
bad_site = st.one_of(
    bad_kept.map(lambda kept: dict(total=8, kept=kept)),
    st.one_of(st.integers(max_value=0), st.none(), st.text(max_size=2), st.just(8.0)).map(
        lambda total: dict(total=total, kept=[0])),
    st.just(dict(total=8)), st.just(dict(kept=[1])), st.just([]), st.just(7),
    st.just(dict(total=8, kept=[1], extra=0)),
    st.sampled_from([3, '', [], True]).map(lambda op: dict(total=8, kept=[1], operator=op)))


@settings(deadline=None)
@given(bad_site, st.sampled_from(sorted(WIDTHS)))
def test_edited_site_is_refused_by_name(site, name):
    data = copy.deepcopy(GOOD)
    data['sites'][name] = site
    with pytest.raises(ValueError, match=f'at site `{name}`'):
        Structure.load(data)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    text, path = Structure.load(GOOD).dumps(), tmp_path / 'cut.json'
    for end in range(0, len(text) - 4, 7):
        path.write_text(text[:end])
        with pytest.raises(ValueError, match='that does not parse'):
            Structure.load(path)


@pytest.mark.parametrize('change, message', [
    (dict(format_version=2), '`format_version` of a structure to be 1, found 2'),
    (dict(format_version=None), '`format_version` of a structure to be 1'),
    (dict(unknown=1), 'found .*unknown'),
    (dict(orders={}), 'found an order in .*is no longer read: compress the dense checkpoint'),
    (dict(masks={}), 'folded ones in .*are no longer read: take the structure and weights from'),
    (dict(sites={}), 'at least one site'),
    (dict(sites=[1]), '`sites` of a structure to be a dict'),
    (dict(backbone=dict(arch='base')), '`backbone` of a structure to be a dict with a `type`'),
    (dict(macs=3), '`macs` of a structure to be a dict'),
    (dict(format_version=True), '`format_version` of a structure to be 1, found True'),
    *((dict(macs=dict(GOOD['macs'], **{key: wrong})),
       f'`{key}` of `macs` of a structure to be {words}, found ')
      for key, wrong, words in (
          ('dense', 1e30, 'a count'), ('subnet', -1, 'a count'), ('dense', True, 'a count'),
          ('input_shape', [3, 2**40, 2], 'three sizes of an image'),
          ('part', 'neck', '`model` or `backbone`'), ('backbone', 6.5, 'a count'))),
    (dict(macs=dict(GOOD['macs'], bakbone=3)), r"`macs` of a structure with the keys .*'bakbone'"),
    (dict(macs=dict(dense=10, subnet=5)), r"`macs` .*keys \['dense', 'input_shape', 'subnet'\]"),
    (dict(macs=dict(GOOD['macs'], backbone=6)), 'within those of its subnet, found '),
    (dict(params=dict(dense=3, subnet=True)), '`subnet` of `params` of a structure to be a count'),
    *((dict(params=wrong), r"`params` .*keys \['dense', 'subnet'\]")
      for wrong in (dict(dense=3), dict(dense=3, subnet=2, part='model'))),
    (dict(sites={'a': dict(total=5 * 10**9, kept=5 * 10**9)}), 'at most in all.*found 5000000000'),
    (dict(sites={f's{n}': dict(total=2**20, kept=2**20) for n in range(9)}),
     '4194304 units at most in all sites of a structure, found 9437184'),
    (dict(method=3), '`method` of a structure to be a string'),
])
def test_wrong_keys(change, message):
    with pytest.raises(ValueError, match=message):
        Structure.load({**copy.deepcopy(GOOD), **change})


@pytest.mark.parametrize('text, message', [
    ('[' * 5000 + ']' * 5000, 'recursion'),
    ('{"format_version": 1' + '0' * 5000 + '}', 'Exceeds the limit'), ('\xff', 'does not parse'),
    ('{"sites": {"a": 1, "a": 2}}', 'comes twice'), ('[1]', r'found \[\] in'), (None, 'bad.json')])
def test_files_that_are_no_data(tmp_path, text, message):
    path = tmp_path / 'bad.json'
    if text is not None:
        path.write_text(text, encoding='latin1')
    with pytest.raises(ValueError if text else FileNotFoundError, match=message):
        Structure.load(path)


@pytest.mark.parametrize('widths, cls, message', [
    ({**WIDTHS, FFN_1: 9}, None, f'site `{FFN_1}`'), ({FFN_0: 12}, None, f'site `{FFN_1}`'),
    ({**WIDTHS, 'layers.2.ffn.mlp_channels': 4}, None, 'site `layers.2.ffn.mlp_channels`'),
    (WIDTHS, 'KCRSwinTransformer', 'for `KCRSwinTransformer`, found one for `KCRVisionTransf')])
def test_foreign_backbones_are_refused(widths, cls, message):
    with pytest.raises(ValueError, match=message):
        Structure.load(GOOD).validate(widths, *filter(None, [cls]))


def test_invalid_structure_writes_nothing(tmp_path):
    structure = Structure.load(GOOD)
    structure.sites[FFN_0].kept = [3, 1]
    with pytest.raises(ValueError, match=FFN_0):
        structure.save(tmp_path / 's.json')
    assert not list(tmp_path.iterdir())
