"""Configs, and what they expect of a run."""

from mmkcr.engine.build import check_expected


def test_a_metric_that_was_not_expected_is_told():
    config = dict(expected={'mIoU': (50., 2.)})
    assert not check_expected(config, {'mIoU': 48.1}) and not check_expected({}, {})
    for found in (47.9, 52.1, float('nan')):
        text, = check_expected(config, {'mIoU': found})
        assert text == f'expected `mIoU` of 50.0 +/- 2.0, found {found}'
    assert 'found None' in check_expected(config, {})[0]
