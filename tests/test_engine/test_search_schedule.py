"""The published schedule of the KCR search, all 200 epochs of it, on a toy network."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from sklearn.datasets import load_digits

from mmkcr.apis import count_macs, slim
from mmkcr.models.tasks import find_backbone

SCHEDULE = Path(__file__).parents[2] / 'configs/_base_/schedules/kcr_search_bs512_200e.py'
SHAPE, SAMPLES, BATCH = (3, 8, 8), 40, 12  # 28 for the weights, 12 for the gates


@DATASETS.register_module(force=True)
class DigitTensors(BaseDataset):
    """Digits of 8 x 8 pixels as the classifier takes them, without files."""

    def load_data_list(self):
        digits = load_digits()
        images = torch.tensor(digits.images[:SAMPLES], dtype=torch.float32) / 8 - 1
        return [dict(inputs=image.expand(SHAPE), gt_label=int(label))
                for image, label in zip(images, digits.target)]

    def prepare_data(self, idx):
        from mmpretrain.structures import DataSample
        info = self.data_list[idx]
        sample = DataSample(metainfo=dict(sample_idx=idx)).set_gt_label(info['gt_label'])
        return dict(inputs=info['inputs'], data_samples=sample)


class Watch(Hook):
    """Keeps alpha and the open gates' share of the MACs after every epoch."""

    def __init__(self):
        self.alpha, self.open = [], []

    def after_train_epoch(self, runner):
        model, macs = runner.model, runner.model.macs_model()
        self.alpha.append(torch.cat([p.detach().clone() for p in model.gate_parameters()]))
        self.open.append(macs({site: len(gate.selection())
                               for site, gate in model.gates().items()}) / macs.dense)


def search(work_dir, steps, **price):
    """Trains with 2 or 3 steps an epoch: the third has the 4 images that are left."""
    config = Config.fromfile(SCHEDULE)
    # as far as 74 steps an epoch with 1e-3 (38k images for the gates, 512 a batch)
    config.optim_wrapper.architecture.optimizer.lr = 1e-3 * 74 / 2
    config.custom_hooks[2].landmarks = 24
    config.custom_hooks[0].minimum = 1e-4  # as published: never reached
    config.train_cfg.val_interval = 1000
    backbone = dict(
        type='mmkcr.KCRVisionTransformer', img_size=8, patch_size=2, out_type='avg_featmap',
        arch=dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48),
        with_cls_token=False, gates=dict(type='mmkcr.GumbelChannelGate', min_size=4))
    head = dict(type='LinearClsHead', num_classes=10, in_channels=24)
    loader = dict(
        batch_size=BATCH, num_workers=0, drop_last=steps == 2,
        dataset=dict(type='DigitTensors', serialize_data=False),
        collate_fn=dict(type='default_collate'))
    config.update(
        model=dict(
            type='mmkcr.SearchModel',
            architecture=dict(type='ImageClassifier', backbone=backbone, head=head),
            regularizers=dict(kcr=dict(type='mmkcr.KernelComplexityLoss', num_features=24)),
            price=dict(type='mmkcr.MacsPrice', input_shape=SHAPE, **price)),
        train_dataloader=dict(loader, sampler=dict(type='DefaultSampler', shuffle=True)),
        # its test transforms, none, are those of the Nystrom refresh
        val_dataloader=dict(loader, sampler=dict(type='DefaultSampler', shuffle=False)),
        val_cfg=dict(), val_evaluator=dict(type='Accuracy'), test_cfg=None,
        default_hooks=dict(checkpoint=None, logger=dict(type='LoggerHook', interval=100)),
        default_scope='mmpretrain', randomness=dict(seed=1), work_dir=str(work_dir),
        log_level='ERROR', visualizer=None, experiment_name=work_dir.name)
    runner = Runner.from_cfg(config)
    watch = Watch()
    runner.register_hook(watch)
    runner.train()
    return runner.model, watch


def test_gates_move_to_the_target_until_the_end(tmp_path):
    model, watch = search(tmp_path, steps=2, target=0.75)
    assert len(watch.alpha) == 200
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert find_backbone(model).gates()['layers.0.ffn.mlp_channels'].temperature == \
        pytest.approx(4.5 * 0.95**199)  # 1.7e-4
    moved = (watch.alpha[-1] - watch.alpha[99]).abs()
    assert moved.mean() > 0.05
    # the open gates are the network that was asked for
    assert watch.open[0] == 1
    assert watch.open[-1] == pytest.approx(0.75, rel=0.05)
    subnet, structure = slim(model, input_shape=SHAPE)
    assert count_macs(subnet, SHAPE) == structure.macs['subnet']
    assert structure.macs['subnet'] == pytest.approx(0.75 * structure.macs['dense'], rel=0.05)


@pytest.mark.long
def test_the_papers_cost_stays_finite_until_the_end(tmp_path):
    """Whole samples of masks underflow on the way: the log of their sum was NaN by epoch 120."""
    model, watch = search(tmp_path, steps=3, cost='paper')
    assert len(watch.alpha) == 200
    assert all(torch.isfinite(p).all() for p in model.parameters())
    structure = slim(model, input_shape=SHAPE)[1]
    assert all(len(site.kept) >= 4 for site in structure.sites.values())
