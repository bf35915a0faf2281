"""Heads and data that disagree on the classes are refused."""

from types import SimpleNamespace

import pytest
from mmpretrain.models import BaseSelfSupervisor
from torch import nn

from mmkcr.engine.checks import ClassCheckHook, check_classes


class Head(nn.Module):

    def __init__(self, num_classes):
        super().__init__()
        self.num_classes = num_classes


class Task(nn.Module):
    """A cascade: two box heads, a mask head, and a head for objects."""

    def __init__(self, *counts):
        super().__init__()
        self.rpn_head, self.neck = Head(1), Head(7)
        self.roi_head = nn.ModuleDict(
            {'bbox_head': nn.ModuleList(map(Head, counts[:2])), 'mask_head': Head(counts[2])})


def data(classes, **attributes):
    return SimpleNamespace(metainfo=dict(classes=classes), **attributes)


def test_agreement_passes():
    check_classes(Task(3, 3, 3), data(('a', 'b', 'c'), cat_ids=[1, 5, 9]), 'training')
    check_classes(nn.Sequential(Head(3)), data(('a', 'b')), 'training')  # no head by name
    for unnamed in (data(()), data('abc'), SimpleNamespace(), SimpleNamespace(metainfo=None)):
        check_classes(Task(3, 4, 5), unnamed, 'training')


@pytest.mark.parametrize('counts, name', [((4, 3, 3), r'roi_head.bbox_head.0'),
                                          ((3, 4, 3), r'roi_head.bbox_head.1'),
                                          ((3, 3, 4), r'roi_head.mask_head')])
def test_the_head_is_named(counts, name):
    with pytest.raises(ValueError, match=f'`num_classes` 3 of `{name}`, .* validation set '
                                         r'\(`SimpleNamespace`\), found 4$'):
        check_classes(Task(*counts), data(('a', 'b', 'c')), 'validation')


def test_categories_that_the_annotations_lack():
    with pytest.raises(ValueError, match='categories for the 3 classes of the training set .* '
                                         'found 1 of them'):
        check_classes(Task(3, 3, 3), data(('a', 'b', 'c'), cat_ids=[1]), 'training')


@pytest.mark.parametrize('part', ['train', 'val', 'test'])
def test_every_data_set_of_a_run_is_looked_at(part):
    loaders = {name: SimpleNamespace(dataset=data(('a', 'b') if name == part else tuple('abc')))
               for name in ('train', 'val', 'test')}
    runner = SimpleNamespace(model=Task(3, 3, 3), val_loop=object(), **{
        f'{name}_dataloader': loader for name, loader in loaders.items()})
    hook = ClassCheckHook()
    start, other = (hook.before_test, hook.before_train) if part == 'test' else (
        hook.before_train, hook.before_test)
    other(runner)
    with pytest.raises(ValueError, match='found 3'):
        start(runner)


class Unlabelled(BaseSelfSupervisor):
    """Learns without labels."""

    def loss(self, inputs, data_samples):
        return {}


@pytest.mark.parametrize('model, classes, notes', [
    (Unlabelled(nn.Identity()), ('a', 'b'), 1), (Unlabelled(nn.Identity()), (), 0),
    (Task(2, 2, 2), ('a', 'b'), 0)])
def test_labels_that_are_not_read_are_noted(model, classes, notes):
    said = []
    runner = SimpleNamespace(model=model, val_loop=None,
                             train_dataloader=SimpleNamespace(dataset=data(classes)),
                             logger=SimpleNamespace(info=said.append))
    ClassCheckHook().before_train(runner)
    assert len(said) == notes
    assert all(text == '`Unlabelled` learns without labels: those of the training set '
                       '(`SimpleNamespace`) are not read' for text in said)


def test_heads_of_other_labels_are_not_compared():
    """The hosts' HTC, SCNet, RPN and STDC train: stuff, objects and edges are no classes."""
    from mmdet.models import FusedSemanticHead, RPNHead
    from mmseg.models import STDCHead
    task = Task(3, 3, 3)
    task.roi_head['semantic_head'] = FusedSemanticHead(
        2, 0, num_convs=1, in_channels=4, conv_out_channels=4, num_classes=183)
    task.bbox_head = RPNHead(in_channels=4, feat_channels=4)  # mmdet's `RPN` calls it so
    task.auxiliary_head = STDCHead(0.1, in_channels=4, channels=4, num_classes=2, num_convs=1,
                                   loss_decode=[dict(type='CrossEntropyLoss', loss_weight=1.)] * 2)
    watched = data(('a', 'b', 'c'), pipeline=SimpleNamespace(transforms=[]))
    check_classes(task, watched, 'training')
    assert watched.pipeline.transforms[0].num_classes == 183  # the labels of the stuff maps


def test_heads_that_score_words_and_trackers_have_no_classes():
    """Grounding DINO and GLIP are tested on any classes; MOT's sets have 13, and one is found."""
    from mmdet.models import BaseMOTModel
    from mmdet.models.dense_heads import ATSSVLFusionHead, GroundingDINOHead

    class Tracker(BaseMOTModel):
        """Abstract methods only."""

        def loss(self, inputs, data_samples):
            return {}

        predict = loss

    for head in (ATSSVLFusionHead, GroundingDINOHead):
        task = nn.Module()
        task.bbox_head = nn.Module.__new__(head)
        nn.Module.__init__(task.bbox_head)
        task.bbox_head.num_classes = 256
        check_classes(task, data(('a', 'b', 'c')), 'test')
    tracker = Tracker()
    tracker.detector = Task(1, 1, 1)
    check_classes(tracker, data(('a', 'b', 'c')), 'test')


def test_panoptic_segmentation_detects_things_only():
    from mmdet.models import PanopticFPNHead
    panoptic = data(('a', 'b', 'c', 'sky', 'road'))
    panoptic.metainfo.update(thing_classes=('a', 'b', 'c'), stuff_classes=('sky', 'road'))
    task = Task(3, 3, 3)
    task.semantic_head = PanopticFPNHead(3, 2, in_channels=4, inner_channels=4,
                                         norm_cfg=dict(type='BN'))
    task.panoptic_fusion_head = Head(5)
    check_classes(task, panoptic, 'training')
    with pytest.raises(ValueError, match='`num_classes` 3 of `roi_head.mask_head`, the number of '
                                         'things of the training set .*, found 5$'):
        check_classes(Task(3, 3, 5), panoptic, 'training')
