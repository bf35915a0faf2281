"""Networks at another size of their images than their own."""

import copy
import inspect
from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core.forward import flat_tensors
from mmkcr.models.tasks import is_detector
from .tensor_model import TensorModel


def set_input_size(network: nn.Module, sides: tuple[int, int]) -> None:
    """Set the image size (H, W) of a network of timm or transformers that is built for one size.

    It is done in place. Position embeddings of timm are resized for good, those of transformers in
    each forward.
    """
    if hasattr(network, 'set_input_size'):
        network.set_input_size(img_size=sides)
    elif 'interpolate_pos_encoding' in inspect.signature(network.forward).parameters:
        network.forward = partial(network.forward, interpolate_pos_encoding=True)
    else:
        for child in network.children():
            set_input_size(child, sides)


class SmallerInput(nn.Module):
    """A network that computes on smaller images; maps that it returns get their usual size.

    Args:
        network (nn.Module): It is not changed.
        sides (tuple[int, int]): Height and width that it computes on.
        shapes (Sequence[Sequence[int]]): Of its usual outputs for one image.
    """

    def __init__(self, network: nn.Module, sides: tuple[int, int],
                 shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        if is_detector(network):
            raise ValueError('expected outputs that can be compared at another size, found a '
                             "detector's: give its config a smaller `scale`")
        network = copy.deepcopy(network)
        set_input_size(network, sides)
        self.network, self.sides, self.shapes = TensorModel(network), sides, shapes

    def forward(self, images: Tensor) -> list[Tensor]:
        """Run on images (B, C, H, W) of the usual size.

        Raises:
            ValueError: A shape of an output depends on the size of the image.
        """
        small = F.interpolate(images, self.sides, mode='bilinear')
        outputs = flat_tensors(self.network(small), floating=False)
        outputs = [F.interpolate(out, shape[2:], mode='bilinear') if len(shape) == 4 else out
                   for out, shape in zip(outputs, self.shapes)]
        for out, shape in zip(outputs, self.shapes):
            if tuple(out.shape[1:]) != tuple(shape[1:]):
                raise ValueError("expected outputs of a shape that does not depend on the image's "
                                 f'size, found {tuple(out.shape)} in place of {tuple(shape)}')
        return outputs
