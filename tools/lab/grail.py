"""GRAIL (arXiv 2602.23795) as its paper and public code have it, on ViTs of timm, for comparison.

Of every MLP the same share of hidden units stays, attention stays whole. Wanda selects: a unit's
score is the norm of its activations times the sum of the absolute weights that read it. What goes
is a linear function of what stays, by a ridge of 1e-3 times the mean of the diagonal on the second
moments (not centred) of the dense network's activations; it is folded into the weights that read
them. Biases stay.
"""

import copy

import torch
from torch import Tensor, nn

from mmkcr.core import parse_target
from mmkcr.models.counting import count_macs

RIDGE = 1e-3
#: Images of a batch.
BATCH = 32


@torch.no_grad()
def grail(model: nn.Module, images: Tensor, target: str) -> tuple[nn.Module, dict[str, int]]:
    """A pruned network, and MACs of it and of the dense one.

    Weights of units that go are 0, not cut; the outputs and the MACs are the cut network's.

    Args:
        model (nn.Module): A ViT of timm; it is not changed.
        images (Tensor): Calibration images (N, 3, H, W).
        target (str): Maximum MACs, see :func:`~mmkcr.core.parse_target`.

    Raises:
        ValueError: The target is not reached without hidden units.
    """
    dense = count_macs(model, tuple(images.shape[1:]))
    slim = copy.deepcopy(model).eval()
    size, width = slim.blocks[0].mlp.fc1.weight.shape
    tokens = 1 + slim.patch_embed.num_patches
    unit = 2 * len(slim.blocks) * width * tokens  # MACs of one hidden unit of every block
    gone = -(-(dense - parse_target(target, dense)) // unit)
    if gone >= size:
        raise ValueError(f'expected a target that GRAIL reaches without hidden units, found '
                         f'{target}')
    grams = _second_moments(slim, images)
    for block, gram in zip(slim.blocks, grams):
        _compensate(block.mlp.fc2, gram, size - gone)
    return slim, dict(dense=dense, subnet=dense - gone * unit)


def _second_moments(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Of the hidden units of every block (H, H), over tokens."""
    grams: list[Tensor] = [torch.tensor(0.)] * len(model.blocks)

    def hook(place: int) -> nn.Module:
        def add(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            hidden = inputs[0].flatten(0, -2)
            grams[place] = grams[place] + hidden.T @ hidden
        return add

    handles = [block.mlp.fc2.register_forward_pre_hook(hook(place))
               for place, block in enumerate(model.blocks)]
    for batch in images.split(BATCH):
        model(batch)
    for handle in handles:
        handle.remove()
    return grams


def _compensate(layer: nn.Linear, gram: Tensor, count: int) -> None:
    """Keep the columns of ``count`` units, and fold the others into them.

    Args:
        layer (nn.Linear): Reads the units.
        gram (Tensor): Second moments of the units, (H, H).
        count (int): Units that stay.
    """
    scores = gram.diagonal().sqrt() * layer.weight.abs().sum(0)
    kept = scores.topk(count).indices.sort().values
    given = gram[kept][:, kept].double()
    ridge = RIDGE * given.diagonal().mean() * torch.eye(count).double()
    mapped = torch.linalg.solve(given + ridge, gram[kept].double())  # all units from the kept
    weight = layer.weight.double() @ mapped.T
    layer.weight.zero_()
    layer.weight[:, kept] = weight.float()
