"""Heads and necks of mmdet and mmseg: who writes channels, and who reads them.

An adapter gives a view only if all readers of the channels are known. Otherwise it raises an
error that says in one sentence what is supported.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from mmkcr.core import Unsupported
from .views import Reads, channel_adapter, keeps_zero

_MMDET, _MMSEG = 'mmdet.models', 'mmseg.models.decode_heads'
View = dict[str, Any]


def _only(module: nn.Module, *names: str) -> None:
    """Refuse subclasses, which may read the channels elsewhere."""
    if type(module).__name__ not in names:
        raise Unsupported(f'`{type(module).__name__}` has no adapter, of its family '
                          f'`{"`, `".join(names)}` have')


def _convs(module: nn.Module, name: str) -> list[str]:
    return [f'{name}.{number}' for number in range(len(getattr(module, name)))]


def _view(module: nn.Module, paths: Sequence[str], readers: Sequence[Reads],
          **others: Any) -> View:
    """A view of the channels that some layers write: alone, or in mmcv's ``ConvModule``."""
    writers, norms = [], []
    for path in paths:
        layer = module.get_submodule(path)
        if not hasattr(layer, 'norm_name'):
            writers.append(path)
            norms.append('')
            continue
        # a channel that is not there may not become anything
        if layer.with_activation and not keeps_zero(layer.activate):
            raise Unsupported(f'the activation `{type(layer.activate).__name__}` of `{path}`, '
                              'which does not map 0 to 0,')
        writers.append(f'{path}.conv')
        norms.append(f'{path}.{layer.norm_name}' if layer.norm_name else '')
    return dict(writers=tuple(writers), readers=tuple(readers), norms=tuple(norms), **others)


def _chain(module: nn.Module, paths: Sequence[str], ends: Sequence[Reads]) -> list[View]:
    """Views of consecutive layers; ``ends`` read the last one."""
    views: list[View] = []
    for path in reversed(paths):
        views.insert(0, _view(module, [path], ends))
        ends = [Reads(views[0]['writers'][0])]
    return views


def _side_by_side(module: nn.Module, convs: Sequence[str], reader: str,
                  first: tuple[int, ...] = ()) -> list[View]:
    """Views of convolutions whose outputs one layer reads, concatenated behind ``first``."""
    before = (*first, *(f'{conv}.conv' for conv in convs))
    return [_view(module, [conv], [Reads(reader, before=before[:len(first) + number])])
            for number, conv in enumerate(convs)]


# ---- segmentation -------------------------------------------------------------------------------


@channel_adapter(f'{_MMSEG}.uper_head.UPerHead')
def uper_head(module: nn.Module) -> list[View]:
    """UPerNet: pooled maps, the sum of the levels, the concatenated levels, and the last map."""
    _only(module, 'UPerHead')
    pooled = [f'psp_modules.{number}.1' for number in range(len(module.psp_modules))]
    laterals, outs = _convs(module, 'lateral_convs'), _convs(module, 'fpn_convs')
    written = tuple(f'{out}.conv' for out in outs)
    # `bottleneck` reads the last feature map, then all pooled maps
    return [
        *_side_by_side(module, pooled, 'bottleneck.conv', (module.in_channels[-1], )),
        # the top-down sum ties all laterals and the bottleneck to the same channels; the coarsest
        # of them is also concatenated, behind the outputs of the fpn_convs
        _view(module, [*laterals, 'bottleneck'], [
            *map(Reads, written), Reads('fpn_bottleneck.conv', before=written)]),
        *_side_by_side(module, outs, 'fpn_bottleneck.conv'),
        _view(module, ['fpn_bottleneck'], [Reads('conv_seg')])]


@channel_adapter(f'{_MMSEG}.segformer_head.SegformerHead')
def segformer_head(module: nn.Module) -> list[View]:
    """SegFormer: the concatenated levels, and the last map."""
    _only(module, 'SegformerHead')
    return [*_side_by_side(module, _convs(module, 'convs'), 'fusion_conv.conv'),
            _view(module, ['fusion_conv'], [Reads('conv_seg')])]


@channel_adapter(f'{_MMDET}.layers.msdeformattn_pixel_decoder.MSDeformAttnPixelDecoder')
def pixel_decoder(module: nn.Module) -> list[View]:
    """Mask2Former: the finest map, if the layer of mask features alone reads it; refuses others."""
    if len(module.output_convs) != 1:
        raise Unsupported(f'{len(module.output_convs)} levels without attention, where one is '
                          'expected,')
    if module.num_outs > module.num_encoder_levels:
        raise Unsupported('a finest map that the decoder reads too (`num_outs`)')
    return [_view(module, ['output_convs.0'], [Reads('mask_feature')])]


# ---- detection ----------------------------------------------------------------------------------


@channel_adapter(f'{_MMDET}.dense_heads.rpn_head.RPNHead')
def rpn_head(module: nn.Module) -> list[View]:
    """The hidden map of a region proposal network."""
    _only(module, 'RPNHead')
    ends = [Reads('rpn_cls'), Reads('rpn_reg')]
    alone = isinstance(module.rpn_conv, nn.Conv2d)
    return _chain(module, ['rpn_conv'] if alone else _convs(module, 'rpn_conv'), ends)


@channel_adapter(f'{_MMDET}.roi_heads.bbox_heads.convfc_bbox_head.ConvFCBBoxHead')
def box_head(module: nn.Module) -> list[View]:
    """Shared convolutions and fully-connected layers of a head on regions; refuses other heads."""
    _only(module, 'ConvFCBBoxHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead')
    convs, layers = _convs(module, 'shared_convs'), _convs(module, 'shared_fcs')
    if not layers:
        raise Unsupported('a head on regions without shared fully-connected layers')
    ends = []
    for branch in ('cls', 'reg'):
        if len(getattr(module, f'{branch}_convs')):
            raise Unsupported(f'convolutions of the branch `{branch}` behind shared layers')
        of_branch = _convs(module, f'{branch}_fcs')
        # none if the branch is off
        end = Reads(of_branch[0] if of_branch else f'fc_{branch}')
        ends += [end] * getattr(module, f'with_{branch}')
    # the flattened region holds each channel as `area` adjacent entries
    area = 1 if module.with_avg_pool else module.roi_feat_area
    return [*_chain(module, convs, [Reads(layers[0], area)]), *_chain(module, layers, ends)]


@channel_adapter(f'{_MMDET}.roi_heads.mask_heads.fcn_mask_head.FCNMaskHead')
def mask_head(module: nn.Module) -> list[View]:
    """Convolutions of a mask head, with a transposed one before the last; refuses other heads."""
    _only(module, 'FCNMaskHead')
    if not isinstance(module.upsample, nn.ConvTranspose2d):
        raise Unsupported('a mask head that does not end with a transposed convolution')
    return _chain(module, [*_convs(module, 'convs'), 'upsample'], [Reads('conv_logits')])


@channel_adapter(f'{_MMDET}.necks.fpn.FPN')
def fpn(module: nn.Module) -> list[View]:
    """The sum of the levels in a feature pyramid; refuses levels that are made of the laterals."""
    _only(module, 'FPN', 'PAFPN')
    if module.add_extra_convs == 'on_lateral':
        raise Unsupported('levels that are made of the laterals (`add_extra_convs`)')
    laterals = _convs(module, 'lateral_convs')
    readers = [Reads(f'fpn_convs.{number}.conv') for number in range(len(laterals))]
    return [_view(module, laterals, readers)]


@channel_adapter(f'{_MMDET}.detectors.two_stage.TwoStageDetector')
def pyramid_of_two_stages(module: nn.Module) -> list[View]:
    """The maps that a feature pyramid passes to the region proposals and to the heads on regions.

    Raises:
        Unsupported: Another module may read the maps, or the pyramid has further convolutions.
    """
    neck, head = getattr(module, 'neck', None), module.roi_head
    _only(neck, 'FPN', 'PAFPN')
    if neck.add_extra_convs or head.with_shared_head:
        raise Unsupported('a feature pyramid with convolutions for more levels, or one that a '
                          'shared head reads')
    # whatever else has weights may read the pyramid: semantic heads, heads for masks' quality
    for part, known in ((module, ('backbone', 'neck', 'rpn_head', 'roi_head')),
                        (head, ('bbox_head', 'mask_head'))):
        for name, child in part.named_children():
            if name not in known and any(True for _ in child.parameters()):
                raise Unsupported(f'a feature pyramid that `{name}` may read')
    # one set of heads reads all levels, so all output convolutions share their channels
    convs = [f'neck.{conv}' for conv in _convs(neck, 'fpn_convs')]
    readers = [Reads(f'rpn_head.{_first(rpn_head(module.rpn_head))}')]
    if type(neck).__name__ == 'PAFPN':  # its levels are summed up once more
        more = [f'neck.{conv}' for name in ('downsample_convs', 'pafpn_convs')
                for conv in _convs(neck, name)]
        convs += more
        readers += [Reads(f'{conv}.conv') for conv in more]
    for name, adapter in (('bbox_head', box_head), ('mask_head', mask_head)):
        inner = getattr(head, name, None)
        several = isinstance(inner, nn.ModuleList)
        for place, one in enumerate(inner if several else filter(None, [inner])):
            first = _first(adapter(one))  # or says what is not supported
            area = one.roi_feat_area if first == 'shared_fcs.0' and not one.with_avg_pool else 1
            readers.append(Reads(f'roi_head.{name}.{f"{place}." if several else ""}{first}', area))
    return [_view(module, convs, readers, resize=_resize_regions)]


def _first(views: Sequence[View]) -> str:
    """Path of the layer that reads the module's input."""
    return views[0]['writers'][0]


def _resize_regions(module: nn.Module, channels: int) -> None:
    """Tell the layers that cut out regions how many channels they give."""
    for part in module.roi_head.modules():
        if hasattr(part, 'roi_layers'):
            part.out_channels = channels
