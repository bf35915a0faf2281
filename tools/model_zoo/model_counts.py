"""MACs and parameters of the models in the metafiles, counted.

Writes ``FLOPs`` and ``Parameters`` of every entry: of the dense model, or, where
the entry names a ``Target``, of a subnet of that many MACs with one keep ratio
everywhere, and that ratio; or, where it names ``Replaced Blocks``, of the network whose attention
an operator replaces in so many. Models of a library that is not installed are named and left as
they are. With --check nothing is written, and the exit status is 1 if a
number is not up to date.

Example:
    python tools/model_zoo/model_counts.py --check
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.model_zoo import model_size, task_config
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core.io import atomic_write
from mmkcr.engine.build import load_config

ROOT = Path(__file__).resolve().parents[2]


def count(entry: dict[str, Any], cache: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """``FLOPs``, ``Parameters`` and ``Keep Ratio`` of one model of a metafile.

    Args:
        entry (dict): With ``Config`` and ``Metadata``; ``Options`` are those of ``--cfg-options``.
        cache (dict): Filled by task model and target: many configs share one.
    """
    config = load_config(ROOT / entry['Config'], entry.get('Options'))
    target, replaced = (entry['Metadata'].get(key) for key in ('Target', 'Replaced Blocks'))
    key = json.dumps([task_config(config).to_dict(), target, replaced], default=str,
                     sort_keys=True)
    if key not in cache:
        size = model_size(config, target, replaced)
        cache[key] = {'FLOPs': size.macs, 'Parameters': size.params}
        if target is not None:
            cache[key]['Keep Ratio'] = round(size.keep, 4)
    return cache[key]


def update(path: Path, check: bool, only: str = '') -> list[str]:
    """Count the models of one metafile.

    Args:
        path (Path): The metafile; comments above its first entry are kept.
        check (bool): Whether to leave the file as it is.
        only (str): Part of the names to count. Defaults to '', all.

    Returns:
        list[str]: Names of the models whose numbers were not up to date.
    """
    text = path.read_text()
    head = ''.join(line for line in text.splitlines(True) if line.startswith('#'))
    content, cache, stale = yaml.safe_load(text), {}, []
    for entry in content['Models']:
        if only not in entry['Name']:
            continue
        try:
            counted = count(entry, cache)
        except ImportError as error:
            print(f'not counted: {entry["Name"]} ({error})')
            continue
        if any(entry['Metadata'].get(key) != value for key, value in counted.items()):
            stale.append(entry['Name'])
            entry['Metadata'] = {**counted, **{key: value for key, value in
                                               entry['Metadata'].items() if key not in counted}}
    if stale and not check:
        with atomic_write(path) as temporary:
            temporary.write_text(head + yaml.safe_dump(content, sort_keys=False, width=96))
    return stale


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Count, and write or check."""
    parser = Parser(__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing, compare')
    parser.add_argument('--only', default='', metavar='TEXT', help='models whose name has it (all)')
    args = parser.parse_args(argv)
    quiet_hosts()
    found = sorted((ROOT / 'configs').glob('*/metafile.yml'))
    if not any(args.only in entry['Name'] for path in found
               for entry in yaml.safe_load(path.read_text())['Models']):
        raise ValueError(f'expected text of a name of a model as `--only`, found `{args.only}`')
    stale = [name for path in found for name in update(path, args.check, args.only)]
    for name in stale:
        print(f'{"stale" if args.check else "counted"}: {name}')
    print(f'{len(found)} metafile(s), {len(stale)} model(s) {"stale" if args.check else "changed"}')
    sys.exit(1 if args.check and stale else 0)


if __name__ == '__main__':
    main()
