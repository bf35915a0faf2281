"""Options within a window: complete, inside, near the probabilities; refusals with the range."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.core import CostModel, allowed_ratio_sizes, can_meet, choose_options


class Product(CostModel):
    """A width that meets every other site, and a site of its own square: not separable."""

    def __call__(self, sizes):
        width = sizes['width']
        return 10 * width + width * sum(v for name, v in sizes.items() if name != 'width') + 7


rising = Product()


class Falling(CostModel):
    """Sizes that are multiples of 3 cost less than smaller ones, as in measured times."""

    rises = False

    def __call__(self, sizes):
        return sum(100 + 10 * size + 60 * (size % 3) for size in sizes.values())


sizes_of_a_site = st.lists(st.integers(1, 30), min_size=1, max_size=4, unique=True)


@pytest.mark.parametrize('cost', [rising, Falling()], ids=['rising', 'falling'])
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_complete_and_inside(cost, data):
    """A choice is found exactly if there is one, inside the window; a quick yes is true."""
    names = ['width', 'a', 'b', 'c'][:data.draw(st.integers(1, 4))]
    options = {name: data.draw(sizes_of_a_site) for name in names}
    scores = {name: [data.draw(st.floats(-5, 5)) for _ in found]
              for name, found in options.items()}
    low = data.draw(st.integers(1, 1500))
    high = low + data.draw(st.integers(0, 60))
    costs = [cost(dict(zip(options, chosen))) for chosen in itertools.product(*options.values())]
    if can_meet(options, cost, low, high):
        assert any(low <= value <= high for value in costs)
    if any(low <= value <= high for value in costs):
        chosen = choose_options(options, scores, cost, low, high)
        found = cost({name: options[name][index] for name, index in chosen.items()})
        assert low <= found <= high
    else:
        with pytest.raises(ValueError, match='within the reachable'):
            choose_options(options, scores, cost, low, high)
    # one site: the quick answer is exact
    one = {**{name: found[:1] for name, found in options.items()}, names[-1]: options[names[-1]]}
    costs = [cost(dict(zip(one, chosen))) for chosen in itertools.product(*one.values())]
    assert can_meet(one, cost, low, high) == any(low <= value <= high for value in costs)


def test_prefers_what_is_likely():
    """With room for one large site out of three, it is the one that wants it."""
    options = {'width': [10], **{name: [4, 16] for name in 'abc'}}
    for favourite in 'abc':
        scores = {name: [0., 3. if name == favourite else 0.] for name in 'abc'}
        chosen = choose_options(options, dict(scores, width=[0.]), rising, 340, 350)
        assert {name: chosen[name] for name in 'abc'} == {n: int(n == favourite) for n in 'abc'}


def test_a_quick_yes_is_said_for_the_windows_of_a_search():
    """Ten sites of seven sizes each, a window of 3 %, any target."""
    options = {'width': range(48, 97, 3), **{str(i): range(24, 97, 12) for i in range(10)}}
    smallest, largest = (rising({site: end(sizes) for site, sizes in options.items()})
                         for end in (min, max))
    for share in range(101):
        high = smallest + (largest - smallest) * share // 100
        assert can_meet(options, rising, min(int(0.97 * high) + 1, high), high)
    assert not can_meet(options, rising, 1, smallest - 1)
    assert not can_meet(options, rising, largest + 1, 2 * largest)


def test_ratio_sizes():
    assert allowed_ratio_sizes(64, 0.25, 0.125) == (16, 24, 32, 40, 48, 56, 64)
    assert allowed_ratio_sizes(3, 0.25, 0.125) == (1, 2, 3)
    assert allowed_ratio_sizes(10, 1., 0.5) == (10, )
    assert allowed_ratio_sizes(7, 0.5, 0.25) == (4, 5, 7)
