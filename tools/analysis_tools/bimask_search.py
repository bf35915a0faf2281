"""Plot a bi-mask search (Once-for-Both, figures 5 and 6) from its files.

From checkpoints: bi-masks in descending order over epochs. From the structure file that
slimming wrote: channels by layer and head.

Examples:
    python tools/analysis_tools/bimask_search.py CONFIG work_dirs/search/epoch_*.pth
    python tools/analysis_tools/bimask_search.py CONFIG \\
        --structure work_dirs/search/slim/structure.json
"""

import copy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.figures import saved_figure
from lab.palette import AMOUNT, CUT, KEPT
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.methods.ofb.bimask import BiMaskGate
from mmkcr.models.tasks import search_space
from mmkcr.visualization import format_table

Numbers = Sequence[float]


def head_widths(structure: Structure, groups: Mapping[str, int]) -> dict[str, list[int]]:
    """Kept channels of every head of every attention.

    Args:
        structure (Structure): Result of a bi-mask search.
        groups (Mapping[str, int]): Heads of the dense attention by site.

    Returns:
        dict[str, list[int]]: By site, one number per head of the dense attention.
    """
    return {name: np.bincount(np.asarray(structure.sites[name].kept) //  # head of each channel
                              (structure.sites[name].total // count), minlength=count).tolist()
            for name, count in groups.items() if count > 1}


def plot_widths(structure: Structure, groups: Mapping[str, int], path: str | Path) -> None:
    """Searched widths: a grid of heads with their channels, bars for all other sites.

    Args:
        structure (Structure): Result of a bi-mask search.
        groups (Mapping[str, int]): Heads of the dense attention, or 1, by site.
        path (str | Path): Figure to write.
    """
    heads = head_widths(structure, groups)
    others = {name: (len(site.kept), site.total) for name, site in structure.sites.items()
              if name not in heads}
    grid = np.zeros((max(map(len, heads.values()), default=1), max(len(heads), 1)))
    full = max((structure.sites[name].total // groups[name] for name in heads), default=1)
    for column, widths in enumerate(heads.values()):
        grid[:len(widths), column] = widths
    with saved_figure(path, (9, 6), nrows=2) as (_, (above, below)):
        above.imshow(grid, cmap='Blues', aspect='auto', vmin=0, vmax=full)
        for row, column in zip(*np.nonzero(grid)):
            above.text(column, row, int(grid[row, column]), ha='center', va='center',
                       color='white' if grid[row, column] > full / 2 else 'black')
        above.set(ylabel='head', title=f'channels kept of each head, of {full}')
        above.set_yticks(range(len(grid)))
        above.set_xticks(range(len(heads)), heads, rotation=90, fontsize='x-small')
        below.bar(range(len(others)), [total for _, total in others.values()], color=CUT)
        bars = below.bar(range(len(others)), [kept for kept, _ in others.values()], color=KEPT)
        below.bar_label(bars, padding=2, fontsize='small')
        below.set(ylabel='units', title='width and hidden layers: kept (dark), of all')
        below.set_xticks(range(len(others)), others, rotation=90, fontsize='x-small')


def plot_mask_descent(masks: Mapping[str, Sequence[tuple[str, Numbers]]],
                      path: str | Path) -> None:
    """Mask values in descending order, one colour per checkpoint; 1 once folded into the weights.

    Args:
        masks (Mapping[str, Sequence[tuple[str, Sequence[float]]]]): By site,
            label and mask of every checkpoint.
        path (str | Path): Figure to write.

    Raises:
        ValueError: No masks.
    """
    if not masks or not all(masks.values()):
        raise ValueError(f'expected masks to plot, found none in {sorted(masks)}')
    columns = min(4, len(masks))
    rows = -(-len(masks) // columns)
    series = max(masks.values(), key=len)
    with saved_figure(path, (max(5., 3 * columns), 2.2 * rows + 0.8), nrows=rows, ncols=columns,
                      squeeze=False) as (figure, axes):
        colors = colormaps[AMOUNT](np.linspace(0, 0.9, len(series)))
        for axis, (site, values) in zip(axes.flat, masks.items()):
            for number, (label, mask) in enumerate(values):
                # later curves are thinner, so that they do not hide earlier ones
                axis.plot(np.sort(np.asarray(mask, dtype=float))[::-1], color=colors[number],
                          linewidth=1 + 2 * (len(values) - 1 - number) / len(values), label=label)
            axis.set_title(site, fontsize='small')
            axis.set_ylim(0, 1.05)
        for axis in list(axes.flat)[len(masks):]:
            axis.axis('off')
        figure.supxlabel('unit, in descending order', fontsize='small')
        figure.supylabel('mask', fontsize='small')
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc='outside upper center',
                      ncols=min(len(series), 6), fontsize='small')


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the search')
    parser.add_argument('checkpoints', nargs='*', help='checkpoints of the search')
    parser.add_argument('--structure', metavar='FILE', help='structure file of a bi-mask search')
    parser.add_argument('--out', default='bimask_search', metavar='DIR',
                        help='folder of the figures (%(default)s)')
    parser.add_argument('--format', default='png', choices=('png', 'pdf', 'svg'),
                        help='kind of figure (%(default)s)')
    add_trust_argument(parser)
    return parser


def read_masks(config: str, checkpoints: Sequence[str]) -> dict[str, list]:
    """Bi-masks by site, a label and the values of every checkpoint.

    Raises:
        ValueError: The config has no bi-mask gates.
    """
    dense, masks = build_model(load_config(config)), {}
    if not any(isinstance(gate, BiMaskGate) for gate in search_space(dense).gates().values()):
        raise ValueError(f'expected the config of a search with bi-mask gates, found `{config}` '
                         'without')
    for path in checkpoints:
        model = copy.deepcopy(dense)  # loading slices it
        load_weights(model, path)
        for site, gate in search_space(model).gates().items():
            values = gate.train()().detach().tolist()
            masks.setdefault(site, []).append((Path(path).stem, values))
    return masks


def show_structure(config: str, path: str, figure: Path) -> None:
    """Print and plot the widths of a structure."""
    structure, space = Structure.load(path), search_space(build_model(load_config(config)))
    structure.validate(space.totals())
    groups = {name: site.groups for name, site in space.sites.items()}
    heads = head_widths(structure, groups)
    rows = [(name, f'{len(site.kept)} / {site.total}',
             ' '.join(map(str, heads[name])) if name in heads else '-')
            for name, site in structure.sites.items()]
    print(format_table(('site', 'kept', 'channels of each head'), rows, 'searched widths'))
    plot_widths(structure, groups, figure)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read, plot and say where."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if not (args.checkpoints or args.structure):
        raise ValueError('expected checkpoints or `--structure`, found neither')
    out = Path(args.out)
    if args.checkpoints:
        plot_mask_descent(read_masks(args.config, args.checkpoints), out / f'masks.{args.format}')
    if args.structure:
        show_structure(args.config, args.structure, out / f'widths.{args.format}')
    print(f'Wrote figures to {out}')


if __name__ == '__main__':
    main()
