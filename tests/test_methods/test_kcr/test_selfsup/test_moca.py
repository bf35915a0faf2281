"""MOCA against a twin that is written out entry by entry, and its search."""

import math

import mmpretrain.models  # noqa: F401
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.registry import init_default_scope

from mmkcr.apis import slim
from mmkcr.methods.kcr.selfsup import moca_heads
from mmkcr.methods.kcr.selfsup.moca_heads import OnlineCodebook
from mmkcr.models.tasks import hold_copies, momentum_copies
from mmkcr.registry import MODELS

WIDTH, WORDS, SHAPE = 16, 8, (3, 32, 32)
ARCH = dict(embed_dims=WIDTH, num_layers=2, num_heads=2, feedforward_channels=32)
VIT = dict(type='mmpretrain.MAEViT', arch=ARCH, img_size=32, patch_size=8)
GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)


@pytest.fixture(autouse=True)
def scope():
    init_default_scope('mmpretrain')
    MessageHub.get_current_instance().update_info('max_iters', 10)


def config(backbone=None, **changes):
    base = dict(
        type='mmkcr.MOCA', backbone=backbone or VIT, early_layer=0,
        neck=dict(type='mmkcr.MOCADecoder', size=(4, 4), in_channels=WIDTH, embed_dims=8, depth=1,
                  num_heads=2),
        mask_ratios=(0.5, 0.75), decoded=(0.75, 0.5),
        head=dict(type='mmkcr.MOCAHead', in_channels=WIDTH, decoder_channels=8),
        codebook=dict(type='mmkcr.OnlineCodebook', channels=WIDTH, words=WORDS, new_words=2,
                      border=1))
    return {**base, **changes}


def searchable(**space):
    return dict(type='mmkcr.Searchable', backbone=VIT, sites=['mlp_channels'], **space)


def build(cfg):
    model = MODELS.build(cfg)
    for name, parameter in model.named_parameters():
        if 'norm' not in name and 'ln' not in name:
            parameter.data.normal_(0., 1. if 'alpha' in name else 0.3)
    return model


def views(count=3):
    return [torch.randn(count, *SHAPE) for _ in range(2)]


# ---- the twin ----------------------------------------------------------------------------------


def unit(vector):
    return vector / vector.norm()


def softmax(values):
    exponentials = [math.exp(value) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def twin_assignments(tokens, words, sharpness, spread):
    """(images, tokens, words) as nested lists, from teacher tokens without a class token."""
    return [[softmax([sharpness / spread * float(unit(token) @ word) for word in words])
             for token in image] for image in tokens]


def twin_divergence(logits, target):
    return sum(q * (math.log(q) - math.log(p)) for q, p in zip(target, softmax(logits)))


def twin_losses(model, pair, seed):
    """The two losses, image by image, token by token and word by word."""
    words, spread = model.codebook.words.clone(), float(model.codebook.spread)
    teacher = [[model.backbone(view[i:i + 1], mask=None)[-1][0, 1:] for i in range(len(view))]
               for view in pair]  # in the first step it is the student
    codes = [twin_assignments(view, words, 10., spread) for view in teacher]
    inner = [5, 6, 9, 10]
    weights = [[unit(row) for row in head.generator(words) + head.skip(words)]
               for head in (model.head.image, model.head.tokens)]
    torch.manual_seed(seed)
    image_loss, token_loss = 0., 0.
    for ratio, share in ((0.5, 12), (0.75, 8)):
        model.backbone.mask_ratio = ratio
        early = []
        handle = model.backbone.layers[0].register_forward_hook(
            lambda _, __, out: early.append(out))  # noqa: B023
        tokens, _, restore = model.backbone(torch.cat(pair), mask=True)
        handle.remove()
        pooled = [image[1:].mean(0) for image in tokens]
        order = [[list(row).index(place) for place in range(16)] for row in restore.tolist()]
        decoded, _ = model.neck(torch.stack(pooled), early[0][:, 1:], torch.tensor(order),
                                share / 16)
        for j, embedding in enumerate(pooled):
            view, i = divmod(j, len(pair[0]))
            other = [codes[1 - view][i][place] for place in inner]
            bag = [sum(code[k] for code in other) / 4 for k in range(WORDS)]
            image_loss += twin_divergence([5 * float(embedding @ w) for w in weights[0]], bag)
            for feature, place in zip(decoded[j], order[j][:share]):
                logits = [5 * float(feature @ w) for w in weights[1]]
                token_loss += twin_divergence(logits, codes[view][i][place]) / share
    return image_loss / (2 * len(pooled)), token_loss / (2 * len(pooled))


@torch.no_grad()
def test_losses_are_those_of_the_twin():
    model, pair = build(config()).double().train(), [view.double() for view in views()]
    expected = twin_losses(model, pair, 3)
    torch.manual_seed(3)
    losses = model.loss(pair)
    assert float(losses['loss_image']) == pytest.approx(expected[0], rel=1e-5)
    assert float(losses['loss_token']) == pytest.approx(expected[1], rel=1e-5)
    assert expected[0] > 0.01 and expected[1] > 0.01


# ---- codebook ----------------------------------------------------------------------------------


def test_the_oldest_words_give_way_to_tokens():
    book = OnlineCodebook(WIDTH, words=6, new_words=2, border=1)
    tokens = torch.randn(4, 16, WIDTH)
    inner = torch.nn.functional.normalize(tokens[:, [5, 6, 9, 10]], dim=-1)
    for step in range(4):
        before, place = book.words.clone(), step * 2 % 6
        codes, bags, spread = book(tokens, (4, 4))
        torch.testing.assert_close(codes.sum(-1), torch.ones(4, 16))
        torch.testing.assert_close(bags, codes[:, [5, 6, 9, 10]].mean(1))
        scale = 0.99 * float(book.spread) + 0.01 * float(spread)
        book.update(tokens, (4, 4), spread)
        assert float(book.spread) == pytest.approx(scale, rel=1e-5)
        rest = [i for i in range(6) if i not in (place, place + 1)]
        assert torch.equal(book.words[rest], before[rest])
        images = [int((inner - word).abs().sum(-1).amin(1).argmin()) for word in
                  book.words[place:place + 2]]
        assert len(set(images)) == 2  # of two images
        for word in book.words[place:place + 2]:
            assert (inner - word).abs().amax(-1).min() < 1e-6


def test_two_processes_renew_the_words_of_one(monkeypatch):
    tokens, spread = torch.randn(6, 16, WIDTH), torch.tensor(0.3)
    whole = OnlineCodebook(WIDTH, words=6, new_words=2, border=1)
    whole.update(tokens, (4, 4), spread)
    shares, given = [tokens[0::2], tokens[1::2]], []

    def renewed(rank, gather):
        monkeypatch.setattr(moca_heads, 'get_dist_info', lambda: (rank, 2))
        monkeypatch.setattr(moca_heads, 'all_reduce', gather)
        one = OnlineCodebook(WIDTH, words=6, new_words=2, border=1)
        one.update(shares[rank], (4, 4), spread)
        return one

    for rank in range(2):  # first what each gives, then what it makes of all
        renewed(rank, lambda value, op='sum': given.append(value.clone()))
    words = [value for value in given if value.ndim == 2]
    for rank in range(2):
        one = renewed(rank, lambda value, op='sum': value.copy_(sum(words)) if value.ndim else None)
        assert torch.equal(one.words, whole.words) and torch.equal(one.spread, whole.spread)


def test_a_last_batch_may_be_small():
    book = OnlineCodebook(WIDTH, words=6, new_words=3, border=1)
    tokens = torch.randn(1, 16, WIDTH)
    book.update(tokens, (4, 4), torch.tensor(0.3))
    inner = torch.nn.functional.normalize(tokens[0, [5, 6, 9, 10]], dim=-1)
    for word in book.words[:3]:
        assert (inner - word).abs().amax(-1).min() < 1e-6


# ---- search ------------------------------------------------------------------------------------


def test_search_slim_and_train_on():
    kcr = dict(kcr=dict(type='mmkcr.KernelComplexityLoss'))
    model = build(dict(type='mmkcr.SearchModel', architecture=config(searchable(gates=GATES)),
                       regularizers=kcr, feature_layer='backbone.ln1')).train()
    assert model.regularizers.kcr.num_features == WIDTH
    model.regularizers.kcr.set_basis(torch.eye(WIDTH)[:, :4])
    teacher, = momentum_copies(model)
    with hold_copies(model):  # a step of the gates
        words = model.architecture.codebook.words.clone()
        model(views(), mode='loss')
        assert int(teacher.steps) == 0
        assert torch.equal(words, model.architecture.codebook.words)
    losses = model(views(), mode='loss')
    assert int(teacher.steps) == int(model.architecture.codebook.steps) == 1
    assert {'loss_image', 'loss_token', 'loss_kcr', 'loss_price'} <= losses.keys()
    model.parse_losses(losses)[0].backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    subnet, structure = slim(model, input_shape=SHAPE)
    assert structure.macs['subnet'] < structure.macs['dense']
    images = torch.randn(2, *SHAPE)
    model.eval()
    subnet.eval()
    for supernet, sliced in ((model.architecture.backbone, subnet.backbone),
                             (teacher.module, subnet.teacher.module)):
        torch.testing.assert_close(sliced(images, mask=None)[0],
                                   supernet(images, mask=None)[0], rtol=1e-4, atol=1e-4)
    assert subnet.train().loss(views())['loss_token'] > 0


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize('changes, message', [
    (dict(base_momentum=None), 'whose teacher is a momentum copy, found None'),
    (dict(backbone=dict(VIT, type='mmpretrain.VisionTransformer')), 'found `VisionTransformer`'),
    (dict(early_layer=2), 'has `early_layer` 2, found `.*` of 2 layers'),
    (dict(decoded=(0.75, )), r'as many `decoded` as `mask_ratios` of MOCA'),
    (dict(decoded=(0.75, 0.2)), r'found \(0.75, 0.2\) for \(0.5, 0.75\)'),
    (dict(codebook=dict(type='mmkcr.OnlineCodebook', channels=8, words=6, new_words=4)),
     'divide its 6 words, found 4')])
def test_bad_configs(changes, message):
    with pytest.raises(ValueError, match=message):
        MODELS.build(config(**changes))


def test_bad_batches():
    model = MODELS.build(config(mask_ratios=(0.7, 0.5), decoded=(0.3, 0.5)))  # 1 - 0.7 is above 0.3
    with pytest.raises(ValueError, match='two views of every image .* found one image'):
        model.loss(torch.randn(2, *SHAPE))
    with pytest.raises(ValueError, match='leaves some of 2 x 2 tokens, found 1'):
        model.codebook(torch.randn(1, 4, WIDTH), (2, 2))
