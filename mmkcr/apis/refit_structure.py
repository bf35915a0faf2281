"""A dense network cut to a known structure, such as a searched one, and refitted."""

import copy
import inspect
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from mmkcr.core import Structure, count_params
from mmkcr.models.backbones.named import DCSBackbone
from mmkcr.models.batches import of_size
from mmkcr.models.calibration import Forward
from mmkcr.models.kernel_fit import FITTED
from mmkcr.models.sites import QKMaskSite
from mmkcr.models.sites.base import KindConfig
from mmkcr.models.survey import survey
from mmkcr.registry import MODELS
from .build import state_bytes
from .compress_files import (
    PROGRESS,
    CompressFiles,
    CompressTask,
    both_parts,
    task_outputs,
    write_config,
)
from .compress_progress import CompressProgress
from .compression import (
    CompressResult,
    agreement,
    called,
    kind_name,
    macs_model,
    searched,
    split_batches,
    with_memory,
)
from .count import counted_proposals, note_backbone_macs
from .refit_blocks import refit_along
from .site_profiles import CompressOptions
from .slim_files import write_subnet


def refit_structure(model: nn.Module,
                    structure: Union[str, Path, Structure],
                    images: Union[Tensor, Sequence[Any]],
                    input_shape: Sequence[int] = (3, 224, 224),
                    part: Optional[str] = None,
                    forward: Optional[Forward] = None,
                    held_out: Union[Tensor, Sequence[Any], None] = None,
                    done: Optional[CompressProgress] = None,
                    **options: Any) -> CompressResult:
    """Cut a dense network to a structure and refit the readers of the kept units.

    So the retraining of a searched structure starts from the dense network's weights, instead of
    those that were trained together with gates. Masks on queries and keys (DCS) are layers that the
    dense network does not have: they start with their initial values, by default open.

    Args:
        model (nn.Module): Dense model; it is not changed. Other arguments as in
            :func:`~mmkcr.apis.compression.compress`.
        structure (str | Path | Structure): Structure of this backbone. Channels of heads are the
            network's own, not those of rotated bases.

    Returns:
        CompressResult: Without profiles.

    Raises:
        ValueError: As in ``compress``; or a structure of another backbone, or with a kind of site
            that has no closed form, or with folded masks, or one of ``compress`` that keeps
            channels of rotated bases.
    """
    settings = with_memory(CompressOptions(**options), model)
    wanted = Structure.load(structure)
    forward = forward or called
    batches, held_out = split_batches(images, held_out)
    dense = copy.deepcopy(model)
    dense.eval()
    subnet = copy.deepcopy(dense)
    kinds, masks = _kinds(wanted)
    params = count_params(dense)
    with torch.random.fork_rng(devices=[]):  # a repeated call begins with the same masks
        torch.manual_seed(settings.seed)
        space = searched(subnet, kinds, masks=masks)
    searched(dense, kinds)
    wanted.validate(space.totals())
    unknown = [site.operator for site in wanted.sites.values()
               if site.operator not in (None, *FITTED)]
    if unknown:
        raise ValueError(f'expected operators that have a closed form, of {list(FITTED)}, to refit '
                         f'a structure, found {unknown[0]!r}')
    if rotated := _rotated(wanted):
        raise ValueError('expected a structure of a search, found one of `compress` in which units '
                         f'of `{rotated[0]}` are channels of a rotated basis, which the file does '
                         'not have: compress again with the same target')
    macs = macs_model(subnet, space, input_shape, part)
    # described anew, as the given structure may name another class for the same backbone
    found = space.structure_for({name: torch.tensor(site.kept)
                                 for name, site in wanted.sites.items()})
    found.method = wanted.method
    looked = survey(dense, batches, forward)
    refit_along(dense, subnet, found, batches, forward, settings, looked, done)
    found.macs = dict(dense=macs.dense, subnet=macs(found.sizes()), input_shape=list(input_shape))
    if hasattr(subnet, 'data_preprocessor'):
        note_backbone_macs(found, subnet, part)
    found.params = dict(dense=params, subnet=count_params(subnet))
    return CompressResult(subnet, found, {},
                          agreement(dense, subnet, of_size(held_out, looked.batch(settings.memory)),
                                    forward, settings.logits), {})


def _kinds(structure: Structure) -> Tuple[List[KindConfig], List[KindConfig]]:
    """Kinds of site that are refitted, and masks on queries and keys, which begin anew.

    Raises:
        ValueError: The masks are folded.
    """
    if structure.masks:
        raise ValueError('expected a structure with whole masks on queries and keys to refit, '
                         f'found `{next(iter(structure.masks))}` folded: take the structure from '
                         'before `--fold-masks`')
    kinds = structure.backbone.get('sites')
    if not kinds:
        # a structure of a named backbone lists none, but its sites' names end with the kinds
        kinds = list(dict.fromkeys(name.rpartition('.')[2] for name in structure.sites))
        cls = MODELS.get(structure.backbone['type'])
        if inspect.isclass(cls) and issubclass(cls, DCSBackbone):
            mask = structure.backbone.get('qk_mask', {})
            kinds += [] if mask is None else [dict(mask, kind='qk_mask')]
    masks = [kind for kind in kinds if kind_name(kind) == QKMaskSite.kind]
    return [kind for kind in kinds if kind not in masks], masks


def _rotated(structure: Structure) -> List[str]:
    """Sites whose units are channels of other bases than the network's own."""
    if not structure.method.startswith('compress'):
        return []
    # files of 0.2 do not say which: these kinds may be
    return structure.provenance.get('rotated', [
        name for name, site in structure.sites.items()
        if name.endswith('.head_channels') and len(site.kept) < site.total])


def refit_files(task: CompressTask, structure: Union[str, Path],
                later: Optional[Mapping[str, Any]] = None, **settings: Any) -> CompressFiles:
    """Refit a checkpoint to a structure; writes structure, weights and config.

    A call that was killed continues behind the last refitted block if it is repeated.

    Args:
        task (CompressTask): Config, checkpoint and images.
        structure (str | Path): File of the structure.
        later (Mapping, optional): Steps that follow, as of
            :func:`~mmkcr.apis.compress_files.compress_files`. Defaults to None.
        **settings: See :class:`~mmkcr.apis.compression.CompressOptions`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: As in :func:`refit_structure`. Nothing is written then.
    """
    wanted = Structure.load(structure)
    done = CompressProgress(task.folder / PROGRESS, dict(
        task.key, structure=wanted.to_dict(), settings=settings, later=later))
    try:
        result = refit_structure(task.model, wanted, task.batches, task.input_shape, task.part,
                                 task_outputs, done=done, logits=task.classifies, **settings)
    # refused arguments leave nothing to continue
    except ValueError:
        done.withdraw()
        raise
    found = result.structure
    found.backbone['backbone'] = task.searched
    found.provenance = dict(task.provenance, structure=Path(structure).name,
                            agreement=result.agreement)
    write_subnet(result.model, found, task.meta, task.folder)
    write_config(task, found.backbone)
    if later is None:
        done.remove()
    sizes = dict(dense=state_bytes(task.model), subnet=state_bytes(result.model))
    return CompressFiles(
        task.folder, result, sizes, parts=both_parts(task, result.model),
        proposals=counted_proposals(task.model), progress=None if later is None else done)
