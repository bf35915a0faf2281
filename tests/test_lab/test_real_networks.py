"""What networks of a folder have in common, and which crops they learn from."""

from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from lab import real_networks
from lab.real_networks import Lesson, Networks, Settings, crop_files, make_lesson, read_crops
from mmkcr.distillation.training import Training


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


def test_networks_are_made_once_and_taught_on_a_lesson(tmp_path, capsys, monkeypatch):
    """What is read from the folder has the weights that were made; a lesson changes them alone."""
    def dense_backbone(**arguments):
        torch.manual_seed(0)
        return timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, depth=2,
                                 embed_dim=32, num_heads=4, num_classes=0, init_values=0.5,
                                 **arguments).eval()

    dense = SimpleNamespace(backbone=dense_backbone(), dense_backbone=dense_backbone)
    images = torch.randn(24, 3, 32, 32)
    networks = Networks(dense, images, tmp_path, lesson=Lesson(images[:20], images[20:], 64))
    slim = networks.get('random', '70%')
    assert slim.macs['subnet'] <= 0.7 * slim.macs['dense']
    made = capsys.readouterr().out
    again = networks.get('random', '70%')
    assert 'random-70' in made and not capsys.readouterr().out
    state, other = slim.backbone.state_dict(), again.backbone.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    compare, compared = Training.compare, []

    def killed(training, step):
        compared.append(step)
        if compared == [0, 1, 2]:
            raise KeyboardInterrupt
        return compare(training, step)

    monkeypatch.setattr(Training, 'compare', killed)
    with pytest.raises(KeyboardInterrupt):
        networks.get('random', '70%', teach=True)
    taught = networks.get('random', '70%', teach=True)
    assert compared == [0, 1, 2, 2, 3, 4]  # what was done before is not done again
    assert 'random-70-64' in capsys.readouterr().out
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert taught.structure.sizes() == slim.structure.sizes()
    assert taught.backbone.state_dict().keys() == state.keys()
