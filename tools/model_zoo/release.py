"""Make the assets of a release from work directories: weights, configs, logs, hashes, one table.

Of every model: NAME-HASH.pth as tools/publish.py writes it, NAME.py, a config that finds its files
beside it, NAME.json, the structure of a subnet, and NAME.log of its training. models.json and
README.md have a row a model: the metric of its last validation (or, with --evaluate, of a test
now), MACs, parameters, milliseconds beside the dense network, seed and command. SHA256SUMS has the
hashes.

Examples:
    python tools/model_zoo/release.py work_dirs/kcr-dense_vit-mini_1xb64_digits \\
        work_dirs/kcr-dense_vit-mini_1xb64_digits/compress --out release --evaluate
    python tools/model_zoo/release.py vit-mini_half=slim --out release --runtime openvino
    python tools/model_zoo/release.py compress-30_vit-mini_digits=slim --half --evaluate \\
        --out trained
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.release import HASHES, TABLE, Options, release
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.deploy.runtimes import RUNTIMES


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('work_dirs', nargs='+', metavar='WORK_DIR',
                        help='folder of a training or of compress, or NAME=FOLDER')
    parser.add_argument('--out', default='work_dirs/release', metavar='DIR',
                        help='folder of the assets (%(default)s)')
    parser.add_argument('--runtime', choices=RUNTIMES, default='onnxruntime',
                        help='that times are measured in (%(default)s)')
    parser.add_argument('--repeats', type=int, default=30,
                        help='pairs that are timed; 0: none (%(default)s)')
    parser.add_argument('--evaluate', action='store_true',
                        help='test every published file instead of quoting its log')
    parser.add_argument('--half', action='store_true',
                        help='store matrices in 16 bits: half the size')
    add_trust_argument(parser)
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Publish, measure, write and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if args.repeats < 0:
        raise ValueError(f'expected `--repeats` of at least 0, found {args.repeats}')
    out = Path(args.out)
    with contextlib.redirect_stdout(sys.stderr):
        rows = release(args.work_dirs, out, Options(args.runtime, args.repeats, args.evaluate,
                                                     args.half))
    print((out / TABLE).read_text(), end='')
    print(f'Wrote {sum(len(row["files"]) for row in rows)} files of {len(rows)} models to {out}, '
          f'with {HASHES}')


if __name__ == '__main__':
    main()
