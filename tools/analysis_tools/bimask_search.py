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
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.bimask_plots import head_widths, plot_mask_descent, plot_widths
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.methods.ofb.bimask import BiMaskGate
from mmkcr.models.tasks import search_space
from mmkcr.visualization import format_table


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
