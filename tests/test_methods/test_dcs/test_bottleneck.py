"""One pass over a data set: bounded in memory, the same for any part that k-means sees."""

import weakref

import pytest
import torch
from mmengine.registry import DefaultScope
from mmpretrain.structures import DataSample
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from mmkcr.methods.dcs import information_bottleneck as bottleneck
from mmkcr.methods.dcs.information_bottleneck import (
    InformationBottleneckLoss,
    information_statistics,
    refresh_bottleneck,
)
from mmkcr.registry import MODELS


class FewImages(Dataset):
    def __init__(self, n=26):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        image = torch.randint(0, 256, (3, 16, 16), generator=generator, dtype=torch.uint8)
        return dict(inputs=image, data_samples=DataSample().set_gt_label(i % 4))


@pytest.fixture
def model():
    DefaultScope.get_instance('test', scope_name='mmpretrain')
    vit = dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32)
    built = MODELS.build(dict(
        type='ImageClassifier', data_preprocessor=dict(mean=[127.] * 3, std=[60.] * 3),
        backbone=dict(type='VisionTransformer', arch=vit, img_size=16, patch_size=8),
        head=dict(type='VisionTransformerClsHead', num_classes=4, in_channels=16)))
    built.train(False)
    return built


def loader():
    return DataLoader(FewImages(), batch_size=5,
                      collate_fn=lambda rows: {key: [row[key] for row in rows] for key in rows[0]})


@pytest.mark.parametrize('layer, width', [('backbone', 16), ('head.layers.head:input', 16)])
def test_values_are_those_of_all_features_at_once(model, layer, width):
    found = information_statistics(model, loader(), 4, layer)
    data = model.data_preprocessor(next(iter(DataLoader(
        FewImages(), 26, collate_fn=loader().collate_fn))))
    features = model.backbone(data['inputs'])[-1].detach()
    loss = InformationBottleneckLoss(width, 4)
    again = refresh_bottleneck(model, loss, FewImages(), loader(), layer)
    assert again['i_labels'] == pytest.approx(found['i_labels'], abs=1e-6)
    phi = loss.log_phi(features).double().exp()
    joint = phi.T @ torch.eye(4).double()[torch.arange(26) % 4] / 26
    expected = (joint * (joint / joint.sum(0) / joint.sum(1, keepdim=True)).log()).sum()
    assert found['i_labels'] == pytest.approx(float(expected), abs=1e-6)
    assert found['n'] == 26 and found['ib'] <= found['ibb']


def test_every_image_goes_through_the_network_once(model, monkeypatch):
    """And only the drawn features are held."""
    seen, held, fit = [], [], bottleneck.fit_clusters
    model.backbone.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    monkeypatch.setattr(bottleneck, 'fit_clusters', lambda features, *args, **kwargs: held.append(
        features.shape) or fit(features, *args, **kwargs))
    loss = InformationBottleneckLoss(16, 4)
    drawn = torch.tensor([0, 3, 4, 9, 17])
    values = refresh_bottleneck(model, loss, FewImages(), loader(), drawn=drawn)
    assert sum(seen) == 26 and values['n'] == 26 and held == [(5, 16)]
    assert loss.ready and torch.allclose(loss.log_q.exp().sum(1), torch.ones(4))


class PeakBytes(TorchDispatchMode):
    """The most bytes of tensors made within it that were alive at a time."""

    def __init__(self):
        super().__init__()
        self.live, self.peak, self.known = 0, 0, weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.known:
                    self.known.add(storage)
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self.free, storage.nbytes())
                    self.peak = max(self.peak, self.live)
        return made

    def free(self, nbytes):
        self.live -= nbytes


@pytest.mark.parametrize('inputs', [None, 768])
def test_memory_does_not_grow_with_the_data_set(model, inputs, monkeypatch):
    monkeypatch.setattr(bottleneck, 'INPUTS_PER_CLUSTER', 5)  # of four

    def peak(n, drawn):
        loss = InformationBottleneckLoss(16, 4, input_features=inputs)
        with PeakBytes() as bytes_:
            refresh_bottleneck(model, loss, FewImages(n), loader(), drawn=torch.arange(drawn))
        return bytes_.peak

    peak(50, 20)  # what is made once
    few, many = peak(50, 20), peak(150, 20)
    assert many - few <= 100 * 9  # nine bytes a sample: the list of those that are not drawn
    if inputs is None:  # features that are held are seen; the inputs' clusters weigh more
        assert peak(150, 120) - many >= 100 * 64


def test_inputs_of_another_size_are_refused(model):
    loss = InformationBottleneckLoss(16, 4, input_features=12)
    with pytest.raises(ValueError, match='inputs of 12 numbers .* found `768`'):
        refresh_bottleneck(model, loss, FewImages(), loader())
