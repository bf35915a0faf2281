"""The compressed forms of a real network, each made once and kept in a folder."""

import functools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from mmkcr.core import Structure, atomic_write, parse_target
from mmkcr.models import Searchable
from mmkcr.models.counting import count_macs
from .corp import corp
from .grail import grail
from .label_free import (
    ALL_TOKENS,
    JUDGED,
    SEARCHES,
    closed_form_scores,
    replaced_heads,
    search,
    taught,
)
from .real_controls import SAME_SIZES, control
from .saliency import Saliency, normalised

#: Methods whose networks have zeros in place of what goes.
_WITH_ZEROS = {'corp': corp, 'grail': grail}
#: Of the pictures to learn from, one in so many judges what is taught.
JUDGES = 5


class Lesson(NamedTuple):
    """What networks are taught on, and searches search on.

    Args:
        images (Tensor): (N, 3, size, size).
        held_out (Tensor): To judge by, (n, 3, 224, 224), of photographs that calibration has not
            seen: on photographs that it has seen, whatever is taught makes a network worse.
        count (int): Images that are seen, augmented.
    """

    images: Tensor
    held_out: Tensor
    count: int


@dataclass(frozen=True)
class Settings:
    """What the networks of one folder have in common.

    Args:
        size (int): Pixels of the images. Defaults to 224.
        images (int): Calibration images. Defaults to 256.
        sources (tuple[str, ...]): Beginnings of the names of the pictures that are used. Defaults
            to (): all.
        rho (float, optional): Ridge of refits. Defaults to None: the package's default.
    """

    size: int = 224
    images: int = 256
    sources: tuple[str, ...] = ()
    rho: float | None = None

    def check(self, folder: Path) -> None:
        """Write the settings to a folder, or compare them with the folder's.

        Raises:
            ValueError: The networks of the folder were made with others.
        """
        path, own = folder / 'settings.json', json.loads(json.dumps(asdict(self)))
        if path.is_file():
            found = json.loads(path.read_text())
            if found != own:
                raise ValueError(f'expected networks made with {own} in `{folder}`, found '
                                 f'{found}: name another folder')
            return
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(own))


class Network(NamedTuple):
    """A compressed backbone.

    Args:
        backbone (nn.Module): In timm's names, in eval mode.
        macs (dict[str, int]): Of ``dense`` and ``subnet``.
        structure (Structure, optional): None where weights are zeros and not cut.
    """

    backbone: nn.Module
    macs: dict[str, int]
    structure: Structure | None


def crop_files(folder: Path, sources: Sequence[str] = ()) -> dict[str, list[Path]]:
    """Crops by the picture that they are of: ``FILE@K.jpg`` is of ``FILE``.

    Args:
        folder (Path): Of crops.
        sources (Sequence[str]): Beginnings of names. Defaults to (): all.

    Raises:
        FileNotFoundError: There are none.
    """
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob('*.jpg')):
        if not sources or path.name.startswith(tuple(sources)):
            found.setdefault(path.stem.partition('@')[0], []).append(path)
    if not found:
        raise FileNotFoundError(f'expected crops of photographs at `{folder}`, found none')
    return found


def spread(files: Sequence[Path], count: int | None = None) -> list[Path]:
    """At most ``count`` of the files, evenly spaced, so that they are of many pictures.

    Args:
        files (Sequence[Path]): Of crops, those of one picture beside each other.
        count (int, optional): Number of crops. Defaults to None: all.
    """
    count = min(count or len(files), len(files))
    return [files[index * len(files) // count] for index in range(count)]


def read_crops(files: Sequence[Path], count: int | None = None, size: int = 224) -> Tensor:
    """Normalised crops (N, 3, size, size), in the files' order.

    Args:
        files (Sequence[Path]): Of crops.
        count (int, optional): Number of crops, see :func:`spread`. Defaults to None: all.
        size (int): Pixels of a side. Defaults to 224.
    """
    return torch.stack([normalised(Image.open(path), size) for path in spread(files, count)])


def make_lesson(files: dict[str, list[Path]], count: int | None, size: int = 224,
                judged_size: int | None = None) -> tuple[list[Path], Lesson | None]:
    """Crops to learn from, and what is taught on them; one picture in five judges.

    Args:
        files (dict[str, list[Path]]): Crops by picture.
        count (int, optional): Images that are seen. None: nothing is taught, no picture judges.
        size (int): Pixels of the images. Defaults to 224.
        judged_size (int, optional): Pixels of the crops that judge. Defaults to None: 224.
    """
    judges = list(files)[::JUDGES] if count else []
    learned, others = ([path for name, paths in files.items() for path in paths
                        if (name in judges) == judging] for judging in (False, True))
    if not count:
        return learned, None
    return learned, Lesson(read_crops(learned, count, size),
                           read_crops(others, JUDGED, judged_size or 224), count)


@dataclass
class Networks:
    """Makes networks at a budget by any method, or reads them from the folder.

    Args:
        dense (Saliency): The dense network.
        images (Tensor): To calibrate with.
        folder (Path): Of the networks.
        rho (float, optional): Ridge of refits. Defaults to None: the package's default.
        lesson (Lesson, optional): What is taught, and what searches learn from. Defaults to None.
    """

    dense: Saliency
    images: Tensor
    folder: Path
    rho: float | None = None
    lesson: Lesson | None = None
    _profiles: dict[str, Any] = field(default_factory=dict)

    def get(self, method: str, target: str, teach: bool = False) -> Network:
        """A network of a method at a target, taught on the lesson if asked.

        Args:
            method (str): Of :data:`~lab.real_controls.METHODS`.
            target (str): MACs; blocks (``'6b'``) or heads (``'36h'``) that become convolutions.
            teach (bool): Distil it. Defaults to False.
        """
        path = self.folder / f'{self.name(method, target, teach)}.pth'
        if not path.is_file():
            began = time.process_time()
            found = self._teach(method, target) if teach else self._make(method, target)
            content = dict(state=found.backbone.state_dict(), macs=found.macs)
            if found.structure is not None:
                content['structure'] = found.structure.to_dict()
            print(f'{path.stem}: {time.process_time() - began:.0f} s of the CPU', flush=True)
            with atomic_write(path) as temporary:
                torch.save(content, temporary)
        content, structure = torch.load(path, weights_only=True), None
        slim = self.dense.dense_backbone(host_of(method), **(ALL_TOKENS if self.lesson else {}))
        if 'structure' in content:
            structure = Structure.load(content['structure'])
            slim = Searchable(slim, structure.backbone['sites'], structure=structure)
        state = content['state']
        if state['pos_embed'].shape != (own := slim.state_dict()['pos_embed']).shape:
            state['pos_embed'] = own  # fitted at another size: positions are the dense network's
        slim.load_state_dict(state)
        slim.eval()
        return Network(slim, content['macs'], structure)

    def name(self, method: str, target: str, teach: bool = False) -> str:
        """What the files of a network are called."""
        name = f'{method}-{target.rstrip("%")}'
        return f'{name}-{self.lesson.count}' if teach else name

    def _teach(self, method: str, target: str) -> Network:
        found, lesson = self.get(method, target), self.lesson
        teacher = self.dense.dense_backbone(host_of(method), **ALL_TOKENS)
        # the half of the images that a search has seen is its own
        count = lesson.count // (2 if method.removesuffix('-refit') in SEARCHES else 1)
        slim = taught(found.backbone, teacher, lesson.images, lesson.held_out, count)
        return found._replace(backbone=slim)

    def _make(self, method: str, target: str) -> Network:
        dense, images = self.dense, self.images
        if method in _WITH_ZEROS:
            return Network(*_WITH_ZEROS[method](dense.backbone, images, target), None)
        if method == 'narrow':
            structure = self.get('uniform', target).structure
            slim = Searchable(dense.dense_backbone(), structure.backbone['sites'],
                              structure=structure)
            torch.manual_seed(0)
            slim.init_weights()
            return Network(slim, structure.macs, structure)
        if method.startswith('heads-'):
            slim, structure = replaced_heads(
                dense.dense_backbone('mmpretrain'), images, target,
                method.removeprefix('heads-'), self.folder / 'heads.json')
            return Network(slim, structure.macs, structure)
        if method in SEARCHES:
            return self._search(method, target)
        like = None
        if method in SAME_SIZES:
            like = self.get('closed-form', target).structure
        elif method.removesuffix('-refit') in SEARCHES:
            like = self.get(method.removesuffix('-refit'), target).structure
        result = control(method, dense.backbone, images, target, self._profiles, like, self.rho)
        return Network(result.model, result.structure.macs, result.structure)

    def _search(self, method: str, target: str) -> Network:
        if self.lesson is None:
            raise ValueError(f'expected `--distil` with crops to search on for `{method}`, found '
                             'none')
        build = functools.partial(self.dense.dense_backbone, host_of(method), **ALL_TOKENS)
        scores = closed_form_scores(method, build, self.images, self.folder)
        wanted = int(target.rstrip('b')) if method == 'dsp' else parse_target(
            target, count_macs(self.dense.backbone, tuple(self.images.shape[1:])))
        slim, structure = search(method, build, self.lesson.images, self.lesson.count // 2, wanted,
                                 scores)
        return Network(slim, structure.macs, structure)


def host_of(method: str) -> str:
    """Whose backbone it is: timm's does not tell the grid that convolutions need."""
    return 'mmpretrain' if method == 'dsp' or method.startswith('heads-') else 'timm'
