"""Residual streams of ViT, Swin and ResNet: their writers and readers."""

import math
from collections.abc import Iterable
from functools import partial

from torch import nn

from mmkcr.core import Unsupported
from mmkcr.lazy import is_of
from mmkcr.models.layers.take_over import take_over
from mmkcr.models.layers.window_attention import SizedWindowAttention
from . import mlps
from .views import StreamView, stream_adapter


def _paths(blocks: Iterable[str], *names: str) -> tuple[str, ...]:
    return tuple(f'{block}.{name}' for block in blocks for name in names)


def _once(paths: Iterable[str]) -> list[tuple[str, int]]:
    """Paths of layers with one entry for each channel."""
    return [(path, 1) for path in paths]


def _norms(host: nn.Module, norms: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The layer norms that are there, not None or an identity; refuses other norms."""
    present = []
    for path, inner in norms:
        owner, _, name = path.rpartition('.')
        norm = getattr(host.get_submodule(owner), name, None)
        if norm is None or isinstance(norm, nn.Identity):
            continue
        if not isinstance(norm, nn.LayerNorm):
            raise Unsupported(f'the statistics of `{type(norm).__name__}` over part of the '
                              'channels are not defined')
        present.append((path, inner))
    return tuple(present)


def _embedding(host: nn.Module) -> tuple[str, ...]:
    """The last layer of a patch embedding, into which the mask of its output folds."""
    return ('patch_embed.projection' if host.patch_embed.norm is None else 'patch_embed.norm', )


@stream_adapter('mmpretrain.models.backbones.vision_transformer.VisionTransformer')
def vision_transformer(host: nn.Module) -> list[StreamView]:
    """mmpretrain's ``VisionTransformer`` with its own blocks; refuses other blocks."""
    for layer in host.layers:
        known = is_of(getattr(layer, 'ffn', None), 'mmcv.cnn.bricks.transformer.FFN') and is_of(
            getattr(layer, 'attn', None), 'mmpretrain.models.utils.MultiheadAttention')
        if not known or hasattr(host, 'dist_token'):
            raise Unsupported(f'the residual width of `{type(host).__name__}` has no adapter')
        mlps.ffn(layer.ffn)  # says what is not supported
    if hasattr(host, 'random_masking'):
        raise Unsupported(f'`{type(host).__name__}` masks images without a layer behind the '
                          'embedding of its tokens')
    layers = [f'layers.{number}' for number in range(len(host.layers))]
    return [StreamView(
        'patch_embed', host.embed_dims,
        writers=('patch_embed.projection', *_paths(layers, 'attn.proj', 'ffn.layers.1')),
        readers=tuple(_once(_paths(layers, 'attn.qkv', 'ffn.layers.0.0'))),
        scales=_paths(layers, 'attn.gamma1', 'ffn.gamma2'),
        norms=_norms(host, _once(['patch_embed.norm', 'pre_norm', 'ln1', 'ln2',
                                  *_paths(layers, 'ln1', 'ln2')])),
        tokens=('pos_embed', 'cls_token', 'register_tokens', 'mask_token'),
        folds=_embedding(host), masked=(('drop_after_pos', -1), ),
        places=tuple(range(len(host.out_indices))))]


def _places(host: nn.Module, number: int) -> tuple[int, ...]:
    """Place of a stage among a host's outputs, which are in the order of the stages."""
    return tuple(place for place, index in enumerate(sorted(set(host.out_indices)))
                 if index == number)


@stream_adapter('mmpretrain.models.backbones.swin_transformer.SwinTransformer')
def swin_transformer(host: nn.Module) -> list[StreamView]:
    """mmpretrain's ``SwinTransformer``: one stream per stage, embedded by the merging before it.

    Raises:
        Unsupported: Patches are merged without a norm, or features leave behind the merging.
    """
    if host.out_after_downsample:
        raise Unsupported('features behind the merging of patches (`out_after_downsample=True`) '
                          'are of the next stage')
    for stage in host.stages:
        if stage.downsample is not None and stage.downsample.norm is None:
            raise Unsupported('patches are merged without a norm, which a supernet would mask')
        for block in stage.blocks:
            mlps.ffn(block.ffn)  # says what is not supported
    return [_swin_stage(host, number) for number in range(len(host.stages))]


def _swin_stage(host: nn.Module, number: int) -> StreamView:
    stage, merging = host.stages[number], f'stages.{number}.downsample'
    blocks = [f'stages.{number}.blocks.{place}' for place in range(len(stage.blocks))]
    writers = [*_paths(blocks, 'attn.w_msa.proj', 'ffn.layers.1')]
    readers = _once(_paths(blocks, 'attn.w_msa.qkv', 'ffn.layers.0.0'))
    # output norms exist only for the stages in `out_indices`
    norms = _once([*_paths(blocks, 'norm1', 'norm2'), f'norm{number}'])
    if stage.downsample is not None:  # it puts the channels of neighbours side by side
        merged = math.prod(stage.downsample.sampler.kernel_size)
        readers.append((f'{merging}.reduction', merged))
        norms.append((f'{merging}.norm', merged))
    if number:
        path = f'stages.{number - 1}.downsample.reduction'
        tokens, folds, masked = (), (path, ), (path, -1)
        writers.append(path)
    else:
        path, masked = 'patch_embed', ('drop_after_pos', -1)
        tokens, folds = ('absolute_pos_embed', 'mask_token'), _embedding(host)
        writers.append('patch_embed.projection')
        norms.append(('patch_embed.norm', 1))
    return StreamView(
        path, stage.embed_dims, tuple(writers), tuple(readers), masked=(masked, ), folds=folds,
        scales=_paths(blocks, 'ffn.gamma2'), norms=_norms(host, norms),
        tokens=tokens, places=_places(host, number), resize=partial(_resize_swin, number))


def _resize_swin(number: int, host: nn.Module, units: int) -> None:
    stage = host.stages[number]
    host.num_features[number] = stage.embed_dims = units
    for block in stage.blocks:
        layer = block.attn.w_msa
        if not isinstance(layer, SizedWindowAttention):  # the heads fill the width of its input
            block.attn.w_msa = take_over(SizedWindowAttention, layer)
        block.attn.w_msa.embed_dims = block.ffn.embed_dims = units
    if stage.downsample is not None:
        stage.downsample.in_channels = units
    if number:
        host.stages[number - 1].downsample.out_channels = units


@stream_adapter('mmpretrain.models.backbones.resnet.ResNet')
def resnet(host: nn.Module) -> list[StreamView]:
    """mmpretrain's ``ResNet`` of bottlenecks: one stream per stage, embedded by its first shortcut.

    The mask multiplies the output of every block before it is added to the stream. The stem stays.
    """
    shortcuts, streams = [], []
    for name in host.res_layers:
        stage = getattr(host, name)
        for block in stage:
            mlps.plain_bottleneck(block, (1, 3), (3, ))
        shortcut = stage[0].downsample
        if shortcut is None:
            raise Unsupported(f'the first shortcut of `{name}` is no convolution: the stage has '
                              'the channels of the layers before it')
        mlps.plain_norm(shortcut[-1])
        convs = [place for place, layer in enumerate(shortcut) if isinstance(layer, nn.Conv2d)]
        mlps.plain_conv(shortcut[convs[0]])
        shortcuts.append(f'{name}.0.downsample.{convs[0]}')
    for number, name in enumerate(host.res_layers):
        stage = getattr(host, name)
        blocks = [f'{name}.{place}' for place in range(len(stage))]
        # the mask is behind the batch norms
        norms = (f'{name}.0.downsample.{len(stage[0].downsample) - 1}',
                 *(f'{path}.{block.norm3_name}' for path, block in zip(blocks, stage)))
        # the first block reads the stage before, all others this stream, as the next stage does
        readers = [*_paths(blocks[1:], 'conv1')]
        if number + 1 < len(shortcuts):
            readers += [shortcuts[number + 1], f'{host.res_layers[number + 1]}.0.conv1']
        streams.append(StreamView(
            shortcuts[number], stage[0].conv3.out_channels, scales=norms, folds=norms,
            writers=(shortcuts[number], *_paths(blocks, 'conv3')), readers=tuple(_once(readers)),
            masked=tuple((norm, 1) for norm in norms), places=_places(host, number)))
    return streams
