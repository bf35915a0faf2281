"""Slicing a dense network block by block, and refitting the readers of the kept units."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from mmkcr.core import Structure, block_of
from mmkcr.core.processes import ask_first_process
from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import choose_ridge, refit_output
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites.base import HostSite
from mmkcr.models.tasks import search_space
from mmkcr.visualization import show_progress
from .batches import (
    GROUPS,
    GroupedBatches,
    count_images,
    first_images,
    group_batches,
    take_share,
)
from .given import Calibration
from .options import AUTO, RECORDS, RHO, STATISTICS, CompressOptions, Pair
from .readers import (
    Rows,
    count_rows,
    input_rows,
    output_rows,
    pick,
    readers,
    refit_paths,
    set_weights,
    weight_matrix,
)
from .replay import ResumableForward, block_rows, catch_calls, norms_behind, output_factors
from .report import LEAST_PER_INPUT


def refit_along(networks: Pair, structure: Structure, calibration: Calibration) -> None:
    """Slice site after site of the slim network, and refit it to the dense network's outputs.

    A reader is refitted with the inputs that it gets in the network compressed so far, so it also
    corrects earlier errors. Both networks run only from the current block on.

    Args:
        networks (Pair): The dense network, and its copy that is sliced in place.
        structure (Structure): Units that every site keeps; its provenance gets notes on the refit.
        calibration (Calibration): Images and options, and the progress of an earlier call.
    """
    spaces = Pair(*map(search_space, networks))
    settings, done = calibration.settings, calibration.done
    blocks = _cut_blocks(spaces.slim, structure)
    grouped, rows = _choose_batches(spaces.dense, structure, calibration)
    runs = Pair(*(ResumableForward(network, space.host, grouped.batches, calibration.compared,
                                   int(RECORDS * settings.memory))
                  for network, space in zip(networks, spaces)))
    try:
        refits = Refits(runs, settings, rows, grouped.groups, [
            path for sites in blocks.values() for site in sites for path in refit_paths(site)])
        title = f'Refit of blocks, {rows.images} images each'
        for block, sites in show_progress(blocks.items(), title, visible=settings.progress):
            # finished before the call was killed: slice again, load the weights
            known = done.read_block(block) if done else None
            fitted = settings.refit != 'none' and known is None
            if fitted:
                refits.enter(block, sites)
            for site in sites:
                _slice_site(site, structure, refits)
                if fitted:
                    refits.refit(site)
            changed = refits.changed_layers(sites)
            if fitted and done:
                done.save_block(block, changed, refits.ridges)
            if known is not None:
                refits.ridges = known.ridges
                for path, state in known.weights.items():
                    changed[path].load_state_dict(state)
    finally:
        for run in runs:
            run.close()
    # sites that keep all units still become static layers of the subnet
    for name, site in spaces.slim.sites.items():
        if len(structure.sites[name].kept) == site.total:
            site.slice_to(torch.arange(site.total))
    spaces.slim.record_structure(structure)
    if refits.constant:
        structure.provenance['constant'] = refits.constant
    if settings.rho == AUTO and refits.ridges:
        structure.provenance['ridges'] = refits.ridges


def _cut_blocks(space: SearchSpace, structure: Structure) -> dict[str, list[HostSite]]:
    """Sites that lose units, by block, in the order of the forward pass."""
    blocks: dict[str, list[HostSite]] = {}
    for name, site in space.sites.items():
        if len(structure.sites[name].kept) < site.total:
            blocks.setdefault(block_of(site.path), []).append(site)
    return blocks


def _slice_site(site: HostSite, structure: Structure, refits: 'Refits') -> None:
    """Slice a site of the slim network to its kept units, and note the outputs that are kept."""
    kept = torch.tensor(structure.sites[site.name].kept, dtype=torch.int64,
                        device=next(site.owner.parameters()).device)
    # before slicing: afterwards the axes no longer have the dense layers' entries
    refits.note_outputs(site, kept)
    site.slice_to(kept)


def _choose_batches(space: SearchSpace, structure: Structure,
                    calibration: Calibration) -> tuple[GroupedBatches, Rows]:
    """Choose batches with as many images as the refits need, and the number of rows of an image.

    If even all images are few, the structure's provenance gets ``few_rows``, in place: the refit
    then fits these images more than images in general.
    """
    settings, surveyed = calibration.settings, calibration.survey
    needed, few, enough = settings.least_images, {}, settings.per_unit[1]
    there = count_images(calibration.batches)
    for name, site in space.sites.items():
        units = len(structure.sites[name].kept)
        for reader in readers(site):
            inputs, rows = units * reader.each, surveyed.rows[reader.layer] * there
            needed = max(needed, surveyed.images_for(reader.layer, enough * inputs))
            if units < site.total and rows < LEAST_PER_INPUT * inputs:
                few[reader.path] = dict(inputs=inputs, rows=max(round(rows), 1), images=there)
    if few:
        structure.provenance['few_rows'] = few
    batches = first_images(calibration.batches, needed)
    grouped = group_batches(batches, calibration.size)
    share = take_share(grouped.batches)
    if share is not grouped.batches:
        grouped = GroupedBatches(share, [grouped.groups[place] for place in share.places])
    return grouped, Rows(settings.rows, enough, count_images(batches))


class Refits:
    """Refits layers of a slim network to the dense network, in the block that both have entered.

    Args:
        runs (Pair): Runs of both networks over common batches.
        settings (CompressOptions): Options, with a number for ``memory``.
        rows (Rows): How many rows of an image enter the moments.
        groups (Sequence[int]): The group of images of every batch, 0 and up.
        paths (Sequence[str]): All layers that will be refitted.
    """

    def __init__(self, runs: Pair, settings: CompressOptions, rows: Rows, groups: Sequence[int],
                 paths: Sequence[str]) -> None:
        self.runs, self._settings, self._rows, self._block = runs, settings, rows, ''
        self._group_of, self._groups = groups, GROUPS
        #: The relative ridge of each layer that was refitted, by path.
        self.ridges: dict[str, float] = {}
        #: Layers whose inputs were equal at all positions of all images.
        self.constant: list[str] = []
        #: Kept outputs of layers, in the dense layers' numbering.
        self._kept: dict[str, Tensor] = {}
        #: Batch norms that take the means of layers without a bias.
        self._norms = {} if settings.refit == 'none' else \
            norms_behind(runs.dense, dict.fromkeys(paths))

    def enter(self, block: str, sites: Sequence[HostSite]) -> None:
        """Go on to a block with some sites: runs now cost no more than the block.

        Args:
            block (str): Path of the block.
            sites (Sequence[HostSite]): Its sites that are refitted.
        """
        self._block = block
        for run in self.runs:
            run.enter(block)
        paths = dict.fromkeys(path for site in sites for path in refit_paths(site))
        paths.pop(block, None)
        self.runs.dense.record([*paths, block])

    def note_outputs(self, site: HostSite, kept: Tensor) -> None:
        """Note the outputs that the layers of a site keep with the ``kept`` units, (n,)."""
        paths = {module: path for path, module in site.host.named_modules()}
        self._kept.update({
            paths[axis.module]: axis.entries(kept) for axis in site.axes()
            if axis.name == 'weight' and axis.dim == 0 and
            isinstance(axis.module, (nn.Linear, nn.Conv2d))})

    def changed_layers(self, sites: Sequence[HostSite]) -> dict[str, nn.Module]:
        """Layers of some sites that get new weights, and norms that take their means, by path."""
        paths = [path for site in sites for path in refit_paths(site)]
        paths += [self._norms[path] for path in paths if path in self._norms]
        return {path: sites[0].module(path) for path in paths}

    def refit(self, site: HostSite) -> None:
        """Refit the layers of a site that was sliced."""
        self._fit([reader.path for reader in readers(site)])
        # lost outputs depend on the readers' new weights, so they follow one by one
        for path in site.lost_outputs():
            self._fit([path])

    def _fit(self, paths: Sequence[str]) -> None:
        """Refit some layers from one pass of both networks.

        A layer is fitted to the kept outputs of the dense network's layer. If its outputs are the
        last term of its block's sum, it is fitted so that the *block's* output matches the dense
        network's: then it also corrects errors of earlier blocks. For a layer without a bias, the
        batch norm behind it takes the bias of the fit.
        """
        block, scale = self._block, None
        layers = {path: self.runs.slim.host.get_submodule(path) for path in paths}
        if len(paths) == 1:
            # None if the layer's outputs are not simply added: then it has targets of its own
            # from a batch of the first process, so that all take the same targets
            scale = ask_first_process(partial(output_factors, self.runs.dense, block, paths[0]))
            scale = None if scale is None else scale.to(layers[paths[0]].weight)
            scale = None if scale is None else self._columns(scale[None], paths[0])[0]
        moments = self._new_moments(layers)
        for batch, images in enumerate(self.runs.dense.images):
            wanted = self.runs.dense.outputs_of(batch, paths if scale is None else [block])
            calls = catch_calls(self.runs.slim, batch, paths if scale is None else [*paths, block])
            for path, layer in layers.items():
                for (x, stream), out in zip(calls[path], wanted[path if scale is None else block]):
                    groups = moments[path]
                    group = groups[self._group_of[batch] * len(groups) // self._groups]
                    chosen = pick(count_rows(layer, x, stream), self._rows.of(
                        group.num_features), images)
                    if scale is None:
                        targets = self._columns(output_rows(layer, out, chosen), path)
                    else:
                        # the layer enters the block's output with this factor: so much more is due
                        missing = block_rows(layer, out, chosen) - \
                            block_rows(layer, calls[block][0][1], chosen)
                        targets = output_rows(layer, stream, chosen) + \
                            self._columns(missing, path) / scale
                    group.add(input_rows(layer, x, chosen), targets)
        for path, layer in layers.items():
            shared = [group.share() for group in moments[path]]
            self._set(path, layer, [group for group in shared if group.count])

    def _new_moments(self, layers: Mapping[str, nn.Module]) -> dict[str, list[Moments]]:
        """Empty moments of some layers by group of images; of all images where no ridge is chosen.

        Groups are fewer where :data:`STATISTICS` of the memory do not hold so many.
        """
        # (inputs, outputs) of every layer
        shapes = {path: weight_matrix(layer).T.shape for path, layer in layers.items()}
        one = sum(8 * inputs * (inputs + outputs) for inputs, outputs in shapes.values())
        count = 1
        if self._settings.rho == AUTO:
            fitting = int(STATISTICS * self._settings.memory) // one
            count = min(self._groups, max(fitting, 1))
        return {path: [Moments(*shapes[path], name=path, device=layer.weight.device)
                       for _ in range(count)] for path, layer in layers.items()}

    def _set(self, path: str, layer: nn.Module, groups: Sequence[Moments]) -> None:
        """Give a layer its least-squares weights, from moments of groups of images."""
        before, norm = weight_matrix(layer), self._norms.get(path)
        biased = layer.bias is not None or norm is not None
        rho = self._settings.rho
        if rho == AUTO:
            rho = choose_ridge(groups, before, biased) if len(groups) > 1 else RHO
        self.ridges[path] = rho
        moments = Moments.union(groups)
        energy = moments.variance + float(moments.mean.square().sum())
        if moments.variance <= 1e-12 * energy and path not in self.constant:
            self.constant.append(path)
        # the ridge pulls to the old weights, so the fit is never worse than these
        weight, bias = refit_output(moments, before, rho, biased)
        set_weights(layer, weight, bias)
        if norm is not None:
            # it subtracts its mean. From the dense norm's, as a layer with several sites is
            # refitted again, each time with a bias of its own
            dense, slim = (run.host.get_submodule(norm) for run in self.runs)
            mean = self._columns(dense.running_mean[None], path)[0]
            slim.running_mean.copy_(mean - bias.view(len(mean), -1).mean(1))

    def _columns(self, rows: Tensor, path: str) -> Tensor:
        """The columns of a dense layer's outputs that the slim one has."""
        return rows[:, self._kept[path].to(rows.device)] if path in self._kept else rows
