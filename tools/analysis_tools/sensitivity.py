"""Plot what every layer loses at every size, as compress has measured it.

Reads sensitivity.json and structure.json of a folder that compress wrote: a curve a layer, a panel
a kind of site, one scale of losses and one of colours, and a dot where the subnet is.

Example:
    python tools/analysis_tools/sensitivity.py slim --out sensitivity.png
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.sensitivity_plots import plot_sensitivity
from mmkcr.apis.compress_files import SENSITIVITY
from mmkcr.cli.command import Parser, command
from mmkcr.core import Structure
from mmkcr.core.file_names import STRUCTURE


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
