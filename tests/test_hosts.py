"""The hosts are prepared when it is asked for, and nothing else is hidden."""

import pytest

from mmkcr import hosts
from mmkcr.version import __version__

FAILING = """
import torch
if not hasattr(torch.ops.torchvision, 'nms'):
    raise RuntimeError('operator torchvision::nms does not exist')
assert hasattr(torch.ops.torchvision, 'qnms')
"""
CALL = """
from mmkcr import hosts
print(hosts.ensure_torchvision(), hosts.ensure_torchvision())
"""


@pytest.fixture
def call_with(tmp_path, after_torch):
    """Calls ``ensure_torchvision`` twice beside a torchvision of our own."""
    def call(torchvision):
        (tmp_path / 'torchvision.py').write_text(torchvision)
        return after_torch(CALL, tmp_path).split()
    return call


@pytest.mark.parametrize('torchvision, declared', [(FAILING, 'True'), ('', 'False')])
def test_missing_schemas_alone_are_declared(call_with, torchvision, declared):
    assert call_with(torchvision) == [declared] * 2


@pytest.mark.parametrize('error', ["RuntimeError('no driver')", "ImportError('no libjpeg')"])
def test_other_failures_are_not_hidden(call_with, error):
    with pytest.raises(AssertionError, match=error.split("'")[1]):  # the program ended with it
        call_with(f'raise {error}')


def test_only_two_notices_are_hushed():
    import logging
    import warnings

    from mmengine.logging import MMLogger
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        hosts.hush_missing_parts()
        warnings.warn('Fail to import ``MultiScaleDeformableAttention`` from x', stacklevel=1)
        warnings.warn('Fail to import ``DeformConv`` from x', stacklevel=1)
    assert [str(w.message) for w in seen] == ['Fail to import ``DeformConv`` from x']
    record = logging.LogRecord('x', 30, '', 0, 'Line NMS is not compiled. Most likely', (), None)
    other = logging.LogRecord('x', 30, '', 0, 'NMS is not compiled', (), None)
    logger = MMLogger.get_current_instance()
    assert not logger.filter(record) and logger.filter(other)


def test_hosts_are_importable_when_they_are_prepared(tmp_path, after_torch):
    """And the service that is not installed is not mentioned."""
    printed = after_torch("""
import mmkcr
mmkcr.prepare_hosts()
import torchvision
import mmpretrain.datasets, mmdet.datasets, mmseg.datasets
import mmpretrain.models, mmseg.models
from torchvision.transforms import functional
from mmengine.logging import print_log
print_log('Could not import OneDL X'); print_log('Could not import Y')
print('imported', mmkcr.__version__)
""", tmp_path)
    assert f'imported {__version__}' in printed and 'Could not import Y' in printed
    assert 'OneDL' not in printed


@pytest.mark.parametrize('original', ['mmdet', 'mmcv-lite'])
def test_both_families_at_once_are_refused(tmp_path, monkeypatch, original):
    """An original package beside its fork: what is there, and the two commands."""
    info = tmp_path / f'{original.replace("-", "_")}-3.3.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {original}\nVersion: 3.3.0\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    fork = dict(mmdet='onedl-mmdetection', **{'mmcv-lite': 'onedl-mmcv'})[original]
    with pytest.raises(ImportError, match=f'found {original} beside {fork}==') as refused:
        hosts.prepare_hosts.__wrapped__()
    assert f'pip uninstall -y {original}`' in str(refused.value)


@pytest.mark.parametrize('library', ['mmpretrain', 'mmdet', 'mmseg'])
def test_no_metafile_has_a_reference(library):
    """So its path is the one below the library's configs, which is all that is looked up."""
    import ast

    from mmengine.config import Config, utils
    from mmengine.utils import get_installed_path
    folder = get_installed_path(library)
    with pytest.raises(ValueError, match='Expected configs: ') as named:
        utils._get_external_cfg_path(folder, 'no/such.py')
    names = ast.literal_eval(f'[{str(named.value).partition("[")[2].partition("]")[0]}]')
    # they are compared with a reference up to its first dot
    assert len(names) > 100 and all('.' in name for name in names if name)
    for name in (max(names), '_base_/default_runtime.py'):
        assert Config._get_cfg_path(f'{library}::{name}', '') == (
            f'{folder}/.mim/configs/{name}', library)


def test_mmpretrain_beside_transformers_5(tmp_path, after_torch):
    """Its multimodal models, which would end the import of all of its models, are refused."""
    info = tmp_path / 'transformers-5.24.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: transformers\nVersion: 5.24.0\n')
    # as a class of transformers 4 that is None there: its children end the import
    (tmp_path / 'transformers').mkdir()
    (tmp_path / 'transformers/__init__.py').write_text('AutoTokenizer = PreTrainedModel = None')
    told = after_torch("""
from mmengine.config import Config
from mmkcr.engine.build import build_model
config = dict(model=dict(type='ImageClassifier', backbone=dict(type='VisionTransformer')),
              default_scope='mmpretrain')
print('built a', type(build_model(Config(config)).backbone).__name__)
config['model'] = dict(type='mmpretrain.BlipCaption')
try:
    build_model(Config(config))
except ImportError as error:
    print(error)
""", tmp_path)
    assert 'built a VisionTransformer' in told
    assert ('expected transformers 4 for `BlipCaption` of mmpretrain, found transformers 5.24.0: '
            'pip install "transformers>=4.57,<5"') in told
