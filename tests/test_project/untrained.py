"""Write random weights to a file: ``python untrained.py CONFIG|NAME FILE``.

A name is ``timm``, ``test_vit``, ``flava``, ``foundation``; or ``vit``, a folder of transformers.
"""

import sys
from pathlib import Path

import torch


def of_config(name):
    """As a training saves it; gates prefer some units."""
    from mmkcr.engine.build import build_model, load_config
    torch.manual_seed(0)
    model = build_model(load_config(name))
    gates = getattr(model, 'gates', dict)
    for gate in gates().values():
        torch.nn.init.normal_(gate.alpha, 0.5)
    return dict(state_dict=model.state_dict(), meta=dict(
        epoch=1, iter=1, dataset_meta=dict(classes=tuple('0123456789'))))


def of_library(name):
    """Of timm; or keys of FLAVA or of a foundation ViT, which are too large."""
    if name == 'flava':
        return {f'{key}.weight': torch.zeros(2) for key in (
            'image_model.encoder', 'text_model.encoder', 'multimodal_model.encoder',
            'image_to_mm_projection', 'text_to_mm_projection')}
    if name == 'foundation':
        return {key: torch.zeros(2) for key in (
            'cls_token', 'pos_embed', 'mask_token', 'patch_embed.proj.weight',
            'blocks.0.attn.qkv.weight', 'blocks.0.mlp.fc2.weight', 'norm.weight')}
    import timm
    torch.manual_seed(0)
    return timm.create_model('test_vit' if name == 'test_vit' else 'efficientvit_b1').state_dict()


def write_of_transformers(folder):
    """As ``save_pretrained`` writes a network."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor
    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8)).save_pretrained(folder)
    ViTImageProcessor(size=dict(height=32, width=32)).save_pretrained(folder)


if __name__ == '__main__':
    given, path = sys.argv[1:]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if given == 'vit':
        write_of_transformers(path)
    elif given == 'test_vit':
        torch.save(of_library(given), path)
    elif given in ('timm', 'flava', 'foundation'):
        from safetensors.torch import save_file
        save_file(of_library(given), path)
    else:
        torch.save(of_config(given), path)
