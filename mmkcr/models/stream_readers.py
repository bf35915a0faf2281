"""Finding the layers behind a backbone that read the channels of a residual stream (SPEC 9)."""

from contextlib import ExitStack
from typing import Any, Dict, List, Sequence, Set, Tuple

import torch
from torch import Tensor, nn

from .calibration import Forward, flat_tensors
from .search_space import SearchSpace
from .sites.embedding import Embedding

Readers = Dict[str, Tuple[nn.Module, Tuple[int, int]]]


def find_outside(space: SearchSpace, model: nn.Module, batches: Sequence[Any],
                 forward: Forward) -> None:
    """Record in the sites of residual streams which layers behind the backbone read them.

    Args:
        space (SearchSpace): Search space of the backbone.
        model (nn.Module): Dense model with this backbone.
        batches (Sequence): What ``forward`` takes; the first two are used.
        forward (Callable): Takes model and batch.

    Raises:
        ValueError: A stream has no layer norms, or features that no layer reads: dropped channels
            of these features are 0, and no layer could be refitted to that.
    """
    some: List[Any] = []
    for name, site in space.sites.items():
        if not isinstance(site, Embedding):
            continue
        # without norms, as in ResNet, there are no readers of a normed stream to refit
        if not any(True for _ in site.view.norms(space.host)):
            raise ValueError('expected a residual width with layer norms to refit, found none at '
                             f'`{name}`')
        some = some or [batches[place] for place in range(min(2, len(batches)))]
        site.outside, seen = readers_behind(model, site, some, forward)
        if seen and not site.outside:
            raise ValueError(f'expected a model with layers that read the features of `{name}`, '
                             f'found none in `{type(model).__name__}`')


@torch.no_grad()
def readers_behind(model: nn.Module, site: Embedding, batches: Sequence[Any],
                   forward: Forward) -> Tuple[Readers, bool]:
    """Linear layers and convolutions behind the backbone that read a stream channel by channel.

    They are found by experiment: every third channel that leaves the backbone is set to 0. A layer
    reads the stream if exactly these of its input channels are then constant over all positions of
    all batches. (In one batch of one image a pooled feature has one position only.)

    Returns:
        tuple[dict, bool]: As :attr:`~mmkcr.models.sites.base.HostSite.outside`; and whether the
        outputs depend on these channels at all.
    """
    host, inside = site.host, set(site.host.modules())
    places = site.view.outputs(host)
    silent = torch.zeros(site.total, dtype=torch.bool)
    silent[::3] = True
    # least and largest input by channel, in the first call of each forward
    ranges: Dict[str, Tuple[Tensor, Tensor]] = {}
    called: Set[str] = set()

    def silence(_: nn.Module, args: tuple, outs: Any) -> Any:
        outs = list(outs)
        for place in places:
            out = outs[place]
            dim = 1 if out.ndim == 4 else -1
            outs[place] = out.index_fill(dim, silent.nonzero()[:, 0].to(out.device), 0.)
        return tuple(outs)

    def look(path: str, layer: nn.Module, x: Tensor) -> None:
        if path in called:
            return
        called.add(path)
        # (n, channels)
        rows = x.movedim(1 if isinstance(layer, nn.Conv2d) else -1, -1).flatten(0, -2)
        low, high = ranges.get(path, (rows[0], rows[0]))
        ranges[path] = torch.minimum(low, rows.amin(0)), torch.maximum(high, rows.amax(0))

    seen = False
    for batch in batches:
        before = flat_tensors(forward(model, batch))
        called.clear()
        with ExitStack() as stack:
            stack.callback(host.register_forward_hook(silence).remove)
            for path, layer in model.named_modules():
                if isinstance(layer, (nn.Linear, nn.Conv2d)) and layer not in inside and \
                        getattr(layer, 'groups', 1) == 1:
                    handle = layer.register_forward_hook(
                        lambda layer, args, out, path=path: look(path, layer, args[0]))
                    stack.callback(handle.remove)
            after = flat_tensors(forward(model, batch))
        seen |= any(not torch.equal(*pair) for pair in zip(before, after))
    readers: Readers = {}
    for path, (low, high) in ranges.items():
        # exact equality: a channel that was zeroed and only passed through is one value everywhere
        still = (low == high).cpu()
        # a layer may read concatenated features: find the pattern at any offset
        starts = [start for start in range(len(still) - site.total + 1)
                  if torch.equal(still[start:start + site.total], silent)]
        if starts:
            span = starts[0], starts[0] + site.total
            readers[f'/{path}'] = model.get_submodule(path), span
    return readers, seen
