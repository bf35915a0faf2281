"""From a trained model to the form that a runtime computes fastest, with the same outputs.

Optimisations that runtimes do themselves are left to them: the exporter folds batch norms into
convolutions, the runtimes fuse activations.
"""

import copy
from collections import Counter
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.operator_attention import OperatorAttention
from mmkcr.models.layers.plain import make_ours
from mmkcr.models.layers.selection import Put, Take, largest_group
from .layers import traceable
from .runtimes import PACKAGES
from .tensor_model import TensorModel

RUNTIMES = ('any', *PACKAGES)
#: From this number of contiguous kept channels on, gathering them as rows is faster.
GROUPED_FROM = 16


def prepare(model: nn.Module, runtime: str = 'any', dynamic_size: bool = False) -> TensorModel:
    """Make a copy of a model that is ready to be traced for a runtime.

    - Selections of channels get the form that is fastest in the runtime.
    - Weights that operators in place of heads derive from others are computed once.
    - Host layers that cannot be traced are replaced.

    The model, a backbone or task model, dense or a subnet, is not changed. The runtime is among
    :data:`RUNTIMES`; with ``dynamic_size`` height and width are not those of the trace.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f'expected a runtime among {RUNTIMES}, found {runtime!r}')
    view = TensorModel(copy.deepcopy(model))
    make_ours(view)
    for path, module in list(view.named_modules()):
        if isinstance(module, OperatorAttention):
            module.fold()
        elif isinstance(module, SlicedLayerNorm):
            view.set_submodule(path, _split_norm(module))
        product = getattr(module, 'scaled_dot_product_attention', None)
        if isinstance(product, partial) and \
                product.func.__name__ == 'scaled_dot_product_attention_pyimpl':
            # mmpretrain's version divides by its scale, and traces a dropout that OpenVINO refuses
            module.scaled_dot_product_attention = partial(F.scaled_dot_product_attention,
                                                          scale=1 / product.keywords['scale'])
    for module in view.modules():
        if isinstance(module, (Take, Put)):  # contiguous channels are sliced in any form
            group = largest_group(module.kept, module.total)
            if module.dim == -1 and group >= GROUPED_FROM:
                module.set_form('grouped', group)
            elif module.dim == -1 and runtime == 'onnxruntime':  # measured in docs/deploy.md
                module.set_form('elements')
            else:  # rows of maps are contiguous anyway
                module.set_form('gather')
    return traceable(view, dynamic_size)


def selection_forms(model: nn.Module, runtime: str) -> str:
    """Forms of a model's channel selections in a runtime: ``'24 elements, 2 sliced'``."""
    counts = Counter('sliced' if module.contiguous else module.form
                     for module in prepare(model, runtime).modules()
                     if isinstance(module, (Take, Put)))
    return ', '.join(f'{count} {form}' for form, count in counts.most_common()) or 'none'


@torch.no_grad()
def _split_norm(norm: SlicedLayerNorm) -> nn.Module:
    """Split into a norm over all channels with its affine part, and a selection behind it."""
    wide = nn.LayerNorm(norm.total, norm.eps, norm.weight is not None)
    for name, values in norm.named_parameters():
        # channels that are not kept are dropped behind the norm
        getattr(wide, name).zero_()[norm.kept] = values
    return nn.Sequential(wide, Take(norm.kept, norm.total))
