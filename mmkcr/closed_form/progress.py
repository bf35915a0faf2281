"""Progress of a compression in files, so that a killed one can continue."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from mmkcr.core.processes import ask_first_process, find_rank
from mmkcr.core.progress import KEY, Progress
from .options import CompressOptions, SiteProfile

#: Folder of the sites' profiles beside the files of a compression.
PROFILES = '.profiles'
_PROFILES = 'profiles.pth'
#: Keys and options that profiles do not depend on.
_ANY_TARGET = ('calibration', 'target', 'cost', 'latency', 'part', 'input_shape', 'divisor',
               'min_share', 'uniform', 'progress', 'refit', 'memory', 'rho')


class FinishedBlock(NamedTuple):
    """Weights and ridges of a refitted block, as they are stored."""

    #: State of each changed layer by path.
    weights: dict[str, dict[str, Any]]
    #: The relative ridge of each layer that was refitted so far, by path.
    ridges: dict[str, float]


class CompressProgress(Progress):
    """The sites' profiles, and the weights of refitted blocks, in files.

    Args:
        folder (str | Path): Folder of these files alone, see :class:`~mmkcr.core.Progress`.
        key (Mapping): Identity of the compression: config, checkpoint, images, options.
        shared (CompressProgress, optional): Holds the profiles, see :func:`open_profiles`. Defaults
            to None: they are in this folder.
    """

    def __init__(self, folder: str | Path, key: Mapping[str, Any],
                 shared: 'CompressProgress | None' = None) -> None:
        super().__init__(folder, key)
        self._shared = shared or self

    def save(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file, in the first process alone."""
        if find_rank() == 0:
            super().save(name, content)

    def profiles(self) -> dict[str, SiteProfile]:
        """The sites' profiles that were stored so far."""
        stored = ask_first_process(lambda: self._shared.read(_PROFILES)) or {}
        return {site: SiteProfile(**values) for site, values in stored.items()}

    def save_profiles(self, profiles: Mapping[str, SiteProfile]) -> None:
        """Write profiles, by site, in place of the profiles that were stored so far."""
        self._shared.save(_PROFILES, {name: vars(profile) for name, profile in profiles.items()})

    def read_block(self, block: str) -> FinishedBlock | None:
        """The refitted weights of a block, or None if they were not stored."""
        stored = ask_first_process(lambda: self.read(f'{block}.pth'))
        return None if stored is None else FinishedBlock(**stored)

    def save_block(self, block: str, layers: Mapping[str, nn.Module],
                   ridges: Mapping[str, float]) -> None:
        """Write the refitted weights of a block.

        Args:
            block (str): Path of the block.
            layers (Mapping[str, nn.Module]): Its refitted layers by path.
            ridges (Mapping[str, float]): Relative ridge of each layer that was refitted so far, by
                path.
        """
        self.save(f'{block}.pth', FinishedBlock(
            {name: layer.state_dict() for name, layer in layers.items()}, dict(ridges))._asdict())

    def has_begun(self, step: str) -> bool:
        """Whether a later step, as fine-tuning, began with the refitted blocks."""
        return self.read(f'{step}.begun') is not None

    def begin(self, step: str) -> None:
        """Note that a later step begins."""
        self.save(f'{step}.begun', {})


def open_profiles(folder: str | Path, key: Mapping[str, Any], options: CompressOptions,
                  given: str | Path | None = None) -> CompressProgress:
    """Open the place of a compression's profiles. They hold for every target.

    Args:
        folder (str | Path): Folder that the compression writes to; profiles are below it.
        key (Mapping): Identity of network and images: config, checkpoint, digest of the images.
        options (CompressOptions): Options of the compression.
        given (str | Path, optional): Folder of another compression; its profiles are used in place
            of own ones. Defaults to None.

    Raises:
        ValueError: There are no profiles in ``given``, or they are of another network, of other
            images, sites or options.
    """
    key = {name: value for name, value in {**key, **options.compression()}.items()
           if name not in _ANY_TARGET}
    place = CompressProgress(Path(folder if given is None else given) / PROFILES, key)
    if given is not None:
        wanted = f'expected profiles of this config, checkpoint, images and sites in `{given}`'
        if not all((place.folder / name).is_file() for name in (KEY, _PROFILES)):
            raise ValueError(f'{wanted}, found none')
        if other := place.differing():
            raise ValueError(f'{wanted}, found those of others ({", ".join(other)})')
    return place
