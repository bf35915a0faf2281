"""The converter of photographs, on made-up packages of the same form."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tools.dataset_converters import photographs


def pixels(seed, side=640):
    noise = np.random.default_rng(seed).integers(0, 255, (16, 16, 3)).astype('uint8')
    return Image.fromarray(noise).resize((side, side), 0)


def save(image, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def resources(files):
    """An archive as Qt's resource compiler writes it, of one folder with files."""
    names, data, tree = b'', b'', b''

    def name(text):
        nonlocal names
        place = len(names)
        names += struct.pack('>HI', len(text), 0) + text.encode('utf-16-be')
        return place

    tree += struct.pack('>IHIIQ', 0, 2, 1, 1, 0)  # the root: one child, the second entry
    tree += struct.pack('>IHIIQ', name('images'), 2, len(files), 2, 0)
    for text, content in files.items():
        tree += struct.pack('>IHIIQ', name(text), 0, 0, len(data), 0)
        data += struct.pack('>I', len(content)) + content
    header = 24
    return struct.pack('>4s5I', b'qres', 3, header, header + len(tree),
                       header + len(tree) + len(data), 0) + tree + data + names


def webp(image):
    file = io.BytesIO()
    image.save(file, 'WEBP', lossless=True)
    return file.getvalue()


@pytest.fixture(scope='module')
def packages(tmp_path_factory):
    """Wallpapers (one in two sizes and in a dark version), an archive, samples and cut-outs."""
    root = tmp_path_factory.mktemp('packages')
    own = root / 'gnome-backgrounds'
    for seed, name in enumerate(('a', 'b_640x640', 'c', 'd')):
        save(pixels(seed), own / f'usr/{name}.png')
    save(pixels(1, 700), own / 'usr/b_700x700.png')
    save(pixels(5), own / 'usr/b-d.png')
    save(pixels(6, 300), own / 'usr/small.png')
    save(Image.new('RGB', (640, 640), 'gray'), own / 'usr/flat.png')
    save(pixels(7), own / 'usr/screenshot.png')
    (own / 'usr/share/doc/one').mkdir(parents=True)
    (own / 'usr/share/doc/one/copyright').write_text('CC0')
    archive = root / 'gcompris-qt-data/usr/words.rcc'
    archive.parent.mkdir(parents=True)
    archive.write_bytes(resources({
        'dog.webp': webp(pixels(10, 200)), 'cat.webp': webp(pixels(11, 200)),
        'again.webp': webp(pixels(10, 240)), 'piece_a1.webp': webp(pixels(12, 200)),
        'tiny.webp': webp(pixels(13, 60)), 'sound.ogg': b'no picture'}))
    for seed, name in enumerate(('fruits', 'left01', 'tree'), 20):
        save(pixels(seed, 200), root / f'opencv-doc/usr/examples/data/{name}.jpg')
    for package, folder in (('tuxpaint-stamps-default', 'tuxpaint/stamps'),
                            ('openclipart-png', 'openclipart/png')):
        for index in range(7):
            cut = Image.new('RGBA', (120, 120))
            ImageDraw.Draw(cut).ellipse((20, 10, 110, 110 - 2 * index), 'red')
            save(cut, root / package / f'usr/share/{folder}/animals/birds/{index}.png')
        save(cut, root / package / f'usr/share/{folder}/animals/cartoon/drawn.png')
    return root


def names_of(folder):
    return sorted(path.stem for path in folder.iterdir())


def test_a_source_gives_every_picture_once(packages):
    found = photographs.find_wallpapers(packages / 'gnome-backgrounds')
    assert [picture.content.name for picture in found] == [
        'a.png', 'b_700x700.png', 'c.png', 'd.png']
    words = photographs.find_gcompris(packages / 'gcompris-qt-data')
    assert sorted(picture.name for picture in words) == [
        f'gcompris_words_images_{name}' for name in ('again', 'cat', 'dog')]
    different = photographs.open_different(words)
    assert len(different) == 2 and 'gcompris_words_images_cat' in different
    samples = photographs.find_samples(packages / 'opencv-doc')
    assert [picture.name for picture in samples] == ['opencv_data_fruits', 'opencv_data_tree']
    with pytest.raises(ValueError, match="expected an archive of Qt resources, found a file that "
                       "begins with b'RIFF'"):
        list(photographs.read_resources(b'RIFF0000'))


def test_files_are_on_one_side_and_crops_say_of_which_file_they_are(packages, tmp_path):
    counts = photographs.write(packages, tmp_path, (12, 6))
    assert counts == dict(train=5, held_out=3, stamps=7)
    train, held_out = (names_of(tmp_path / side) for side in ('train', 'held_out'))
    assert not set(train) & set(held_out)
    for side, names in (('train', train), ('held_out', held_out)):
        crops = names_of(tmp_path / f'{side}_crops')
        assert len(crops) == {'train': 12, 'held_out': 6}[side]
        assert {crop.partition('@')[0] for crop in crops} <= set(names)
    with Image.open(next((tmp_path / 'train_crops').iterdir())) as crop:
        assert crop.size == (224, 224)
    assert (tmp_path / 'LICENSES/one').read_text() == 'CC0'
    with pytest.raises(FileExistsError, match='expected a new folder'):
        photographs.write(packages, tmp_path, (1, 1))


def test_a_mask_is_where_the_stamp_is(packages, tmp_path):
    photographs.write(packages, tmp_path, (4, 4))
    assert [path.name for path in (tmp_path / 'classes').iterdir()] == ['animals-birds']
    assert len(names_of(tmp_path / 'classes/animals-birds')) == 7
    masks = sorted((tmp_path / 'truth').glob('*.png'))
    assert [path.stem for path in masks] == [f'animals-birds_{index}' for index in range(7)]
    for path in masks:
        mask = np.array(Image.open(path)) > 127
        image = np.array(Image.open(path.with_suffix('.jpg')), int)
        red = (image[..., 0] > 200) & (image[..., 1:] < 90).all(-1)
        assert 0.01 < mask.mean() < 0.7 and red[mask].mean() > 0.85


def test_clip_art_is_pasted_on_the_share_that_was_asked(packages, tmp_path):
    plain, pasted = tmp_path / 'plain', tmp_path / 'pasted'
    photographs.write(packages, plain, (12, 4))
    photographs.write(packages, pasted, (12, 4), share=1.)
    for path in sorted((pasted / 'train_crops').iterdir()):
        image = np.array(Image.open(path), int)
        assert ((image[..., 0] > 220) & (image[..., 1:] < 60).all(-1)).mean() > 0.02


def test_a_source_without_pictures_is_refused(packages, tmp_path):
    with pytest.raises(ValueError, match='expected unpacked packages with pictures of '
                       '`wallpapers` at .*, found 0 of them'):
        photographs.write(tmp_path / 'none', tmp_path / 'out', (1, 1))
    assert not (tmp_path / 'out').exists()
