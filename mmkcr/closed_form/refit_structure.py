"""A dense network cut to a known structure, such as a searched one, and refitted."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import Structure
from mmkcr.models.counting import check_recorded
from mmkcr.models.sites import QKMaskSite
from mmkcr.models.sites.base import KindConfig, check_ties, kind_name
from mmkcr.models.tasks import search_space
from mmkcr.registry import MODELS
from .compression import CompressResult, called, finished, macs_model
from .given import look_at, taken
from .kinds import searched
from .options import Forward, Pair
from .progress import CompressProgress
from .refit_blocks import refit_along


def refit_structure(model: nn.Module,
                    structure: str | Path | Structure,
                    images: Tensor | Sequence[Any],
                    input_shape: Sequence[int] = (3, 224, 224),
                    part: str | None = None,
                    forward: Forward | None = None,
                    held_out: Tensor | Sequence[Any] | None = None,
                    done: CompressProgress | None = None,
                    **options: Any) -> CompressResult:
    """Cut a dense network to a structure and refit the readers of the kept units.

    So the retraining of a searched structure starts from the dense network's weights, instead of
    those that were trained together with gates. Masks on queries and keys (DCS) are layers that the
    dense network does not have: they start with their initial values, by default open.

    Args:
        model (nn.Module): Dense model; it is not changed. Other arguments as in
            :func:`~mmkcr.closed_form.compression.compress`.
        structure (str | Path | Structure): Structure of this backbone. Channels of heads are the
            network's own, not those of rotated bases.

    Returns:
        CompressResult: Without profiles.

    Raises:
        ValueError: As in ``compress``; or a structure of another backbone, with other MACs or
            parameters than it records, with a kind of site that has no closed form, or one of
            ``compress`` that keeps channels of rotated bases.
    """
    wanted = Structure.load(structure)
    calibration = taken(model, images, held_out, forward or called, done, options)
    look_at(calibration)
    networks = Pair(calibration.dense, copy.deepcopy(calibration.dense))
    kinds, masks = _kinds(wanted)
    with torch.random.fork_rng(devices=[]):  # a repeated call begins with the same masks
        torch.manual_seed(calibration.settings.seed)
        space = searched(networks.slim, kinds, masks=masks)
    check_ties(networks.slim, space.sites)
    searched(networks.dense, kinds)
    wanted.validate(space.totals())
    if rotated := wanted.provenance.get('rotated'):
        raise ValueError('expected a structure of a search, found one of `compress` in which units '
                         f'of `{rotated[0]}` are channels of a rotated basis, which the file does '
                         'not have: compress again with the same target')
    macs = macs_model(networks.slim, space, input_shape, part)
    # described anew, as the given structure may name another class for the same backbone
    described = space.structure_for({name: torch.tensor(site.kept)
                                     for name, site in wanted.sites.items()})
    described.method = wanted.method
    sliced = search_space(copy.deepcopy(networks.slim))
    sliced.slice_to(described)
    check_recorded(sliced.host, wanted)  # before the images are run
    refit_along(networks, described, calibration)
    return finished(networks, described, macs, input_shape, part, calibration, {})


def _kinds(structure: Structure) -> tuple[list[KindConfig], list[KindConfig]]:
    """Kinds of site that are refitted, and masks on queries and keys, which begin anew."""
    kinds = structure.backbone.get('sites')
    if not kinds:
        # a structure of a named backbone lists none, but its sites' names end with the kinds
        kinds = list(dict.fromkeys(name.rpartition('.')[2] for name in structure.sites))
        cls = MODELS.get(structure.backbone['type'])
        if getattr(cls, 'method', '') == 'dcs':
            mask = structure.backbone.get('qk_mask', {})
            kinds += [] if mask is None else [dict(mask, kind='qk_mask')]
    masks = [kind for kind in kinds if kind_name(kind) == QKMaskSite.kind]
    return [kind for kind in kinds if kind not in masks], masks
