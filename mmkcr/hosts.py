"""Changes of this package in the OpenMMLab libraries.

Importing the package changes nothing. Commands call :func:`prepare_hosts`, and so do the functions
that read a config, build a model or build a runner. Code that loads a config with ``mmkcr::`` bases
by MMEngine's own ``Config.fromfile`` calls it before.
"""

import functools
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

from mmkcr.core.checks import one_line
from .safe_load import restrict_checkpoints

#: Original packages by the fork that installs the same folder.
ORIGINALS = {
    'onedl-mmcv': ('mmcv', 'mmcv-lite', 'mmcv-full'),
    'onedl-mmengine': ('mmengine', 'mmengine-lite'),
    'onedl-mmpretrain': ('mmpretrain', 'mmcls'),
    'onedl-mmdetection': ('mmdet', ),
    'onedl-mmsegmentation': ('mmsegmentation', ),
}
#: Requirement of the hosts' models that read text, for pip.
TRANSFORMERS_4 = '"transformers>=4.57,<5"'


class UnreadableImageError(ValueError):
    """An image that is missing, empty or damaged."""


@functools.lru_cache(maxsize=None)
def prepare_hosts() -> None:
    """Adapt MMEngine and mmcv to this package, once, for the rest of the process.

    - torchvision can be imported, see :func:`ensure_torchvision`.
    - Configs may refer to ``mmkcr::`` and ``mmseg::`` bases.
    - Notices at import about parts that nothing here uses are dropped.
    - mmcv's ``LoadImageFromFile`` names the file that it cannot read.
    - MMEngine reads checkpoints as data, see :func:`mmkcr.safe_load.restrict_checkpoints`.
    - Beside transformers 5 mmpretrain leaves its multimodal models out, see
      :func:`leave_multimodal_models_out`.

    Raises:
        ImportError: The hosts are not installed, or are of two families.
    """
    refuse_mixed_families()
    try:
        import mmengine  # noqa: F401
        import mmcv  # noqa: F401  isort: skip
    except ImportError as error:
        raise ImportError('expected the OpenMMLab libraries for a config, found none: install '
                          f'them with `pip install "mmkcr[openmmlab]"` ({error})') from error
    ensure_torchvision()
    hush_missing_parts()
    register_references()
    name_unreadable_images()
    restrict_checkpoints()
    transformers = _find_version('transformers')
    if transformers and int(transformers.partition('.')[0]) >= 5 and find_spec('mmpretrain'):
        leave_multimodal_models_out(transformers)


@functools.lru_cache(maxsize=None)
def ensure_torchvision() -> bool:
    """Import torchvision, and return whether its operators' schemas had to be declared.

    The wheel of PyPI is built for CUDA. Beside a CPU build of torch its operators cannot be loaded,
    and ``import torchvision`` stops at two operators, for which it registers fake kernels. Other
    errors of the import are raised again.
    """
    try:
        import torchvision  # noqa: F401
        return False
    except RuntimeError as error:
        if 'torchvision::nms does not exist' not in str(error):
            raise
    for name in ('nms', 'qnms'):
        torch.library.define(f'torchvision::{name}',
                             '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
    import torchvision  # noqa: F401
    return True


def _find_version(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def refuse_mixed_families() -> None:
    """Refuse the original OpenMMLab packages beside their forks, with the commands that mend it."""
    beside = [(name, f'{fork}=={_find_version(fork)}') for fork, names in ORIGINALS.items()
              for name in names if _find_version(fork) and _find_version(name)]
    if beside:
        originals, forks = (list(dict.fromkeys(names)) for names in zip(*beside))
        raise ImportError(
            f'expected the OpenMMLab packages of one family, found {", ".join(originals)} beside '
            f'{", ".join(forks)}, which overwrite each other\'s files: run `pip uninstall -y '
            f'{" ".join(originals)}`, then `pip install --force-reinstall --no-deps '
            f'--no-build-isolation {" ".join(forks)}`')


def name_unreadable_images() -> None:
    """Make mmcv's image loading raise an error that names the file, whatever the cause."""
    from mmcv.transforms import LoadImageFromFile
    load = LoadImageFromFile.transform

    @functools.wraps(load)
    def transform(self: Any, results: dict) -> dict | None:
        """Load the image; an error becomes an :class:`UnreadableImageError`."""
        try:
            return load(self, results)
        except Exception as error:  # of the file system, OpenCV, Pillow
            raise UnreadableImageError('expected an image that can be read at '
                                       f'`{results.get("img_path")}`, found none '
                                       f'({one_line(error, 160)})') from error

    LoadImageFromFile.transform = transform


def leave_multimodal_models_out(installed: str) -> None:
    """Make mmpretrain import without its multimodal models, which need transformers 4.

    A config that names one of these models is refused with one sentence. The models of mmpretrain
    must not be imported before.

    Args:
        installed (str): Version of transformers.
    """
    from mmpretrain.utils import dependency

    def register(names: Sequence[str], registry: Any) -> None:
        for name in names:
            registry.register_module(name=name, module=functools.partial(refuse, name))

    def refuse(name: str, *_: Any, **__: Any) -> None:
        """Refuse to build a model, in one sentence."""
        raise ImportError(f'expected transformers 4 for `{name}` of mmpretrain, found transformers '
                          f'{installed}: pip install {TRANSFORMERS_4}')

    dependency.WITH_MULTIMODAL = False
    dependency.register_multimodal_placeholder = register


def hush_missing_parts() -> None:
    """Drop the hosts' notices at import about operators and a service that nothing here uses.

    A model that does need operators still stops, with one sentence.
    """
    import mmengine.logging
    warnings.filterwarnings('ignore', 'Fail to import ``MultiScaleDeformableAttention``')
    mmengine.logging.MMLogger.get_current_instance().addFilter(
        lambda record: not record.getMessage().startswith('Line NMS is not compiled'))
    print_log = mmengine.logging.print_log

    def print_others(msg: Any, *args: Any, **kwargs: Any) -> None:
        if not str(msg).startswith('Could not import OneDL'):
            print_log(msg, *args, **kwargs)

    mmengine.logging.print_log = print_others


def register_references() -> None:
    """Let configs refer to ``mmkcr::`` and ``mmseg::`` bases.

    MMEngine looks up everything from ``library::`` in the registries of that library. In configs of
    this package names without a scope belong to the default scope of the run.
    """
    from mmengine.config import Config
    from mmengine.config import config as files
    from mmengine.config.utils import MODULE2PACKAGE
    MODULE2PACKAGE.update(mmkcr='mmkcr', mmseg='mmseg')
    # no metafile has a reference, and parsing those of a library takes up to a second each time
    files._get_external_cfg_path = files._get_external_cfg_base_path
    find = Config._get_cfg_path

    def find_unscoped(cfg_path: str, filename: str) -> tuple[str, str | None]:
        path, scope = find(cfg_path, filename)
        return path, None if scope == 'mmkcr' else scope

    Config._get_cfg_path = staticmethod(find_unscoped)
