"""Progress of a compression in files, so that a killed one can continue."""

import json
import logging
import shutil
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmkcr.core import atomic_write, remove_stale, write_tensors
from .options import CompressOptions, SiteProfile

#: Folder of the sites' profiles beside what a compression wrote.
PROFILES = '.profiles'
_KEY, _PROFILES = 'key.json', 'profiles.pth'
#: What profiles do not depend on: the place of the images, and options.
_ANY_TARGET = ('calibration', 'target', 'cost', 'latency', 'part', 'input_shape', 'divisor',
               'min_share', 'uniform', 'progress', 'refit', 'memory')


class CompressProgress:
    """A folder of finished work: the sites' profiles, and the weights of refitted blocks.

    Args:
        folder (str | Path): What it holds of another compression is emptied at the first write.
        key (Mapping): Identity of the compression: config, checkpoint, images, options.
        shared (CompressProgress, optional): Holds the profiles, see :func:`kept_profiles`. Defaults
            to None: they are in this folder.
    """

    def __init__(self, folder: str | Path, key: Mapping[str, Any],
                 shared: 'CompressProgress | None' = None) -> None:
        self.folder, self._shared = Path(folder), shared or self
        self.key = json.dumps(key, indent=1, sort_keys=True, default=str)
        remove_stale(self.folder)
        self._continued = self._has(_KEY)

    def profiles(self) -> dict[str, SiteProfile]:
        """The sites' profiles that were stored so far."""
        stored = self._shared._read(_PROFILES) or {}
        try:
            return {site: SiteProfile(**values) for site, values in stored.items()}
        except (AttributeError, TypeError):  # tensors of something else, as of other code
            (self._shared.folder / _PROFILES).unlink()
            return {}

    def save_profiles(self, profiles: Mapping[str, SiteProfile]) -> None:
        """Write profiles, by site, in place of those stored so far."""
        self._shared._save(_PROFILES, {name: vars(profile) for name, profile in profiles.items()})

    def read_block(self, block: str) -> dict[str, dict[str, Any]] | None:
        """The refitted weights of a block by layer, or None if they were not stored."""
        return self._read(f'{block}.pth')

    def save_block(self, block: str, layers: Mapping[str, nn.Module]) -> None:
        """Write the weights of a block's refitted layers."""
        self._save(f'{block}.pth', {name: layer.state_dict() for name, layer in layers.items()})

    def has_begun(self, step: str) -> bool:
        """Whether a later step, such as fine-tuning, began with what these blocks became."""
        return self._has(f'{step}.begun')

    def begin(self, step: str) -> None:
        """Note that a later step begins."""
        self._mark()
        with atomic_write(self.folder / f'{step}.begun') as path:
            path.write_text('')

    def withdraw(self) -> None:
        """Delete what a refused call wrote, unless it went on with the work of an earlier one."""
        if self._has(_KEY) and not self._continued:
            self.remove()

    def remove(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # not empty
            self.folder.parent.rmdir()

    def _has(self, name: str) -> bool:
        """Whether there is such a file, and it is of this compression."""
        mark = self.folder / _KEY
        return mark.is_file() and mark.read_bytes() == self.key.encode() and \
            (self.folder / name).is_file()

    def _read(self, name: str) -> dict[str, Any] | None:
        """The content of a file; None, and the file is removed, if it is damaged."""
        path = self.folder / name
        if not self._has(name):
            return None
        try:
            with zipfile.ZipFile(path) as archive:  # PyTorch does not compare its checksums
                if archive.testzip() is not None:
                    raise ValueError
            # profiles may be used on another device
            return torch.load(path, weights_only=True, map_location='cpu')
        except Exception:  # of whatever a damaged file makes readers raise
            logging.getLogger('mmkcr').warning('`%s` is damaged: it is made anew.', path)
            path.unlink()
            return None

    def _mark(self) -> None:
        if not self._has(_KEY):  # the key first: files without it belong to nobody
            self.remove()
            with atomic_write(self.folder / _KEY) as path:
                path.write_text(self.key)

    def _save(self, name: str, content: dict[str, Any]) -> None:
        self._mark()
        with atomic_write(self.folder / name) as path:
            write_tensors(content, path)


def kept_profiles(folder: str | Path, key: Mapping[str, Any], options: CompressOptions,
                  given: str | Path | None = None) -> CompressProgress:
    """The place of a compression's profiles, which hold for every target and way of sharing it out.

    Args:
        folder (str | Path): That the compression writes to; profiles are below it.
        key (Mapping): Identity of network and images: config, checkpoint, digest of the images.
        options (CompressOptions): Of the compression.
        given (str | Path, optional): Folder of another compression, whose profiles are used in
            place of own ones. Defaults to None.

    Raises:
        ValueError: There are no profiles in ``given``, or they are of another network, of other
            images, sites or options.
    """
    key = {name: value for name, value in {**key, **options.compression()}.items()
           if name not in _ANY_TARGET}
    place = CompressProgress(Path(folder if given is None else given) / PROFILES, key)
    if given is not None:
        wanted = f'expected profiles of this config, checkpoint, images and sites in `{given}`'
        mark = place.folder / _KEY
        if not mark.is_file() or not (place.folder / _PROFILES).is_file():
            raise ValueError(f'{wanted}, found none')
        key, recorded = json.loads(place.key), json.loads(mark.read_text())
        other = sorted(name for name in {*key, *recorded} if key.get(name) != recorded.get(name))
        if other:
            raise ValueError(f'{wanted}, found those of others ({", ".join(other)})')
    return place
