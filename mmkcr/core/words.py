"""Words for messages."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """``'; did you mean `x`?'`` with the nearest known word, or ``''`` where none is near.

    The ``least`` similarity is within [0, 1].
    """
    near = difflib.get_close_matches(word, list(known), 1, least)
    return f'; did you mean `{near[0]}`?' if near else ''
