"""Score attention heads by how much their maps vary over images, and replace some of them.

Over training images as the deployed network sees them: test transforms, and the windows that a
segmentor slides. Welford's algorithm in fp64: memory does not depend on the number of images, and
blocks whose moments do not fit into --memory take further passes. Prints a table; writes
scores.json and scores.png to the folder --out, and with --replace also structure.json and
subnet.pth, which a config with backbone=dict(structure='.../structure.json') and
load_from='.../subnet.pth' trains.

Without a checkpoint the weights are those that a training would start from (init_cfg): for
replacement without a first fine-tuning. With --structure nothing is scored: the heads of a
selection that a search has learned are replaced in the dense network (two-stage DSP). Nor is it
with --blocks, a list, or with --scores, the scores.json of an earlier call.

Examples:
  python tools/analysis_tools/score_heads.py CONFIG CHECKPOINT --replace 12
  python tools/analysis_tools/score_heads.py CONFIG CHECKPOINT --replace 192 --scattered
  python tools/analysis_tools/score_heads.py CONFIG CHECKPOINT --structure LEARNED/structure.json
  python tools/analysis_tools/score_heads.py CONFIG CHECKPOINT --blocks 2 3 5 6
  python tools/analysis_tools/score_heads.py CONFIG CHECKPOINT --scores DIR/scores.json --replace 10
  python -m torch.distributed.run --nproc_per_node 8 tools/analysis_tools/score_heads.py \\
      CONFIG CHECKPOINT --images 10000 --launcher pytorch --device cuda
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import MaxNLocator
from mmengine.dist import init_dist, is_distributed, is_main_process
from mmengine.registry import init_default_scope

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.figures import saved_figure
from lab.head_scores import REDUCTIONS
from lab.mask_plots import as_grid
from lab.palette import AMOUNT
from lab.replace_heads import replaceable_heads, score_heads, unfolded, write_replaced
from mmkcr.apis.slim_files import provenance
from mmkcr.cli.command import Parser, add_options_argument, add_trust_argument, command, quiet_hosts
from mmkcr.core import Structure, atomic_write
from mmkcr.core.checks import image_shape
from mmkcr.datasets import check_data_folders
from mmkcr.engine.build import (
    build_model,
    default_shape,
    find_weights,
    load_config,
    load_weights,
    run_folder,
)
from mmkcr.engine.processes import prepare_launcher
from mmkcr.models.head_choice import (
    SELECTIONS,
    Count,
    choose_heads,
    find_head_sites,
    select_heads,
    set_operator,
)
from mmkcr.models.layers.head_operators import OPERATORS
from mmkcr.visualization import format_table


def plot_head_scores(scores: Mapping[str, Sequence[float]], path: str | Path,
                     kept: Mapping[str, Sequence[int]] | None = None, title: str = '') -> None:
    """Heat map of blocks x heads; within a block heads are sorted by score, as in the paper.

    Args:
        scores (Mapping[str, Sequence[float]]): By site.
        path (str | Path): Figure to write.
        kept (Mapping[str, Sequence[int]], optional): Heads that stay attention, by site: the
            others are marked.
        title (str): Defaults to none.
    """
    values = {site: np.asarray(score, dtype=float) for site, score in scores.items()}
    orders = {site: np.argsort(score, kind='stable') for site, score in values.items()}
    grid = as_grid({site: score[orders[site]] for site, score in values.items()})
    width = max(5., 2.5 + 0.3 * grid.shape[1])
    with saved_figure(path, (width, max(2.6, 1.4 + 0.26 * len(values)))) as (figure, axes):
        image = axes.imshow(grid, aspect='auto', interpolation='nearest', cmap=AMOUNT)
        axes.set_yticks(range(len(values)), list(values), fontsize='x-small')
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel='head, by score', title=title)
        figure.colorbar(image, ax=axes, label='score (deviation over images)')
        if kept is not None:
            marks = [(column, row) for row, (site, order) in enumerate(orders.items())
                     for column, head in enumerate(order)
                     if int(head) not in set(map(int, kept[site]))]
            if marks:
                axes.set_xlabel('head, by score; dots: replaced')
                axes.plot(*zip(*marks), 'o', color='white', markeredgecolor='black', markersize=5)


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the dense model')
    parser.add_argument('checkpoint', nargs='?',
                        help='its checkpoint (`load_from` of the config, or the `init_cfg` of its '
                        'parts)')
    parser.add_argument('--images', type=int, default=1000,
                        help='training images, drawn at random (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of the draw (%(default)s)')
    parser.add_argument('--reduction', choices=REDUCTIONS, default='sum',
                        help='over the entries of a map: sum, as in the paper; mean, comparable '
                        'across image sizes; relative, the sum over that of the mean map '
                        '(%(default)s)')
    parser.add_argument('--memory', type=float, default=2., metavar='GIB',
                        help='most memory of the moments, but for one block (%(default)s)')
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument('--replace', type=number, metavar='K',
                        help='blocks, or heads, to replace: a number, or a share such as 0.5')
    chosen.add_argument('--blocks', type=int, nargs='+', metavar='N',
                        help='replace these blocks, from 0, and score nothing')
    chosen.add_argument('--structure', metavar='FILE',
                        help='replace those of a structure file, and score nothing')
    parser.add_argument('--scores', metavar='FILE',
                        help='with --replace: a scores.json, and score nothing')
    parser.add_argument('--which', choices=SELECTIONS, default='lowest',
                        help='which to replace (%(default)s)')
    parser.add_argument('--scattered', action='store_true', help='single heads, not whole blocks')
    parser.add_argument('--operator', choices=sorted(OPERATORS), default='dwconv',
                        help='what takes their place (%(default)s)')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help="height and width that MACs are counted for; default: the config's")
    parser.add_argument('--out', metavar='DIR', help='folder (work_dirs/<config name>/slim)')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='(%(default)s)')
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none',
                        help='job launcher (%(default)s)')
    add_options_argument(parser)
    add_trust_argument(parser)
    return parser


def number(text: str) -> Count:
    """A number of blocks or heads, or with a point a share of them."""
    return float(text) if '.' in text else int(text)


def _choice(args: Any) -> dict[str, Any] | None:
    """What the arguments choose without scoring, see :func:`choose_heads`."""
    if args.blocks is None and args.scores is None:
        return None
    defaults = make_parser().parse_args([args.config])
    names = ('blocks', 'scores', 'replace', 'which', 'scattered', 'seed')
    given = {name: getattr(args, name) for name in names}
    return dict({name: value for name, value in given.items() if value != getattr(defaults, name)},
                operator=args.operator)


def _table(scores: dict[str, torch.Tensor]) -> str:
    order = sorted(scores, key=lambda site: float(scores[site].mean()))
    rows = [(site, f'{float(score.mean()):.5g}', str(order.index(site) + 1),
             f'{float(score.min()):.5g}', f'{float(score.max()):.5g}')
            for site, score in scores.items()]
    return format_table(('block', 'score', 'rank', 'lowest head', 'highest head'), rows)


def _measure(args: Any, config: Any, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    distributed = args.launcher != 'none'
    config.launcher = args.launcher
    prepare_launcher(config)
    if distributed and not is_distributed():
        init_dist(args.launcher)
    device = torch.device(args.device)
    if device.type == 'cuda' and distributed:
        device = torch.device('cuda', torch.cuda.current_device())
    scores = score_heads(model.to(device), config, args.images, args.seed, distributed,
                         reduction=args.reduction, memory=int(args.memory * 2**30))
    model.to('cpu')
    return scores


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Score, print and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    config = load_config(args.config, args.cfg_options)
    init_default_scope(config.get('default_scope', 'mmpretrain'))
    choice = _choice(args)
    if args.structure is None and choice is None:
        check_data_folders(config, ('train_dataloader', 'val_dataloader'))
    model, content = build_model(config), {}
    space = replaceable_heads(model)
    args.checkpoint = args.checkpoint or config.get('load_from')
    if args.checkpoint is None and "'Pretrained'" in str(config.model):
        model.init_weights()
    else:
        args.checkpoint = find_weights(config, args.checkpoint, args.config)
        content = load_weights(model, args.checkpoint)
    folder = Path(args.out or run_folder(config, args.config) / 'slim')
    if args.structure is not None:
        _replace(args, config, model, unfolded(Structure.load(args.structure)), folder, content)
        return
    if choice is not None:
        structure = space.structure_for(choose_heads(space.sites, choice))
        _replace(args, config, model, structure, folder, content)
        return
    # refused before the pass over the data, not after it
    heads = {name: torch.zeros(site.total) for name, site in find_head_sites(space.sites).items()}
    select_heads(heads, args.replace or 0, args.which, not args.scattered)
    scores = _measure(args, config, model)
    kept = select_heads(scores, args.replace or 0, args.which, not args.scattered, args.seed)
    if not is_main_process():
        return
    print(_table(scores))
    with atomic_write(folder / 'scores.json') as path:
        path.write_text(json.dumps(dict(
            images=args.images, seed=args.seed, reduction=args.reduction,
            scores={site: score.tolist() for site, score in scores.items()}), indent=1) + '\n')
    plot_head_scores(scores, folder / 'scores.png', kept if args.replace else None)
    print(f'Wrote {folder / "scores.json"} and {folder / "scores.png"}')
    if args.replace is None:
        return
    set_operator(space.sites, args.operator)
    _replace(args, config, model, space.structure_for(kept), folder, content)


def _replace(args: Any, config: Any, model: torch.nn.Module, structure: Structure, folder: Path,
             content: Any) -> None:
    """Replace heads, write structure and weights, print sizes."""
    if args.checkpoint:
        structure.provenance = provenance(config, args.config, args.checkpoint, content)
    shape = image_shape(args.shape) if args.shape else default_shape(config, model)
    structure = write_replaced(model, structure, folder, shape, content)
    macs, params = structure.macs, structure.params
    print(format_table(('', 'dense', 'replaced', 'share'), [
        (name, f'{before / scale:.4g}', f'{after / scale:.4g}', f'{after / before:.1%}')
        for name, before, after, scale in (
            ('MACs (G)', macs['dense'], macs['subnet'], 1e9),
            ('parameters (M)', params['dense'], params['subnet'], 1e6))]))
    print(f'Wrote {folder / "structure.json"} and {folder / "subnet.pth"}')


if __name__ == '__main__':
    main()
