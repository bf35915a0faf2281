"""configs/structures: every ImageNet model can be built before a search was run."""

import json

import pytest
from config_files import CONFIGS, MODELS_OF, ROOT

from lab.model_zoo import uninitialized
from long_form import every_nth
from mmkcr.apis import count_macs
from mmkcr.core import Structure, parse_target
from mmkcr.engine.build import backbone_config, build_model, default_shape, load_config
from mmkcr.methods.ofb.bimask import BiMaskGate
from mmkcr.models.tasks import online_params, search_space
from tools.model_zoo.structures import structure_name, structure_of_model, uniform_structure, wanted

FOLDER = ROOT / 'configs/structures'
FILES = sorted(FOLDER.glob('*.json'))
ASKING = [path for path in CONFIGS if path.endswith('_in1k.py')
          and ('/retrain/' in path or '/deploy/' in path or '-replace_' in path)]
ENTRIES = [entry for models in MODELS_OF.values() for entry in models]


def test_there_is_one_for_every_config_that_asks():
    names = {entry['Name']: structure_of_model(entry, ROOT) for entry in ENTRIES
             if entry['Config'] in ASKING}
    asking = {model: name for model, name in names.items() if name}  # others inherit it
    assert len(asking) > 20 and set(asking.values()) == {path.stem for path in FILES}


def test_they_meet_the_targets_of_the_metafiles():
    """They are small and say what they are."""
    found = {want.name: want for want in wanted(ENTRIES, ROOT)}
    assert set(found) == {path.stem for path in FILES} and len(FILES) == 23
    for path in FILES:
        structure, want = Structure.load(path), found[path.stem]
        assert path.stat().st_size < 2**16
        assert 'no search has chosen' in structure.provenance['note'], path.name
        if want.replaced is not None:
            assert sum(not site.kept for site in structure.sites.values()
                       if site.operator) == want.replaced
            continue
        macs = structure.macs
        target = parse_target(want.target, macs['dense'])
        assert 0.9 * target < macs['subnet'] <= target, path.stem


@pytest.mark.parametrize('model', every_nth(3, [
    'kcr-retrain_swin-tiny_8xb64_in1k', 'kcr-retrain_swin-base_v1_8xb64_in1k',
    'dcs-retrain_mobilevit-small_8xb64_in1k', 'dcs-retrain_mobilevit-xsmall_8xb64_in1k',
    'dcs-retrain_efficientvit-b1_8xb64_in1k', 'dcs-retrain_efficientvit-b1_r288_8xb64_in1k',
    'ofb-retrain_swin-tiny_3100m_8xb128_in1k', 'ofb-retrain_resnet50_1600m_8xb128_in1k',
    'ofb-retrain_deit-small_900m_8xb128_in1k', 'dwconv-replace_dinov2-vit-base_8xb64_in1k']))
def test_a_config_is_built_with_it(model):
    entry, = (entry for entry in ENTRIES if entry['Name'] == model)
    config = load_config(ROOT / entry['Config'], entry.get('Options'))
    name = structure_name(backbone_config(config)['structure'])
    backbone_config(config)['structure'] = str(FOLDER / f'{name}.json')
    with uninitialized():
        model = build_model(config)
    space = search_space(model)
    assert space.state_name() == 'subnet'
    structure = Structure.load(FOLDER / f'{name}.json')
    assert space.structure.sizes() == structure.sizes()
    # what the file says, the row of the table and the network that is built are one
    macs, meta = count_macs(model, default_shape(config, model)), entry['Metadata']
    assert macs == meta['FLOPs'] and online_params(model) == meta['Parameters']
    assert not structure.macs or macs == structure.macs['subnet'] <= parse_target(
        meta['Target'], structure.macs['dense'])


def test_ofb_keeps_what_its_search_offers():
    """Widths and hidden units on the grid of the bi-masks, of every head equally many."""
    for path in FILES:
        if not path.name.startswith('ofb-'):
            continue
        for name, site in Structure.load(path).sites.items():
            options = BiMaskGate.space[name.rpartition('.')[2]]
            steps = (len(site.kept) / site.total - options['start']) / options['step']
            assert steps > -1e-6 and abs(steps - round(steps)) < 1e-6, (path.name, name)


def test_a_file_is_reproduced(load):
    name = 'ofb-search_deit-small_900m_8xb128_in1k'
    want, = (want for want in wanted(ENTRIES, ROOT) if want.name == name)
    made = uniform_structure(load(want.config), want.target)
    there = json.loads((FOLDER / f'{name}.json').read_text())
    assert json.loads(made.dumps()) == there
