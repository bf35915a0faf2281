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


def test_few_images_are_augmented_if_asked():
    plain, more = (compress(vit(), images(6, 0), '75%', held_out=images(40, 1), least_images=60,
                            augment=augment, **OPTIONS) for augment in (False, True))
    assert plain.structure.provenance['asked']['augment'] is False
    assert more.structure.provenance['asked']['augment'] is True
    for one, two in zip(plain.model(images(2, 2)), more.model(images(2, 2))):
        assert not torch.equal(one, two)


@pytest.mark.parametrize(('shape', 'vectors'), [
    ((4, 5), lambda out: out), ((4, 6, 5), lambda out: out.reshape(-1, 5)),
    ((4, 5, 2, 3), lambda out: out.movedim(1, -1).reshape(-1, 5)),
    ((4, 1, 2, 3), lambda out: out.reshape(4, -1)), ((4, 1), lambda out: out),
    ((4, ), lambda out: out[None])])
def test_the_cosine_is_the_mean_over_vectors_of_features(shape, vectors):
    """Of maps over channels, of tokens over the last axis; of what has one channel over all."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(3, *shape, generator=generator) for _ in range(2))
    network, outputs = nn.Identity(), {True: ours, False: theirs}
    found = agreement(network, None, [torch.tensor([[number]]) for number in range(3)],
                      lambda model, batch: outputs[model is None][int(batch)])
    cosines = [torch.cosine_similarity(vectors(a), vectors(b), 1) for a, b in zip(ours, theirs)]
    assert found['cosine'] == pytest.approx(float(torch.cat(cosines).mean()), abs=1e-6)
