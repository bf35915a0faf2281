"""Metafile, README tables and the tools that make them."""

import importlib.util
from pathlib import Path

import pytest
import yaml
from config_files import CONFIGS, ROOT

from lab.model_zoo import model_size


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f'tools/model_zoo/{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def tables():
    return tool('readme_tables')


@pytest.fixture(scope='module')
def metafile():
    return yaml.safe_load((ROOT / 'configs/kcr/metafile.yml').read_text())


@pytest.mark.parametrize('method, papers', [
    ('kcr', 'KCR v2, '), ('dcs', 'DCS, '), ('ofb', 'OFB, '), ('dwconv', 'DWConv, ')])
def test_every_config_is_in_the_metafile_once(method, papers, tables):
    metafile = tables.read_metafile(method)
    listed = [model['Config'] for model in metafile['Models'] if 'Options' not in model]
    assert sorted(listed) == [path for path in CONFIGS if path.startswith(f'configs/{method}/')]
    collections = {collection['Name'] for collection in metafile['Collections']}
    for model in metafile['Models']:
        assert 'Options' in model or model['Name'] == Path(model['Config']).stem
        assert model['Config'] in listed
        assert model['In Collection'] in collections
        assert model['Metadata']['FLOPs'] > 0 and model['Metadata']['Parameters'] > 0
        assert not any('Top 1' in key for key in model['Metadata'])
        assert model.get('Reported', {}).get('Source', papers).startswith(papers)


def test_reported_and_own_numbers_are_apart(metafile, tables):
    own = tables.own_table(metafile, 'kcr', 'retrain', ROOT / 'configs/kcr/README.md')
    assert '84.7' not in own and 'Not run' in own
    assert own.count(' \\* |') == 20 == own.count('[config](retrain/')
    assert own.count('.py) `compression.regularizers.kcr.weight=0.') == 4
    assert own.count('.py) `compression=None` |') == 5
    reported = tables.reported_table(metafile)
    assert '| 70.2 | 12.6 | 84.7 | KCR v2, table 1 |' in reported and '[config]' not in reported


def test_readmes_are_up_to_date(tables):
    texts = {path: tables.render(path) for path in tables.readmes()}
    assert ROOT / 'configs/kcr/README.md' in texts
    assert sum(text.count('<!-- table: ') for text in texts.values()) >= 7
    assert not [str(path) for path, text in texts.items() if path.read_text() != text]


@pytest.fixture
def project(tmp_path):
    """A project with one metafile and one README."""
    folder = tmp_path / 'configs' / 'toy'
    folder.mkdir(parents=True)
    entry = dict(Name='run', Config='configs/toy/small/run.py', Results=[dict(
        Dataset='Digits', Task='Image Classification', Metrics={'Top 1 Accuracy': 98.5, 'KC': 0.1}
    )], Metadata={'FLOPs': 8_000_000, 'Parameters': 1_500_000, 'Training Data': 'Digits'})
    content = dict(Collections=[dict(Name='Toy')], Models=[
        entry, dict(entry, Name='unrun', Results=None)])
    (folder / 'metafile.yml').write_text(yaml.safe_dump(content))
    (tmp_path / 'README.md').write_text('a\n<!-- table: toy/small -->\nold\n<!-- /table -->\nb\n')
    return tmp_path


def test_table_of_a_project(project, tables):
    text = tables.render(project / 'README.md', project)
    assert '| `run` | Digits | 1.50 | 0.008 | 98.5 | 0.1 | [config](configs/toy/small/run.py) |' \
        in text
    assert '| `unrun` \\* | Digits | 1.50 | 0.008 | - | - |' in text
    assert text.startswith('a\n') and text.endswith('b\n') and 'old' not in text
    (project / 'README.md').write_text(text)
    assert tables.render(project / 'README.md', project) == text


@pytest.mark.parametrize('name, error, found', [
    ('toy/large', ValueError, 'configs/toy/large/'), ('none/small', FileNotFoundError, 'none')])
def test_unknown_table(name, error, found, project, tables):
    (project / 'README.md').write_text(f'<!-- table: {name} -->\n<!-- /table -->\n')
    with pytest.raises(error, match=found):
        tables.render(project / 'README.md', project)


@pytest.mark.parametrize('change, status', [(None, 0), ('tampered', 1)])
def test_check_of_the_counts(change, status, metafile, tmp_path, monkeypatch):
    counts = tool('model_counts')
    target = tmp_path / 'configs' / 'kcr'
    target.mkdir(parents=True)
    entries = [dict(model, Config=str(ROOT / model['Config'])) for model in metafile['Models']
               if '/digits/' in model['Config']]
    assert len(entries) == 11
    if change:
        entries = [dict(entries[0], Metadata=dict(entries[0]['Metadata'], Parameters=1))]
    (target / 'metafile.yml').write_text('# kept\n' + yaml.safe_dump(dict(Models=entries)))
    before = (target / 'metafile.yml').read_text()
    monkeypatch.setattr(counts, 'ROOT', tmp_path)
    with pytest.raises(SystemExit) as stop:
        counts.main(['--check'])
    assert stop.value.code == status and (target / 'metafile.yml').read_text() == before
    if change:
        counts.update(target / 'metafile.yml', check=False)
        assert (target / 'metafile.yml').read_text().startswith('# kept\n')
        assert counts.update(target / 'metafile.yml', check=True) == []


def test_counts_of_an_imagenet_model(metafile, load):
    """That of the paper's other convention; test_structures.py has some of the rest."""
    entry, = (entry for entry in metafile['Models']
              if entry['Name'] == 'kcr-retrain_vit-small_8xb64_in1k')
    size, meta = model_size(load(entry['Config']), entry['Metadata']['Target']), entry['Metadata']
    assert (size.macs, size.params) == (meta['FLOPs'], meta['Parameters'])


def test_modelindex_reads_the_index(metafile):
    from modelindex.load_model_index import load
    index = load(str(ROOT / 'model-index.yml'))
    index.build_models_with_collections()
    names = [model.name for model in index.models]
    assert set(names) >= {model['Name'] for model in metafile['Models']}
