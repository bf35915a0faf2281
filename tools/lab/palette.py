"""One palette for all figures.

Dense is grey and slim is teal wherever both are shown. Kept, cut and absent units have three
colours. Amounts use one scale from dark to light, signed values another one around 0.
"""

from typing import Any

DENSE, SLIM, TUNED = '#7b8794', '#00897b', '#c2571a'
KEPT, CUT, ABSENT = '#00695c', '#f3c9a5', '#ffffff'
#: Curves in their order; the first two are those of dense and slim.
SERIES = (DENSE, SLIM, TUNED, '#5e548e', '#c9a227', '#3a7ca5', '#9b2226', '#606c38')
#: Colour maps of amounts and of values around 0.
AMOUNT, SIGNED = 'viridis', 'RdBu'


def settings() -> dict[str, Any]:
    """Settings that all figures share, for :func:`matplotlib.rc_context`."""
    from cycler import cycler
    return {
        'axes.prop_cycle': cycler(color=SERIES), 'image.cmap': AMOUNT, 'axes.spines.top': False,
        'axes.spines.right': False, 'axes.titlesize': 'medium', 'axes.grid': False,
        'grid.alpha': 0.3, 'legend.frameon': False, 'legend.fontsize': 'small',
        'font.size': 10.}
