"""Folding masks on queries and keys (DCS) that are constant."""

import copy
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.model import BaseModel
from torch import nn

from mmkcr.core import MaskEntry, Structure, count_forward_macs, count_params
from mmkcr.core.added import added_layers
from mmkcr.core.modes import eval_mode
from mmkcr.evaluation.masks import MaskWatch, NormWatch
from mmkcr.models.counting import count_macs, note_backbone_macs
from mmkcr.models.utils import (
    copied_spaces,
    counted_part,
    find_task,
    is_detector,
    momentum_copies,
    online_modules,
    online_params,
    renew_record,
    search_space,
    task_forward,
    tensor_outputs,
    unwrap,
)


class Constants(NamedTuple):
    """What of a mask is constant.

    Args:
        entry (MaskEntry): Rows that are constant on the calibration images, or proved to be.
        proved (int): Number of those that the weights prove to be constant for any image, see
            :func:`~mmkcr.evaluation.masks.proved_rows`.
    """

    entry: MaskEntry
    proved: int


def constant_masks(model: nn.Module, batches: Iterable[Any],
                   input_shape: Sequence[int]) -> Dict[str, Constants]:
    """Find the constant rows of the masks of a model's backbone.

    Args:
        model (nn.Module): A backbone or task model with masks, none of them folded.
        batches (Iterable): Calibration images: batches of the data preprocessor, or tensors
            (N, 3, H, W). Without any, only what the weights prove counts as constant.
        input_shape (Sequence[int]): (C, H, W) of the image that finds the layer norms.

    Returns:
        dict[str, Constants]: By ``<module path>.qk_mask``, of masks with any constant row.

    Raises:
        ValueError: There are no masks, or they are folded already.
    """
    model = find_task(unwrap(model))
    sites = search_space(model).mask_sites()
    masks = {name: site.mask for name, site in sites.items()}
    folded = [name for name, mask in masks.items() if mask is None or mask.place is not None]
    if not masks or folded:
        raise ValueError('expected a backbone with masks on queries and keys that are not folded, '
                         f'found {f"a folded one at `{folded[0]}`" if folded else "none"}')
    with eval_mode(model), torch.no_grad():
        with NormWatch(model) as norms:
            task_forward(model, input_shape)()
        proved = by_site(masks, norms.masks, norms.constants())
        with MaskWatch(model) as watch:
            for batch in batches:
                _run(model, batch)
        found = by_site(masks, watch.masks, watch.constants()) or proved
    result = {}
    for name, (opened, shut) in found.items():
        # what is proved is constant on the images too, but for rounding
        certain = proved.get(name, ([], []))
        if opened or shut:
            entry = MaskEntry(len(masks[name].bias), opened, shut)
            result[name] = Constants(entry, sum(len(set(rows) & set(known)) for rows, known in
                                                zip((opened, shut), certain)))
    return result


def by_site(masks: Mapping[str, nn.Module], paths: Mapping[str, nn.Module],
            values: Mapping[str, Any]) -> Dict[str, Any]:
    """Values by a mask's path in the model as values by its site in the backbone."""
    path_of = {id(module): path for path, module in paths.items()}
    found = {name: values.get(path_of.get(id(mask))) for name, mask in masks.items()}
    return {name: value for name, value in found.items() if value is not None}


def _run(model: nn.Module, batch: Any) -> None:
    """Run the model on a batch, a detector as far as its features."""
    inputs = batch['inputs'] if isinstance(batch, Mapping) else batch
    if not isinstance(model, BaseModel):
        model(inputs)
    elif is_detector(model):
        model.extract_feat(inputs)
    else:
        tensor_outputs(model, inputs, batch.get('data_samples')
                       if isinstance(batch, Mapping) else None)


def fold_constants(subnet: nn.Module, constants: Mapping[str, Constants]) -> None:
    """Fold constant rows of the masks of a subnet and of its momentum copies, in place.

    Args:
        subnet (nn.Module): A backbone or task model.
        constants (Mapping[str, Constants]): See :func:`constant_masks`.
    """
    entries = {name: found.entry for name, found in constants.items()}
    for space in (search_space(subnet), *copied_spaces(subnet)):
        space.fold_masks(entries)


def describe_folds(constants: Mapping[str, Constants], images: Optional[int]) -> Dict[str, Any]:
    """What a structure's provenance says of folded masks.

    Args:
        constants (Mapping[str, Constants]): See :func:`constant_masks`.
        images (int, optional): Number of calibration images, if it is known.

    Returns:
        dict: JSON types.
    """
    return dict(images=images, rows=sum(found.entry.total for found in constants.values()),
                open=sum(len(found.entry.open) for found in constants.values()),
                shut=sum(len(found.entry.shut) for found in constants.values()),
                proved=sum(found.proved for found in constants.values()))


def fold_masks(model: nn.Module, batches: Iterable[Any],
               input_shape: Sequence[int] = (3, 224, 224),
               part: Optional[str] = None) -> Tuple[nn.Module, Structure]:
    """Fold the constant masks of a trained network without gates: a subnet, or one with masks only.

    On the calibration images the result computes what the network does; on others as far as what
    is constant on the former is constant on them.

    Args:
        model (nn.Module): Backbone or task model, also in a wrapper. It is not changed.
        batches (Iterable): See :func:`constant_masks`.
        input_shape (Sequence[int]): (C, H, W) that MACs are counted for. Defaults to
            (3, 224, 224).
        part (str, optional): See :func:`mmkcr.apis.slim`; that of a subnet's structure is kept.

    Returns:
        tuple[nn.Module, Structure]: The bare network with narrower masks, and its structure.

    Raises:
        ValueError: As :func:`constant_masks`, or there are gates.
    """
    task = find_task(unwrap(model))
    space = search_space(task)
    if space.gates():
        raise ValueError('expected a network without gates to fold, found a supernet: slim it')
    constants = constant_masks(task, batches, input_shape)
    before = space.structure
    part = part or (before.macs.get('part') if before is not None else None)
    subnet = copy.deepcopy(task)
    fold_constants(subnet, constants)
    own = search_space(subnet)
    structure = own.structure
    if structure is None:  # a network with masks only: its sites, if there are any, stay whole
        structure = own.structure_for({})
        for one in (own, *copied_spaces(subnet)):
            one.slice_to(structure)
    for average in momentum_copies(subnet):
        renew_record(average)
    structure.provenance = dict(structure.provenance, masks=describe_folds(
        constants, getattr(batches, 'images', None)))
    if before is not None and before.macs:
        dense, params = before.macs['dense'], before.params.get('dense')
    else:
        dense, params = _without_added(task, input_shape, part), None
    if params is None:
        added = [layer for layer in added_layers(task).values() if layer in online_modules(task)]
        params = online_params(task) - sum(map(count_params, added))
    structure.macs = dict(dense=dense, subnet=count_macs(counted_part(subnet, part), input_shape),
                          input_shape=list(input_shape))
    note_backbone_macs(structure, subnet, part)
    structure.params = dict(dense=params, subnet=online_params(subnet))
    return subnet, structure


def _without_added(task: nn.Module, input_shape: Sequence[int], part: Optional[str]) -> int:
    """MACs without the layers that a method adds."""
    counted = counted_part(task, part)
    report = count_forward_macs(counted, task_forward(counted, input_shape))
    return report.total - sum(report.modules.get(name, 0) for name in added_layers(counted))
