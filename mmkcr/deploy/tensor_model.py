"""A model of any task family as a function from images to tensors."""

from collections.abc import Sequence

from torch import Tensor, nn

from mmkcr.core import count_forward_macs
from mmkcr.core.forward import flat_tensors
from mmkcr.lazy import is_of
from mmkcr.models.tasks import find_task, is_detector, tensor_outputs


class TensorModel(nn.Module):
    """Runs a model on images and returns tensors, for timing and export.

    A classifier gives logits, a segmentor its head's logits (Mask2Former the last layer's scores
    of queries and masks), a backbone its feature maps. A detector gives the feature maps of its
    neck, because later stages depend on the number of objects. A visual question answering model
    gives the tokens of its image encoder. Outputs in nested lists, tuples and dicts are laid out
    flat, in their order.

    Args:
        model (nn.Module): A backbone, or a task model, possibly wrapped; it is put in eval mode.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = find_task(model)
        self.whole = is_of(self.model, 'mmengine.model.BaseModel')
        self.detector = is_detector(self.model)
        self.train(False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run on normalised images (B, C, H, W).

        Raises:
            ValueError: The model returns no tensors.
        """
        if not self.whole:
            out = self.model(images)
        elif self.detector:
            out = self.model.extract_feat(images)
        elif getattr(self.model, 'counts_backbone', False):
            out = self.model.extract_feat(images, 'backbone')
        else:
            out = tensor_outputs(self.model, images)
            if isinstance(out, tuple) and out and isinstance(out[0], list):
                # scores of queries and their masks, of every layer of a decoder: the last are used
                out = tuple(layers[-1] for layers in out)
        tensors = tuple(flat_tensors(out, floating=False))
        if not tensors:
            raise ValueError(f'expected a model that returns tensors, found '
                             f'`{type(self.model).__name__}`, which returns '
                             f'`{type(out).__name__}`')
        return tensors[0] if len(tensors) == 1 else tensors

    def count_macs(self, input_shape: Sequence[int]) -> int:
        """MACs of this function for one image of shape (C, H, W)."""
        images = next(self.parameters()).new_zeros(1, *input_shape)
        return count_forward_macs(self, lambda: self(images)).total
