"""What the suite leaves to its long form (``MMKCR_LONG_TESTS=1 make test``)."""

import os

#: Whether this is the long form.
LONG = bool(os.environ.get('MMKCR_LONG_TESTS'))


def few(cases, *names):
    """Cases that prove one property for many configs: some of them, all in the long form.

    Args:
        cases (dict | Sequence): All.
        names: Those of the short form.
    """
    if LONG:
        return cases
    assert set(names) <= set(cases), sorted(set(names) - set(cases))
    return {name: cases[name] for name in names} if isinstance(cases, dict) else names


def every_nth(step, cases):
    """Every ``step``-th case of a property that is proven for many; all in the long form."""
    cases = list(cases)
    return cases if LONG else cases[::step]
