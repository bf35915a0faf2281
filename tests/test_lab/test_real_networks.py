"""What networks of a folder have in common, and which crops they learn from."""

import numpy as np
import pytest
from PIL import Image

from lab import real_networks
from lab.real_networks import Settings, crop_files, make_lesson, read_crops


@pytest.fixture()
def folder(tmp_path):
    """Three crops of each of ten pictures, five of either source; a crop's level is its place."""
    for place in range(30):
        name = f'{"ab"[place // 15]}_{place // 3}@{place % 3}.jpg'
        Image.fromarray(np.full((20, 20, 3), 8 * place, 'uint8')).save(tmp_path / name)
    return tmp_path


def test_crops_are_known_by_their_picture(folder):
    files = crop_files(folder)
    assert len(files) == 10 and {len(paths) for paths in files.values()} == {3}
    assert list(crop_files(folder, ('b', ))) == [f'b_{index}' for index in range(5, 10)]
    with pytest.raises(FileNotFoundError, match='expected crops of photographs at .*, found none'):
        crop_files(folder, ('c', ))


def test_fewer_crops_are_of_as_many_pictures_as_there_can_be(folder):
    files = [path for paths in crop_files(folder).values() for path in paths]
    crops = read_crops(files, 10, 14)
    assert crops.shape == (10, 3, 14, 14)
    levels = read_crops(files, None, 14)[:, 0, 0, 0]
    assert [int((levels == one).nonzero()) // 3 for one in crops[:, 0, 0, 0]] == [*range(10)]
    assert len(read_crops(files, 100, 14)) == 30


def test_pictures_that_judge_are_not_learned_from(folder, monkeypatch):
    monkeypatch.setattr(real_networks, 'JUDGED', 4)
    files = crop_files(folder)
    learned, lesson = make_lesson(files, 12, 14, 28)
    assert len(learned) == 24 and lesson.count == 12 and lesson.images.shape == (12, 3, 14, 14)
    assert lesson.held_out.shape == (4, 3, 28, 28)
    seen = {float(level) for level in read_crops(learned, None, 28)[:, 0, 0, 0]}
    assert not seen & {float(level) for level in lesson.held_out[:, 0, 0, 0]}
    assert make_lesson(files, None) == ([path for paths in files.values() for path in paths], None)


def test_a_folder_holds_networks_of_one_setting(tmp_path):
    own = tmp_path / 'real'
    Settings(112, 64, ('a', )).check(own)
    Settings(112, 64, ('a', )).check(own)
    with pytest.raises(ValueError, match='expected networks made with .*64.*rho.*0.1.* in .*real`, '
                       'found .*: name another folder'):
        Settings(112, 64, ('a', ), 0.1).check(own)
