"""What a kind of site needs to know of a host: its MLPs, its attention, its residual streams.

An *adapter* is a function from a module of a host library to a view of it. It is registered under
the qualified name of the module's class, so no host library has to be imported. A subclass of a
known class uses the same adapter unless it has its own.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    NamedTuple,
)

from torch import Tensor, nn

from mmkcr.core import Axis, Unsupported

#: Packages of which it is known what their modules compute.
_LIBRARIES = ('mmpretrain.', 'mmdet.', 'mmseg.', 'mmcv.', 'mmkcr.', 'timm.', 'transformers.')
#: Norms in front of an MLP, by the attribute of the MLP in its block.
_NORMS_BEFORE = {
    'ffn': ('ln2', 'norm2', 'norm_ffn'), 'mlp': ('norm2', 'layernorm_after', 'layer_norm2'),
    'channel_mix': ('ln2', ),
}
#: Blocks whose MLP has no norm in front that it alone reads.
_NO_NORM_BEFORE = {
    **dict.fromkeys(
        ('SwinBlockV2', 'SwinTransformerV2Block', 'SwinTransformerV2CrBlock', 'EvaBlockPostNorm',
         'ResPostBlock', 'ResPostRelPosBlock'),
        'a norm follows the MLP and mixes its channels'),
    # mmpretrain's block calls `ln1` for both
    'DeiT3TransformerEncoderLayer': 'the host reads the norm of the attention for the MLP too',
    'ClassAttentionBlock': 'the host adds what the norm gives to the stream',
}


@dataclass(frozen=True)
class MLPView:
    """An MLP: projections into a hidden layer, and one out of it. Paths start at the host.

    Args:
        path (str): Path of the module that is the MLP.
        inputs (tuple[str, ...]): Projections (linear, or convolutions) into the hidden layer.
        output (str): The projection out of it.
        parts (int): How often the hidden units occur, one copy after the other, in the outputs of
            each input projection: 2 where gate and value are one layer. Defaults to 1.
        between (tuple[str, ...]): Modules that work on hidden channels one by one: depthwise
            convolutions, batch norms. Defaults to none.
        hidden_norm (str): A layer norm over the hidden channels. Defaults to none.
        norm (str): The norm that only this MLP reads. Defaults to ''.
        after (str): A module without parameters that is called exactly once, between the output
            projection and the residual sum. Defaults to ''.
        scales (tuple[str, ...]): Channelwise factors between output projection and ``after``.
        why_no_channels (str): Why input and output channels cannot be selected, or ''.
        dim (int): Channel dimension of the hidden layer: -1, or 1 for maps. Defaults to -1.
        width (str): Attribute of the module that records the hidden width. Defaults to ''.
    """

    path: str
    inputs: tuple[str, ...]
    output: str
    parts: int = 1
    between: tuple[str, ...] = ()
    hidden_norm: str = ''
    norm: str = ''
    after: str = ''
    scales: tuple[str, ...] = ()
    why_no_channels: str = ''
    dim: int = -1
    width: str = ''


class RotaryView(NamedTuple):
    """Rotary positions, which turn pairs of channels of queries and keys.

    Args:
        layout (str): Which channels are a pair, see
            :func:`~mmkcr.functional.attention_refit.rotary_pairs`.
        opened (Callable): Takes the module; returns one that computes the same, calls its
            projections as modules and rotates by a child ``rotary``, see
            :class:`~mmkcr.models.layers.sized_attention.Rotary`.
    """

    layout: str
    opened: Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class AttentionView:
    """Multi-head attention: queries, keys and values of H heads with d channels each.

    Args:
        path (str): Path of the module that computes the products.
        projections (tuple[str, ...]): Layers of queries, keys and values, fused or not.
        output (str): The projection that reads the heads' outputs; called as a module.
        heads (int): H.
        width (int): d.
        fused (tuple[int, ...]): For each projection, how many of queries, keys and values it
            holds, all heads of one after those of the other: (3, ) for one layer ``qkv``, (1, 2)
            for queries alone, keys and values together. Defaults to (3, ).
        resize (Callable): Takes the module, its heads and their width after slicing; returns the
            module that computes with them, itself or one of another class.
        extra (Callable, optional): Takes the module; returns further axes with channels as units
            (biases, tables of positions), as :class:`~mmkcr.core.Axis`. Defaults to none.
        why_no_width (str): Why heads cannot become narrower, or ''.
        called (bool): Whether the projections are called as modules, so that hooks see queries
            and keys. Defaults to True.
        why_uncalled (str): Why they are not.
        of_heads (Callable, optional): Takes the module; returns further axes with heads as units.
            Defaults to none.
        opened (Callable, optional): Takes the module; returns one that computes the same and calls
            its output projection as a module. Defaults to None: the module does so itself.
        rotary (RotaryView, optional): Positions that turn pairs of channels. Defaults to none.
    """

    path: str
    projections: tuple[str, ...]
    output: str
    heads: int
    width: int
    resize: Callable[[nn.Module, int, int], nn.Module]
    fused: tuple[int, ...] = (3, )
    extra: Callable[[nn.Module], list[Axis]] | None = None
    why_no_width: str = ''
    called: bool = True
    why_uncalled: str = 'its projections are not called as modules'
    of_heads: Callable[[nn.Module], list[Axis]] | None = None
    opened: Callable[[nn.Module], nn.Module] | None = None
    rotary: RotaryView | None = None


class Reads(NamedTuple):
    """A layer that reads channels.

    Args:
        path (str): Path of a linear layer or convolution, from the host.
        inner (int): Consecutive inputs of one channel (49 of a flattened 7 x 7 map). Defaults to
            1.
        before (tuple[int | str, ...], optional): For a layer that reads a concatenation: what
            comes before these channels, as numbers of channels or paths of the layers that write
            them. Defaults to None: it reads nothing else.
    """

    path: str
    inner: int = 1
    before: tuple[int | str, ...] | None = None


@dataclass(frozen=True)
class ChannelView:
    """Channels that some layers write, as a sum or concatenated, and other layers read.

    Args:
        writers (tuple[str, ...]): Linear layers and convolutions; the first names the site.
        readers (tuple[Reads, ...]): The layers that read them; there must be no others.
        norms (tuple[str, ...]): Norm behind each writer; '' where there is none. Defaults to none.
        resize (Callable, optional): Takes the module of the adapter and the number of channels
            that are left; sets attributes that depend on it. Defaults to nothing.
        path (str): Path of the adapter's module.
    """

    writers: tuple[str, ...]
    readers: tuple[Reads, ...]
    norms: tuple[str, ...] = ()
    resize: Callable[[nn.Module, int], None] | None = None
    path: str = ''


class LinearStream(NamedTuple):
    """The surroundings of a stream that only linear maps write, and read behind layer norms.

    Args:
        writers (tuple[tuple[str, str], ...]): Layers, each with the path of the layer scale of its
            outputs, or ''.
        tables (tuple[str, ...]): Tables of tokens, channels last.
        norms (tuple[tuple[str, tuple[str, ...]], ...]): Norms with the layers that read them.
        last (str): The norm that only layers behind the host read.
    """

    writers: tuple[tuple[str, str], ...]
    tables: tuple[str, ...]
    norms: tuple[tuple[str, tuple[str, ...]], ...]
    last: str


class StreamView:
    """A residual stream: what embeds into it, its norms, its readers and writers.

    An adapter subclasses it. A view holds no module of the host: every method takes the host, so
    that a deep copy of a host has views of its own modules.

    Args:
        path (str): Path of the layer that embeds (a patch embedding, a merging, a shortcut).
        total (int): Channels.
        masked (Sequence[tuple[str, int]]): Modules whose output the stream's mask multiplies,
            with the channel dimension.
    """

    def __init__(self, path: str, total: int, masked: Sequence[tuple[str, int]]) -> None:
        self.path, self.total, self.masked = path, total, tuple(masked)

    def axes(self, host: nn.Module) -> list[Axis]:
        """The axes along the channels; ``folds`` marks those that a mask can be folded into."""
        raise NotImplementedError

    def norms(self, host: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
        """Layer norms over the stream: owner, attribute name, entries per unit."""
        return iter(())

    def resize(self, host: nn.Module, units: int) -> None:
        """Set attributes of the host that record the number of channels."""

    def linear(self, host: nn.Module) -> LinearStream | None:
        """The stream's surroundings if it may be turned into other bases, else None."""
        return None

    def outputs(self, host: nn.Module) -> Sequence[int]:
        """Positions, in the tuple that the host returns, of features with these channels."""
        raise NotImplementedError

    def change_outputs(self, host: nn.Module, found: Any,
                       change: Callable[[Tensor, int], Tensor]) -> Any:
        """Change the features with these channels among what a host returns.

        Args:
            host (nn.Module): The host.
            found (Tensor | tuple | list): What it returned: the features, or one alone.
            change (Callable): Takes a feature and the dimension of its channels.
        """
        if isinstance(found, Tensor):
            return self.change_outputs(host, (found, ), change)[0]
        places = set(self.outputs(host))
        return type(found)(change(out, 1 if out.ndim == 4 else -1) if place in places else out
                           for place, out in enumerate(found))


Adapter = Callable[..., Any]
_MLPS: dict[str, Adapter] = {}
_ATTENTIONS: dict[str, Adapter] = {}
_STREAMS: dict[str, Adapter] = {}
_CHANNELS: dict[str, Adapter] = {}


def qualified_names(module: nn.Module) -> list[str]:
    """Qualified names of a module's class and of its bases, the class first."""
    return [f'{cls.__module__}.{cls.__qualname__}' for cls in type(module).__mro__]


def _register(table: dict[str, Adapter], names: Sequence[str]) -> Callable[[Adapter], Adapter]:
    def register(adapter: Adapter) -> Adapter:
        table.update(dict.fromkeys(names, adapter))
        return adapter

    return register


def mlp_adapter(*names: str) -> Callable[[Adapter], Adapter]:
    """Register ``adapter(module)``, which returns :class:`MLPView` arguments with local paths."""
    return _register(_MLPS, names)


def attention_adapter(*names: str) -> Callable[[Adapter], Adapter]:
    """Register ``adapter(module)``, which returns :class:`AttentionView` arguments."""
    return _register(_ATTENTIONS, names)


def stream_adapter(*names: str) -> Callable[[Adapter], Adapter]:
    """Register ``adapter(host)``, which returns a list of :class:`StreamView` of a whole host."""
    return _register(_STREAMS, names)


def channel_adapter(*names: str) -> Callable[[Adapter], Adapter]:
    """Register ``adapter(module)``, which returns a list of :class:`ChannelView` arguments."""
    return _register(_CHANNELS, names)


def simple_mlp(name: str, **arguments: Any) -> None:
    """Register an MLP whose parts have fixed local paths."""
    _MLPS[name] = lambda module: arguments


def known_hosts() -> list[str]:
    """Modules that define the layers with an adapter, such as ``timm.layers.mlp``."""
    return sorted({name.rpartition('.')[0] for table in (_MLPS, _ATTENTIONS) for name in table})


def _found(table: Mapping[str, Adapter], module: nn.Module) -> Adapter | None:
    return next((table[name] for name in qualified_names(module) if name in table), None)


def _absolute(path: str, local: Any) -> Any:
    if isinstance(local, str):
        return '.'.join(filter(None, (path, local))) if local else ''
    return tuple(_absolute(path, one) for one in local)


def _views(host: nn.Module, table: Mapping[str, Adapter],
           view_of: Callable[[nn.Module, str, dict[str, Any]], Any]) -> list[Any]:
    """What an adapter of each module of a host gives, by ``view_of`` from local to host paths."""
    views: list[Any] = []
    for path, module in host.named_modules():
        adapter = _found(table, module)
        if adapter is None:
            continue
        try:
            found = adapter(module)
        except Unsupported as reason:  # one that cannot be seen does not hide the others
            views.append(Unsupported(f'{reason} at `{path}`'))
            continue
        except AttributeError as error:
            raise ValueError('expected layers whose weights are parameters of their own in the '
                             f'`{type(module).__name__}` at `{path}`, found that {error}: merge '
                             'adapters, remove masks and quantise afterwards') from error
        views += [view_of(host, path, dict(local))
                  for local in (found if isinstance(found, list) else [found])]
    return views


def mlp_views(host: nn.Module) -> list[Any]:
    """Views of the MLPs of a host, in the order of its modules, with reasons where there is none.

    Returns:
        list[MLPView | Unsupported]: An ``Unsupported`` names a known MLP that cannot be seen.
    """
    return _views(host, _MLPS, _mlp_view)


def _mlp_view(host: nn.Module, path: str, local: dict[str, Any]) -> MLPView:
    own = local.pop('path', '')
    absolute = {key: _absolute(path, value) for key, value in local.items()
                if key in ('inputs', 'output', 'between', 'hidden_norm', 'after', 'scales', 'norm')}
    view = dict(local, **absolute, path=_absolute(path, own) or path)
    before = {} if 'norm' in local else _norm_before(host, path)
    # an adapter's own reason comes after, so it wins
    return MLPView(**{**before, **view})


def _norm_before(host: nn.Module, path: str) -> dict[str, str]:
    """The norm in front of an MLP, or why there is none.

    Args:
        host (nn.Module): The network.
        path (str): Path of the MLP.
    """
    parent, _, name = path.rpartition('.')
    block = host.get_submodule(parent)
    if _shortcut_reads_norm(block):
        return dict(why_no_channels='the shortcut reads the norm of the MLP too')
    for cls in type(block).__mro__:
        if cls.__name__ in _NO_NORM_BEFORE:
            return dict(why_no_channels=_NO_NORM_BEFORE[cls.__name__])
    for norm in _NORMS_BEFORE.get(name, ()):
        if norm in block._modules:
            reason = _why_not_alone(host, path, norm)
            return dict(why_no_channels=reason) if reason else dict(norm=_absolute(parent, norm))
    return dict(why_no_channels='no norm that only the MLP reads was found')


def of_library(module: nn.Module) -> bool:
    """Whether a module computes as a host library says: its class adds no methods to one of theirs.

    Args:
        module (nn.Module): Of any class.
    """
    for cls in type(module).__mro__:
        if cls.__module__.startswith(_LIBRARIES):
            return 'forward' not in vars(module)
        if any(inspect.isroutine(value) and name != '__init__' or isinstance(value, property)
               for name, value in vars(cls).items()):
            return False
    return False


def _why_not_alone(host: nn.Module, path: str, norm: str) -> str:
    """Why a norm may not be what an MLP's first layers alone read; '' in blocks that are known.

    Args:
        host (nn.Module): The network.
        path (str): Path of the MLP.
        norm (str): Name of the norm in the MLP's block.
    """
    module, block = host.get_submodule(path), host.get_submodule(path.rpartition('.')[0])
    foreign = [one for one in (block, module)
               if not of_library(one) and qualified_names(one)[0] not in _MLPS]
    return '' if not foreign else (f'`{type(foreign[0]).__name__}` is no registered class: nothing '
                                   f'says what reads `{norm}`')


def _shortcut_reads_norm(block: nn.Module) -> bool:
    """Whether it is a block of MViT (mmpretrain's or timm's) whose shortcut widens at the MLP."""
    if getattr(block, 'dim_mul_in_attention', True) is False:
        return getattr(block, 'proj', None) is not None
    return getattr(block, 'shortcut_proj_mlp', None) is not None


def attention_views(host: nn.Module) -> list[Any]:
    """Views of the attention layers of a host; see :func:`mlp_views`."""
    return _views(host, _ATTENTIONS, _attention_view)


def _attention_view(_: nn.Module, path: str, local: dict[str, Any]) -> AttentionView:
    return AttentionView(**{
        **local, 'path': _absolute(path, local.get('path', '')) or path,
        'projections': _absolute(path, local['projections']),
        'output': _absolute(path, local['output'])})


def channel_views(host: nn.Module) -> list[Any]:
    """Views of channels between layers of heads and necks; see :func:`mlp_views`."""
    return _views(host, _CHANNELS, _channel_view)


def _channel_view(_: nn.Module, path: str, local: dict[str, Any]) -> ChannelView:
    readers = tuple(reads._replace(
        path=_absolute(path, reads.path), before=None if reads.before is None else tuple(
            item if isinstance(item, int) else _absolute(path, item)
            for item in reads.before)) for reads in local['readers'])
    return ChannelView(**{
        **local, 'path': path, 'readers': readers, 'writers': _absolute(path, local['writers']),
        'norms': _absolute(path, local.get('norms', ()))})


def stream_views(host: nn.Module) -> list[StreamView]:
    """The residual streams of a host, in forward order.

    Raises:
        Unsupported: There is no adapter for the streams of this class of host.
    """
    adapter = _found(_STREAMS, host)
    if adapter is None:
        raise Unsupported(f'the residual width of `{type(host).__name__}` has no adapter')
    return adapter(host)
