"""What layers and blocks have in common that take the place of others in a subnet."""

from typing import Any, Callable, Optional, Sequence, Tuple

from torch import Tensor, nn


class SharesParts(nn.Module):
    """Mixin of modules that are made of another one: keys, hooks and attributes stay.

    Args:
        module (nn.Module): All that it has is shared.
    """

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(module))


class DerivedWeights:
    """A value that is computed from parameters for inference, and kept while they are the same.

    The value holds as long as no parameter is exchanged, moved, cast or written to. Writes through
    ``.data``, as by averages that are swapped in before an evaluation, go unnoticed: the module
    (a :class:`DerivesWeights`) calls :meth:`forget` when its mode is set. Copies and pickles of a
    module start without it.
    """

    def __init__(self) -> None:
        self._state: Optional[list] = None
        self._value: Any = None

    def get(self, parameters: Sequence[Tensor], compute: Callable[[], Any]) -> Any:
        """The value, computed anew if a parameter has changed.

        Args:
            parameters (Sequence[Tensor]): What it depends on.
            compute (Callable): Without arguments.
        """
        state = [(id(p), p.data_ptr(), p._version, p.dtype) for p in parameters]
        if self._state != state:
            self._state, self._value = state, compute()
        return self._value

    def forget(self) -> None:
        """Compute anew at the next call."""
        self._state = self._value = None

    def __reduce__(self) -> Tuple[type, Tuple]:
        return DerivedWeights, ()


class DerivesWeights(nn.Module):
    """Mixin of layers with :class:`DerivedWeights` under ``_derived``: a mode forgets them."""

    _derived: DerivedWeights

    def train(self, mode: bool = True) -> 'DerivesWeights':
        """Set the mode, and forget what was derived."""
        self._derived.forget()
        return super().train(mode)
