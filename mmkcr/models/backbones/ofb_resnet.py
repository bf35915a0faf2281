"""ResNet with bi-masks on the width of every stage and inside its blocks (OFB, appendix F)."""

from typing import Dict, Iterator, List, Tuple

from mmpretrain.models import ResNet
from mmpretrain.models.backbones.resnet import Bottleneck
from torch import Tensor, nn

from mmkcr.core import Member
from mmkcr.models.gates import BiMaskGate
from mmkcr.models.layers.bimask import take_over
from mmkcr.models.layers.bimask_conv import GatedConv, MaskedBatchNorm
from mmkcr.registry import MODELS
from .bimask_sites import BiMaskSite, BiMaskSites

_NORM = ('weight', 'bias', 'running_mean', 'running_var')


@MODELS.register_module()
class OFBResNet(BiMaskSites, ResNet):
    """mmpretrain's ``ResNet`` of bottlenecks with the search space of Once-for-Both.

    Sites: ``layer<s>.<b>.conv1`` and ``.conv2``, the channels inside a block,
    with the options of an MLP; ``layer<s>.0.downsample.<k>``, the width of a
    stage, with those of a residual width. The mask multiplies what every block
    adds to the stage's stream. The stem stays; feature maps keep the dense
    widths, with 0 at channels that were dropped.

    Args:
        *args: See :class:`mmpretrain.models.ResNet`.
        gates (dict, optional): See :class:`OFBVisionTransformer`.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`mmpretrain.models.ResNet`.

    Raises:
        ValueError: Blocks of another kind, or grouped convolutions.
    """

    def _prepare(self, searchable: bool) -> None:
        super()._prepare(searchable)
        for _, block in self._blocks() if searchable else ():
            if type(block) is not Bottleneck or block.conv2.groups > 1:
                raise ValueError('expected bottlenecks without groups in a gated `OFBResNet`, '
                                 f'found `{block.__class__.__name__}` with '
                                 f'{block.conv2.groups} groups')

    # ---- sites ----------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[Tuple[str, Bottleneck]]:
        for layer in self.res_layers:
            for index, block in enumerate(getattr(self, layer)):
                yield f'{layer}.{index}', block

    def _width_site(self, layer: str) -> str:
        first = getattr(self, layer)[0].downsample
        index = next(i for i, module in enumerate(first) if isinstance(module, nn.Conv2d))
        return f'{layer}.0.downsample.{index}'

    def _describe_sites(self) -> Dict[str, BiMaskSite]:
        sites = {}
        for path, block in self._blocks():
            for name in ('conv1', 'conv2'):
                sites[f'{path}.{name}'] = BiMaskSite(getattr(block, name).out_channels, 'ffn')
            if block.downsample is not None:
                layer = path.split('.')[0]
                sites[self._width_site(layer)] = BiMaskSite(block.conv3.out_channels, 'width')
        return sites

    def _read_width(self, path: str) -> Dict[str, str]:
        """Width that a block reads: its stage's, or that of the stage before, if it is a site."""
        layer, index = path.split('.')[:2]
        number = self.res_layers.index(layer) - (index == '0')
        return dict(width=self._width_site(self.res_layers[number])) if number >= 0 else {}

    # ---- gates ----------------------------------------------------------------------------------

    def _norms(self, site: str) -> List[Tuple[nn.Module, str]]:
        """Norms whose output the site's mask multiplies: owner and name."""
        layer, index, name = site.split('.')[:3]
        stage = getattr(self, layer)
        if name != 'downsample':
            block = stage[int(index)]
            return [(block, getattr(block, f'norm{name[-1]}_name'))]
        downsample = stage[0].downsample
        found = [(downsample, str(len(downsample) - 1))]
        return found + [(block, block.norm3_name) for block in stage]

    def _gate_site(self, site: str, gate: BiMaskGate) -> None:
        path, _, name = site.rpartition('.')
        owner, conv = self.get_submodule(path), self.get_submodule(site)
        couplings, reader = self._read_width(site), ()
        if name == 'conv2':
            couplings = dict(width=f'{path}.conv1', written=self._width_site(path.split('.')[0]))
            reader = (owner.conv3, )
        setattr(owner, name, take_over(GatedConv, conv, gate=gate, couplings=couplings,
                                       reader=reader))
        for holder, norm in self._norms(site):
            setattr(holder, norm, take_over(MaskedBatchNorm, getattr(holder, norm),
                                            shared=(gate, )))

    def _ungate_site(self, site: str) -> None:
        path, _, name = site.rpartition('.')
        setattr(self.get_submodule(path), name,
                take_over(nn.Conv2d, self.get_submodule(site), ('gate', 'couplings', 'reader')))
        for holder, norm in self._norms(site):
            setattr(holder, norm, take_over(nn.BatchNorm2d, getattr(holder, norm), ('shared', )))

    # ---- parameters -----------------------------------------------------------------------------

    def _members(self, site: str) -> List[Member]:
        layer, index, name = site.split('.')[:3]
        stage = getattr(self, layer)
        members = [Member(getattr(owner, norm), part, 0, part in _NORM[:2])
                   for owner, norm in self._norms(site) for part in _NORM]
        members.append(Member(self.get_submodule(site), 'weight', 0))
        if name != 'downsample':
            block = stage[int(index)]
            reader = block.conv2 if name == 'conv1' else block.conv3
            return [*members, Member(reader, 'weight', 1)]
        members += [Member(block.conv3, 'weight', 0) for block in stage]
        members += [Member(block.conv1, 'weight', 1) for block in list(stage)[1:]]
        following = self.res_layers[self.res_layers.index(layer) + 1:][:1]
        for later in following:
            members += [Member(getattr(self, later)[0].conv1, 'weight', 1),
                        Member(self.get_submodule(self._width_site(later)), 'weight', 1)]
        return members

    # ---- output ---------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Feature maps of the dense widths."""
        outs = super().forward(x)
        return tuple(self.widen(out, self._width_site(self.res_layers[stage]), 1)
                     for stage, out in zip(self.out_indices, outs))
