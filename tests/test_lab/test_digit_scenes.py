"""Scenes and their two annotations."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as coco_mask

from lab.digit_scenes import Scene, coco_json, compose_scene
from lab.digit_sources import source_digits


def decode(annotation):
    """Mask of an annotation, decoded by the reference implementation."""
    return coco_mask.decode(coco_mask.frPyObjects(annotation['segmentation'],
                                                  *annotation['segmentation']['size']))


@settings(max_examples=200, deadline=None)
@given(arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))).filter(np.any),
       st.integers(0, 9))
def test_annotation_says_what_the_mask_says(mask, label):
    coco = coco_json({'a.png': Scene(np.zeros(mask.shape, np.uint8), [(label, mask)])})
    annotation, = coco['annotations']
    assert np.array_equal(decode(annotation), mask)
    rle = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert annotation['bbox'] == coco_mask.toBbox(rle).tolist()
    assert annotation['area'] == coco_mask.area(rle)
    names = {category['id']: category['name'] for category in coco['categories']}
    assert names[annotation['category_id']] == str(label)
    assert annotation['iscrowd'] == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(64, 200), st.integers(0, 2**32))
def test_digits_of_a_scene_do_not_overlap(canvas, seed):
    images, labels = source_digits()
    stream = ((images[i], labels[i]) for i in itertools.count(seed % 1000))
    scene = compose_scene(stream, canvas, np.random.default_rng(seed))
    masks = np.stack([mask for _, mask in scene.instances])
    assert 1 <= len(masks) <= 5 and masks.sum(axis=0).max() == 1
    assert masks.any(axis=(1, 2)).all()
    assert (scene.image[masks.any(axis=0)] > 0).all()  # a mask covers pixels with ink
    index = scene.index_mask()
    assert np.array_equal(index > 0, masks.any(axis=0))
    for (label, mask) in scene.instances:
        assert (index[mask] == label + 1).all()


def test_ids_are_unique_and_positive():
    mask = np.ones((4, 4), bool)
    scenes = {name: Scene(np.zeros((4, 4), np.uint8), [(3, mask), (4, mask)]) for name in 'abc'}
    coco = coco_json(scenes)
    assert [image['id'] for image in coco['images']] == [1, 2, 3]
    assert [annotation['id'] for annotation in coco['annotations']] == [1, 2, 3, 4, 5, 6]
    assert [annotation['image_id'] for annotation in coco['annotations']] == [1, 1, 2, 2, 3, 3]
