"""The local score of SnapViT (arXiv 2510.17700), on ViTs of timm, for comparison.

The score of a hidden unit is the mean squared gradient of the weights that make it, the score of a
head the mean squared gradient of its values' weights. The gradient is that of a self-supervised
loss without labels or temperature: the cross entropy of normalised class tokens of crops of one
image, the dense network's own as the goal. Units are ranked over all blocks, heads apart, and one
share of both goes; in every block a fifth of the heads and a twentieth of the units stay. Left out:
the factors of blocks that the paper's evolutionary search adds, and ten small crops of an image,
of which there are two here.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.closed_form.compression import macs_model
from mmkcr.closed_form.options import open_search_space
from mmkcr.core import Structure, parse_target
from .torch_pruning import largest_structure

KINDS = ('mlp_hidden', 'heads')
#: Least share of the hidden units and of the heads of a block that stays.
LEAST = {'mlp_hidden': 0.05, 'heads': 0.2}
#: Areas of the two large and of the small crops, over the image's.
LARGE, SMALL = (0.25, 1.), (0.05, 0.25)
SMALL_CROPS = 2
BATCH = 16


def snapvit_structure(model: nn.Module, images: Tensor, target: str) -> Structure:
    """The largest structure within a budget by SnapViT's score.

    Args:
        model (nn.Module): A ViT of timm; it is not changed.
        images (Tensor): Calibration images (N, 3, S, S).
        target (str): Maximum MACs, see :func:`~mmkcr.core.parse_target`.

    Raises:
        ValueError: No share meets the target.
    """
    scores = _scores(copy.deepcopy(model).eval(), images)
    counted = copy.deepcopy(model).eval()
    space = open_search_space(counted, KINDS)
    macs = macs_model(counted, space, images.shape[1:], None)
    named = {}
    for name, site in space.sites.items():
        kind = 'heads' if site.total == len(scores['heads'][0]) else 'mlp_hidden'
        block = int(name.split('blocks.')[1].split('.')[0])
        named[name] = kind, scores[kind][block]
    return largest_structure(lambda share: space.structure_for(_kept(named, share)), macs,
                             parse_target(target, macs.dense), 'SnapViT')


def _kept(scores: dict[str, tuple[str, Tensor]], share: float) -> dict[str, Tensor]:
    """Units of every site that stay when a share of all of each kind goes."""
    kept = {}
    for kind in KINDS:
        parts = {name: values.clone() for name, (own, values) in scores.items() if own == kind}
        for values in parts.values():
            least = max(1, math.ceil(LEAST[kind] * len(values)))
            values[values.topk(least).indices] = math.inf
        whole = torch.cat(list(parts.values()))
        gone = int(share * len(whole))
        bound = whole.sort().values[gone]
        for name, values in parts.items():
            kept[name] = (values >= bound).nonzero()[:, 0]
    return kept


def _scores(model: nn.Module, images: Tensor) -> dict[str, list[Tensor]]:
    """Of the hidden units (H, ) and of the heads (heads, ) of every block."""
    draw = torch.Generator().manual_seed(0)
    for batch in images.split(BATCH):
        views = [_crops(batch, LARGE, draw) for _ in range(2)]
        views += [_crops(batch, SMALL, draw) for _ in range(SMALL_CROPS)]
        found = [F.normalize(model(view), dim=-1) for view in views]
        loss = torch.tensor(0.)
        for goal, wanted in enumerate(found[:2]):
            chances = wanted.detach().softmax(-1)
            for place, other in enumerate(found):
                if place != goal:
                    loss = loss - (chances * other.log_softmax(-1)).sum(-1).mean()
        loss.backward()
    heads = model.blocks[0].attn.num_heads
    return {
        'mlp_hidden': [block.mlp.fc1.weight.grad.square().mean(1) for block in model.blocks],
        'heads': [block.attn.qkv.weight.grad.unflatten(0, (3, heads, -1))[2].square().mean((1, 2))
                  for block in model.blocks]}


def _crops(images: Tensor, areas: tuple[float, float], draw: torch.Generator) -> Tensor:
    """A square of each image at the images' size.

    Args:
        images (Tensor): (N, 3, S, S).
        areas (tuple[float, float]): Least and largest area, over the image's.
        draw (torch.Generator): What area and place are drawn by.
    """
    size, crops = images.shape[-1], []
    for image in images:
        area, down, right = torch.rand(3, generator=draw).tolist()
        side = round(size * (areas[0] + (areas[1] - areas[0]) * area)**0.5)
        top, left = round(down * (size - side)), round(right * (size - side))
        crop = image[None, :, top:top + side, left:left + side]
        crops.append(F.interpolate(crop, size, mode='bilinear', antialias=True))
    return torch.cat(crops)
