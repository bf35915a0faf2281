"""Loss of a network's outputs with a narrower residual stream, to first order (SPEC 9).

A norm over fewer channels has another mean and deviation. So the readers of the stream see other
inputs than in the dense network, even at the channels that are left. These inputs are computed
exactly: the network runs with narrower norms while every reader returns the dense network's
outputs, so that each reader sees the narrower stream by itself.
"""

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import refit_output
from .calibration import (
    Forward,
    WeightChange,
    input_rows,
    output_changes,
    output_rows,
    pick,
    readers,
    rows_of_a_batch,
    weight_matrix,
)
from .sites.embedding import Embedding
from .stream_rotation import turn_stream


class NarrowStream:
    """Inputs of all readers of a stream when only some of its channels are left.

    Args:
        model (nn.Module): Dense model.
        site (Embedding): Site of its backbone, including its readers behind the backbone.
        kept (Tensor): Channels that are left.
        forward (Callable): Takes model and batch.
    """

    def __init__(self, model: nn.Module, site: Embedding, kept: Tensor, forward: Forward) -> None:
        self.model, self.kept, self.forward = model, kept, forward
        self.readers = {reader.path: site.module(reader.path) for reader in readers(site)}
        paths = {module: path for path, module in site.host.named_modules()}
        # norms whose output is the stream itself (`pre_norm`, the embedding's) do not read it
        self.norms = {getattr(owner, name): inner
                      for owner, name, inner in site.view.norms(site.host) if name != 'pre_norm'
                      and not f'{paths[owner]}.'.startswith(f'{site.path}.')}
        #: Inputs of the readers by path, one per call of the last batch that ran.
        self.inputs: Dict[str, List[Tensor]] = {}
        self.outputs: Dict[str, List[Tensor]] = {}

    @torch.no_grad()
    def run(self, batch: Any) -> Dict[str, List[Tensor]]:
        """Run a batch in both networks; return the readers' inputs in the dense one."""
        dense: Dict[str, List[Tensor]] = {}  # x by path and call
        self.inputs, self.outputs = {}, {}
        with ExitStack() as stack:
            for path, layer in self.readers.items():
                stack.callback(layer.register_forward_hook(self._keeper(path, dense)).remove)
            self.forward(self.model, batch)
        # every call returns the dense output: errors of one reader do not reach the next
        with ExitStack() as stack:
            for path, layer in self.readers.items():
                stack.callback(layer.register_forward_hook(self._replacer(path)).remove)
            for norm in self.norms:
                stack.callback(norm.register_forward_hook(self._narrowed).remove)
            self.forward(self.model, batch)
        return dense

    def _keeper(self, path: str, inputs: Dict[str, List[Tensor]]) -> Any:
        def keep(_: nn.Module, args: tuple, out: Tensor) -> None:
            inputs.setdefault(path, []).append(args[0])
            self.outputs.setdefault(path, []).append(out)

        return keep

    def _replacer(self, path: str) -> Any:
        def replace(_: nn.Module, args: tuple, out: Tensor) -> Tensor:
            calls = self.inputs.setdefault(path, [])
            calls.append(args[0])
            return self.outputs[path][len(calls) - 1]

        return replace

    def _narrowed(self, norm: nn.LayerNorm, args: tuple, out: Tensor) -> Tensor:
        inner = torch.arange(self.norms[norm])
        # a unit is `inner` adjacent entries of a norm (patch merging: the 4 neighbours of a
        # channel)
        # (kept, 1) * inner + (inner,)
        columns = (self.kept[:, None] * len(inner) + inner).flatten().to(out.device)
        affine = (None if value is None else value[columns] for value in (norm.weight, norm.bias))
        # mean and deviation over the channels that are left, as in the sliced network
        found = F.layer_norm(args[0][..., columns], (len(columns), ), *affine, norm.eps)
        return torch.zeros_like(out).index_copy(-1, columns, found)

    def shown(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run each batch, then pass it on: :meth:`rows` needs the inputs of the same batch."""
        for batch in batches:
            self.run(batch)
            yield batch

    def rows(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Dense inputs x of a call beside those of the narrower stream, (n, 2 d)."""
        path = next(path for path, reader in self.readers.items() if reader is layer)
        # hooks come in the order of the calls, so the first input left is that of this call
        return torch.cat([input_rows(layer, x), input_rows(layer, self.inputs[path].pop(0))], 1)


def stream_loss(narrow: NarrowStream, batches: Sequence[Any], probes: Sequence[Any],
                logits: bool, rows: int, enough: float, least: int, rho: float, seed: int) -> float:
    """Loss of the outputs once all readers are refitted, in the unit of :func:`output_changes`.

    Args:
        narrow (NarrowStream): The narrower stream.
        batches (Sequence): Batches that readers are refitted on.
        probes (Sequence): Batches that the loss is measured on.
        logits (bool): As in :func:`~mmkcr.models.calibration.collect`.
        rows (int): As there.
        enough (float): As there.
        least (int): As there.
        rho (float): Relative ridge.
        seed (int): Seed of the random projections.
    """
    # x' -> dense outputs W x, for W' = argmin E ||W' x' + b' - W x||^2 with the prior W
    found = {path: Moments(*weight_matrix(layer).T.shape, name=path, device=layer.weight.device)
             for path, layer in narrow.readers.items()}
    means: Dict[str, Any] = dict.fromkeys(found, 0.)
    generator = torch.Generator().manual_seed(seed)
    for place, batch in enumerate(batches):
        if place >= least and all(
                one.count >= enough * one.num_features for one in found.values()):
            break
        dense = narrow.run(batch)  # fills `narrow.inputs` and `narrow.outputs`
        for path, layer in narrow.readers.items():
            before, after = (torch.cat([input_rows(layer, x) for x in calls[path]])
                             for calls in (dense, narrow.inputs))
            targets = torch.cat([output_rows(layer, out) for out in narrow.outputs[path]])
            inputs = found[path].num_features
            # the same positions of inputs, narrower inputs and outputs
            chosen = pick(len(after), rows_of_a_batch(rows, inputs, enough * inputs, least),
                          generator)
            if chosen is not None:
                chosen = chosen.to(after.device)
                before, after, targets = before[chosen], after[chosen], targets[chosen]
            found[path].add(after, targets)
            means[path] = means[path] + before.double().sum(0)
    changes = []
    for path, layer in narrow.readers.items():
        weight, moments = weight_matrix(layer), found[path]
        new = refit_output(moments, weight, rho)[0]  # W', towards W
        # outputs change by W' (x' - E x') - W (x - E x): one matrix over (x, x'), (m, 2 d)
        mean = torch.cat([means[path] / moments.count, moments.mean])
        delta = torch.cat([-weight, new.to(weight)], 1)
        changes.append(WeightChange(layer, mean, delta[None], narrow.rows))
    return float(output_changes(narrow.model, narrow.shown(probes), narrow.forward,
                                dict(stream=changes), logits, seed)['stream'])


@contextmanager
def turned(model: nn.Module, site: Embedding, basis: Optional[Tensor]) -> Iterator[None]:
    """Within the block, a stream is in another basis.

    Args:
        model (nn.Module): Dense model, including the readers behind its backbone.
        site (Embedding): Site of its backbone.
        basis (Tensor, optional): See :func:`~mmkcr.models.stream_rotation.turn_stream`; None keeps
            the network's own basis.
    """
    before = [] if basis is None else [(value, value.detach().clone())
                                       for value in model.parameters()]
    try:
        if basis is not None:
            turn_stream(site, basis)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)
