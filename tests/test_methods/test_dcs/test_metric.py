"""InformationBottleneckMetric on its own: values, inputs, refusals."""

import pytest
import torch

from mmkcr.functional.clusters import fit_clusters
from mmkcr.functional.information import InformationAccumulator, log_assignments
from mmkcr.methods.dcs.metric import InformationBottleneckMetric

MEAN, STD = [100., 120., 90.], [50., 60., 70.]


def samples(n, classes=3, width=5):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    features = torch.eye(width)[labels] + 0.5 * torch.randn(n, width, generator=generator)
    images = torch.randint(0, 256, (n, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return features, labels, images


@pytest.mark.parametrize('batch', [1, 4, 30])
@pytest.mark.parametrize('normalize', [True, False])
def test_values_are_those_of_the_clusters_of_the_set(batch, normalize):
    data = samples(30)
    settings = dict(beta=0.7, normalize=normalize)
    metric = InformationBottleneckMetric(3, mean=MEAN, std=STD, seed=2, **settings)
    for x, y, z in zip(*(part.split(batch) for part in data)):
        metric.process(dict(inputs=list(z)), [dict(features=f, gt_label=label[None])
                                              for f, label in zip(x, y)])
    found = metric.evaluate(30)
    points = ((data[2] - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1))
    sums = InformationAccumulator(3, 3, 3).add(*(
        x if x.ndim == 1 else log_assignments(x, fit_clusters(x, 3, 2, normalize), **settings)
        for x in (data[0], data[1], points.flatten(1))))
    expected = sums.values()
    assert found.keys() == {f'information/{key}' for key in expected}
    for key, value in expected.items():
        assert found[f'information/{key}'] == pytest.approx(value, abs=1e-6), key
    assert found['information/ib'] <= found['information/ibb']


def test_without_inputs_nothing_of_them_is_kept():
    metric = InformationBottleneckMetric(3, inputs=False)
    features, labels, _ = samples(12)
    metric.process(None, [dict(features=f, gt_label=label) for f, label in zip(features, labels)])
    assert all(row[2] is None for row in metric.results)
    assert set(metric.evaluate(12)) == {'information/i_labels', 'information/n'}


def test_refusals():
    with pytest.raises(ValueError, match='the field `features` .* add `FeatureTapHook`'):
        InformationBottleneckMetric(3, inputs=False).process(None, [dict(gt_label=1)])
    with pytest.raises(ValueError, match='expected at least one data sample, found `0`'):
        InformationBottleneckMetric(3).evaluate(0)


@pytest.mark.parametrize('batch', [1, 2])
def test_images_of_several_sizes_are_one_sentence(batch):
    """Within a batch, and over batches."""
    features, labels, _ = samples(4)
    images = [torch.zeros(3, 4, 4 + place % 2) for place in range(4)]
    metric = InformationBottleneckMetric(3)
    with pytest.raises(ValueError, match=r'expected images of one size .*, found \(.*\) and '
                       r'\(.*\): inputs=False'):
        for start in range(0, 4, batch):
            part = slice(start, start + batch)
            metric.process(dict(inputs=images[part]), [
                dict(features=f, gt_label=label) for f, label in zip(features[part], labels[part])])
        metric.evaluate(4)
