"""Slicing a dense network block by block, and refitting the readers of the kept units (SPEC 9)."""

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from mmkcr.core import Structure, block_of
from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import refit_output
from mmkcr.models.batches import count_images, first_images, of_size
from mmkcr.models.calibration import (
    Forward,
    Rows,
    count_rows,
    input_rows,
    output_rows,
    pick,
    readers,
    set_weights,
    weight_matrix,
)
from mmkcr.models.kernel_fit import POSITIONS, KernelMoments
from mmkcr.models.replay import (
    ResumableForward,
    added_last,
    block_rows,
    caught,
    norms_behind,
)
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.base import HostSite
from mmkcr.models.sites.head_operator import HeadOperatorSite
from mmkcr.models.survey import Survey
from mmkcr.models.utils import search_space
from .compress_progress import CompressProgress
from .site_profiles import ACTIVATIONS, CompressOptions, shown

#: Rows per input of a layer below which a refit is reported as uncertain.
LEAST_PER_INPUT = 4


def refit_along(dense: nn.Module, subnet: nn.Module, structure: Structure, batches: Sequence[Any],
                forward: Forward, settings: CompressOptions, looked: Survey,
                done: Optional[CompressProgress]) -> None:
    """Slice site after site, and refit the readers to the dense network's outputs.

    A reader is refitted with the inputs that it gets in the network compressed so far, so it also
    corrects earlier errors. Both networks run only from the current block on.
    """
    space, whole = search_space(subnet), search_space(dense)
    names = [name for name, site in space.sites.items()
             if len(structure.sites[name].kept) < site.total]
    blocks: Dict[str, List[str]] = {}
    for name in names:
        # in the order of the sites, which is that of the forward pass
        blocks.setdefault(block_of(space.sites[name].path), []).append(name)
    batches, rows = _enough(whole, structure, batches, settings, looked)
    runs = [ResumableForward(model, own.host, batches, forward,
                             int(ACTIVATIONS * settings.memory))
            for model, own in ((dense, whole), (subnet, space))]
    refits = settings.refit != 'none'
    norms = norms_behind(runs[0], dict.fromkeys(
        path for name in names for path in _to_refit(space.sites[name]))) if refits else {}
    outputs: Dict[str, Tensor] = {}  # kept outputs of layers, in the dense layers' numbering
    try:
        for block in shown(list(blocks), 'Refit of blocks', settings):
            sites = [space.sites[name] for name in blocks[block]]
            kept = {site: torch.tensor(structure.sites[name].kept, dtype=torch.int64,
                                       device=_device(site))
                    for name, site in zip(blocks[block], sites)}
            if refits and done is not None and done.has_block(block):
                # finished before the call was killed: slice in the same way, load the weights
                for site in sites:
                    outputs.update(_outputs_left(site, kept[site]))
                    site.slice_to(kept[site])
                done.load_block(block, _refitted(sites, norms))
                continue
            if refits:  # from here on runs cost no more than this block
                runs[0].enter(block, list(dict.fromkeys(
                    path for site in sites for path in _to_refit(site))))
                runs[1].enter(block)
            for site in sites:
                # before slicing: afterwards the axes no longer have the dense layers' entries
                outputs.update(_outputs_left(site, kept[site]))
                site.slice_to(kept[site])
                if isinstance(site, HeadOperatorSite) and settings.refit == 'least-squares':
                    _fit_kernels(runs, site, kept[site], settings)
                if refits:
                    together = [reader.path for reader in readers(site)]
                    # lost outputs depend on what was just refitted, so they come one by one after
                    for paths in (together, *([path] for path in site.lost_outputs())):
                        _refit(runs, {path: outputs.get(path) for path in paths}, settings, rows,
                               norms, block)
            if refits and done is not None:
                done.save_block(block, _refitted(sites, norms))
    finally:
        for run in runs:
            run.close()
    # sites that keep all units still become static layers of the subnet
    for name, site in space.sites.items():
        if name not in names:
            site.slice_to(torch.arange(site.total))
    space.structure = structure


def _device(site: HostSite) -> torch.device:
    return next(site.owner.parameters()).device


def _outputs_left(site: HostSite, kept: Tensor) -> Dict[str, Tensor]:
    """Kept entries of the outputs of layers, by path, for a site that keeps some units."""
    paths = {module: path for path, module in site.host.named_modules()}
    return {paths[axis.module]: axis.entries(kept) for axis in site.axes()
            if axis.name == 'weight' and axis.dim == 0 and
            isinstance(axis.module, (nn.Linear, nn.Conv2d))}


def _to_refit(site: HostSite) -> List[str]:
    """Paths of the layers of a site that are refitted."""
    return [*(reader.path for reader in readers(site)), *site.lost_outputs()]


def _refitted(sites: Sequence[HostSite], norms: Mapping[str, str]) -> Dict[str, nn.Module]:
    """The layers that get new weights, and the norms that take their means, by path."""
    paths = [path for site in sites
             for path in (*(reader.path for reader in readers(site)), *site.lost_outputs(),
                          *site.fitted())]
    paths += [norms[path] for path in paths if path in norms]
    return {path: sites[0].host.get_submodule(path) for path in paths}


def _enough(space: SearchSpace, structure: Structure, batches: Sequence[Any],
            settings: CompressOptions, looked: Survey) -> Tuple[Sequence[Any], Rows]:
    """Batches with as many images as the refits need, and how many rows of each are used.

    If even all images are few, the structure's provenance records it (``few_rows``): such a refit
    fits these images more than images in general.
    """
    needed, few, enough = settings.least_images, {}, settings.per_unit[1]
    there = count_images(batches)
    for name, site in space.sites.items():
        for reader in readers(site):
            layer = site.module(reader.path)
            # with operators a reader keeps all inputs: the operator gives those of lost heads
            units = site.total if site.operators() else len(structure.sites[name].kept)
            inputs = units * reader.each(layer)
            needed = max(needed, looked.images_for(layer, enough * inputs))
            if units < site.total and \
                    looked.rows[layer] * there < LEAST_PER_INPUT * inputs:
                few[reader.path] = dict(inputs=inputs, rows=round(looked.rows[layer] * there))
    if few:
        structure.provenance['few_rows'] = few
    batches = first_images(batches, needed)
    return of_size(batches, looked.batch(settings.memory)), Rows(
        settings.rows, enough, count_images(batches))


def _fit_kernels(runs: Sequence[ResumableForward], site: HeadOperatorSite, kept: Tensor,
                 settings: CompressOptions) -> None:
    """Fit kernels to the outputs of the dense network's heads, on the slim network's values."""
    width = site.view.width
    replaced = [head for head in range(site.total) if head not in kept.tolist()]
    # (removed heads * width,) channels of the dense layer
    channels = torch.arange(site.total * width).view(site.total, -1)[replaced].flatten()
    moments = KernelMoments(site.owner.operator, site.name)
    for batch in range(len(runs[0].batches)):
        if moments.patches.count >= POSITIONS:
            break
        calls = []  # [(dense proj: input, output), (slim qkv: input, output)]
        for run, name in zip(runs, ('proj', 'qkv')):
            layer = run.host.get_submodule(f'{site.path}.{name}')
            calls += caught(run, batch, {name: layer}, layer)[name]
        (attended, _), (_, qkv) = calls
        # q, k and v of the kept heads first, then the values of the replaced ones
        moments.add(qkv[..., 3 * len(kept) * width:],
                    attended[..., channels.to(attended.device)], site.grid.hw)
    moments.fit(settings.rho)


def _refit(runs: Sequence[ResumableForward], layers: Mapping[str, Optional[Tensor]],
           settings: CompressOptions, limit: Rows, norms: Mapping[str, str],
           block: str) -> None:
    """Refit some layers, by path, from one pass of the dense and the slim network.

    A layer is fitted to the outputs of the dense network's layer, or to those that are left. If
    its outputs are the last term of its block's sum, it is fitted so that the *block's* output
    matches the dense network's: then it also corrects errors of earlier blocks. What a layer has no
    bias for is taken by the batch norm behind it (``norms``).
    """
    old, new = ({path: run.module(path) for path in layers} for run in runs)
    scale = None
    if len(layers) == 1 and settings.refit in ('least-squares', 'readers'):
        path, = old
        # None if the layer's outputs are not simply added: then it has targets of its own
        scale = added_last(runs[0], block, path)
        if scale is not None and layers[path] is not None:
            scale = scale[layers[path].to(scale.device)]
    # (inputs, outputs) of every layer
    moments = {path: Moments(*weight_matrix(layer).T.shape, name=path,
                             device=layer.weight.device) for path, layer in new.items()}
    for batch in range(len(runs[0].batches)):
        images = runs[0].images(batch)

        def picked(path: str, rows: int, images: Sequence[int] = images) -> Optional[Tensor]:
            return pick(rows, limit.of(moments[path].num_features), images)

        found = _inputs_and_targets(runs, batch, old, new, layers, picked) if scale is None else \
            _towards_the_block(runs, batch, block, new, layers, scale, picked)
        for path, rows, wanted in found:  # (n, inputs) and (n, outputs)
            moments[path].add(rows, wanted)
    for path, layer in new.items():
        before, norm = weight_matrix(layer), norms.get(path)
        if settings.refit == 'mean':
            # a control: old weights, and the bias that matches the means
            weight = before.double()
            bias = moments[path].target_mean - weight @ moments[path].mean
        else:
            # the ridge pulls to the old weights, so the fit is never worse than these
            weight, bias = refit_output(moments[path], before, settings.rho,
                                        biased=layer.bias is not None or norm is not None)
        set_weights(layer, weight, bias)
        if norm is not None:
            # it subtracts its mean. From the dense norm's, as a layer with several sites is
            # refitted again, each time with a bias of its own
            mean = _columns(runs[0].module(norm).running_mean[None], layers[path])[0]
            runs[1].module(norm).running_mean.copy_(mean - bias.view(len(mean), -1).mean(1))


Picked = Callable[[str, int], Optional[Tensor]]


def _inputs_and_targets(runs: Sequence[ResumableForward], batch: int,
                        old: Mapping[str, nn.Module], new: Mapping[str, nn.Module],
                        left: Mapping[str, Optional[Tensor]], picked: Picked
                        ) -> Iterator[Tuple[str, Tensor, Tensor]]:
    """Inputs of the slim network's layers, and the dense outputs that are left, as rows."""
    known = {path: runs[0].outputs(path) for path in old}
    if any(outputs is None for outputs in known.values()):
        # each run ends behind the last of the layers
        calls = caught(runs[0], batch, old, list(old.values())[-1])
        targets = {path: [out for _, out in calls[path]] for path in old}
    else:
        targets = {path: [known[path][batch]] for path in old}
    inputs = caught(runs[1], batch, new, list(new.values())[-1])
    for path, layer in new.items():
        for (x, own), out in zip(inputs[path], targets[path]):
            chosen = picked(path, count_rows(layer, x, own))
            yield path, input_rows(layer, x, chosen), _columns(
                output_rows(old[path], out, chosen), left[path])


def _columns(rows: Tensor, kept: Optional[Tensor]) -> Tensor:
    return rows if kept is None else rows[:, kept.to(rows.device)]


def _towards_the_block(runs: Sequence[ResumableForward], batch: int, block: str,
                       new: Mapping[str, nn.Module], left: Mapping[str, Optional[Tensor]],
                       scale: Tensor, picked: Picked) -> Iterator[Tuple[str, Tensor, Tensor]]:
    """The same for a layer that is added last, with targets that correct the block's output."""
    (path, layer), = new.items()
    dense, slim = (run.host.get_submodule(block) for run in runs)
    outputs = runs[0].outputs(block)
    wanted = caught(runs[0], batch, {block: dense}, dense)[block][0][1] if outputs is None else \
        outputs[batch]
    found = caught(runs[1], batch, {block: slim, path: layer}, slim)
    (x, out), = found[path]
    chosen = picked(path, count_rows(layer, x, out))
    # out enters the block's output with the factor `scale`: out + missing / scale repairs it
    missing = _columns(block_rows(layer, wanted, chosen)
                       - block_rows(layer, found[block][0][1], chosen), left[path])
    yield path, input_rows(layer, x, chosen), output_rows(layer, out, chosen) + missing / scale
