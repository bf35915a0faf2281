"""A classifier whose head gives scores of two branches."""

import torch
from mmpretrain.models import ImageClassifier

from lab.kind_coverage import FAMILIES


def conformer():
    """A small Conformer of random weights, whose branches disagree on the class of some images."""
    torch.manual_seed(0)
    model = ImageClassifier(FAMILIES['Conformer'].build(), head=dict(
        type='mmpretrain.ConformerHead', num_classes=5, in_channels=[32, 32],
        loss=dict(type='mmpretrain.CrossEntropyLoss')))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim == 2 else 0.1)
    model.eval()
    return model
