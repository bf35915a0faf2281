"""Every format goes through the hosts' data sets and metrics: a perfect prediction scores 1."""

import json
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData

import mmkcr  # noqa: F401  (makes torchvision importable for the hosts)

BASES = Path(__file__).parents[2] / 'configs' / '_base_' / 'datasets'


def load(name, root):
    """Config of a data set that is at ``root``, read without worker processes."""
    text = (BASES / f'{name}.py').read_text().replace('data/digits', str(root))
    cfg = Config.fromstring(text, '.py')
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    return cfg


class Oracle(BaseModel):
    """Predicts the ground truth, or the next class if ``wrong``."""

    def __init__(self, predict, wrong=False):
        super().__init__()
        self.predict, self.wrong = predict, int(wrong)

    def forward(self, inputs, data_samples=None, mode='predict'):
        """Write the predictions into the samples."""
        for sample in data_samples:
            self.predict(sample, self.wrong)
        return data_samples


def predict_class(sample, wrong):
    """Classification score."""
    sample.set_pred_score(torch.eye(10)[(sample.gt_label[0] + wrong) % 10])


def predict_instances(sample, wrong):
    """Boxes and masks at the scale of the original image."""
    truth = sample.gt_instances
    sample.pred_instances = InstanceData(
        bboxes=truth.bboxes.tensor, labels=(truth.labels + wrong) % 10,
        scores=torch.ones(len(truth)), masks=truth.masks.to_tensor(torch.bool, 'cpu'))


def predict_pixels(sample, wrong):
    """Index mask; what it says of ignored pixels does not matter."""
    sample.pred_sem_seg = PixelData(data=(sample.gt_sem_seg.data.long() % 255 + wrong) % 10)


def evaluate(cfg, predict, wrong, tmp_path, scope):
    """Metrics of an oracle through a Runner."""
    runner = Runner(
        Oracle(predict, wrong), str(tmp_path), test_dataloader=cfg.test_dataloader,
        test_evaluator=cfg.test_evaluator, test_cfg={}, default_scope=scope,
        experiment_name=f'{scope}-{wrong}', log_level='ERROR')
    return runner.test()


TOP1 = {'accuracy/top1': pytest.approx(100, abs=1e-4)}


@pytest.mark.parametrize('name, scope, predict, scores, data', [
    ('digits_bs64', 'mmpretrain', predict_class, TOP1, {}),
    ('digits_bs64', 'mmpretrain', predict_class, TOP1,  # whose own classes are a thousand
     dict(type='ImageNet', metainfo=dict(classes=[str(i) for i in range(10)]))),
    ('digit_scenes_instance', 'mmdet', predict_instances,
     {'coco/bbox_mAP': 1, 'coco/segm_mAP': 1}, {}),
    ('digit_scenes_semantic', 'mmseg', predict_pixels, dict(mIoU=100, aAcc=100), {}),
    ('digit_scenes_semantic', 'mmseg', predict_pixels, dict(mIoU=100, aAcc=100),
     dict(type='ADE20KDataset', metainfo=None))])  # which refuses other classes than its 150
def test_scores(digits_root, tmp_path, name, scope, predict, scores, data):
    cfg = load(name, digits_root)
    cfg.test_dataloader.dataset.update(data)
    right, wrong = (evaluate(cfg, predict, wrong, tmp_path, scope) for wrong in (False, True))
    for key, best in scores.items():
        assert right[key] == best
        assert wrong[key] < 0.1 if scope == 'mmdet' else wrong[key] == 0


def test_background_as_a_class(digits_root, tmp_path):
    cfg = load('digit_scenes_semantic', digits_root)
    data = cfg.test_dataloader.dataset
    data.reduce_zero_label = False
    data.metainfo = dict(classes=['background', *data.metainfo.classes])
    init_default_scope('mmseg')
    dataset = Runner.build_dataloader(cfg.test_dataloader).dataset
    labels = {int(label) for sample in dataset
              for label in sample['data_samples'].gt_sem_seg.data.unique()}
    coco = json.loads((digits_root / 'scenes/annotations/instances_validation.json').read_text())
    categories = {annotation['category_id'] for annotation in coco['annotations']}
    assert labels == {0} | categories and len(categories) > 5
    assert len(dataset.metainfo['classes']) == 11


@pytest.mark.parametrize('name, scope, count', [
    ('digits_bs64', 'mmpretrain', 1437), ('digit_scenes_instance', 'mmdet', 10),
    ('digit_scenes_semantic', 'mmseg', 10)])
def test_training_pipeline(digits_root, name, scope, count):
    init_default_scope(scope)
    loader = Runner.build_dataloader(load(name, digits_root).train_dataloader)
    assert len(loader.dataset) == count
    assert len(loader.dataset.metainfo['classes']) == 10
    batch = next(iter(loader))
    side = 32 if scope == 'mmpretrain' else 153  # 128 px at a ratio of at most 1.2 (detection)
    assert all(image.shape[0] == 3 and max(image.shape[1:]) <= side for image in batch['inputs'])
    assert len(batch['inputs']) == len(batch['data_samples']) == loader.batch_size


def test_augmentation_is_light(digits_root):
    """Ink stays within the image: random crops move a digit by one source pixel at most."""
    init_default_scope('mmpretrain')
    cfg = load('digits_bs64', digits_root)
    augmented = Runner.build_dataloader(cfg.train_dataloader).dataset
    cfg.train_dataloader.dataset.pipeline = cfg.test_pipeline
    plain = Runner.build_dataloader(cfg.train_dataloader).dataset
    ratios = [augmented[i]['inputs'].float().mean() / plain[i]['inputs'].float().mean()
              for i in range(0, len(plain), 20)]
    assert 0.85 < torch.tensor(ratios).mean() <= 1.01
    assert min(ratios) > 0.5
    different = [not torch.equal(augmented[i]['inputs'], plain[i]['inputs']) for i in range(50)]
    assert sum(different) > 25
