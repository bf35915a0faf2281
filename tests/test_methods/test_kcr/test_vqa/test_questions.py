"""Questions about images: tokens, answers, SNLI-VE, the digits' questions, the check of files."""

import json

import mmpretrain.datasets.coco_vqa  # noqa: F401  (registered beside transformers alone)
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope
from tool_files import load_tool

from lab.digit_scenes import Scene
from mmkcr.datasets import check_data_folders
from mmkcr.methods.kcr.vqa.questions import SNLIVE, LabelAnswer, TokenizeQuestion
from tools.dataset_converters.digits_vqa import (
    ANSWERS,
    WORDS,
    QuestionOptions,
    chance,
    questions_of,
    write_questions,
)


@pytest.fixture(scope='module')
def questions(tmp_path_factory):
    """A small set."""
    folder = tmp_path_factory.mktemp('vqa') / 'digits-vqa'
    assert write_questions(folder, QuestionOptions(train_scenes=40, val_scenes=20))
    return folder


def digits_config(root):
    """The data of the shipped configs at another place."""
    config = Config.fromfile('configs/_base_/datasets/vqa-digits_bs64.py')
    for part in ('train', 'val', 'test'):
        config[f'{part}_dataloader'].dataset.data_root = str(root)
    return config


# ---- transforms ---------------------------------------------------------------------------------


def test_words_become_tokens():
    tokenize = TokenizeQuestion(['is', 'there', 'a', "digit's"], length=5)

    def tokens(question):
        return tokenize(dict(question=question))['tokens'].tolist()
    assert tokens('Is there a 7?') == [2, 3, 4, 1, 0]
    assert tokens("a digit's place, is there one") == [4, 5, 1, 2, 3]
    assert tokens('') == tokenize({})['tokens'].tolist() == [0] * 5


def test_the_best_known_answer_is_the_label():
    label = LabelAnswer(['yes', 'no', '2'])

    def of(answers, weights=None):
        return label(dict(gt_answer=answers, gt_answer_weight=weights))['gt_label']
    assert of('no') == 1 and of(['maybe', '2', 'yes'], [.6, .1, .3]) == 0
    assert of(['2', 'no'], [.5, .5]) == 2, 'the first of equal ones'
    assert of(['yes', 'no', 'no']) == 1, 'answers without weights are counted'
    assert label(dict(gt_answer=['maybe'])) is None


def test_another_question_takes_the_place_of_one_without_a_known_answer():
    questions = [dict(gt_answer=[answer]) for answer in ('maybe', 'yes', 'maybe')]
    dataset = BaseDataset(serialize_data=False, lazy_init=True, pipeline=[
        LabelAnswer(['no', 'yes'])])
    dataset.data_list, dataset._fully_initialized = questions, True
    assert [dataset[index]['gt_label'] for index in range(3)] == [1, 1, 1]


def test_questions_without_answers_are_refused():
    label = LabelAnswer(['yes'])
    for given in ({}, dict(gt_answer=[])):
        with pytest.raises(ValueError, match='found none to question 7: give its `ann_file`'):
            label(dict(given, question_id=7))


@pytest.mark.parametrize('answers', [
    [], ['a', 'a'], [1], 'no/such.json', '[]', '{"a": 1, "b": 2}', '["a"', ''])
def test_wrong_answers(answers, tmp_path):
    if isinstance(answers, str) and 'such' not in answers:
        (tmp_path / 'answers.json').write_text(answers)
        answers = str(tmp_path / 'answers.json')
    with pytest.raises((ValueError, FileNotFoundError), match='expected .* found'):
        LabelAnswer(answers)


# ---- SNLI-VE ------------------------------------------------------------------------------------

LINES = [dict(Flickr30K_ID='36979', sentence2='Two men.', gold_label='entailment', pairID='1r1e'),
         dict(Flickr30K_ID='36979', sentence2='A dog.', gold_label='contradiction'),
         dict(Flickr30K_ID='65567', sentence2='A man is tall.', gold_label='-'),
         dict(Flickr30K_ID='65567', sentence2='A man waits.', gold_label='neutral')]


def snli(folder, lines):
    (folder / 'dev.jsonl').write_text('\n'.join(map(json.dumps, lines)) + '\n')
    return SNLIVE(str(folder), 'dev.jsonl', pipeline=[])


def test_snli_ve(tmp_path):
    init_default_scope('mmpretrain')
    dataset = snli(tmp_path, LINES)
    assert len(dataset) == 3 and len(dataset.metainfo['classes']) == 3
    first, last = dataset[0], dataset[2]
    assert first['img_path'] == f'{tmp_path}/flickr30k-images/36979.jpg'
    assert (first['question'], first['gt_answer'], first['gt_label']) == (
        'Two men.', ['entailment'], 0)
    assert (first['question_id'], last['question_id'], last['gt_label']) == ('1r1e', 4, 1)
    assert LabelAnswer(dataset.metainfo['classes'])(dict(first))['gt_label'] == 0
    assert DATASETS.get('mmkcr.SNLIVE') is SNLIVE


@pytest.mark.parametrize('line, found', [
    (dict(LINES[0], gold_label='maybe'), "'maybe' in line 2"),
    (dict(sentence2='A dog.'), 'another in line 2'), ('text', 'another in line 2')])
def test_wrong_lines(line, found, tmp_path):
    with pytest.raises(ValueError, match=found) as error:
        snli(tmp_path, [LINES[0], line])
    assert '\n' not in str(error.value)


# ---- the digits' questions ----------------------------------------------------------------------


def test_answers_are_true():
    """Of a scene whose digits are known: a 3, left of a 7."""
    def mask(column):
        found = np.zeros((48, 48), bool)
        found[8:16, column:column + 8] = True
        return found
    scene = Scene(np.zeros((48, 48), np.uint8), [(7, mask(24)), (3, mask(8))])
    seen = set()
    for seed in range(40):
        asked = {entry['kind']: entry for entry in questions_of(scene, np.random.default_rng(seed))}
        assert asked['count']['answer'] == '2' and asked['leftmost']['answer'] == '3'
        digit = asked['presence']['question'].removeprefix('is there a ').removesuffix('?')
        assert asked['presence']['answer'] == ('yes' if digit in '37' else 'no')
        seen.add(asked['presence']['answer'])
    assert seen == {'yes', 'no'}
    tie = Scene(scene.image, [(1, mask(0)), (2, mask(7)), (3, mask(16))])
    kinds = [entry['kind'] for entry in questions_of(tie, np.random.default_rng(0))]
    assert kinds == ['count', 'presence']


def test_mmpretrain_reads_the_set(questions):
    init_default_scope('mmpretrain')
    config = digits_config(questions)
    config.test_dataloader.dataset.ann_file = ''  # a test set needs no answers
    check_data_folders(config)
    dataset = DATASETS.build(config.val_dataloader.dataset)
    words = set(WORDS) | set('0123456789')
    assert list(config.answers) == list(ANSWERS)
    assert set(config.vocabulary) == words and len(config.vocabulary) == len(words)
    labels = []
    for place in range(len(dataset)):
        packed = dataset[place]
        sample = packed['data_samples']
        assert packed['inputs'].shape == (3, 48, 48) and sample.tokens.shape == (6, )
        assert 1 not in sample.tokens.tolist(), 'every word is known'
        assert sample.gt_answer == [ANSWERS[int(sample.gt_label)]]
        labels.append(int(sample.gt_label))
    assert len(labels) > 40 and len(set(labels)) > 6


def test_the_set_is_written_once(questions, capsys):
    before = (questions / 'digits-vqa.json').read_text()
    load_tool('dataset_converters/digits_vqa').main(
        ['--out', str(questions), '--train-scenes', '40', '--val-scenes', '20'])
    said = capsys.readouterr().out
    assert 'is complete, nothing to do' in said and 'chance: 8.3 % with any answer' in said
    assert (questions / 'digits-vqa.json').read_text() == before
    assert 8.4 < chance(questions)['kind'] < 60


def test_no_digit_is_asked_in_both_parts(questions):
    """Images of the parts are made of other sources: none is in both."""
    parts = [{path.read_bytes() for path in (questions / part).glob('*.png')}
             for part in ('train', 'val')]
    assert len(parts[0]) == 40 and len(parts[1]) == 20 and not parts[0] & parts[1]


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize('change, error, found', [
    ('folder', FileNotFoundError, 'digits_vqa.py --out'),
    ('no ann_file', ValueError, 'expected answers .`ann_file`. to the questions of `val_data'),
    ('no file', FileNotFoundError, 'train_annotations.json`, found no such file; make it with'),
    ('empty', ValueError, r'expected answers to the \d+ questions of `train_dataloader`, found '
                          'those to 0 in'),
    ('none given', ValueError, 'found those to 0 in')])
def test_sets_without_answers_are_refused(change, error, found, questions, tmp_path):
    root = tmp_path / 'digits-vqa'
    config = digits_config(root)
    if change != 'folder':
        for part in ('train', 'val'):
            (root / part).mkdir(parents=True)
            for kind in ('questions', 'annotations'):
                name = f'{part}_{kind}.json'
                (root / name).write_text((questions / name).read_text())
    answers = root / 'train_annotations.json'
    if change == 'no ann_file':
        config.val_dataloader.dataset.ann_file = ''
    elif change == 'no file':
        answers.unlink()
    elif change == 'empty':
        answers.write_text('{"annotations": []}')
    elif change == 'none given':
        entries = json.loads(answers.read_text())['annotations']
        answers.write_text(json.dumps(dict(annotations=[dict(e, answers=[]) for e in entries])))
    with pytest.raises(error, match=found) as caught:
        check_data_folders(config)
    assert '\n' not in str(caught.value)


def test_frequent_answers(tmp_path, capsys):
    tool, file = load_tool('dataset_converters/vqa_answers'), tmp_path / 'annotations.json'
    file.write_text(json.dumps(dict(annotations=[
        dict(multiple_choice_answer=answer) for answer in ('no', 'yes', 'red', 'yes', 'no', '2')])))
    tool.main([str(file), '--out', str(tmp_path / 'answers.json'), '--count', '3'])
    assert json.loads((tmp_path / 'answers.json').read_text()) == ['no', 'yes', '2']
    assert '3 answers' in capsys.readouterr().out
    file.write_text('{"annotations": []}')
    with pytest.raises(SystemExit):
        tool.main([str(file), '--out', str(tmp_path / 'other.json')])
    assert not (tmp_path / 'other.json').exists()
    assert 'expected `annotations`' in capsys.readouterr().err
