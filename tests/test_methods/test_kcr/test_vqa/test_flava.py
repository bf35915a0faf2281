"""FLAVA answers questions: as `FlavaModel` computes it, its law, its checkpoints, its messages."""

import builtins
import copy
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from mmengine.registry import init_default_scope
from mmpretrain.structures import DataSample
from tool_files import load_tool

from lab.kind_coverage import randomise
from mmkcr.apis import compress, count_macs, slim
from mmkcr.apis.compress_files import task_outputs
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.methods.kcr.vqa.flava import FlavaImageEncoder, hugging_face
from mmkcr.models.tasks import part_to_count, search_space
from mmkcr.registry import MODELS

ROOT = Path(__file__).parents[4]
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
IMAGE = dict(SMALL, img_size=32, patch_size=8)
TEXT = dict(SMALL, vocab_size=20, max_position_embeddings=8)
MULTIMODAL = dict(SMALL, hidden_size=24)
CHANNELS = dict(sites=['mlp_channels'], gates=dict(type='mmkcr.GumbelChannelGate', min_size=1))
SHAPE = (3, 32, 32)


def vqa(**backbone):
    """A small model with random weights, in double precision; dense unless arguments are given."""
    init_default_scope('mmpretrain')
    encoder = dict(type='mmkcr.FlavaImageEncoder', **IMAGE)
    torch.manual_seed(0)
    return randomise(MODELS.build(dict(
        type='mmkcr.FlavaVQA', text=TEXT, multimodal=MULTIMODAL, answers=['yes', 'no', '3'],
        backbone=dict(type='mmkcr.Searchable', backbone=encoder, **backbone) if backbone
        else encoder, head=dict(type='LinearClsHead', num_classes=3, in_channels=24)))).double()


def batch(count=3, length=5):
    """Images, and samples with questions of several lengths."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for place in range(count):
        tokens = torch.randint(1, 20, (length, ), generator=generator)
        tokens[length - place % 3:] = 0
        sample = DataSample().set_gt_label(place % 3)
        sample.set_field(tokens, 'tokens')
        samples.append(sample)
    return torch.rand(count, *SHAPE, generator=generator, dtype=torch.float64), samples


@pytest.fixture(scope='module')
def transformers():
    return pytest.importorskip('transformers')


@pytest.fixture(scope='module')
def flava(transformers):
    """Hugging Face's own model of the same sizes, with its pre-training heads."""
    sizes = dict(IMAGE, image_size=IMAGE['img_size'])
    sizes.pop('img_size')
    config = transformers.FlavaConfig(
        image_config=sizes, text_config=TEXT, multimodal_config=MULTIMODAL, hidden_size=32,
        projection_dim=16, init_codebook=False)
    torch.manual_seed(3)
    return randomise(transformers.FlavaForPreTraining(config)).double()


# ---- without transformers -----------------------------------------------------------------------


def test_a_missing_package_is_one_sentence(monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == 'transformers':
            raise ImportError('no module')
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, '__import__', without)
    for call in (hugging_face, lambda: FlavaImageEncoder(**IMAGE)):
        with pytest.raises(ImportError, match='pip install "transformers'):
            call()


def keys_of_flava():
    """Some of a checkpoint's keys, by what becomes of them."""
    encoder = 'encoder.layer.0.attention.attention.query.weight'
    kept = {
        f'image_model.{encoder}': f'backbone.model.{encoder}',
        'image_model.embeddings.cls_token': 'backbone.model.embeddings.cls_token',
        f'text_model.{encoder}': f'text_encoder.{encoder}',
        'text_model.embeddings.LayerNorm.bias': 'text_encoder.embeddings.LayerNorm.bias',
        'multimodal_model.cls_token': 'multimodal_encoder.cls_token',
        'multimodal_model.layernorm.weight': 'multimodal_encoder.layernorm.weight',
        'image_to_mm_projection.weight': 'image_to_mm_projection.weight',
        'text_to_mm_projection.bias': 'text_to_mm_projection.bias'}
    left = ['image_model.layernorm.weight', 'text_model.layernorm.bias', 'logit_scale',
            'image_model.pooler.dense.weight', 'multimodal_model.pooler.dense.bias',
            'image_model.embeddings.mask_token', 'text_model.embeddings.position_ids',
            'image_projection.weight', 'text_projection.bias']
    return kept, left, ['mim_head.bias', 'image_codebook.blocks.input.weight', 'itm_head.seq.bias']


@pytest.mark.parametrize('prefix', ['', 'flava.'])
def test_keys_of_the_converter(prefix):
    tool = load_tool('model_converters/flava')
    kept, left, heads = keys_of_flava()
    state = {f'{prefix}{key}': torch.tensor([place]) for place, key in enumerate([*kept, *left])}
    state.update({key: torch.zeros(1) for key in heads} if prefix else {})
    found = tool.convert(state)
    assert {key: int(value) for key, value in found.items()} == {
        new: place for place, new in enumerate(kept.values())}
    for part in ('image_model', 'text_to_mm_projection'):
        lacking = {key: value for key, value in state.items() if part not in key}
        with pytest.raises(ValueError, match='expected a checkpoint of FLAVA with what becomes `'):
            tool.convert(lacking)


# ---- with transformers --------------------------------------------------------------------------


def test_a_checkpoint_of_flava_gives_its_features(flava, tmp_path):
    """Of a file that `transformers` saved: the class token of its own multimodal encoder."""
    flava.save_pretrained(tmp_path)
    load_tool('model_converters/flava').main(
        [str(tmp_path / 'model.safetensors'), str(tmp_path / 'vqa.pth')])
    model = vqa()
    state = torch.load(tmp_path / 'vqa.pth')['state_dict']
    missing, surplus = model.load_state_dict(state, strict=False)
    assert set(missing) == {'head.fc.weight', 'head.fc.bias'} and not surplus
    images, samples = batch()
    tokens = torch.stack([sample.tokens for sample in samples])
    with torch.no_grad():
        ours, = model.extract_feat(images, data_samples=samples)
        theirs = flava.flava(input_ids=tokens, pixel_values=images, attention_mask=(
            tokens != 0).long()).multimodal_embeddings[:, 0]
    torch.testing.assert_close(ours, theirs)


def test_padding_is_not_read_and_questions_are(transformers):
    model = vqa()
    images, samples = batch()
    with torch.no_grad():
        scores = model(images, samples)
        for sample in samples:
            sample.set_field(torch.cat([sample.tokens, torch.zeros(2, dtype=torch.int64)]),
                             'tokens')
        torch.testing.assert_close(model(images, samples), scores)
        samples[0].tokens[0] += 1
        changed = (model(images, samples) - scores).abs().amax(1)
    assert changed[0] > 1e-3 and changed[1:].max() < 1e-12


def test_losses_and_predictions(transformers):
    model = vqa(**CHANNELS).train()
    images, samples = batch()
    model(images, samples, mode='loss')['loss'].backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    with torch.no_grad():
        found = model.eval()(images, samples, mode='predict')
    assert [one.pred_answer for one in found] == [
        ['yes', 'no', '3'][int(one.pred_label)] for one in found]


@pytest.mark.parametrize('kind', ['mlp_channels', 'mlp_hidden', 'heads'])
def test_the_law(kind, transformers):
    """Answers of the supernet with hard gates, of the sliced and of the reloaded subnet."""
    supernet = vqa(sites=[kind], gates=dict(type='mmkcr.GumbelChannelGate', min_size=1))
    images, samples = batch()
    dense = vqa()
    subnet, structure = slim(supernet, input_shape=SHAPE)
    assert any(len(site.kept) < site.total for site in structure.sites.values())
    assert structure.macs['part'] == 'backbone'
    assert structure.macs['subnet'] == count_macs(subnet.backbone, SHAPE) < count_macs(
        dense.backbone, SHAPE) == structure.macs['dense']
    again = vqa(sites=[kind], structure=structure)
    again.load_state_dict(subnet.state_dict())
    with torch.no_grad():
        expected = supernet(images, samples)
        for model in (subnet, again):
            torch.testing.assert_close(model(images, samples), expected, rtol=0, atol=1e-12)
        assert (dense(images, samples) - expected).abs().max() > 1e-3


def test_budgets_are_about_the_image_encoder(transformers):
    model = vqa(**CHANNELS)
    assert part_to_count(model) is model.backbone and part_to_count(model, 'model') is model
    _, structure = slim(model, '80%', input_shape=SHAPE)
    assert structure.macs['subnet'] <= 0.8 * count_macs(vqa().backbone, SHAPE)
    assert count_macs(vqa(), SHAPE) > count_macs(vqa().backbone, SHAPE)
    assert search_space(model).host is model.backbone


def test_what_is_exported_is_the_image_encoder(transformers):
    model, (images, _) = vqa(), batch()
    with torch.no_grad():
        torch.testing.assert_close(TensorModel(model)(images), model.backbone(images))


def test_compress(flava, transformers):
    """A model for questions, and as docs/vqa.md has it Hugging Face's own."""
    images, samples = batch(40)
    tokens = torch.stack([sample.tokens for sample in samples[:2]])
    model = copy.deepcopy(flava.flava).float().eval()
    text = (ROOT / 'docs/vqa.md').read_text()
    line, = re.findall(r'^result = compress.*$', text, re.MULTILINE)
    scope = dict(compress=partial(compress, input_shape=SHAPE), model=model, images=images.float())
    exec(line, scope)
    result = scope['result']
    assert 0.7 < result.structure.macs['subnet'] / result.structure.macs['dense'] <= 0.8
    dense = model(input_ids=tokens, pixel_values=images[:2].float()).multimodal_embeddings
    model.image_model = result.model
    slim_ = model(input_ids=tokens, pixel_values=images[:2].float()).multimodal_embeddings
    assert 0 < (slim_ - dense).norm() / dense.norm() < 0.5

    parts = [dict(inputs=images[i:i + 8], data_samples=samples[i:i + 8]) for i in range(0, 40, 8)]
    found = compress(vqa(), parts, '60%', input_shape=SHAPE, forward=task_outputs, logits=True)
    assert found.structure.macs['part'] == 'backbone'
    assert count_macs(found.model.backbone, SHAPE) == found.structure.macs['subnet']


def test_wrong_arguments(transformers):
    with pytest.raises(ValueError, match='`transformers.FlavaImageConfig`, found `hidden`'):
        FlavaImageEncoder(hidden=3)
    with pytest.raises(ValueError, match='expected `num_classes` 2 of the head, .* found 3'):
        MODELS.build(dict(
            type='mmkcr.FlavaVQA', backbone=FlavaImageEncoder(**IMAGE), text=TEXT,
            multimodal=MULTIMODAL, answers=['a', 'b'],
            head=dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=24)))


def test_a_tokenizer_of_transformers(transformers, tmp_path):
    from mmkcr.methods.kcr.vqa.questions import TokenizeQuestion
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'is', 'it', 'red', '##der', '?']
    (tmp_path / 'vocab.txt').write_text('\n'.join(words))
    (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
    tokenize = TokenizeQuestion(str(tmp_path), length=8)
    assert tokenize(dict(question='Is it redder?'))['tokens'].tolist() == [2, 5, 6, 7, 8, 9, 3, 0]
    assert tokenize(dict(question='it ' * 9))['tokens'].tolist() == [2, *[6] * 6, 3]
    assert tokenize({})['tokens'].tolist() == [0] * 8
    (tmp_path / 'vocab.txt').write_text('\n'.join(words[1:] + words[:1]))
    with pytest.raises(ValueError, match='expected a tokenizer whose padding is token 0, found 9'):
        TokenizeQuestion(str(tmp_path))
