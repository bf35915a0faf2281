"""Numbers and files that cannot be are refused, or made anew, in one sentence."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models import VisionTransformer
from torch import nn

from mmkcr.apis import compress
from mmkcr.closed_form.options import CompressOptions
from mmkcr.closed_form.progress import CompressProgress
from mmkcr.methods.search.search_model import load_scores


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_damaged_files_are_made_anew(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp('progress')
    layer = nn.Linear(3, 3)
    CompressProgress(folder, dict(a=1)).save_block('block', dict(layer=layer), dict(layer=0.1))
    path = folder / data.draw(st.sampled_from(['block.pth', 'key.json']))
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(['cut', 'flip', 'empty', 'noise']))
    place = data.draw(st.integers(0, len(content) - 1))
    if kind == 'flip':
        content[place] ^= 255
    path.write_bytes({'cut': content[:place], 'empty': b'', 'noise': b'\xff' * 100,
                      'flip': content}[kind])
    progress = CompressProgress(folder, dict(a=1))
    again = nn.Linear(3, 3)
    state = progress.read_block('block')
    if state is not None:  # a byte that does not matter
        again.load_state_dict(state.weights['layer'])
        assert torch.equal(again.weight, layer.weight)
    progress.save_block('block', dict(layer=layer), dict(layer=0.1))
    assert CompressProgress(folder, dict(a=1)).read_block('block')


@pytest.mark.parametrize('name', ['rho', 'order_rho', 'min_share', 'divisor', 'seed', 'memory'])
@given(value=st.sampled_from([math.nan, -1, -math.inf, math.inf, 'x', [1]]))
def test_options_out_of_range(name, value):
    with pytest.raises(ValueError, match=f'expected `{name}` within .*, found'):
        CompressOptions(**{name: value})


def test_weights_that_are_not_finite():
    arch = dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32)
    model = VisionTransformer(arch=arch, img_size=16, patch_size=8, out_type='avg_featmap')
    images = torch.randn(4, 3, 16, 16)
    model.layers[0].ffn.layers[1].bias.data[0] = math.inf
    with pytest.raises(ValueError, match='finite weights, found inf in `layers.0.ffn.layers.1.b'):
        compress(model, images, '60%', input_shape=(3, 16, 16))


@given(st.permutations(range(4)), st.integers(0, 3), st.sampled_from([float, str]))
def test_orders_are_whole_numbers(tmp_path_factory, order, place, kind):
    path = tmp_path_factory.mktemp('scores') / 'sensitivity.json'
    content = dict(order=order, losses=[1, .5, .3, .1, 0])
    path.write_text(json.dumps(dict(site=content)))
    assert load_scores(path)['site'][0].tolist() == order
    order[place] = kind(order[place])
    path.write_text(json.dumps(dict(site=content)))
    with pytest.raises(ValueError, match='an order of units and a loss'):
        load_scores(path)
