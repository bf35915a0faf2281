"""Configs of questions about images: data without `transformers`; with it, steps and sizes."""

import json
from contextlib import nullcontext

import pytest
from config_files import CONFIGS, build, check_state, first_losses, stage_of, task_of
from mmengine.registry import TRANSFORMS, init_default_scope

from lab.model_zoo import uninitialized
from mmkcr.apis import count_macs
from mmkcr.engine.build import build_model
from mmkcr.engine.compressed_config import image_size
from mmkcr.models.tasks import find_task, search_space
from tools.dataset_converters.digits_vqa import ANSWERS

VQA = [path for path in CONFIGS if path.startswith('configs/kcr/vqa/')]
DIGITS = [path for path in VQA if path.endswith('digits.py')]
FULL = [path for path in VQA if path not in DIGITS]


@pytest.mark.parametrize('path', VQA)
def test_config(path, load):
    """Model, answers and data belong together; the sets are those of mmpretrain and ours."""
    config = load(path)
    task = task_of(config)
    assert task.type == 'mmkcr.FlavaVQA' and task.backbone.sites == ['mlp_channels']
    if path in DIGITS:
        assert task.answers == list(ANSWERS) and task.head.num_classes == len(ANSWERS)
        tokenize, label, _ = config.train_dataloader.dataset.pipeline[1:]
        assert task.text.vocab_size == len(tokenize.vocabulary) + 2
        assert task.text.max_position_embeddings >= tokenize.length
        init_default_scope('mmpretrain')
        assert all(TRANSFORMS.build(dict(step)) for step in (tokenize, label))
    else:
        sizes = dict(vqav2=('COCOVQA', 3129, 'VQAAcc'), snli=('mmkcr.SNLIVE', 3, 'Accuracy'))
        expected = sizes['snli' if 'snli' in path else 'vqav2']
        assert (config.train_dataloader.dataset.type, task.head.num_classes,
                config.val_evaluator.type) == expected
        steps = [step.type for step in config.train_dataloader.dataset.pipeline]
        assert steps[1:3] == ['Resize', 'mmkcr.TokenizeQuestion'] and steps[-1] == 'PackInputs'
        assert ('mmkcr.LabelAnswer' in steps) == ('vqav2' in path), 'SNLI-VE has labels'
        tested = [step.type for step in config.test_dataloader.dataset.pipeline]
        assert 'mmkcr.LabelAnswer' not in tested, 'the test set of VQAv2 has no answers'
    if 'finetune' in path:
        assert config.load_from.endswith('search_flava_8xb32_vqav2/slim/subnet.pth')
        assert task is config.model, 'the cross entropy alone'


def test_image_of_a_backbone_that_is_wrapped_twice(load):
    """As `mmkcr compress` writes it for a config that has `mmkcr.Searchable` itself."""
    config = load(DIGITS[0])
    assert image_size(config) == (3, 48, 48)
    config.model.backbone = dict(config.model.backbone, backbone=config.model.backbone)
    assert image_size(config) == (3, 48, 48)


@pytest.mark.parametrize('path', DIGITS)
def test_digits_take_a_step(path, load, prepared):
    pytest.importorskip('transformers')
    config, stage = prepared(path), stage_of(path)
    for part in ('train', 'val', 'test'):
        config[f'{part}_dataloader'].batch_size = 8
    runner = build(config, nullcontext)
    model = runner.model
    check_state(path, model)
    losses = first_losses(runner)
    assert ('loss_kcr' in losses) == (stage != 'dense') and 'loss' in losses
    dense_macs = count_macs(search_space(build_model(load(DIGITS[0]))).host, (3, 48, 48))
    if stage != 'search':
        runner._load_from, runner.hooks[:] = None, []
        score = runner.test()['VQA/acc']
        assert 0 <= score <= 100
        found = count_macs(search_space(find_task(model)).host, (3, 48, 48))
        assert (stage == 'retrain') == (found < dense_macs)
    if stage == 'search':  # the price counts the image encoder
        assert model.macs_model().dense == dense_macs


@pytest.mark.parametrize('path', FULL)
def test_flava_is_built(path, load, tmp_path):
    """At full size; the answers are read when they are needed."""
    pytest.importorskip('transformers')
    config = load(path)
    task = task_of(config)
    task.backbone.pop('structure', None)
    with uninitialized():
        task = find_task(build_model(config))
    assert [site.total for site in search_space(task).sites.values()] == [768] * 12
    assert task.head.fc.weight.shape == (3 if 'snli' in path else 3129, 768)
    if 'snli' not in path:
        with pytest.raises(FileNotFoundError, match='vqa_answers.py'):
            assert task.answers
        file = tmp_path / 'answers.json'
        file.write_text(json.dumps([f'answer {number}' for number in range(3128)]))
        task._answers = str(file)
        with pytest.raises(ValueError, match='expected `num_classes` 3128'):
            assert task.answers
