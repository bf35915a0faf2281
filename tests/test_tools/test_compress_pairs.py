"""Each pair of options of ``mmkcr compress`` works, or is refused before an image is read."""

import functools
import itertools

import pytest
import torch

from lab.digits import DigitsOptions
from mmkcr.apis import compress, compress_files
from mmkcr.cli import compress as command
from mmkcr.cli import compress_config
from mmkcr.core import LatencyTable
from mmkcr.core.machine import this_machine
from mmkcr.engine.build import build_model, load_config
from mmkcr.models import Searchable
from .test_compress_tool import DIGITS, REPO

SCENES = str(REPO / 'configs/kcr/segmentation/'
             'kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py')
#: The words of every option; ``{folder}`` has the files that they name.
OPTIONS = {
    'macs': ['--target-macs', '70%'],
    'several': ['--target-macs', '80%', '70%'],
    'params': ['--target-params', '70%'],
    'latency': ['--target-latency', '90%', '--latency-table', '{folder}/table.json'],
    'structure': ['--structure', '{folder}/structure.json'],
    'scope': ['--scope', 'model'],
    'part': ['--part', 'backbone'],
    'sites': ['--sites', 'mlp_hidden'],
    'divisor': ['--divisor', '4'],
    'uniform': ['--uniform'],
    'rho': ['--rho', '0.01'],
    'memory': ['--memory', '2'],
    'profiles': ['--profiles', '{folder}/earlier'],
    'distil': ['--distil', '2'],
    'int8': ['--int8', 'onnxruntime'],
    'finetune': ['--finetune', '1'],
    'evaluate': ['--evaluate']}
TARGETS = ('macs', 'several', 'params', 'latency', 'structure')
#: Pairs that a network refuses, see `test_what_the_network_must_have_before_an_image_is_read`.
OF_NETWORK = (('scope', 'sites'), )
#: Pairs that contradict each other, and what is said of them.
REFUSED = {
    **dict.fromkeys(itertools.combinations(TARGETS, 2), 'not allowed with argument'),
    # one option, of which the last counts
    **{('structure', name): f'expected `--{name}` with a budget, found it with `--structure`'
       for name in ('scope', 'sites', 'divisor', 'uniform', 'profiles')},
    ('latency', 'scope'): 'expected another target to compress a whole model, found a time',
    ('scope', 'part'): "expected a budget over the whole model for the scope 'model'"}
del REFUSED['macs', 'several']
PAIRS = [pair for pair in itertools.combinations(OPTIONS, 2) if pair != ('macs', 'several')]


load_config = functools.lru_cache(load_config)


@pytest.fixture
def words(tmp_path):
    """``words(pair)``: of a call in a folder with all files that options name."""
    for name in ('dense.pth', 'structure.json'):
        (tmp_path / name).write_text('')
    LatencyTable(this_machine(), dict(runtime='eager', threads=1, batch=1, part=None,
                                      input_shape=[3, 32, 32]), 1000).save(tmp_path / 'table.json')

    def listed(pair):
        target = [] if set(pair) & set(TARGETS) else OPTIONS['macs']
        options = [word.format(folder=tmp_path) for name in pair for word in OPTIONS[name]]
        return [DIGITS, str(tmp_path / 'dense.pth'), '--out', str(tmp_path / 'out'),
                *target, *options]

    return listed


def assert_one_sentence(capsys, message):
    """A line with the message, behind the note on what is read, if it came to that."""
    *notes, error = capsys.readouterr().err.splitlines()
    assert message in error and error.startswith('error: ')
    assert all(note.startswith('Reading ') for note in notes)


class ImagesReached(Exception):
    """A call went as far as to build networks and to read images."""


@pytest.mark.parametrize('pair', PAIRS, ids='-'.join)
def test_pairs_are_checked_before_an_image_is_read(pair, words, monkeypatch, capsys):
    def reach(options):
        raise ImagesReached

    monkeypatch.setattr(compress_config, 'build_task', reach)
    monkeypatch.setattr(compress_config, 'check_data_folders', lambda *args: None)
    config = load_config(DIGITS)  # read once for all pairs
    monkeypatch.setattr(compress_config, 'load_config', lambda *args: config)
    monkeypatch.setattr(compress_config, 'require_quantizer', lambda runtime: None)
    if pair not in REFUSED:
        with pytest.raises(ImagesReached):
            command.main(words(pair))
        return
    with pytest.raises(SystemExit):
        command.main(words(pair))
    assert_one_sentence(capsys, REFUSED[pair])


#: Options of the closed form, under their names in Python.
CLOSED = dict(divisor=4, uniform=True, rho=0.01, memory=2**31,
              cost='params', part='model')


@pytest.mark.parametrize('pair', list(itertools.combinations(CLOSED, 2)), ids='-'.join)
def test_accepted_pairs_of_the_closed_form_work(pair):
    torch.manual_seed(0)
    model = build_model(load_config(DIGITS)).backbone
    images = torch.rand(2, 3, 32, 32)
    result = compress(model, images, '80%', ['mlp_hidden'], progress=False, probe_images=0, **{
        name: CLOSED[name] for name in pair})
    sizes = result.structure.params if 'cost' in pair else result.structure.macs
    assert sizes['subnet'] <= 0.8 * sizes['dense']


@pytest.mark.parametrize('change, message', [
    (['--target-macs', '60%', '60%'], 'expected targets that differ, found `60%` and `60%`'),
    (['--target-macs', '60%', '0.6'], 'expected targets that differ, found `60%` and `0.6`'),
    (['--target-macs', '100%'], 'expected a target below the dense network, found `100%`'),
    (['--target-macs', '-60%'], 'expected an amount above 0, found `-60%`'),
    (['--target-macs=-60%'], 'expected a target of MACs such as'),
    (['--target-macs', '60%', '--sites', 'mlp'], 'did you mean `mlp_hidden`?'),
    (['--target-macs', '60%', '--device', 'gpu'], 'expected a device'),
    (['--target-macs', '60%', '--scope', 'backbones'], 'did you mean `backbone`?')])
def test_one_sentence_each(change, message, words, capsys):
    with pytest.raises(SystemExit):
        command.main([*words(())[:4], *change])
    assert_one_sentence(capsys, message)


@pytest.mark.parametrize('place, value, message', [
    (1, '{folder}', 'expected a checkpoint at `{folder}`, found a folder')])
def test_what_is_compressed_in_one_sentence(place, value, message, words, capsys, tmp_path):
    call = words(())
    call[place] = value.format(folder=tmp_path)
    with pytest.raises(SystemExit):
        command.main(call)
    assert_one_sentence(capsys, message.format(folder=tmp_path))


def test_a_divisor_above_every_width():
    model = build_model(load_config(DIGITS)).backbone
    with pytest.raises(ValueError, match=r'expected a `divisor` .* at most the \d+ units of the '
                                         'widest site, found 4096'):
        compress(model, torch.rand(4, 3, 32, 32), '80%', divisor=4096, progress=False)


@pytest.mark.parametrize('refused, accepted, message', [
    (['--divisor', '4096'], ['--divisor', '16'], 'of the widest site, found 4096'),
    (['--scope', 'model', '--divisor', '4096'], ['--scope', 'model', '--divisor', '16'],
     'of the widest site, found 4096'),
    (['--scope', 'model', '--sites', 'mlp_hidden'],
     ['--scope', 'model', '--sites', 'mlp_hidden', 'channels'],
     "too, for the scope 'model', found `mlp_hidden`, whose sites are all in the backbone")])
def test_what_the_network_must_have_before_an_image_is_read(
        refused, accepted, message, words, monkeypatch, tmp_path, capsys):
    def reach(*_):
        raise ImagesReached

    monkeypatch.setattr(compress_files, 'calibration_images', reach)
    monkeypatch.setattr(compress_config, 'check_data_folders', lambda *_: None)
    torch.save(dict(state_dict=build_model(load_config(SCENES)).state_dict()),
               tmp_path / 'dense.pth')
    call = [SCENES, *words(('macs',))[1:]]
    with pytest.raises(SystemExit):
        command.main([*call, *refused])
    said = capsys.readouterr().err
    assert message in said and said.count('error: ') == 1
    with pytest.raises(ImagesReached):
        command.main([*call, *accepted])


@pytest.mark.long
@pytest.mark.parametrize('pair', [
    pair for pair in PAIRS if pair not in (*REFUSED, *OF_NETWORK)
    and not {'latency', 'profiles'} & set(pair)], ids='-'.join)
def test_accepted_pairs_work_in_full(pair, written_digits, load_tool, tmp_path):
    """On a tiny segmentor, which has a neck and heads to cut."""
    digits = written_digits(DigitsOptions(train_scenes=4, val_scenes=1))  # one is held out
    torch.manual_seed(0)
    config = load_config(SCENES)
    model = build_model(config)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'dense.pth')
    space = Searchable(model.backbone, sites=['mlp_hidden']).search_space
    space.structure_for({name: torch.arange(total // 2) for name, total in space.totals().items()}
                        ).save(tmp_path / 'structure.json')
    target = [] if set(pair) & set(TARGETS) else OPTIONS['macs']
    options = [word.format(folder=tmp_path) for name in pair for word in OPTIONS[name]]
    scenes = [f'{part}_dataloader.{key}' for part in ('train', 'val', 'test')
              for key in (f'dataset.data_root={digits}/scenes', 'num_workers=0')]
    load_tool('compress').main([
        SCENES, str(tmp_path / 'dense.pth'), '--images', '4', '--out', str(tmp_path / 'out'),
        '--shape', '64', *target, *options, '--cfg-options', *scenes])
    assert list((tmp_path / 'out').rglob('subnet.pth'))
