"""A user's networks and images: checked before a distillation begins, and identified."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.closed_form.batches import batch_digest, images_digest, of_size, split_batches
from mmkcr.closed_form.options import Forward
from mmkcr.core.checks import all_finite, check_finite
from mmkcr.core.forward import flat_tensors
from mmkcr.version import __version__
from .options import DistilOptions

#: Types of weights that steps of a training change: in 16 bits most steps are rounded away.
TRAINED = (torch.float32, torch.float64)


def split_images(images: Tensor | Sequence[Any], held_out: Tensor | Sequence[Any] | None,
                 size: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """Batches to learn from, and batches to compare on.

    Args:
        images (Tensor | Sequence): Images (N, 3, H, W), or batches.
        held_out (Tensor | Sequence, optional): Images to compare on; of None the last tenth of
            ``images``.
        size (int): Maximum number of images in a batch; batches that were given stay.

    Raises:
        ValueError: There is a single image or batch, or one that is not finite.
    """
    batches, compared = split_batches(images, held_out)
    if compared is batches:
        raise ValueError('expected at least two images or batches to distil, one to compare on, '
                         f'found {len(batches)}')
    for what, part in (('images', batches), ('held-out images', compared)):
        # images of files are read when they are needed
        for number, batch in enumerate(() if hasattr(part, 'digest') else part, 1):
            if not all(map(all_finite, flat_tensors(batch))):
                raise ValueError(f'expected finite {what}, found `nan` or `inf` in number {number} '
                                 f'of {len(part)}')
    return of_size(batches, size), of_size(compared, size)


def check_networks(student: nn.Module, teacher: nn.Module) -> None:
    """Refuse a student that cannot be trained, or a teacher that cannot teach it.

    Args:
        student (nn.Module): The compressed network.
        teacher (nn.Module): The dense network.

    Raises:
        ValueError: Weights without values, not finite, in 16 bits or all frozen; or a teacher
            whose weights are of another type.
    """
    kinds = {}
    for role, network in (('student', student), ('teacher', teacher)):
        weights = dict(network.named_parameters())
        if any(value.is_meta for value in weights.values()):
            raise ValueError(f'expected a {role} with weights, found them on the device `meta`')
        check_finite(weights, f'weights of the {role}')
        kinds[role] = {value.dtype for value in weights.values()}
    if other := kinds['student'].difference(TRAINED):
        raise ValueError(f'expected a student of {" or ".join(map(str, TRAINED))}, found weights '
                         f'of {other.pop()}, in which most steps are rounded away: distil '
                         '`student.float()` with `teacher.float()`')
    if kinds['student'] != kinds['teacher']:
        names = {role: ', '.join(sorted(map(str, types))) for role, types in kinds.items()}
        raise ValueError(f'expected a teacher of {names["student"]}, the type of the student, '
                         f'found one of {names["teacher"]}')
    if not any(value.requires_grad for value in student.parameters()):
        raise ValueError('expected a student with parameters to train, found all of them frozen: '
                         'set `requires_grad_(True)` on what may learn')


def identify(student: nn.Module, teacher: nn.Module, batches: Sequence[Any],
             held_out: Sequence[Any], forward: Forward, settings: DistilOptions,
             **others: Any) -> dict[str, Any]:
    """The identity of a distillation: calls with equal keys have equal results.

    Args:
        student (nn.Module): The network that learns.
        teacher (nn.Module): The dense network.
        batches (Sequence): Batches to learn from.
        held_out (Sequence): Batches to compare on.
        forward (Callable): The function that gives the outputs; it goes by its name.
        settings (DistilOptions): Options; all but ``progress`` count.
        **others: Further entries of the key, as they are.
    """
    options = dataclasses.asdict(dataclasses.replace(settings, progress=True))
    name = f'{getattr(forward, "__module__", "")}.{getattr(forward, "__qualname__", "")}'
    return dict(others, version=__version__, torch=torch.__version__, options=options,
                student=network_digest(student), teacher=network_digest(teacher), forward=name,
                images=images_digest(batches), held_out=images_digest(held_out))


def network_digest(network: nn.Module) -> str:
    """SHA-256 of the classes of a network's modules, its tensors, and the names of frozen ones."""
    sha = hashlib.sha256()
    for name, module in network.named_modules():
        sha.update(f'{name} {type(module).__qualname__}\n'.encode())
    frozen = {name for name, value in network.named_parameters() if not value.requires_grad}
    for name, value in network.state_dict().items():
        if torch.is_tensor(value):
            sha.update(f'{name} {value.dtype} {tuple(value.shape)} {name in frozen}\n'.encode())
            sha.update(batch_digest(value))
    return sha.hexdigest()
