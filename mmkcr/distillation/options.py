"""Options of a distillation, and its length."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class DistilOptions:
    """Options of a distillation.

    Args:
        rate (float): Learning rate of each tensor over the root mean square of its values at the
            start, to a power of two, so that small and large ones change alike. Defaults to 5e-4.
        warm_up (float): Share of the steps that raise the rate from 0. Defaults to 0.1.
        between (int): Number of blocks whose outputs are compared too. Defaults to 3. Gradients
            stop there, so that each window of blocks learns its own outputs. Without the stops
            this rate destroys more of a refitted DINOv2 than it teaches.
        temperature (float): Tau, for class scores. Defaults to 2.
        average (float): Weights are averaged over about this share of the steps. Defaults to 0.1.
        comparisons (int): How often the averaged weights are compared with the teacher on
            held-out images. Defaults to 10.
        batch_size (int): Images per batch; batches that cannot be taken apart stay. Defaults to 16.
        accumulate (int): Batches per step and process. Defaults to 1.
        amp (bool, optional): Train in bfloat16. Defaults to None: on a GPU.
        augment (bool): Crop, mirror, recolour and mix, see
            :func:`~mmkcr.distillation.augmentation.augment`. Defaults to True.
        seed (int): Seed of all that is drawn. Defaults to 0.
        progress (bool): Show a progress bar. Defaults to True.
    """

    rate: float = 5e-4
    warm_up: float = 0.1
    between: int = 3
    temperature: float = 2.
    average: float = 0.1
    comparisons: int = 10
    batch_size: int = 16
    accumulate: int = 1
    amp: bool | None = None
    augment: bool = True
    seed: int = 0
    progress: bool = True


def read_length(length: str | int) -> int | float:
    """Read a length: steps as an integer, or a time like ``'30min'`` in seconds as a float.

    Raises:
        ValueError: It is neither.
    """
    match = re.fullmatch(r'(\d+(?:\.\d*)?)\s*(s|min|h)?', str(length).strip())
    if not match or float(match[1]) <= 0 or not match[2] and '.' in match[1]:
        raise ValueError("expected a number of steps or a time such as '30min', '2h' or '90s', "
                         f'found {length!r}')
    return float(match[1]) * dict(s=1., min=60., h=3600.)[match[2]] if match[2] else int(match[1])
