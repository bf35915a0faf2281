"""Turning a residual stream into the basis whose first channels are best (SPEC 9).

See :mod:`mmkcr.functional.stream`. The weights around the stream change, as do those of the
layers behind the backbone that read it. The network computes the same function as before. Streams
whose hosts do not allow this keep their basis.
"""

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.functional.moments import Moments
from mmkcr.functional.stream import stream_basis
from .calibration import Forward, flat_tensors, pick, set_weights, weight_matrix
from .sites.embedding import Embedding


def readers_of_norms(site: Embedding) -> Dict[str, List[str]]:
    """Paths of the linear layers that read each norm of an opened stream, by path of the norm."""
    linear = site.view.linear(site.host)
    return {**{norm: list(paths) for norm, paths in linear.norms}, linear.last: list(site.outside)}


@torch.no_grad()
def turn_stream(site: Embedding, basis: Tensor) -> None:
    """Turn a dense network's stream into another basis, in place.

    Args:
        site (Embedding): Site with its readers behind the backbone; each reader has a bias.
        basis (Tensor): Q, orthogonal with ``Q^T 1 = 1``, (D, D).
    """
    linear, host = site.view.linear(site.host), site.host
    # writers: x += g * (W h + b) becomes Q^T diag(g) (W h + b), and the layer scale g becomes 1
    for path, scale in linear.writers:
        layer = host.get_submodule(path)
        factors = host.get_submodule(scale).weight if scale else layer.weight.new_ones(site.total)
        for value in (layer.weight, layer.bias):
            if value is not None:
                scaled = factors.to(basis)[:, None] * value.to(basis).flatten(1) \
                    if value.ndim > 1 else factors.to(basis) * value.to(basis)
                value.copy_((basis.T @ scaled).view(value.shape))
        factors.fill_(1.)
    # rows of a table (positions, class token) are x^T, so they become x^T Q
    for path in linear.tables:
        table = host.get_parameter(path)
        table.copy_(table.to(basis) @ basis)
    # readers: as LN commutes with Q, W (a * LN(x) + c) + b = (W diag(a) Q) LN(Q^T x) + b + W c
    for path, layers in readers_of_norms(site).items():
        norm = host.get_submodule(path)
        for layer in map(site.module, layers):
            matrix = weight_matrix(layer).to(basis)
            set_weights(layer, (matrix * norm.weight.to(basis)) @ basis,
                        layer.bias.to(basis) + matrix @ norm.bias.to(basis))
        # after all readers of this norm, which fold the same affine part
        norm.weight.fill_(1.)
        norm.bias.zero_()


def turns(model: nn.Module, site: Embedding, batch: Any, forward: Forward) -> bool:
    """Whether turning a network's stream leaves its outputs as they are, found by experiment.

    The weights are restored.

    Args:
        model (nn.Module): Dense.
        site (Embedding): Site of its backbone.
        batch (Any): What ``forward`` takes.
        forward (Callable): Takes model and batch.
    """
    linear = site.view.linear(site.host)
    layers = [] if linear is None else [
        site.module(path) for paths in readers_of_norms(site).values() for path in paths]
    if not layers or not site.outside or any(
            layer.bias is None or weight_matrix(layer).shape[1] != site.total for layer in layers):
        return False
    with torch.no_grad():
        before = [(parameter, parameter.clone()) for parameter in model.parameters()]
        expected = flat_tensors(forward(model, batch))
        generator = torch.Generator().manual_seed(0)
        # the eigenvectors of a random moment are a random basis with Q^T 1 = 1
        noise = torch.randn(site.total, site.total, generator=generator, dtype=torch.float64)
        turn_stream(site, stream_basis(noise @ noise.T).to(layers[0].weight.device))
        found = flat_tensors(forward(model, batch))
        for parameter, value in before:
            parameter.copy_(value)
    return all(float((a - b).abs().max()) <= 1e-3 * float(b.abs().max())
               for a, b in zip(found, expected))


@contextmanager
def normed_moments(sites: Mapping[str, Embedding], rows: int) -> Iterator[Dict[str, Moments]]:
    """Collect moments of normed streams, before the affine part, of all that runs in the block.

    Args:
        sites (Mapping[str, Embedding]): Sites of streams that may be turned.
        rows (int): Maximum number of tokens per batch and norm.
    """
    found: Dict[str, Moments] = {}
    generator = torch.Generator().manual_seed(0)
    with ExitStack() as stack:
        for name, site in sites.items():
            device = next(site.owner.parameters()).device
            found[name] = Moments(site.total, device=device, name=name)

            # the default argument binds the moments of this site
            def take(norm: nn.Module, args: tuple, _: Any, moments: Moments = found[name]) -> None:
                x = args[0].detach().flatten(0, -2)
                chosen = pick(len(x), rows, generator)
                x = x if chosen is None else x[chosen.to(x.device)]
                moments.add(F.layer_norm(x, x.shape[-1:], eps=norm.eps))

            for path in readers_of_norms(site):
                handle = site.host.get_submodule(path).register_forward_hook(take)
                stack.callback(handle.remove)
        yield found
