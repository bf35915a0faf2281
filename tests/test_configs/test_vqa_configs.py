"""Configs of questions about images: data without `transformers`; with it, steps and sizes."""

import json
from pathlib import Path

import pytest
from config_files import CONFIGS
from mmengine.logging import MessageHub
from mmengine.registry import TRANSFORMS, init_default_scope
from mmengine.runner import Runner

from lab.digit_questions import ANSWERS, QuestionOptions, write_questions
from lab.measures import backbone_measure, question_measure
from lab.model_zoo import uninitialized
from mmkcr.apis import count_macs, slim
from mmkcr.engine.build import build_model
from mmkcr.engine.compressed_config import image_size
from mmkcr.models.tasks import find_task, search_space

VQA = [path for path in CONFIGS if path.startswith('configs/kcr/vqa/')]
DIGITS = [path for path in VQA if path.endswith('digits.py')]
FULL = [path for path in VQA if path not in DIGITS]


@pytest.fixture(scope='module')
def questions(tmp_path_factory):
    folder = tmp_path_factory.mktemp('vqa') / 'digits-vqa'
    write_questions(folder, QuestionOptions(train_scenes=30, val_scenes=8))
    return folder


@pytest.mark.parametrize('path', VQA, ids=lambda path: Path(path).stem)
def test_config(path, load):
    """Model, answers and data belong together; the sets are those of mmpretrain and ours."""
    config = load(path)
    task = config.model.get('architecture', config.model)
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


def test_found():
    assert len(DIGITS) == len(FULL) == 3


@pytest.fixture(scope='module')
def slimmed(load, tmp_path_factory):
    """Structure of half of the channels."""
    pytest.importorskip('transformers')
    init_default_scope('mmpretrain')
    model = build_model(load(next(path for path in DIGITS if 'search' in path)))
    for gate in model.gates().values():
        gate.alpha.data[::2] = -1.
    file = tmp_path_factory.mktemp('slim') / 'structure.json'
    slim(model, input_shape=(3, 48, 48))[1].save(file)
    return str(file)


@pytest.mark.parametrize('path', DIGITS, ids=lambda path: Path(path).stem)
def test_digits_take_a_step(path, load, questions, slimmed, tmp_path):
    config = load(path)
    stage = Path(path).stem.split('_')[0].rpartition('-')[2]
    config.work_dir, config.experiment_name, config.log_level = str(tmp_path), stage, 'ERROR'
    for part in ('train', 'val', 'test'):
        config[f'{part}_dataloader'].update(num_workers=0, persistent_workers=False, batch_size=8)
        config[f'{part}_dataloader'].dataset.data_root = str(questions)
    if stage == 'retrain':
        assert config.model.architecture.backbone.structure.endswith('slim/structure.json')
        config.model.architecture.backbone.structure, config.load_from = slimmed, None
    runner = Runner.from_cfg(config)
    model = runner.model
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    states = dict(search='supernet', dense='dense', retrain='subnet')
    assert search_space(model).state_name() == states[stage]
    for hook in runner.hooks:
        if type(hook).__name__ in ('NystromRefreshHook', 'TemperatureDecayHook'):
            hook.before_train(runner)
        if type(hook).__name__ == 'NystromRefreshHook':
            hook.refresh(runner)
    MessageHub.get_current_instance().update_info('max_iters', 10)
    batch = next(iter(runner.train_dataloader))
    losses = model.train()(**model.data_preprocessor(batch, True), mode='loss')
    assert ('loss_kcr' in losses) == (stage != 'dense') and 'loss' in losses
    model.parse_losses(losses)[0].backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    dense_macs = count_macs(search_space(build_model(load(DIGITS[0]))).host, (3, 48, 48))
    if stage != 'search':
        runner._load_from, runner.hooks[:] = None, []
        score = runner.test()['VQA/acc']
        kinds = question_measure(model, config)
        assert set(kinds) <= {'how-many', 'is-there', 'which-digit'} and 'is-there' in kinds
        assert min(kinds.values()) <= score <= max(kinds.values())
        found = backbone_measure(model, config)['macs']
        assert (stage == 'retrain') == (found < dense_macs / 1e6)
    if stage == 'search':  # the price counts the image encoder
        assert model.macs_model().dense == dense_macs


@pytest.mark.parametrize('path', FULL, ids=lambda path: Path(path).stem)
def test_flava_is_built(path, load, tmp_path):
    """At full size; the answers are read when they are needed."""
    pytest.importorskip('transformers')
    config = load(path)
    task = config.model.get('architecture', config.model)
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
