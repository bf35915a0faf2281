"""The sentences at the end of the quickstart."""

import pytest

from lab.quickstart_report import verdict


def rows(closed, slim):
    """Rows of one network whose compressed sides take these shares of the dense one's time."""
    ratios = dict(dense=1., closed=closed, slim=slim, plain=slim, kcr=slim)
    return [dict(arch='vit', model=model, macs=100. if model == 'dense' else 80., top1=98., kc=0.03,
                 time_ratio=ratio) for model, ratio in ratios.items()]


@pytest.mark.parametrize(('closed', 'slim', 'end'), [
    (None, None, 'from 0.0300 to 0.0300'),
    (0.85, 0.94, '85% of the time in closed form, 94% by search'),
    (0.85, 1.19, '119% by search, which copies selected channels (other runtimes and sizes: '
     'docs/deploy.md)')])
def test_a_slower_network_is_not_passed_over(closed, slim, end):
    sentence, = verdict(rows(closed, slim))
    assert sentence.startswith('vit: 20.0% fewer MACs') and sentence.endswith(end)
