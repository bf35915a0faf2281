"""Makes the files of this folder, with the code of version 0.1 and no other.

    git archive d66246d | tar x -C OLD
    PYTHONPATH=OLD python tests/data/v0.1/make.py

A file holds, of one backbone: the arguments, the state_dict of a supernet and that of its subnet
(fp32), the structure file's text, and the outputs of both in eval mode in fp64 for
:func:`images`. (Those of Once for Both differ by rounding: masks were folded in fp32.)
"""

import gzip
from pathlib import Path

import torch
from torch import nn

from mmkcr import models
from mmkcr.apis import slim

CHANNELS, OPTIONS = dict(type='mmkcr.GumbelChannelGate', min_size=2), dict(type='mmkcr.BiMaskGate')
VIT = dict(arch=dict(embed_dims=12, num_layers=2, num_heads=3, feedforward_channels=16),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=8, depths=[1, 2], num_heads=[2, 4]), img_size=32, window_size=4,
            patch_size=4, out_indices=(0, 1), pad_small_map=True, drop_path_rate=0.)
EFFICIENT = dict(arch=dict(widths=[4, 4, 4, 8], depths=[1, 1, 1, 1], head_dim=4),
                 out_indices=(1, 2))
MOBILE = dict(arch=[['mobilenetv2', 4, 1, 1, 1], ['mobilevit', 8, 2, 8, 12, 1, 2],
                    ['mobilevit', 8, 1, 8, 12, 1, 2]], stem_channels=4, last_exp_factor=2,
              out_indices=(1, 2))
RESNET = dict(depth=50, num_stages=2, strides=(1, 2), dilations=(1, 1), base_channels=4,
              stem_channels=4, out_indices=(0, 1))
HEADS = dict(type='mmkcr.RelaxedTopKGate', count=3, blockwise=False)
#: Class, arguments, gates and the image's size by file name.
CASES = {
    'kcr_vit': ('KCRVisionTransformer', VIT, CHANNELS, (32, 40)),
    'kcr_swin': ('KCRSwinTransformer', SWIN, CHANNELS, (32, 44)),
    'kcr_efficientvit': ('KCREfficientViT', EFFICIENT, CHANNELS, (32, 48)),
    'dcs_efficientvit': ('DCSEfficientViT', dict(EFFICIENT, local=True), CHANNELS, (32, 48)),
    'dcs_mobilevit': ('DCSMobileViT', MOBILE, CHANNELS, (32, 32)),
    'ofb_vit': ('OFBVisionTransformer', VIT, OPTIONS, (32, 40)),
    'ofb_vit_sliced': ('OFBVisionTransformer', VIT, OPTIONS, (32, 40)),
    'ofb_swin': ('OFBSwinTransformer', SWIN, OPTIONS, (32, 44)),
    'ofb_resnet': ('OFBResNet', RESNET, OPTIONS, (32, 40)),
    'dwconv_vit': ('DWConvVisionTransformer', dict(VIT, num_registers=1), HEADS, (32, 40)),
    'kcr_dwconv_vit': ('KCRDWConvVisionTransformer', VIT, dict(attn=HEADS, ffn=CHANNELS), (32, 40)),
}


def images(height: int, width: int) -> torch.Tensor:
    """Two images whose values are whole multiples of 1 / 127, the same on every machine."""
    values = torch.arange(2 * 3 * height * width, dtype=torch.float64) * 7919 % 255 - 127
    return (values / 127).view(2, 3, height, width)


def randomise(model: nn.Module, seed: int) -> None:
    """Weights, gates and statistics at random, so that a wrong one shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        fan = parameter[0].numel() if parameter.ndim > 1 else 4
        scale = 1. if name.endswith(('alpha', 'importance')) else max(fan, 1)**-0.5
        parameter.data.normal_(0, scale, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)


def outputs(model: nn.Module, size: tuple) -> list:
    """In eval mode and fp64."""
    model = model.double()
    model.eval()
    with torch.no_grad():
        found = [out.clone() for out in model(images(*size))]
    model.float()
    return found


def main() -> None:
    """Write all files."""
    for seed, (name, (cls, kwargs, gates, size)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        supernet = getattr(models, cls)(**kwargs, gates=gates)
        randomise(supernet, seed)
        if name.endswith('_sliced'):  # as the progressive pruning leaves it, half-way
            for index, gate in enumerate(supernet.gates().values()):
                alive = gate.alive.clone()
                alive[-1, -2:] = False
                gate.restrict(alive if index % 2 else gate.only(1))
                gate.importance_weight.fill_(0.4)
            assert supernet.settle()
        subnet, structure = slim(supernet, None, 1, (3, *size))
        structure.provenance = dict(version='0.1', commit='d66246d')
        content = dict(type=cls, arguments=kwargs, gates=gates, size=size,
                       structure=structure.dumps(), supernet=supernet.state_dict(),
                       subnet=subnet.state_dict(), supernet_outputs=outputs(supernet, size),
                       subnet_outputs=outputs(subnet, size))
        with gzip.GzipFile(Path(__file__).parent / f'{name}.pt.gz', 'wb', mtime=0) as file:
            # the old format has a third of the size, for small tensors
            torch.save(content, file, _use_new_zipfile_serialization=False)
        sizes = {site: f'{len(entry.kept)}/{entry.total}'
                 for site, entry in structure.sites.items()}
        print(name, sizes)


if __name__ == '__main__':
    main()
