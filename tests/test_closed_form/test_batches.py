"""Groups of whole images, and batches that do not mix them."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.closed_form.batches import (
    GROUPS,
    AugmentedImages,
    ImageBatches,
    augment_images,
    group_batches,
    source_groups,
    split_batches,
)


class Crops(ImageBatches):
    """Images, and what each was cropped from."""

    def __init__(self, origins, size=1):
        self.origins = origins
        super().__init__([torch.full((1, 1, 2, 2), float(place)) for place in range(len(origins))],
                         size)

    def sources(self):
        return [self.origins[int(image[0, 0, 0, 0])] for image in self._images]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
@settings(derandomize=True, deadline=None)
def test_crops_of_one_file_are_in_one_group(origins):
    groups = source_groups(Crops(origins))
    assert len(set(zip(origins, groups))) == len(set(origins))
    count = min(GROUPS, len(set(origins)))
    assert sorted(set(groups)) == list(range(count))
    # the first images of the groups are in their order: neighbours stay together
    assert list(dict.fromkeys(groups)) == list(range(count))


@pytest.mark.parametrize('count', [1, 2, 4, 5, 7, 23])
def test_groups_of_single_images_are_about_equal(count):
    groups = source_groups(ImageBatches([*torch.zeros(count, 1, 3, 4, 4)]))
    sizes = Counter(groups).values()
    assert len(sizes) == min(GROUPS, count) and max(sizes) - min(sizes) <= 1
    assert groups == sorted(groups)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 8))
@settings(derandomize=True, deadline=None)
def test_batches_have_one_group_each_and_every_image_once(origins, size):
    batches, groups = group_batches(Crops(origins), size)
    of_image = source_groups(Crops(origins))
    assert len(batches) == len(groups) and batches.images == len(origins)
    places = [[int(image[0, 0, 0]) for image in batch] for batch in batches]
    assert sorted(sum(places, [])) == list(range(len(origins)))
    for batch, group in zip(places, groups):
        assert len(batch) <= size and {of_image[place] for place in batch} == {group}


def test_batches_that_are_given_stay():
    given = [dict(inputs=torch.zeros(3, 1)) for _ in range(7)]
    batches, groups = group_batches(given, 16)
    assert batches is given and groups == [0, 0, 1, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40))
@settings(derandomize=True, deadline=None)
def test_held_out_images_are_of_other_files(origins):
    batches, held_out = split_batches(Crops(origins), None)
    calibrated, held = batches.sources(), held_out.sources()
    assert len(calibrated) + len(held) == len(origins) and held
    if len(set(origins)) > 1:
        assert not {*calibrated} & {*held} and calibrated
    if len(set(origins)) == len(origins):  # the last tenth
        assert held == origins[-max(1, len(origins) // 10):]


@pytest.mark.parametrize('size', [1, 3])
def test_few_images_are_augmented_by_crops(size):
    """Whole images first; crops have their values and sources, and do not depend on the batch."""
    ramp = torch.arange(48.).expand(48, 48)
    base = ImageBatches([(ramp + 100 * place).expand(1, 3, 48, 48) for place in range(2)])
    more = AugmentedImages(base, 7, seed=3)
    assert more.images == 7 and more.sources() == [0, 1, 0, 1, 0, 1, 0]
    images = torch.cat([*more.of_size(size)])
    torch.testing.assert_close(images, torch.cat([*more]))
    assert torch.equal(images[0], ramp.expand(3, 48, 48))
    for image, source in zip(images[2:], more.sources()[2:]):
        assert image.shape == (3, 48, 48)
        row = image[0, 0] - 100 * source
        assert row.min() >= 0 and row.max() <= 47
        # a crop spans half of the width or more, in one direction or the other
        assert row.max() - row.min() > 20 and len(row.diff().sign().unique()) < 3
    assert len({float(image.square().sum()) for image in images}) == 7
    assert len({bool(image[0, 0, 0] < image[0, 0, -1]) for image in images}) == 2  # mirrored


def test_enough_images_are_not_augmented():
    batches = ImageBatches([*torch.zeros(4, 1, 3, 4, 4)])
    assert augment_images(batches, 4, 0) is batches
    with pytest.raises(ValueError, match='augment them yourself'):
        augment_images([dict(x=torch.zeros(2))], 4, 0)
