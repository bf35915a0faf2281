"""model-index.yml and the metafiles lead to files that exist."""

from pathlib import Path

from mmengine.fileio import load

ROOT = Path(__file__).parents[2]


def test_every_metafile_is_imported():
    imported = load(ROOT / 'model-index.yml')['Import']
    found = sorted(path.relative_to(ROOT).as_posix()
                   for path in (ROOT / 'configs').glob('*/metafile.yml'))
    assert found and sorted(imported) == found


def test_files_that_are_named_exist():
    """Configs of the models, code of the collections, scripts of the data sets."""
    metafiles = [load(path) for path in (ROOT / 'configs').glob('*/metafile.yml')]
    for files in (
            [model['Config'] for found in metafiles for model in found['Models']
             if 'Config' in model],
            [entry['Code']['URL'] for found in metafiles for entry in found['Collections']],
            [entry['script'] for entry in load(ROOT / 'dataset-index.yml').values()]):
        assert files and not [file for file in files if not (ROOT / file).is_file()]
