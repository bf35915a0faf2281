"""Slicing a dense network block by block, and refitting what reads the kept units."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import Structure, block_of
from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import refit_output
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.tasks import search_space
from mmkcr.visualization.progress import shown
from .batches import count_images, first_images, of_size
from .forms import form_of
from .options import ACTIVATIONS, CompressOptions, Forward, Pair
from .progress import CompressProgress
from .readers import (
    Rows,
    count_rows,
    input_rows,
    output_rows,
    pick,
    readers,
    set_weights,
    weight_matrix,
)
from .replay import ResumableForward, added_last, block_rows, caught, norms_behind
from .report import LEAST_PER_INPUT
from .survey import Survey
from .units import Units


def refit_along(networks: Pair, structure: Structure, batches: Sequence[Any], forward: Forward,
                settings: CompressOptions, looked: Survey, done: CompressProgress | None) -> None:
    """Slice site after site of the slim network, and refit it to the dense network's outputs.

    A reader is refitted with the inputs that it gets in the network compressed so far, so it also
    corrects earlier errors. Both networks run only from the current block on.
    """
    spaces = Pair(*map(search_space, networks))
    # in the order of the sites, which is that of the forward pass
    blocks: dict[str, list[Units]] = {}
    for name, site in spaces.slim.sites.items():
        if len(structure.sites[name].kept) < site.total:
            blocks.setdefault(block_of(site.path), []).append(form_of(site, settings))
    batches, rows = _enough(spaces.dense, structure, batches, settings, looked)
    runs = Pair(*(ResumableForward(network, space.host, batches, forward,
                                   int(ACTIVATIONS * settings.memory))
                  for network, space in zip(networks, spaces)))
    try:
        refits = Refits(runs, settings, rows, [
            path for block in blocks.values() for one in block for path in one.refitted()])
        title = f'Refit of blocks, {count_images(batches)} images each'
        for block in shown(list(blocks), title, visible=settings.progress):
            # finished before the call was killed: slice in the same way, load the weights
            known = done.read_block(block) if done else None
            fitted = settings.refit != 'none' and known is None
            if fitted:
                refits.enter(block, blocks[block])
            for one in blocks[block]:
                kept = torch.tensor(structure.sites[one.site.name].kept, dtype=torch.int64,
                                    device=next(one.site.owner.parameters()).device)
                # before slicing: afterwards the axes no longer have the dense layers' entries
                refits.note_outputs(one, kept)
                one.site.slice_to(kept)
                if fitted:
                    one.refit(refits, kept)
            changed = refits.changed(blocks[block])
            if fitted and done:
                done.save_block(block, changed)
            for path, state in (known or {}).items():
                changed[path].load_state_dict(state)
    finally:
        for run in runs:
            run.close()
    # sites that keep all units still become static layers of the subnet
    for name, site in spaces.slim.sites.items():
        if len(structure.sites[name].kept) == site.total:
            site.slice_to(torch.arange(site.total))
    spaces.slim.structure = structure
    if refits.constant:
        structure.provenance['constant'] = refits.constant


def _enough(space: SearchSpace, structure: Structure, batches: Sequence[Any],
            settings: CompressOptions, looked: Survey) -> tuple[Sequence[Any], Rows]:
    """Batches with as many images as the refits need, and how many rows of each are used.

    If even all images are few, the structure's provenance records it (``few_rows``): such a refit
    fits these images more than images in general.
    """
    needed, few, enough = settings.least_images, {}, settings.per_unit[1]
    there = count_images(batches)
    for name, site in space.sites.items():
        for reader in readers(site):
            layer = site.module(reader.path)
            units = len(structure.sites[name].kept)
            inputs = units * reader.each(layer)
            needed = max(needed, looked.images_for(layer, enough * inputs))
            if units < site.total and \
                    looked.rows[layer] * there < LEAST_PER_INPUT * inputs:
                few[reader.path] = dict(inputs=inputs, rows=max(round(
                    looked.rows[layer] * there), 1), images=there)
    if few:
        structure.provenance['few_rows'] = few
    batches = first_images(batches, needed)
    return of_size(batches, looked.batch(settings.memory)), Rows(
        settings.rows, enough, count_images(batches))


class Refits:
    """Refits layers of a slim network to the dense network, in the block that both have entered.

    Args:
        runs (Pair): :class:`ResumableForward` of both networks.
        settings (CompressOptions): Options of the compression.
        rows (Rows): Rows of an image that a refit takes.
        paths (Sequence[str]): All layers that will be refitted, of all blocks.
    """

    def __init__(self, runs: Pair, settings: CompressOptions, rows: Rows,
                 paths: Sequence[str]) -> None:
        self.runs, self._settings, self._rows, self._block = runs, settings, rows, ''
        #: Layers whose inputs were the same everywhere.
        self.constant: list[str] = []
        #: Kept outputs of layers, in the dense layers' numbering.
        self._kept: dict[str, Tensor] = {}
        #: Batch norms that take the means of layers without a bias.
        self._norms = {} if settings.refit == 'none' else \
            norms_behind(runs.dense, dict.fromkeys(paths))

    def enter(self, block: str, sites: Sequence[Units]) -> None:
        """Go on to a block with some sites: from here on runs cost no more than this block."""
        self._block = block
        for run in self.runs:
            run.enter(block)
        self.runs.dense.record([block, *dict.fromkeys(
            path for one in sites for path in one.refitted())])

    def note_outputs(self, one: Units, kept: Tensor) -> None:
        """Note which outputs the layers of a site keep if it keeps some units."""
        paths = {module: path for path, module in one.site.host.named_modules()}
        self._kept.update({
            paths[axis.module]: axis.entries(kept) for axis in one.site.axes()
            if axis.name == 'weight' and axis.dim == 0 and
            isinstance(axis.module, (nn.Linear, nn.Conv2d))})

    def changed(self, sites: Sequence[Units]) -> dict[str, nn.Module]:
        """Layers of some sites that get new weights, and norms that take their means, by path."""
        paths = [path for one in sites for path in one.refitted()]
        paths += [self._norms[path] for path in paths if path in self._norms]
        return {path: sites[0].site.host.get_submodule(path) for path in paths}

    def fit(self, paths: Sequence[str]) -> None:
        """Refit some layers from one pass of both networks.

        A layer is fitted to the outputs of the dense network's layer, or to those that are kept. If
        its outputs are the last term of its block's sum, it is fitted so that the *block's* output
        matches the dense network's: then it also corrects errors of earlier blocks. What a layer
        has no bias for is taken by the batch norm behind it.
        """
        layers = Pair(*({path: run.host.get_submodule(path) for path in paths}
                        for run in self.runs))
        scale = None
        if len(paths) == 1 and self._settings.refit == 'least-squares':
            # None if the layer's outputs are not simply added: then it has targets of its own
            scale = added_last(self.runs.dense, self._block, paths[0])
            scale = None if scale is None else self._columns(scale[None], paths[0])[0]
        # (inputs, outputs) of every layer
        moments = {path: Moments(*weight_matrix(layer).T.shape, name=path,
                                 device=layer.weight.device) for path, layer in layers.slim.items()}
        for batch in range(len(self.runs.dense.batches)):
            images = self.runs.dense.images[batch]

            def picked(path: str, rows: int, images: Sequence[int] = images) -> Tensor | None:
                return pick(rows, self._rows.of(moments[path].num_features), images)

            found = self._towards_layers(batch, layers, picked) if scale is None else \
                self._towards_block(batch, paths[0], layers.slim[paths[0]], scale, picked)
            for path, rows, wanted in found:  # (n, inputs) and (n, outputs)
                moments[path].add(rows, wanted)
        for path, layer in layers.slim.items():
            self._set(path, layer, moments[path])

    def _set(self, path: str, layer: nn.Module, moments: Moments) -> None:
        """Give a layer its least-squares weights."""
        before, norm = weight_matrix(layer), self._norms.get(path)
        energy = moments.variance + float(moments.mean.square().sum())
        if moments.variance <= 1e-12 * energy and path not in self.constant:
            self.constant.append(path)
        if self._settings.refit == 'mean':
            # a control: old weights, and the bias that matches the means
            weight = before.double()
            bias = moments.target_mean - weight @ moments.mean
        else:
            # the ridge pulls to the old weights, so the fit is never worse than these
            weight, bias = refit_output(moments, before, self._settings.rho,
                                        biased=layer.bias is not None or norm is not None)
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

    def _towards_layers(self, batch: int, layers: Pair, picked: 'Picked'
                        ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Inputs of the slim network's layers, and the dense layers' outputs, as rows."""
        dense, slim = self.runs
        known = {path: dense.outputs(path) for path in layers.dense}
        if None in known.values():  # each run ends behind the last of the layers
            calls = caught(dense, batch, layers.dense, [*layers.dense.values()][-1])
            targets = {path: [out for _, out in calls[path]] for path in layers.dense}
        else:
            targets = {path: [outputs[batch]] for path, outputs in known.items()}
        inputs = caught(slim, batch, layers.slim, [*layers.slim.values()][-1])
        for path, layer in layers.slim.items():
            for (x, own), out in zip(inputs[path], targets[path]):
                chosen = picked(path, count_rows(layer, x, own))
                yield path, input_rows(layer, x, chosen), self._columns(
                    output_rows(layers.dense[path], out, chosen), path)

    def _towards_block(self, batch: int, path: str, layer: nn.Module, scale: Tensor,
                       picked: 'Picked') -> Iterator[tuple[str, Tensor, Tensor]]:
        """The same for a layer that is added last, with targets that correct the block's output."""
        blocks = Pair(*(run.host.get_submodule(self._block) for run in self.runs))
        outputs = self.runs.dense.outputs(self._block)
        wanted = outputs[batch] if outputs is not None else caught(
            self.runs.dense, batch, {self._block: blocks.dense}, blocks.dense)[self._block][0][1]
        found = caught(self.runs.slim, batch, {self._block: blocks.slim, path: layer}, blocks.slim)
        (x, out), = found[path]
        chosen = picked(path, count_rows(layer, x, out))
        there = block_rows(layer, found[self._block][0][1], chosen)
        # out enters the block's output with the factor `scale`: out + missing / scale repairs it
        missing = self._columns(block_rows(layer, wanted, chosen) - there, path)
        yield path, input_rows(layer, x, chosen), output_rows(layer, out, chosen) + missing / scale


#: Takes the path of a layer and a number of rows; returns the rows that are used, None for all.
Picked = Callable[[str, int], Tensor | None]
