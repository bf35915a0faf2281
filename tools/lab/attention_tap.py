"""Reading attention out of a running model, whichever implementation computes it.

Shapes: B batch (times windows or patch positions where attention runs within those), H heads,
N positions, d head width.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from torch import Tensor, nn

from mmkcr.lazy import is_of
from mmkcr.models.layers.lite_mla import LiteMLA
from mmkcr.models.layers.window_attention import SizedWindowAttention
from mmkcr.models.tasks import unwrap


class Attention(NamedTuple):
    """Attention of one layer in one forward pass.

    Args:
        weights (Tensor): (B, H, N, N). Rows sum to 1 (for linear attention, up to its eps; a
            query without an open channel has a row of zeros).
        product (Tensor): Product of the (masked) queries and keys, unscaled, (B, H, N, N).
        width (int): Head width d, the largest rank of ``product``.
    """

    weights: Tensor
    product: Tensor
    width: int


class AttentionTap:
    """Captures the attention of every layer during the ``with`` block.

    It knows softmax attention by ``scaled_dot_product_attention`` (ViT, MobileViT, with or without
    DCS's mask), Swin's windows, and the linear attention of EfficientViT, whose weights are
    ``ReLU(q_i) . ReLU(k_j) / sum_j``. If a layer runs more than once, the last run counts.

    Args:
        model (nn.Module): Any model, also in a distributed wrapper.

    Raises:
        ValueError: It has no such layer.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = dict(_attentions(unwrap(model)))
        if not self.layers:
            raise ValueError('expected a model with attention (ViT, Swin, MobileViT, '
                             f'EfficientViT), found none in `{type(unwrap(model)).__name__}`')
        self.attention: dict[str, Attention] = {}
        self._stack = ExitStack()

    def __enter__(self) -> 'AttentionTap':
        self.attention.clear()
        for name, (module, attribute, record) in self.layers.items():
            self._stack.callback(self._replace(name, module, attribute, record))
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def _hook_windows(self, name: str, module: nn.Module) -> Callable[[], None]:
        """Hook Swin's projection and its softmax, as there is no function to replace."""
        def project(_: nn.Module, args: Any, out: Tensor) -> None:
            # (B, H, N, d)
            q, k, _ = out.unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
            products[:] = [q.detach().float() @ k.detach().float().transpose(-2, -1), q.shape[-1]]

        def weigh(_: nn.Module, args: Any, out: Tensor) -> None:
            self.attention[name] = Attention(out.detach(), *products)

        def undo() -> None:
            for handle in handles:
                handle.remove()

        products: list = []  # written by the projection, read by the softmax behind it
        handles = [module.qkv.register_forward_hook(project),
                   module.softmax.register_forward_hook(weigh)]
        return undo

    def _replace(self, name: str, module: nn.Module, attribute: str,
                 record: Callable | None) -> Callable[[], None]:
        """Record the calls of a module's callable; return what undoes it."""
        if attribute == 'softmax':
            return self._hook_windows(name, module)
        original, own = getattr(module, attribute), attribute in vars(module)
        # some hosts give their scale by a `partial`
        given = getattr(original, 'keywords', {})

        def recording(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            scale = {**given, **kwargs}.get('scale')
            self.attention[name] = record(module, q.detach(), k.detach(), scale)
            return original(q, k, *args, **kwargs)

        # an attribute of the instance hides a method of the class, and may be one already
        vars(module)[attribute] = recording
        return lambda: vars(module).update({attribute: original}) if own else \
            vars(module).pop(attribute)


def _attentions(
        model: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str, Callable | None]]]:
    for name, module in model.named_modules():
        if isinstance(module, LiteMLA):
            yield name, (module, 'attend', _linear)
        elif is_of(module, 'mmpretrain.models.utils.WindowMSA') or \
                type(module) is SizedWindowAttention:
            yield name, (module, 'softmax', None)
        elif callable(getattr(module, 'scaled_dot_product_attention', None)):
            yield name, (module, 'scaled_dot_product_attention', _softmax)


def _softmax(module: nn.Module, q: Tensor, k: Tensor, scale: Any = None) -> Attention:
    product = q.float() @ k.float().transpose(-2, -1)
    scale = q.shape[-1]**-0.5 if scale is None else scale
    return Attention((product * scale).softmax(-1), product, q.shape[-1])


def _linear(module: nn.Module, q: Tensor, k: Tensor, scale: Any = None) -> Attention:
    # LiteMLA has positions last: q and k are (B, H, d, N)
    product = q.float().transpose(-2, -1) @ k.float()
    return Attention(product / (product.sum(-1, keepdim=True) + module.eps), product, q.shape[-2])
