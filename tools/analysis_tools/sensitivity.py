"""Plot what every layer loses at every size, as compress has measured it.

Reads sensitivity.json and structure.json of a folder that compress wrote: a curve a layer, a panel
a kind of site, one scale of losses and one of colours, and a dot where the subnet is.

Example:
    python tools/analysis_tools/sensitivity.py slim --out sensitivity.png
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.figures import saved_figure
from lab.palette import AMOUNT
from mmkcr.apis.compress_files import SENSITIVITY
from mmkcr.cli.command import Parser, command
from mmkcr.core import Structure, block_of
from mmkcr.core.file_names import STRUCTURE


def plot_sensitivity(losses: Mapping[str, Sequence[float]], path: str | Path,
                     kept: Mapping[str, int] | None = None, title: str = '') -> None:
    """Curves of the loss over the share of kept units: one panel per kind, one colour per depth.

    All panels share one scale of losses and one of colours: the layer's depth in the network.

    Args:
        losses (Mapping[str, Sequence[float]]): By site, ``<layer>.<kind>``: the loss with 0, 1, 2,
            ... units, as in ``sensitivity.json``.
        path (str | Path): Figure to write.
        kept (Mapping[str, int], optional): Units that a subnet keeps, by site: marked on the
            curves. Defaults to None.
        title (str): Defaults to none.

    Raises:
        ValueError: No sites, or ``kept`` of other sites.
    """
    if not losses:
        raise ValueError('expected losses of at least one site to plot, found none')
    if kept is not None and set(kept) != set(losses):
        raise ValueError(f'expected the {len(losses)} sites of the losses, found '
                         f'{sorted(set(kept) ^ set(losses))} in one of the two only')
    kinds: dict[str, list[str]] = {}
    for site in losses:
        kinds.setdefault(site.rpartition('.')[2], []).append(site)
    depth = {layer: number for number, layer in enumerate(
        dict.fromkeys(block_of(site) for site in losses))}
    colours = ScalarMappable(Normalize(0, max(len(depth) - 1, 1)), colormaps[AMOUNT])
    with saved_figure(path, (3.4 * len(kinds) + 1.2, 3.4), ncols=len(kinds), squeeze=False,
                      sharey=True) as (figure, axes):
        for axis, (kind, sites) in zip(axes[0], kinds.items()):
            for site in sites:
                values = np.asarray(losses[site], dtype=float)
                shares = np.linspace(0, 100, len(values))
                colour = colours.to_rgba(depth[block_of(site)])
                shown = values > 0  # the full layer's loss of 0 has no place on a log scale
                axis.plot(shares[shown], values[shown], color=colour, linewidth=1.3)
                if kept is not None and kept[site] < len(values) - 1:
                    axis.plot(shares[kept[site]], values[kept[site]], 'o', color=colour,
                              markeredgecolor='black', markersize=5)
            axis.set(title=kind, xlabel='units kept (%)', yscale='log', xlim=(-3, 103))
            axis.grid(True)
        axes[0, 0].set_ylabel('loss of the outputs')
        figure.colorbar(colours, ax=axes[0, -1], label='depth of the layer',
                        ticks=MaxNLocator(integer=True))
        figure.suptitle(title)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read and plot."""
    parser = Parser(__doc__)
    parser.add_argument('folder', type=Path, help='that compress wrote')
    parser.add_argument('--out', type=Path, metavar='FILE',
                        help='figure: .png, .pdf or .svg (sensitivity.png in the folder)')
    args = parser.parse_args(argv)
    source = args.folder / SENSITIVITY
    if not source.is_file():
        raise FileNotFoundError(f'expected `{SENSITIVITY}` of `mmkcr compress` in '
                                f'`{args.folder}`, found none')
    structure = Structure.load(args.folder / STRUCTURE)
    losses = {name: entry['losses'] for name, entry in json.loads(source.read_text()).items()}
    macs, out = structure.macs, args.out or args.folder / 'sensitivity.png'
    plot_sensitivity(losses, out, structure.sizes(),
                     f'{macs["subnet"] / macs["dense"]:.0%} of the MACs')
    print(f'Wrote {out}')


if __name__ == '__main__':
    main()
