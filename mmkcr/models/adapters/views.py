"""A host as a kind of site sees it: its MLPs, its attention, its residual streams.

An *adapter* is a function from a module of a host library to a view of it. It is registered under
the qualified name of the module's class, so no host library has to be imported. A subclass of a
known class uses the same adapter unless it has its own. Paths of a view start at the host, those
that an adapter gives at its module.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmkcr.core import Axis, Unsupported
from mmkcr.models.layers.take_over import is_patched

#: Package of mmpretrain's backbones.
BACKBONES = 'mmpretrain.models.backbones'
#: Words in a view that are no paths.
_NO_PATHS = ('why_no_channels', 'why_no_width', 'why_uncalled', 'width', 'rotary')
#: A reason of `why_uncalled`.
UNCALLED = 'its projections are not called as modules'
#: Packages of which it is known what their modules compute.
LIBRARIES = ('mmpretrain.', 'mmdet.', 'mmseg.', 'mmcv.', 'mmkcr.', 'timm.', 'transformers.')
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
class View:
    """Common part of all views: ``path`` of the module that they are of."""

    path: str

    def complete(self, host: nn.Module) -> 'View':
        """The view, completed from the host around the adapter's module."""
        return self


@dataclass(frozen=True)
class MLPView(View):
    """An MLP: projections into a hidden layer, and one out of it.

    Args:
        inputs (tuple[str, ...]): Projections into the hidden layer, linear or convolutions; gate
            and value may be the outputs of one, one after the other.
        output (str): The projection out of it.
        between (tuple[str, ...]): Depthwise convolutions and batch norms on hidden channels.
        hidden_norm (str): A layer norm over the hidden channels.
        norm (str): The norm that only this MLP reads.
        after (str): A module without parameters that is called exactly once, between the output
            projection and the residual sum.
        scales (tuple[str, ...]): Channelwise factors between output projection and ``after``.
        why_no_channels (str): Why input and output channels cannot be selected.
        width (str): Attribute of the module that records the hidden width.
    """

    inputs: tuple[str, ...]
    output: str
    between: tuple[str, ...] = ()
    hidden_norm: str = ''
    norm: str = ''
    after: str = ''
    scales: tuple[str, ...] = ()
    why_no_channels: str = ''
    width: str = ''

    def complete(self, host: nn.Module) -> 'MLPView':
        """Add the norm in front, or why there is none, unless the adapter says it."""
        if self.norm or self.why_no_channels:
            return self
        parent, _, name = self.path.rpartition('.')
        block, mlp = host.get_submodule(parent), host.get_submodule(self.path)
        norm = next((norm for norm in _NORMS_BEFORE.get(name, ()) if norm in block._modules), '')
        reasons = [] if self.after else ['nothing stands behind its last layer']
        reasons += [_NO_NORM_BEFORE[cls.__name__] for cls in type(block).__mro__
                    if cls.__name__ in _NO_NORM_BEFORE]
        if getattr(block, 'shortcut_proj_mlp', None) is not None:  # of timm's MViT
            reasons.append('the shortcut reads the norm of the MLP too')
        if not norm:
            reasons.append('no norm that only the MLP reads was found')
        reasons += [f'`{type(one).__name__}` is no registered class: nothing says what reads '
                    f'`{norm}`' for one in (block, mlp)
                    if not _of_library(one) and _names(one)[0] not in _ADAPTERS[MLPView]]
        return replace(self, why_no_channels=reasons[0]) if reasons else replace(
            self, norm=_absolute(parent, norm))


def record(layer: nn.Module, heads: int, width: int) -> nn.Module:
    """Set the attributes of an attention layer that record its heads, their width, and both."""
    sizes = {**dict.fromkeys(('num_heads', 'num_attention_heads', 'num_kv_heads'), heads),
             **dict.fromkeys(('head_dim', 'head_dims', 'attention_head_size'), width),
             **dict.fromkeys(('attn_dim', 'kv_dim', 'all_head_size'), heads * width)}
    for name, value in sizes.items():
        if hasattr(layer, name):
            setattr(layer, name, value)
    return layer


def known_axes(layer: nn.Module, table: nn.Module | None = None) -> list[Axis]:
    """Axes of parameters beside the projections, by their names in the hosts, if they are there.

    ``table`` is the module with the layer's biases by position, if the layer does not have it.
    """
    axes = [Axis(layer, name) for name in ('q_bias', 'k_bias', 'v_bias')]
    # of torch: queries, keys and values one after the other in one parameter
    axes += [Axis(layer, name, repeats=3) for name in ('in_proj_weight', 'in_proj_bias')]
    # with an entry for every head; since v5 of `transformers` a child has Swin's table
    owner = table or layer._modules.get('relative_position_bias', layer)
    by_head = [(owner, 'relative_position_bias_table', 1), (layer, 'logit_scale', 0),
               (layer, 'temperature', 0)]
    by_head += [(layer._modules[name][-1], 'weight', 0) for name in
                ('cpb_mlp', 'continuous_position_bias_mlp') if name in layer._modules]
    width = getattr(layer, 'head_dim', getattr(layer, 'attention_head_size', None))
    for owner, name, dim in by_head:
        value = getattr(owner, name, None)
        # not one for all heads; of a layer that does not show its width, an adapter tells `extra`
        if isinstance(value, Tensor) and value.numel() > 1 and (width or hasattr(layer, 'qkv')):
            axes.append(Axis(owner, name, dim, per=width or len(
                layer.qkv.weight) // (3 * value.shape[dim])))
    return axes


@dataclass(frozen=True)
class AttentionView(View):
    """Multi-head attention: queries, keys and values of H heads with d channels each.

    Args:
        projections (tuple[str, ...]): Layers of queries, keys and values, fused or not.
        output (str): The projection that reads the heads' outputs; called as a module.
        heads (int): H, if the module does not record it.
        width (int): d, as the output projection shows it.
        fused (tuple[int, ...]): For each projection, how many of queries, keys and values it
            holds, all heads of one after all heads of the next, as its weight shows: (3, ) for one
            layer ``qkv``, (1, 2) for queries alone, keys and values together.
        resize (Callable): Takes the module, its heads and their width after slicing; returns the
            module that computes with them.
        extra, of_heads (Callable): Take the module; return further axes, as
            :class:`~mmkcr.core.Axis`, with channels as units (biases, tables of positions), or
            with heads as units.
        why_no_width (str): Why heads cannot become narrower.
        why_uncalled (str): Why the projections are not called as modules, so that no hook sees
            queries and keys; known of a layer with a ``q_bias``.
        opened (Callable, optional): Takes the module; returns one of
            :mod:`~mmkcr.models.layers.sized_attention` that computes the same and calls its output
            projection as a module, and with rotary positions a child ``rotary``.
        rotary (str): Which channels of queries and keys rotary positions turn as a pair, see
            :func:`~mmkcr.functional.attention_refit.rotary_pairs`.
    """

    projections: tuple[str, ...]
    output: str
    heads: int = 0
    width: int = 0
    fused: tuple[int, ...] = ()
    resize: Callable[[nn.Module, int, int], nn.Module] = record
    extra: Callable[[nn.Module], list[Axis]] = known_axes
    why_no_width: str = ''
    why_uncalled: str = ''
    of_heads: Callable[[nn.Module], list[Axis]] | None = None
    opened: Callable[[nn.Module], nn.Module] | None = None
    rotary: str = ''

    def complete(self, host: nn.Module) -> 'AttentionView':
        """Add the heads, their width, the parts of projections, and whether these are called."""
        layer, size = host.get_submodule(self.path), host.get_submodule(self.output).weight.shape[1]
        recorded = getattr(layer, 'num_heads', getattr(layer, 'num_attention_heads', None))
        heads = self.heads or recorded or size // layer.head_dim
        fused = tuple(len(host.get_submodule(path).weight) // size for path in self.projections)
        # biases of the layer's own are added behind the projection, where hooks do not see them
        biased = getattr(layer, 'q_bias', None) is not None
        return replace(self, heads=heads, width=size // heads, fused=fused,
                       why_uncalled=self.why_uncalled or (UNCALLED if biased else ''))


class Reads(NamedTuple):
    """A layer that reads channels.

    Args:
        path (str): A linear layer or convolution.
        inner (int): Consecutive inputs of one channel (49 of a flattened 7 x 7 map).
        before (tuple[int | str, ...], optional): For a layer that reads a concatenation: the parts
            before these channels, each as a number of channels or as the path of its writer.
    """

    path: str
    inner: int = 1
    before: tuple[int | str, ...] | None = None


@dataclass(frozen=True)
class ChannelView(View):
    """Channels that some layers write, as a sum or concatenated, and other layers read.

    Args:
        writers (tuple[str, ...]): Linear layers and convolutions; the first names the site.
        readers (tuple[Reads, ...]): The layers that read them; there must be no others.
        norms (tuple[str, ...]): Norm behind each writer; '' where there is none.
        resize (Callable, optional): Takes the adapter's module and the number of channels that are
            left; sets attributes that depend on it.
    """

    writers: tuple[str, ...]
    readers: tuple[Reads, ...]
    norms: tuple[str, ...] = ()
    resize: Callable[[nn.Module, int], None] | None = None


@dataclass(frozen=True)
class StreamView(View):
    """A residual stream: the layers that embed into it, at ``path``, write and read it.

    Args:
        total (int): Channels.
        writers (tuple[str, ...]): Linear layers and convolutions.
        readers, norms (tuple[tuple[str, int], ...]): Layers that read the channels, layer norms
            over them, and their consecutive entries of one channel.
        masked (tuple[tuple[str, int], ...]): Modules whose output the stream's mask multiplies,
            with the channel dimension.
        folds (tuple[str, ...]): Of writers, scales and norms, those that the mask can be folded
            into.
        places (tuple[int, ...]): Positions, in the tuple that the host returns, of features with
            these channels.
        scales (tuple[str, ...]): Channelwise factors and batch norms.
        tokens (tuple[str, ...]): Parameters of the host that start it, (1, tokens, channels) each.
        resize (Callable, optional): As of :class:`ChannelView`, of the host.
    """

    total: int
    writers: tuple[str, ...]
    readers: tuple[tuple[str, int], ...]
    masked: tuple[tuple[str, int], ...]
    folds: tuple[str, ...]
    places: tuple[int, ...]
    scales: tuple[str, ...] = ()
    norms: tuple[tuple[str, int], ...] = ()
    tokens: tuple[str, ...] = ()
    resize: Callable[[nn.Module, int], None] | None = None


Adapter = Callable[[nn.Module], Any]
#: By the class of their views and the name of the class that they know.
_ADAPTERS: dict[type[View], dict[str, Adapter]] = {
    view: {} for view in (MLPView, AttentionView, ChannelView, StreamView)}


def _register(view: type[View], *names: str) -> Callable[[Adapter], Adapter]:
    def register(adapter: Adapter) -> Adapter:
        _ADAPTERS[view].update(dict.fromkeys(names, adapter))
        return adapter

    return register


#: Register ``adapter(module)``, which returns arguments of a view, or a list of such, for classes
#: of some qualified names; of :class:`StreamView` ``adapter(host)``, which returns a list of views.
mlp_adapter = partial(_register, MLPView)
attention_adapter = partial(_register, AttentionView)
channel_adapter = partial(_register, ChannelView)
stream_adapter = partial(_register, StreamView)


def in_transformers(**classes: str) -> list[str]:
    """Qualified names of classes of ``transformers``, separated by blanks, by their model."""
    return [f'transformers.models.{model}.modeling_{model}.{name}'
            for model, names in classes.items() for name in names.split()]


def present(arguments: Mapping[str, Any], module: nn.Module) -> Any:
    """Arguments of a view, with paths of tuples that a module has, not as an identity.

    A single path is the first of a tuple that is there.
    """
    there = {path for path, part in module.named_modules() if not isinstance(part, nn.Identity)}
    view = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, tuple):
            view[key] = tuple(filter(there.__contains__, value))
    for key in {'path', 'output', 'hidden_norm'} & view.keys():
        if isinstance(view[key], tuple):
            view[key] = next(iter(view[key]), '')
    return view if view.get('inputs', True) else []


def refuse_layer(reason: str, module: nn.Module) -> Any:
    """Refuse a layer for a reason, as an adapter of its class."""
    raise Unsupported(reason)


def known_hosts() -> list[str]:
    """Modules that define the layers with an adapter, such as ``timm.layers.mlp``."""
    return sorted({name.rpartition('.')[0]
                   for view in (MLPView, AttentionView) for name in _ADAPTERS[view]})


def _names(module: nn.Module) -> list[str]:
    """Qualified names of a module's class and of its bases, the class first."""
    return [f'{cls.__module__}.{cls.__qualname__}' for cls in type(module).__mro__]


def _adapter_of(view: type[View], module: nn.Module) -> Adapter | None:
    adapters = _ADAPTERS[view]
    return next((adapters[name] for name in _names(module) if name in adapters), None)


def _absolute(path: str, local: Any) -> Any:
    """Local paths, also in tuples and in :class:`Reads`, as paths from the host."""
    if isinstance(local, str):
        return '.'.join(filter(None, (path, local))) if local else ''
    if isinstance(local, Reads):
        return local._replace(path=_absolute(path, local.path),
                              before=_absolute(path, local.before))
    return tuple(_absolute(path, one) for one in local) if isinstance(local, tuple) else local


def _views(cls: type[View], host: nn.Module) -> list[View | Unsupported]:
    """Views of a host's modules, in their order; why there is none for a known one."""
    views: list[View | Unsupported] = []
    for path, module in host.named_modules():
        adapter = _adapter_of(cls, module)
        if adapter is None:
            continue
        try:
            parts = adapter(module)
            for local in parts if isinstance(parts, list) else [parts]:
                view = {key: value if key in _NO_PATHS else _absolute(path, value)
                        for key, value in local.items()}
                views.append(cls(**{**view, 'path': view.get('path') or path}).complete(host))
        except Unsupported as reason:  # one that cannot be seen does not hide the others
            views.append(Unsupported(f'{reason} at `{path}`'))
        except AttributeError as error:
            raise ValueError('expected layers whose weights are parameters of their own in the '
                             f'`{type(module).__name__}` at `{path}`, found that {error}: merge '
                             'adapters, remove masks and quantise afterwards') from error
    return views


def _of_library(module: nn.Module) -> bool:
    """Whether a module computes as a library says: its class adds no methods to one of theirs."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith(LIBRARIES):
            return not is_patched(module)
        if any(inspect.isroutine(value) and name != '__init__' or isinstance(value, property)
               for name, value in vars(cls).items()):
            return False
    return False


@torch.no_grad()
def keeps_zero(part: nn.Module) -> bool:
    """Whether a layer maps 0 to 0, whatever it learns; layers with weights count as such."""
    parameters = list(part.parameters())
    if parameters:  # a single entry may be that of an activation that learns to shift
        return isinstance(part, nn.PReLU) or any(one.numel() > 1 for one in parameters)
    try:  # a copy in evaluation mode, which draws no random numbers
        return not copy.deepcopy(part).eval()(torch.zeros(1)).any()
    except Exception:  # of whatever module
        return False


#: Take a host; give views of its MLPs, attention layers, and channels between layers of heads and
#: necks, in the order of its modules: an ``Unsupported`` for a known layer that cannot be seen.
mlp_views = partial(_views, MLPView)
attention_views = partial(_views, AttentionView)
channel_views = partial(_views, ChannelView)


def stream_views(host: nn.Module) -> list[Any]:
    """The residual streams of a host, in forward order, or the reason why there is none."""
    adapter = _adapter_of(StreamView, host)
    try:
        if adapter is None:
            raise Unsupported(f'the residual width of `{type(host).__name__}` has no adapter')
        return adapter(host)
    except Unsupported as reason:
        return [reason]
