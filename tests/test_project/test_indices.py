"""model-index.yml and the metafiles lead to files that exist."""

from pathlib import Path

from mmengine.fileio import load

ROOT = Path(__file__).parents[2]


def test_every_metafile_is_imported():
    imported = load(ROOT / 'model-index.yml')['Import']
    found = sorted(path.relative_to(ROOT).as_posix()
                   for path in (ROOT / 'configs').glob('*/metafile.yml'))
    assert found and sorted(imported) == found


def test_configs_of_the_metafiles_exist():
    configs = [model['Config'] for path in (ROOT / 'configs').glob('*/metafile.yml')
               for model in load(path)['Models'] if 'Config' in model]
    assert configs and not [config for config in configs if not (ROOT / config).is_file()]


def test_code_of_the_collections_exists():
    files = [collection['Code']['URL'] for path in (ROOT / 'configs').glob('*/metafile.yml')
             for collection in load(path)['Collections']]
    assert files and not [file for file in files if not (ROOT / file).is_file()]


def test_scripts_of_the_data_sets_exist():
    scripts = [entry['script'] for entry in load(ROOT / 'dataset-index.yml').values()]
    assert scripts and all((ROOT / script).is_file() for script in scripts)
