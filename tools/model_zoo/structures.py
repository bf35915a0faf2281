"""Write the structure files of the ImageNet models, with one keep ratio everywhere.

A search decides which units stay. These files stand in for it, at the MACs of the metafiles and
with units drawn at random (seed 0), so that every deployment and retraining config can be built,
counted, exported and timed before a search has been run. They are in configs/structures; a config
takes one by --cfg-options. With --check nothing is written, and the exit status is 1 if a file is
not up to date.

Examples:
    python tools/model_zoo/structures.py --check
    python tools/model_zoo/structures.py --only vit-small --out work_dirs/structures
"""

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from mmengine.config import Config

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.model_zoo import uniform_subnet
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import Structure
from mmkcr.engine.build import load_config
from mmkcr.models.tasks import search_space
from mmkcr.visualization import show_progress

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'structures'
#: Kinds whose units any others can stand for: the network has the same size and the same layers.
ALIKE = ('mlp_hidden', 'embedding')
_SLIM = re.compile(r"work_dirs/([^/']+_in1k(?:-100)?)/slim\b")


class Wanted(NamedTuple):
    """A structure that configs ask for.

    Args:
        name (str): Of the file, without its suffix: that of the search.
        config (str): A config that asks for it.
        target (Any): MACs of the subnet, or None.
        replaced (int, optional): Blocks whose attention an operator replaces.
    """

    name: str
    config: str
    target: Any
    replaced: Any


def structure_name(text: str) -> str:
    """Name of the file that stands in for the structure of a config, '' if there is none.

    Variants of one search (another version of the paper, a frozen backbone) share one.

    Args:
        text (str): The path of the structure that a config names, or the config's own text.
    """
    match = _SLIM.search(text)
    return re.sub('_(v1|linear)(?=_)', '', match[1]) if match else ''


def structure_of_model(entry: dict[str, Any], root: Path) -> str:
    """Name of the file that stands in for the structure of a model, '' if there is none.

    Args:
        entry (dict): Of a metafile; its ``Options`` may name another structure than its config.
        root (Path): Folder that its config's path starts from.
    """
    options = map(str, (entry.get('Options') or {}).values())
    return structure_name('\n'.join([*options, (root / entry['Config']).read_text()]))


def wanted(models: list[dict[str, Any]], root: Path) -> list[Wanted]:
    """The structures that the ImageNet configs of some metafiles ask for.

    Args:
        models (list[dict]): Entries of metafiles.
        root (Path): Folder that their configs' paths start from.
    """
    found: dict[str, Wanted] = {}
    for entry in models:
        if entry['Config'].endswith('_in1k.py'):
            name, meta = structure_of_model(entry, root), entry['Metadata']
            if name and meta.keys() & {'Target', 'Replaced Blocks'}:  # of a subnet
                found.setdefault(name, Wanted(name, entry['Config'], meta.get('Target'),
                                              meta.get('Replaced Blocks')))
    return list(found.values())


def uniform_structure(config: Config, target: Any, replaced: Any = None,
                      seed: int = 0) -> Structure:
    """The structure of a config's model with one keep ratio everywhere, units drawn at random.

    Args:
        config (Config): With a task model whose backbone is searchable.
        target (str | int | float): Most MACs; not read where blocks are replaced.
        replaced (int, optional): Blocks whose attention is replaced, the first ones.
        seed (int): Of the units. Defaults to 0.
    """
    model = uniform_subnet(config, target, replaced, seed)
    structure = search_space(model).structure
    kinds = {name: site.kind for name, site in search_space(model).sites.items()}
    for name, site in structure.sites.items():
        if kinds[name] in ALIKE:
            site.kept = len(site.kept)  # the first that many: a count in the file
    structure.provenance = dict(
        note='one keep ratio everywhere; no search has chosen these units', seed=seed,
        **({'target': str(target)} if replaced is None else {'replaced_blocks': replaced}))
    return structure


def write_structure(want: Wanted, config: Config, folder: Path) -> Path:
    """Write the file of a structure.

    Args:
        want (Wanted): Which.
        config (Config): Of ``want.config``.
        folder (Path): Of the files.
    """
    torch.manual_seed(0)
    path = folder / f'{want.name}.json'
    uniform_structure(config, want.target, want.replaced).save(path)
    return path


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Write or compare."""
    parser = Parser(__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing, compare')
    parser.add_argument('--only', default='', metavar='TEXT', help='files whose name has it (all)')
    parser.add_argument('--out', type=Path, default=FOLDER, metavar='DIR',
                        help='folder (configs/structures)')
    args = parser.parse_args(argv)
    quiet_hosts()
    models = [entry for path in sorted((ROOT / 'configs').glob('*/metafile.yml'))
              for entry in yaml.safe_load(path.read_text())['Models']]
    found = [want for want in wanted(models, ROOT) if args.only in want.name]
    if not found:
        raise ValueError(f'expected text of a name of a structure as `--only`, found `{args.only}`')
    stale = []
    with tempfile.TemporaryDirectory() as folder:
        for want in show_progress(found, 'Structures'):
            config = load_config(ROOT / want.config)
            made = write_structure(want, config, Path(folder) if args.check else args.out)
            there = args.out / made.name
            if not there.is_file() or there.read_text() != made.read_text():
                stale.append(made.stem)
    for name in stale:
        print(f'stale: {name}')
    print(f'{len(found)} structure(s), {len(stale)} stale' if args.check else
          f'Wrote {len(found)} structure(s) to {args.out}')
    sys.exit(1 if stale else 0)


if __name__ == '__main__':
    main()
