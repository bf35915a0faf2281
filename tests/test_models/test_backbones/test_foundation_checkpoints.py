"""Files of DINOv2, MAE and CLIP in their authors' names: what timm computes of them, ours does."""

import pytest
import torch
from timm.layers import QuickGELU
from timm.models.vision_transformer import VisionTransformer as Reference
from timm.models.vision_transformer import checkpoint_filter_fn
from tool_files import load_tool
from torch import nn

from mmkcr.methods.named import DWConvVisionTransformer

D, DEPTH, HEADS, PATCHES = 24, 3, 2, 16
OURS = dict(arch=dict(embed_dims=D, num_layers=DEPTH, num_heads=HEADS, feedforward_channels=4 * D),
            img_size=56, patch_size=14, out_type='raw')
QUICK = dict(pre_norm=True, norm_cfg=dict(type='LN', eps=1e-5),
             layer_cfgs=dict(act_cfg=dict(type='mmpretrain.QuickGELU')))


def timm_names(registers=0, scales=False):
    """Shapes by the names of Facebook's DINOv2 and MAE."""
    shapes = {'cls_token': (1, 1, D), 'pos_embed': (1, PATCHES + 1, D), 'mask_token': (1, D),
              'patch_embed.proj.weight': (D, 3, 14, 14), 'patch_embed.proj.bias': (D, ),
              'norm.weight': (D, ), 'norm.bias': (D, )}
    if registers:
        shapes['register_tokens'] = (1, registers, D)
    for i in range(DEPTH):
        linear = {'attn.qkv': (3 * D, D), 'attn.proj': (D, D), 'mlp.fc1': (4 * D, D),
                  'mlp.fc2': (D, 4 * D), 'norm1': (D, ), 'norm2': (D, )}
        for name, shape in linear.items():
            shapes.update({f'blocks.{i}.{name}.weight': shape,
                           f'blocks.{i}.{name}.bias': shape[:1]})
        if scales:
            shapes.update({f'blocks.{i}.ls{j}.gamma': (D, ) for j in (1, 2)})
    return shapes


def mae_names():
    """The pre-training's file, with its decoder."""
    shapes = {**timm_names(), 'mask_token': (1, 1, 8), 'decoder_pos_embed': (1, PATCHES + 1, 8),
              'decoder_embed.weight': (8, D), 'decoder_blocks.0.norm1.weight': (8, ),
              'decoder_pred.bias': (5, )}
    return shapes


def clip_names():
    """Of OpenAI, with the text encoder."""
    shapes = {'positional_embedding': (7, 8), 'text_projection': (8, 8), 'logit_scale': (),
              'token_embedding.weight': (9, 8), 'ln_final.weight': (8, ),
              'transformer.resblocks.0.ln_1.weight': (8, ), 'visual.proj': (D, 8),
              'visual.class_embedding': (D, ), 'visual.positional_embedding': (PATCHES + 1, D),
              'visual.conv1.weight': (D, 3, 14, 14)}
    norms = {'ln_pre': (D, ), 'ln_post': (D, )}
    for i in range(DEPTH):
        start = f'transformer.resblocks.{i}'
        shapes.update({f'visual.{start}.attn.in_proj_weight': (3 * D, D),
                       f'visual.{start}.attn.in_proj_bias': (3 * D, )})
        norms.update({f'{start}.ln_1': (D, ), f'{start}.ln_2': (D, ),
                      f'{start}.attn.out_proj': (D, D), f'{start}.mlp.c_fc': (4 * D, D),
                      f'{start}.mlp.c_proj': (D, 4 * D)})
    for name, shape in norms.items():
        shapes.update({f'visual.{name}.weight': shape, f'visual.{name}.bias': shape[:1]})
    return shapes


CASES = {
    'dinov2': (timm_names(scales=True), dict(init_values=1e-5), dict(layer_scale_init_value=1e-5)),
    'dinov2-registers': (timm_names(4, True),
                         dict(init_values=1e-5, reg_tokens=4, no_embed_class=True),
                         dict(layer_scale_init_value=1e-5, num_registers=4)),
    'mae': (mae_names(), {}, {}),
    'clip': (clip_names(), dict(pre_norm=True, act_layer=QuickGELU, norm_layer=nn.LayerNorm,
                                num_classes=8), QUICK),
}


def published(name, seed=0):
    """A file's weights, each of another size, and timm's network with them."""
    generator = torch.Generator().manual_seed(seed)
    shapes, theirs, ours = CASES[name]
    state = {key: 0.2 * torch.randn(shape, generator=generator) + ('norm' in key or 'ln_' in key)
             for key, shape in shapes.items()}
    reference = Reference(img_size=56, patch_size=14, embed_dim=D, depth=DEPTH, num_heads=HEADS,
                          **{'num_classes': 0, **theirs})
    left_out = ('decoder_', 'mask_token') if name == 'mae' else ()
    reference.load_state_dict(checkpoint_filter_fn(
        {key: value for key, value in state.items() if not key.startswith(left_out)}, reference),
        strict=True)
    return state, reference.eval(), ours


def converted(tmp_path, content, *arguments):
    torch.save(content, tmp_path / 'theirs.pth')
    load_tool('model_converters/foundation_vit').main(
        [str(tmp_path / 'theirs.pth'), str(tmp_path / 'ours.pth'), *arguments])
    return dict(type='Pretrained', checkpoint=str(tmp_path / 'ours.pth'))


@pytest.mark.parametrize('name', CASES)
def test_outputs_are_those_of_the_reference(name, tmp_path, monkeypatch, capsys):
    said = []
    monkeypatch.setattr('mmengine.logging.print_log',
                        lambda text, *_, **__: text.startswith('Expected') and said.append(text))
    state, reference, ours = published(name)
    model = DWConvVisionTransformer(**OURS, **ours, init_cfg=converted(
        tmp_path, dict(model=state) if name == 'mae' else state))
    model.init_weights()
    model.eval()
    images = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        expected, found = reference.forward_features(images), model(images)[-1]
    assert not said  # every entry was loaded, and none was new
    assert expected.abs().max() > 1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    out = capsys.readouterr().out
    assert ('mask_token' in out) == (name != 'clip') and ('text_projection' in out) == (
        name == 'clip')


def test_torchscript_is_read_if_it_is_trusted(tmp_path, capsys):
    """OpenAI's files are archives of TorchScript, in fp16."""
    state, _, ours = published('clip')

    class Part(nn.Module):

        def __init__(self):
            super().__init__()
            for key, value in state.items():
                owner, names = self, key.split('.')
                for one in names[:-1]:
                    if not hasattr(owner, one):
                        owner.add_module(one, nn.Module())
                    owner = getattr(owner, one)
                owner.register_parameter(names[-1], nn.Parameter(value.half()))

        def forward(self, x):
            return x

    torch.jit.save(torch.jit.trace(Part(), torch.ones(1)), tmp_path / 'clip.pt')
    tool = load_tool('model_converters/foundation_vit')
    call = [str(tmp_path / 'clip.pt'), str(tmp_path / 'ours.pth')]
    with pytest.raises(SystemExit):
        tool.main(call)
    assert 'TorchScript archive' in capsys.readouterr().err
    assert not (tmp_path / 'ours.pth').exists()
    tool.main([*call, '--trust-checkpoint'])
    model = DWConvVisionTransformer(**OURS, **ours, init_cfg=dict(
        type='Pretrained', checkpoint=str(tmp_path / 'ours.pth')))
    model.init_weights()
    weight = state['visual.transformer.resblocks.2.mlp.c_fc.weight']
    assert torch.equal(model.layers[2].ffn.layers[0][0].weight, weight.half().float())


@pytest.mark.parametrize('change, message', [
    (lambda state: state.pop('norm.weight'), 'with what becomes `ln1.weight`'),
    (lambda state: state.update({'blocks.0.mlp.w12.weight': torch.ones(2)}),
     'the key `blocks.0.mlp.w12.weight`, which these do not have'),
    (lambda state: state.update({'cls_token': torch.full((1, 1, D), torch.nan)}), 'cls_token')])
def test_other_files_are_refused(change, message, tmp_path, capsys):
    state = published('dinov2')[0]
    change(state)
    with pytest.raises(SystemExit):
        converted(tmp_path, state)
    assert message in capsys.readouterr().err and not (tmp_path / 'ours.pth').exists()
