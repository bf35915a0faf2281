"""Parameters at the MACs that the KCR paper reports, beside the reported ones.

The paper gives MACs and parameters of its subnets, not their channels. With one
keep ratio everywhere, chosen to meet the MACs, the parameters follow; that they
come out near the reported ones confirms the reading of section 3.1: the same
channels at both ends of the MLP, and the full hidden width.

We count all MACs. The paper's 4.3 G for ViT-S leaves out the attention products
(4.25 G without, 4.60 G with), so there, and there only, they are left out on
both sides.

Example:
    python tools/model_zoo/paper_sizes.py
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.model_zoo import model_size
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.engine.build import load_config
from mmkcr.visualization import format_table

ROOT = Path(__file__).resolve().parents[2]
TABLES = ('KCR v2, table 1', 'KCR v2, table 13')
WITHOUT_ATTENTION = ('vit-small', )  # whose reported MACs leave out the attention products


def reported() -> list[dict[str, Any]]:
    """Retraining entries of the metafile with a reported size: table 1 and the lambda sweep."""
    content = yaml.safe_load((ROOT / 'configs/kcr/metafile.yml').read_text())
    return [entry for entry in content['Models'] if '/retrain/' in entry['Config']
            and entry.get('Reported', {}).get('Source') in TABLES]


def compare(entry: dict[str, Any]) -> dict[str, Any]:
    """Size at one keep ratio beside the reported size.

    Args:
        entry (dict): Of the metafile, with ``Config`` and ``Reported``.

    Returns:
        dict: ``name``, ``convention`` (what is counted), ``macs`` and
        ``params`` of ours in the paper's convention, ``keep``, the reported
        numbers, and the relative ``error`` of the parameters.
    """
    config = load_config(ROOT / entry['Config'], entry.get('Options'))
    left_out = any(name in entry['Name'] for name in WITHOUT_ATTENTION)
    attention = model_size(config).attention if left_out else 0
    target = round(entry['Reported']['MACs (G)'] * 1e9) + attention
    # in steps of one channel: steps of 8 hide up to a hundredth of the parameters
    size = model_size(config, target, divisor=1)
    params = entry['Reported']['Parameters (M)'] * 1e6
    return dict(
        name=entry['Name'], convention='without attention products' if left_out else 'all MACs',
        macs=size.macs - attention, all_macs=size.macs, keep=size.keep, params=size.params,
        reported_macs=entry['Reported']['MACs (G)'] * 1e9, reported_params=params,
        error=size.params / params - 1)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = Parser(__doc__)
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')
    args = parser.parse_args(argv)
    quiet_hosts()
    rows = [compare(entry) for entry in reported()]
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(format_table(
        ('model', 'counted', 'MACs (G)', 'reported', 'keep', 'params (M)', 'reported', 'error'),
        [(row['name'], row['convention'], f'{row["macs"] / 1e9:.2f}',
          f'{row["reported_macs"] / 1e9:.1f}', f'{row["keep"]:.3f}', f'{row["params"] / 1e6:.1f}',
          f'{row["reported_params"] / 1e6:.1f}', f'{row["error"]:+.1%}') for row in rows]))


if __name__ == '__main__':
    main()
