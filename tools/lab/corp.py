"""CORP (arXiv 2602.05243) as its paper and public code have it, on ViTs of timm, for comparison.

Of every layer the same share goes, in forward order, with statistics of the network pruned so far:
hidden units of least energy times share of active tokens, and the channels of queries and keys (not
of values) of least ``E q^2 k^2``. What goes is an affine function of what stays, by a ridge that is
shrunk as Chen et al. do, and is folded into the weights. Where the code makes the correction of the
logits symmetric, the paper's equation is solved as it stands.
"""

import copy

import torch
from torch import Tensor, nn

from mmkcr.closed_form.batches import split_batches
from mmkcr.core import parse_target
from mmkcr.models.counting import count_macs

RIDGE = 1e-3
#: An input is active above this share of the layer's root mean square.
ACTIVE = 0.01
#: Images of a batch.
BATCH = 32


@torch.no_grad()
def corp(model: nn.Module, images: Tensor, target: str) -> tuple[nn.Module, dict[str, int]]:
    """A pruned network, and MACs of it and of the dense one.

    Weights of what goes are 0, not cut, as timm's attention has one width for queries, keys and
    values; the outputs are those of the cut network, and the MACs are counted as of it.

    Args:
        model (nn.Module): A ViT of timm; it is not changed.
        images (Tensor): Calibration images (N, 3, H, W).
        target (str): Maximum MACs, see :func:`~mmkcr.core.parse_target`.
    """
    shape = tuple(images.shape[1:])
    dense = count_macs(model, shape)
    batches = images[:len(split_batches(images, None)[0])].split(BATCH)
    slim = copy.deepcopy(model).eval()
    x = [slim.norm_pre(slim.patch_drop(slim._pos_embed(slim.patch_embed(batch))))
         for batch in batches]
    tokens = x[0].shape[1]
    # the least share that meets the target, in steps of a thousandth
    share = next(share for share in (step / 1000 for step in range(1000))
                 if dense - _saved(slim, share, tokens) <= parse_target(target, dense))
    for block in slim.blocks:
        _narrow_logits(block.attn, [block.norm1(part) for part in x], share)
        x = [part + block.ls1(block.attn(block.norm1(part))) for part in x]
        _narrow_hidden(block.mlp, [block.norm2(part) for part in x], share)
        x = [part + block.ls2(block.mlp(block.norm2(part))) for part in x]
    return slim, dict(dense=dense, subnet=dense - _saved(slim, share, tokens))


def _saved(model: nn.Module, share: float, tokens: int) -> int:
    """MACs that go with a share of the hidden units, and of the channels of queries and keys."""
    saved = 0
    for block in model.blocks:
        (hidden, width), heads = block.mlp.fc1.weight.shape, block.attn.num_heads
        channels = heads * int(share * block.attn.head_dim)
        saved += tokens * (2 * width * (int(share * hidden) + channels) + tokens * channels)
    return saved


def _narrow_hidden(mlp: nn.Module, inputs: list[Tensor], share: float) -> None:
    """Drop hidden units of an MLP, and fold what they are predicted to be into its output."""
    size = mlp.fc1.out_features
    total, products, active, count = torch.zeros(size).double(), 0., 0., 0
    for batch in inputs:
        hidden = mlp.act(mlp.fc1(batch)).flatten(0, 1)
        total += hidden.double().sum(0)
        products = products + (hidden.T @ hidden).double()
        active = active + (hidden.abs() > ACTIVE * hidden.square().mean().sqrt()).double().sum(0)
        count += len(hidden)
    mean, second = total / count, products / count
    order = (second.diagonal() * active / count).argsort()
    gone, kept = (part.sort().values for part in order.tensor_split([int(share * size)]))
    covariance = second - torch.outer(mean, mean)
    given = covariance[kept][:, kept]
    ridged = given + _shrunk(given, count) * torch.eye(len(kept)).double()
    predicted = torch.linalg.solve(ridged, covariance[kept][:, gone]).T  # B: gone from kept
    weight = mlp.fc2.weight.double()
    mlp.fc2.weight[:, kept] = (weight[:, kept] + weight[:, gone] @ predicted).float()
    mlp.fc2.weight[:, gone] = 0
    mlp.fc2.bias += (weight[:, gone] @ (mean[gone] - predicted @ mean[kept])).float()


def _narrow_logits(attention: nn.Module, inputs: list[Tensor], share: float) -> None:
    """Drop channels of queries and keys of every head, and correct the logits."""
    heads, width = attention.num_heads, attention.head_dim
    queries, keys, energy, mean, count = 0., 0., 0., 0., 0
    for batch in inputs:
        # (tokens, 3, heads, width) -> (heads, tokens, width)
        q, k, _ = attention.qkv(batch).flatten(0, 1).unflatten(1, (3, heads, width)).permute(
            1, 2, 0, 3).double()
        queries, keys = queries + q.mT @ q, keys + k.mT @ k
        energy, mean = energy + (q * k).square().sum(1), mean + q.sum(1)
        count += q.shape[1]
    weight, bias = attention.qkv.weight, attention.qkv.bias
    for head in range(heads):
        gone, kept = (part.sort().values for part in energy[head].argsort().tensor_split(
            [int(share * width)]))
        given, seen = queries[head][kept][:, kept], keys[head][kept][:, kept]
        wanted = queries[head][kept][:, gone] @ keys[head][gone][:, kept]
        about = mean[head][kept] / count
        noise = _shrunk(given / count - torch.outer(about, about), count)
        # G_q M G_k + noise M = C_q C_k, in the bases of both
        (a, left), (b, right) = torch.linalg.eigh(given), torch.linalg.eigh(seen)
        solved = left @ ((left.T @ wanted @ right) / (a[:, None] * b + noise)) @ right.T
        u, scale, v = torch.linalg.svd(torch.eye(len(kept)).double() + solved)
        for part, mixing in enumerate((u, v.T)):
            rows = slice((part * heads + head) * width, (part * heads + head + 1) * width)
            for values in (weight, bias):
                mixed = (mixing * scale.sqrt()).T @ values[rows][kept].double()
                values[rows] = 0
                values[rows][:len(kept)] = mixed.float()


def _shrunk(covariance: Tensor, count: int) -> float:
    """A ridge by oracle approximating shrinkage, at least ``RIDGE``."""
    size = len(covariance)
    trace, squares = covariance.trace(), covariance.square().sum()
    share = ((1 - 2 / size) * squares + trace**2) / (
        (count + 1 - 2 / size) * (squares - trace**2 / size))
    return max(RIDGE, float(share.clamp(max=1) * trace / size))
