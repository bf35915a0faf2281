"""Residual streams of ViT, Swin and ResNet: their writers and readers."""

import math
from collections.abc import Iterator, Sequence

from torch import nn

from mmkcr.core import Axis, Unsupported
from mmkcr.models.layers.take_over import take_over
from . import mlps
from .views import StreamView, stream_adapter

#: Tables of tokens that start a stream, where a host has them: (1, tokens, channels).
_TOKENS = ('pos_embed', 'cls_token', 'register_tokens', 'mask_token')
_BATCH_NORM = ('weight', 'bias', 'running_mean', 'running_var')


def _outputs(layer: nn.Module, folds: bool = False) -> list[Axis]:
    """Axes of the outputs of a layer."""
    return [Axis(layer, 'weight', 0, folds), Axis(layer, 'bias', 0, folds)]


def _is_norm(owner: nn.Module, name: str) -> bool:
    """Whether there is a layer norm; hosts leave norms out as None or an identity.

    Raises:
        Unsupported: There is another norm.
    """
    norm = getattr(owner, name, None)
    if norm is None or isinstance(norm, nn.Identity):
        return False
    if not isinstance(norm, nn.LayerNorm):
        raise Unsupported(f'the statistics of a `{type(norm).__name__}` over part of the channels '
                          'are not defined')
    return True


class ViTStream(StreamView):
    """The single stream of a ViT, from the patch embedding to the output."""

    def norms(self, host: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
        """See :class:`StreamView`."""
        owners = [(host.patch_embed, 'norm')]
        owners += [(host, name) for name in ('pre_norm', 'ln1', 'ln2')]
        owners += [(layer, name) for layer in host.layers for name in ('ln1', 'ln2')]
        yield from ((owner, name, 1) for owner, name in owners if _is_norm(owner, name))

    def axes(self, host: nn.Module) -> list[Axis]:
        """See :class:`StreamView`."""
        embed = host.patch_embed
        # the mask multiplies the embedding, so it folds into the layer that embeds last
        found = _outputs(embed.projection, embed.norm is None)
        found += [Axis(host, name, 2, True) for name in _TOKENS]
        for layer in host.layers:
            attn, ffn = layer.attn, layer.ffn
            # writers of the stream, then its readers (dim 1: input channels)
            for out, scale in ((attn.proj, attn.gamma1), (ffn.layers[1], ffn.gamma2)):
                found += [*_outputs(out), Axis(scale, 'weight')]
            found += [Axis(attn.qkv, 'weight', 1), Axis(ffn.layers[0][0], 'weight', 1)]
        return found + [axis for owner, name, _ in self.norms(host)
                        for axis in _outputs(getattr(owner, name), owner is embed)]

    def outputs(self, host: nn.Module) -> Sequence[int]:
        """See :class:`StreamView`."""
        return range(len(host.out_indices))


@stream_adapter('mmpretrain.models.backbones.vision_transformer.VisionTransformer')
def vision_transformer(host: nn.Module) -> list[StreamView]:
    """mmpretrain's ``VisionTransformer`` with its own blocks."""
    from mmcv.cnn.bricks.transformer import FFN
    from mmpretrain.models.utils import MultiheadAttention
    for layer in host.layers:
        known = (isinstance(getattr(layer, 'attn', None), MultiheadAttention)
                 and isinstance(getattr(layer, 'ffn', None), FFN))
        if not known or hasattr(host, 'dist_token'):
            raise Unsupported(f'the residual width of `{type(host).__name__}` has no adapter')
        mlps.ffn(layer.ffn)  # says what is not supported
    if hasattr(host, 'random_masking'):
        raise Unsupported(f'`{type(host).__name__}` masks images without a layer behind the '
                          'embedding of its tokens')
    stream = ViTStream('patch_embed', host.embed_dims, [('drop_after_pos', -1)])
    list(stream.norms(host))  # likewise
    return [stream]


def _merged(stage: nn.Module) -> int:
    """Neighbours whose channels the patch merging behind a stage puts side by side."""
    return math.prod(stage.downsample.sampler.kernel_size)


def _places(host: nn.Module, number: int) -> list[int]:
    """Place of a stage among a host's outputs, which are in the order of the stages."""
    return [place for place, index in enumerate(sorted(set(host.out_indices))) if index == number]


class SwinStream(StreamView):
    """The stream of one stage of Swin, embedded by the merging before it."""

    def __init__(self, host: nn.Module, number: int) -> None:
        path = f'stages.{number - 1}.downsample.reduction' if number else 'patch_embed'
        super().__init__(path, host.stages[number].embed_dims,
                         [(path, -1)] if number else [('drop_after_pos', -1)])
        self.number = number

    def norms(self, host: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
        """See :class:`StreamView`."""
        stage = host.stages[self.number]
        owners = [] if self.number else [(host.patch_embed, 'norm', 1)]
        owners += [(block, name, 1) for block in stage.blocks for name in ('norm1', 'norm2')]
        # output norms exist only for the stages in `out_indices`
        owners.append((host, f'norm{self.number}', 1))
        if stage.downsample is not None:
            owners.append((stage.downsample, 'norm', _merged(stage)))
        yield from (entry for entry in owners if _is_norm(*entry[:2]))

    def axes(self, host: nn.Module) -> list[Axis]:
        """See :class:`StreamView`."""
        stage, embed = host.stages[self.number], host.patch_embed
        if self.number == 0:
            found = _outputs(embed.projection, embed.norm is None)
            found += [Axis(host, name, 2, True) for name in ('absolute_pos_embed', 'mask_token')]
        else:
            found = _outputs(host.stages[self.number - 1].downsample.reduction, True)
        for block in stage.blocks:
            msa, ffn = block.attn.w_msa, block.ffn
            found += [Axis(msa.qkv, 'weight', 1), Axis(ffn.layers[0][0], 'weight', 1),
                      Axis(ffn.gamma2, 'weight'), *_outputs(msa.proj), *_outputs(ffn.layers[1])]
        if stage.downsample is not None:
            found.append(Axis(stage.downsample.reduction, 'weight', 1, inner=_merged(stage)))
        return found + [Axis(getattr(owner, name), part, 0, owner is embed, inner=inner)
                        for owner, name, inner in self.norms(host) for part in ('weight', 'bias')]

    def resize(self, host: nn.Module, units: int) -> None:
        """See :class:`StreamView`."""
        from mmpretrain.models.utils import WindowMSA

        from mmkcr.models.layers.mmpretrain_attention import SizedWindowMSA
        stage = host.stages[self.number]
        host.num_features[self.number] = stage.embed_dims = units
        for block in stage.blocks:
            layer = block.attn.w_msa
            # the heads of mmpretrain's fill the width of its input
            if isinstance(layer, WindowMSA) and not isinstance(layer, SizedWindowMSA):
                block.attn.w_msa = take_over(SizedWindowMSA, layer)
            block.attn.w_msa.embed_dims = block.ffn.embed_dims = units
        if stage.downsample is not None:
            stage.downsample.in_channels = units
        if self.number:
            host.stages[self.number - 1].downsample.out_channels = units

    def outputs(self, host: nn.Module) -> Sequence[int]:
        """See :class:`StreamView`."""
        return _places(host, self.number)


@stream_adapter('mmpretrain.models.backbones.swin_transformer.SwinTransformer')
def swin_transformer(host: nn.Module) -> list[StreamView]:
    """mmpretrain's ``SwinTransformer``: one stream per stage."""
    if host.out_after_downsample:
        raise Unsupported('features behind the merging of patches (`out_after_downsample=True`) '
                          'are of the next stage')
    for stage in host.stages:
        if stage.downsample is not None and stage.downsample.norm is None:
            raise Unsupported('patches are merged without a norm, which a supernet would mask')
        for block in stage.blocks:
            mlps.ffn(block.ffn)  # says what is not supported
    streams = [SwinStream(host, number) for number in range(len(host.stages))]
    for stream in streams:
        list(stream.norms(host))  # likewise
    return streams


class ResNetStream(StreamView):
    """The stream of one stage of a ResNet, embedded by its first shortcut.

    The mask multiplies what every block adds to the stream. The stem stays.
    """

    def __init__(self, host: nn.Module, number: int) -> None:
        name = host.res_layers[number]
        stage = getattr(host, name)
        last = f'{name}.0.downsample.{len(stage[0].downsample) - 1}'
        written = [last, *(f'{name}.{i}.{block.norm3_name}' for i, block in enumerate(stage))]
        super().__init__(_shortcut(host, number), stage[0].conv3.out_channels,
                         [(norm, 1) for norm in written])
        self.number = number

    def axes(self, host: nn.Module) -> list[Axis]:
        """See :class:`StreamView`."""
        stage = getattr(host, host.res_layers[self.number])
        # the mask is behind the batch norms: it folds into weight and bias, not statistics
        found = [Axis(host.get_submodule(norm), part, 0, part in _BATCH_NORM[:2])
                 for norm, _ in self.masked for part in _BATCH_NORM]
        found.append(Axis(host.get_submodule(self.path), 'weight', 0))
        found += [Axis(block.conv3, 'weight', 0) for block in stage]
        # the first block reads the stage before, all others read this stream
        found += [Axis(block.conv1, 'weight', 1) for block in list(stage)[1:]]
        if self.number + 1 < len(host.res_layers):
            following = getattr(host, host.res_layers[self.number + 1])
            shortcut = host.get_submodule(_shortcut(host, self.number + 1))
            found += [Axis(following[0].conv1, 'weight', 1), Axis(shortcut, 'weight', 1)]
        return found

    def outputs(self, host: nn.Module) -> Sequence[int]:
        """See :class:`StreamView`."""
        return _places(host, self.number)


def _shortcut(host: nn.Module, number: int) -> str:
    """Path of the convolution in the first shortcut of a stage."""
    name = host.res_layers[number]
    modules = getattr(host, name)[0].downsample
    index = next(i for i, module in enumerate(modules) if isinstance(module, nn.Conv2d))
    return f'{name}.0.downsample.{index}'


@stream_adapter('mmpretrain.models.backbones.resnet.ResNet')
def resnet(host: nn.Module) -> list[StreamView]:
    """mmpretrain's ``ResNet`` of bottlenecks: one stream per stage."""
    for number, name in enumerate(host.res_layers):
        for block in getattr(host, name):
            mlps.plain_bottleneck(block, (1, 3), (3, ))
        first = getattr(host, name)[0]
        if first.downsample is None:
            raise Unsupported(f'the first shortcut of `{name}` is no convolution: the stage has '
                              'the channels of the layers before it')
        mlps.plain_conv(host.get_submodule(_shortcut(host, number)))
        mlps.plain_norm(first.downsample[-1])
    return [ResNetStream(host, number) for number in range(len(host.res_layers))]
