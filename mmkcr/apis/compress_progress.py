"""Progress of a compression in files, so that a killed one can continue (SPEC 9)."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Union

import torch
from torch import nn

from mmkcr.core import atomic_write
from mmkcr.functional.pivots import UnitOrder
from .site_profiles import SiteProfile

_KEY, _PROFILES = 'key.json', 'profiles.pth'


class CompressProgress:
    """A folder of finished work: the sites' profiles, and the weights of refitted blocks.

    Args:
        folder (str | Path): Emptied if it belongs to another compression.
        key (Mapping): Identity of the compression: config, checkpoint, images, options. Stored as
            JSON.
    """

    def __init__(self, folder: Union[str, Path], key: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._key = json.dumps(key, indent=1, sort_keys=True, default=str)
        if self.folder.is_dir() and not self._is_ours():
            self.remove()

    def _is_ours(self) -> bool:
        mark = self.folder / _KEY
        return mark.is_file() and mark.read_text() == self._key

    def profiles(self) -> Optional[Dict[str, SiteProfile]]:
        """The sites' profiles, or None if they are not computed yet."""
        if not (self.folder / _PROFILES).is_file():
            return None
        return {name: SiteProfile(UnitOrder(found['order'], found['errors'],
                                            tuple(found['groups'])), found['losses'],
                                  found['rotated'], found['stream'])
                for name, found in self._load(_PROFILES).items()}

    def save_profiles(self, profiles: Mapping[str, SiteProfile]) -> None:
        """Write the profiles of all sites."""
        self._save(_PROFILES, {name: dict(
            order=found.order.order, errors=found.order.errors, groups=list(found.order.groups),
            losses=found.losses, rotated=found.rotated, stream=found.stream)
            for name, found in profiles.items()})

    def has_block(self, block: str) -> bool:
        """Whether a block's refitted weights are stored."""
        return (self.folder / f'{block}.pth').is_file()

    def load_block(self, block: str, layers: Mapping[str, nn.Module]) -> None:
        """Load the refitted weights of a block into its sliced layers.

        Args:
            block (str): Path.
            layers (Mapping[str, nn.Module]): By path.
        """
        found = self._load(f'{block}.pth')
        for name, layer in layers.items():
            layer.load_state_dict(found[name])

    def save_block(self, block: str, layers: Mapping[str, nn.Module]) -> None:
        """Write the weights of a block's refitted layers."""
        self._save(f'{block}.pth', {name: layer.state_dict() for name, layer in layers.items()})

    def remove(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # not empty
            self.folder.parent.rmdir()

    def _load(self, name: str) -> Dict[str, Any]:
        return torch.load(self.folder / name, weights_only=True)

    def _save(self, name: str, content: Dict[str, Any]) -> None:
        if not self._is_ours():  # the key first: files without it are deleted at the next start
            with atomic_write(self.folder / _KEY) as path:
                path.write_text(self._key)
        with atomic_write(self.folder / name) as path:
            torch.save(content, path)
