"""Makes the host libraries importable where their wheels conflict, and their configs usable here.

The maintained forks of the OpenMMLab libraries (``onedl-*``) install the same folders as the
original packages. If both are installed, their files are mixed up, so the import stops with
instructions.

The torchvision wheel is built for CUDA. Beside a CPU build of torch its
compiled operators cannot be loaded, and ``import torchvision`` then stops with
``operator torchvision::nms does not exist`` although no operator is needed.
Declaring the two schemas that torchvision registers fake kernels for is enough.
"""

import functools
import logging
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import mmengine.config.config
import mmengine.logging
import torch
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import MMLogger

#: Original packages by the fork that installs the same folder.
ORIGINALS: Dict[str, Tuple[str, ...]] = {
    'onedl-mmcv': ('mmcv', 'mmcv-lite', 'mmcv-full'),
    'onedl-mmengine': ('mmengine', 'mmengine-lite'),
    'onedl-mmpretrain': ('mmpretrain', 'mmcls'),
    'onedl-mmdetection': ('mmdet', ),
    'onedl-mmsegmentation': ('mmsegmentation', ),
}

_NMS_SCHEMA = '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'
_library = None  # keeps the declared schemas alive for the whole process


def ensure_torchvision() -> bool:
    """Import torchvision, declaring its operator schemas if they are missing.

    Returns:
        bool: Whether the schemas had to be declared.

    Raises:
        RuntimeError: The import failed for another reason.
    """
    global _library
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if 'torchvision::nms does not exist' not in str(error):
            raise
        _library = torch.library.Library('torchvision', 'FRAGMENT')
        for name in ('nms', 'qnms'):
            _library.define(name + _NMS_SCHEMA)
        import torchvision  # noqa: F401
    return _library is not None


def _installed(name: str) -> Optional[str]:
    """Version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def refuse_mixed_families() -> None:
    """Refuse the original OpenMMLab packages beside their forks.

    Raises:
        ImportError: Both are installed; the message has the two commands that mend it.
    """
    both = {fork: found for fork, names in ORIGINALS.items() if _installed(fork)
            and (found := [name for name in names if _installed(name)])}
    if not both:
        return
    originals = [name for found in both.values() for name in found]
    forks = [f'{fork}=={_installed(fork)}' for fork in both]
    raise ImportError(
        f'expected the OpenMMLab packages of one family, found {", ".join(originals)} beside '
        f'{", ".join(forks)}, which overwrite each other\'s files: run `pip uninstall -y '
        f'{" ".join(originals)}`, then `pip install --force-reinstall --no-deps '
        f'--no-build-isolation {" ".join(forks)}`')


class UnreadableImageError(ValueError):
    """An image that is missing, empty or damaged."""


def name_unreadable_images() -> None:
    """Make mmcv's image loading name the file that it cannot read, whatever the cause."""
    from mmcv.transforms import LoadImageFromFile
    load = LoadImageFromFile.transform
    if hasattr(load, '__wrapped__'):  # once is enough
        return

    @functools.wraps(load)
    def transform(self: Any, results: Dict) -> Optional[Dict]:
        try:
            return load(self, results)
        except Exception as error:  # of the file system, OpenCV, Pillow
            text = ' '.join(str(error).split()) or type(error).__name__
            raise UnreadableImageError('expected an image that can be read at '
                                       f'`{results.get("img_path")}`, found none ({text:.160})'
                                       ) from error

    LoadImageFromFile.transform = transform


def hush_optional_parts() -> None:
    """Drop what the forks print at import when an optional service is not installed."""
    say = mmengine.logging.print_log
    if hasattr(say, '__wrapped__'):  # once is enough
        return

    @functools.wraps(say)
    def print_log(msg: Any, *args: Any, **kwargs: Any) -> None:
        if not str(msg).startswith('Could not import OneDL'):
            say(msg, *args, **kwargs)

    mmengine.logging.print_log = print_log


def hush_missing_operators() -> None:
    """Drop the hosts' notices at import about two operators that nothing here uses.

    Without mmcv's compiled operators every command's output would begin with them. A
    model that does need operators still stops, with one sentence.
    """
    warnings.filterwarnings('ignore', 'Fail to import ``MultiScaleDeformableAttention``')
    MMLogger.get_current_instance().addFilter(_is_no_line_nms_notice)


def _is_no_line_nms_notice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith('Line NMS is not compiled')


def register_references() -> None:
    """Let configs refer to ``mmkcr::`` and ``mmseg::`` bases.

    MMEngine looks up everything from ``library::`` in the registries of that library. Configs
    of this package name their own modules with a scope (``mmkcr.X``) and a host's without: these
    belong to the default scope of the run, as in a stand-alone config.

    MMEngine also parses every metafile of that library, which takes a second each time, before it
    looks among the library's config files. Here an existing file is taken at once.
    """
    MODULE2PACKAGE.update(mmkcr='mmkcr', mmseg='mmseg')
    find = Config._get_cfg_path
    if hasattr(find, '__wrapped__'):  # once is enough
        return
    files = mmengine.config.config
    by_metafiles = files._get_external_cfg_path

    @functools.wraps(by_metafiles)
    def by_path(package_path: str, cfg_file: str) -> str:
        path = Path(package_path, '.mim', 'configs', cfg_file)
        return str(path) if path.is_file() else by_metafiles(package_path, cfg_file)

    # `_get_cfg_path` finds it by this name in its module
    files._get_external_cfg_path = by_path

    @functools.wraps(find)
    def find_unscoped(cfg_path: str, filename: str) -> Tuple[str, Optional[str]]:
        path, scope = find(cfg_path, filename)
        return path, None if scope == 'mmkcr' else scope

    Config._get_cfg_path = staticmethod(find_unscoped)
