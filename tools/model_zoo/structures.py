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

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.structures import wanted, write_structure
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.engine.build import load_config
from mmkcr.visualization import show_progress

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'configs' / 'structures'


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
