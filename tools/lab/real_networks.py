"""The compressed forms of a real network, each made once and kept in a folder."""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from mmkcr.core import Structure, atomic_write
from mmkcr.distillation import DistilOptions, distil
from mmkcr.models import Searchable
from .corp import corp
from .grail import grail
from .real_controls import SAME_SIZES, control
from .saliency import Saliency, normalised, tokens

#: Options of timm's backbones that return all tokens, of images of any size.
ALL_TOKENS = dict(global_pool='', dynamic_img_size=True)
#: Methods whose networks have zeros in place of what goes.
_WITH_ZEROS = {'corp': corp, 'grail': grail}
#: Of the pictures to learn from, one in so many judges what is taught, by so many crops.
JUDGES, JUDGED = 5, 16
#: Images that are seen between two comparisons of a long lesson.
COMPARED = 4800


class Lesson(NamedTuple):
    """What networks are taught on.

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
        lesson (Lesson, optional): What is taught. Defaults to None.
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
            target (str): MACs.
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
            shutil.rmtree(path.with_suffix(''), ignore_errors=True)  # the progress of a lesson
        content, structure = torch.load(path, weights_only=True), None
        slim = self.dense.dense_backbone(**(ALL_TOKENS if self.lesson else {}))
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
        student, lesson = self.get(method, target), self.lesson
        teacher = self.dense.dense_backbone(**ALL_TOKENS)
        # states are written at comparisons: a call that was killed goes on where it was
        found = distil(student.backbone, teacher, lesson.images,
                       max(1, lesson.count // DistilOptions.batch_size), tokens, lesson.held_out,
                       work_dir=self.folder / self.name(method, target, True),
                       comparisons=max(4, lesson.count // COMPARED))
        print(f'best after {found.best} of {found.steps} steps: '
              f'{found.errors[0]:.4f} to {found.errors[found.best]:.4f}', flush=True)
        return student._replace(backbone=found.model)

    def _make(self, method: str, target: str) -> Network:
        dense, images = self.dense, self.images
        if method in _WITH_ZEROS:
            return Network(*_WITH_ZEROS[method](dense.backbone, images, target), None)
        like = self.get('closed-form', target).structure if method in SAME_SIZES else None
        result = control(method, dense.backbone, images, target, self._profiles, like, self.rho)
        return Network(result.model, result.structure.macs, result.structure)
