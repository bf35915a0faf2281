"""The layers behind a backbone that read a residual stream are found in batches of any size."""

import pytest
import torch
from mmengine.registry import DefaultScope
from mmpretrain.registry import MODELS

from mmkcr.models.search_space import SearchSpace
from mmkcr.models.stream_readers import find_outside


@pytest.mark.parametrize('sizes', [(20, ), (1, 1, 1), (1, 5), (5, 1)])
def test_the_classifier_reads_the_last_stage(sizes):
    """The pooled features of one image are constant over its positions, whatever is in them."""
    DefaultScope.get_instance('test', scope_name='mmpretrain')
    torch.manual_seed(0)
    model = MODELS.build(dict(
        type='ImageClassifier', neck=dict(type='GlobalAveragePooling'),
        backbone=dict(type='mmkcr.OFBSwinTransformer', img_size=32, patch_size=4, window_size=4,
                      arch=dict(embed_dims=12, depths=[1, 1], num_heads=[2, 4]), out_indices=(1, )),
        head=dict(type='LinearClsHead', num_classes=4, in_channels=24))).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    space: SearchSpace = model.backbone.search_space
    find_outside(space, model, [torch.randn(size, 3, 32, 32) for size in sizes],
                 lambda network, images: network(images))
    found = {name: {path: span for path, (_, span) in site.outside.items()}
             for name, site in space.sites.items() if site.kind == 'embedding'}
    assert list(found.values()) == [{}, {'/head.fc': (0, 24)}]
