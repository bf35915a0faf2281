"""Plot which channels a search keeps (KCR-Transformer, figure 3).

From checkpoints of a search: heat map of the gates' alpha and of what is kept
(of the last one), share kept by block, and with several checkpoints the
evolution over epochs. From structure files: heat map and shares.

Examples:
    python tools/analysis_tools/channel_masks.py CONFIG work_dirs/search/epoch_*.pth
    python tools/analysis_tools/channel_masks.py --structure a/structure.json b/structure.json
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.kernel_analysis import training_steps
from lab.mask_plots import (
    kept_shares,
    plot_channel_masks,
    plot_kept_shares,
    plot_mask_evolution,
    same_sites,
)
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights, run_folder
from mmkcr.methods.ofb.bimask import BiMaskGate
from mmkcr.models.tasks import search_space
from mmkcr.visualization import format_table


class Snapshot(NamedTuple):
    """Gates of one checkpoint, or a structure.

    Args:
        label (str): Epoch or iteration, or the file's name.
        masks (Structure | dict): Structure, or alpha by site.
    """

    label: str
    masks: Any


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', nargs='?', help='config of the search')
    parser.add_argument('checkpoints', nargs='*', help='checkpoints of the search')
    parser.add_argument('--structure', nargs='+', metavar='FILE',
                        help='structure files, in place of config and checkpoints')
    parser.add_argument('--out', metavar='DIR',
                        help='folder of the figures (work_dirs/<config name>/channel_masks, or '
                        'channel_masks beside the first structure)')
    parser.add_argument('--format', default='png', choices=('png', 'pdf', 'svg'),
                        help='kind of figure (%(default)s)')
    add_trust_argument(parser)
    return parser


def read_checkpoints(config: Config, paths: Sequence[str]) -> list[Snapshot]:
    """Gates of every checkpoint, in the order of the training.

    Raises:
        FileNotFoundError: A checkpoint is missing.
        ValueError: The config has no gates, or bi-masks, or a checkpoint is of another.
    """
    model = build_model(config)
    gates = search_space(model).gates()
    if not gates:
        raise ValueError('expected the config of a search (a backbone with `gates`), found one '
                         'without')
    if any(isinstance(gate, BiMaskGate) for gate in gates.values()):
        raise ValueError('expected gates with a score of every unit, found bi-masks, which choose '
                         'among sizes: tools/analysis_tools/bimask_search.py shows these')
    found, metas = [], []
    for path in paths:
        metas.append(load_weights(model, path).get('meta') or {})
        found.append({site: gate.scores().clone().numpy() for site, gate in gates.items()})
    _, steps = training_steps(metas)
    # names of files where a number would not tell checkpoints apart, or there is none
    known = len(set(steps)) == len(steps) and all(meta.get('epoch') is not None for meta in metas)
    labels = list(map(str, steps)) if known else file_labels(paths)
    order = sorted(range(len(paths)), key=steps.__getitem__)
    return [Snapshot(labels[i], found[i]) for i in order]


def file_labels(paths: Sequence[str]) -> list[str]:
    """Names of files without suffixes and, where they repeat, with their folders."""
    labels = [Path(path).stem for path in paths]
    return labels if len(set(labels)) == len(labels) else \
        [str(Path(path).with_suffix('')) for path in paths]


def read_structures(paths: Sequence[str]) -> list[Snapshot]:
    """Structures, labelled by their files."""
    return [Snapshot(label, Structure.load(path)) for label, path in zip(file_labels(paths), paths)]


def plot_all(snapshots: list[Snapshot], out: Path, suffix: str) -> list[Path]:
    """Plot what checkpoints and structures have in common."""
    paths = {name: out / f'{name}.{suffix}' for name in ('channel_masks', 'kept_shares')}
    last = snapshots[-1]
    same_sites({snapshot.label: kept_shares(snapshot.masks) for snapshot in snapshots})
    plot_channel_masks(last.masks, paths['channel_masks'], last.label)
    plot_kept_shares({s.label: s.masks for s in snapshots[-8:]}, paths['kept_shares'])
    if len(snapshots) > 1:
        paths['evolution'] = out / f'evolution.{suffix}'
        plot_mask_evolution([(s.label, s.masks) for s in snapshots], paths['evolution'])
    return list(paths.values())


def print_shares(snapshots: list[Snapshot]) -> None:
    """Print the share kept by site, a column a snapshot."""
    shares: list[dict[str, float]] = [kept_shares(s.masks) for s in snapshots[-8:]]
    rows = [(site, *(f'{share[site]:.1%}' for share in shares)) for site in shares[0]]
    print(format_table(('site', *(s.label for s in snapshots[-8:])), rows, 'share kept'))


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read, plot and say where."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if bool(args.structure) == bool(args.checkpoints):
        raise ValueError('expected a config and at least one checkpoint, or `--structure FILE`, '
                         f'found {"both" if args.structure else "neither"}')
    if args.structure:
        snapshots = read_structures(args.structure)
        default = Path(args.structure[0]).parent / 'channel_masks'
    else:
        config = load_config(args.config)
        snapshots = read_checkpoints(config, args.checkpoints)
        default = run_folder(config, args.config) / 'channel_masks'
    out = Path(args.out) if args.out else default
    written = plot_all(snapshots, out, args.format)
    print_shares(snapshots)
    print('Wrote ' + ', '.join(map(str, written)))


if __name__ == '__main__':
    main()
