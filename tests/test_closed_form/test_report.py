"""What is told of images that the refit had, and of others."""

import pytest
import torch
from mmpretrain.models import VisionTransformer
from torch import nn

from mmkcr.apis import compress
from mmkcr.closed_form.report import agreement

SHAPE = (3, 32, 32)
OPTIONS = dict(input_shape=SHAPE, progress=False, divisor=1, uniform=True)
HINT = 'More images that differ would help more than a larger budget.'


def images(count, seed):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def vit():
    torch.manual_seed(0)
    model = VisionTransformer(
        arch=dict(embed_dims=24, num_layers=2, num_heads=4, feedforward_channels=48), img_size=32,
        patch_size=8, out_type='featmap')
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    model.eval()
    return model


def distance(model, found, images):
    """Relative distance of the outputs of two networks."""
    with torch.no_grad():
        wanted, got = (network(images)[-1] for network in (model, found))
    return float((got - wanted).norm() / wanted.norm())


def test_errors_are_those_on_images_that_were_seen_and_on_others():
    model, calibrated, others = vit(), images(8, 0), images(5, 1)
    result = compress(model, calibrated, '75%', held_out=others, **OPTIONS)
    own, error = result.agreement['refit_error'], result.agreement['error']
    assert abs(own - distance(model, result.model, calibrated[:5])) < 1e-4 * own
    assert abs(error - distance(model, result.model, others)) < 1e-4 * error
    assert f'differ by {error:.1%} of their size, on images that it saw by {own:.1%}' in str(result)


def test_the_gap_asks_for_other_images():
    """Where most of the squared loss is on images that the refit did not see."""
    few = compress(vit(), images(2, 0), '75%', rho=0., held_out=images(6, 1), **OPTIONS)
    assert HINT in str(few) and few.agreement['error'] > 1.42 * few.agreement['refit_error']
    many = compress(vit(), images(60, 0), '75%', held_out=images(6, 1), **OPTIONS)
    assert HINT not in str(many)


def test_no_number_of_images_is_called_enough(capsys):
    """It would count positions, of which neighbours are much alike."""
    result = compress(vit(), images(2, 0), '75%', **dict(OPTIONS, progress=True))
    assert 'Give more images that differ.' in str(result)
    assert 'enough' not in str(result) + capsys.readouterr().err


def test_the_first_line_names_the_network(capsys):
    """Before anything that takes long."""
    compress(vit(), images(4, 0), '75%', **dict(OPTIONS, progress=True))
    told = capsys.readouterr().err.splitlines()
    assert told[0] == 'Calibration: looking at the network `VisionTransformer` and the first images'


def test_few_images_are_augmented_if_asked():
    plain, more = (compress(vit(), images(6, 0), '75%', held_out=images(40, 1), least_images=60,
                            augment=augment, **OPTIONS) for augment in (False, True))
    assert plain.structure.provenance['asked']['augment'] is False
    assert more.structure.provenance['asked']['augment'] is True
    for one, two in zip(plain.model(images(2, 2)), more.model(images(2, 2))):
        assert not torch.equal(one, two)


class Decoded(nn.Module):
    """A ViT whose tokens two queries read by attention that no adapter knows."""

    def __init__(self):
        super().__init__()
        self.vit, self.queries = vit(), nn.Parameter(torch.rand(1, 2, 24))
        self.crossing = nn.ModuleList([nn.MultiheadAttention(24, 2, batch_first=True)])

    def forward(self, images):
        tokens = self.vit(images)[-1].flatten(2).mT
        queries = self.queries.expand(len(images), -1, -1)
        return self.crossing[0](queries, tokens, tokens)[0]


@pytest.mark.parametrize('asked', [None, ['mlp_hidden']])
def test_attention_that_stays_dense_is_named(asked):
    """Unless the user chose what is cut."""
    result = compress(Decoded().eval(), images(8, 0), '90%', sites=asked, **OPTIONS)
    told = 'no adapter knows how to cut them: 1 `MultiheadAttention` (as `crossing.0`).'
    assert (told in str(result)) == (asked is None)
    assert 'stay dense' not in str(compress(vit(), images(8, 0), '90%', sites=asked, **OPTIONS))


def compare(ours, theirs):
    """The agreement of outputs by image: a list of tensors for each."""
    network, outputs = nn.Identity(), {True: ours, False: theirs}
    return agreement(network, None, [torch.tensor([[number]]) for number in range(len(ours))],
                     lambda model, batch: outputs[model is None][int(batch)])


def test_the_variance_that_stays_is_a_mean_over_outputs():
    """Outputs of any size count alike; those that are the same for all images do not count."""
    generator = torch.Generator().manual_seed(0)
    small, large = torch.randn(3, 1, 4, generator=generator), 99 * torch.randn(3, 1, 5, 2, 2)
    constant, kept = torch.ones(1, 6), []
    noisy = [values + 0.3 * values.std() * torch.randn(values.shape, generator=generator)
             for values in (small, large)]
    for ours, theirs in zip(noisy, (small, large)):
        kept.append(1 - float((ours - theirs).square().sum() / (
            theirs - theirs.mean(0)).square().sum()))
    found = compare([[*outputs, 2 * constant] for outputs in zip(*noisy)],
                    [[*outputs, constant] for outputs in zip(small, large)])
    assert found['variance'] == pytest.approx(sum(kept) / 2, abs=1e-5) and kept[0] < 0.95


@pytest.mark.parametrize('shape', [(1, 5), (1, 6, 5), (1, 5, 2, 3), (5, )])
def test_features_that_are_replaced_by_their_mean_agree_in_nothing(shape):
    """Their cosine with the dense features is nearly 1, as features have much in common."""
    theirs = 9 + torch.randn(64, *shape, generator=torch.Generator().manual_seed(0))
    mean = theirs.mean(0)
    cosines = torch.cosine_similarity(mean[None].flatten(1), theirs.flatten(1), 1)
    assert cosines.min() > 0.95
    assert compare([mean] * 64, theirs)['variance'] == pytest.approx(0, abs=1e-3)
    assert compare(theirs, theirs)['variance'] == 1


def test_the_spread_is_the_part_of_the_squares_around_the_mean():
    outputs = torch.randn(8, 1, 5, generator=torch.Generator().manual_seed(0)) + 2
    apart = (outputs - outputs.mean(0)).square().sum() / outputs.square().sum()
    assert compare(outputs, outputs)['spread'] == pytest.approx(float(apart), rel=1e-5)
    sizes = [torch.ones(1, 3, side, side) for side in (4, 6, 4)]
    assert compare(sizes, sizes)['spread'] == 1  # of images of several sizes


def test_equal_images_have_no_variance():
    outputs = [torch.ones(1, 5)] * 3
    assert 'variance' not in compare(outputs, outputs)
