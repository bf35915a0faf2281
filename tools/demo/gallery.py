"""Make the pictures of the gallery, and its page: every method on the digits.

--classifier is a dense ViT on the digits. --segmentor and --detector are dense networks on the
digit scenes, which are compressed to half here; they are optional, and so are their pictures.
Writes DIR/gallery.md and DIR/images/*.png.

Example:
    python tools/demo/gallery.py \\
        --classifier configs/kcr/digits/kcr-dense_vit-mini_1xb64_digits.py CHECKPOINT --out docs
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.gallery import PICTURES, Classifier, before_after, page
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.core import atomic_write

SIDES = dict(segmentor='a dense segmentor of scenes', detector='a dense detector of scenes')


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--classifier', nargs=2, required=True, metavar=('CONFIG', 'CHECKPOINT'),
                        help='a dense ViT on the digits')
    for name, what in SIDES.items():
        parser.add_argument(f'--{name}', nargs=2, metavar=('CONFIG', 'CHECKPOINT'), help=what)
    parser.add_argument('--out', default='work_dirs/gallery', metavar='DIR',
                        help='folder of page and pictures (%(default)s)')
    add_trust_argument(parser)
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Draw, write and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    folder, found = Path(args.out) / 'images', []
    classifier = Classifier(*args.classifier)
    for draw in PICTURES.values():
        found += draw(classifier, folder)
    for name, what, remark in (
            ('segmentor', 'Segmentation', ', whose background is no class'),
            ('detector', 'Detection', '')):
        if getattr(args, name):
            found += before_after(*getattr(args, name), folder, f'{name}.png', what, remark)
    given = [f'--{name} {getattr(args, name)[0]} CHECKPOINT' for name in ('classifier', *SIDES)
             if getattr(args, name)]
    words = ['python tools/demo/gallery.py', *given, f'--out {args.out}']
    text = page(found, ' \\\n    '.join(words), time.strftime('%Y-%m-%d'))
    with atomic_write(Path(args.out) / 'gallery.md') as path:
        path.write_text(text)
    print(f'Wrote {len(found)} pictures and {Path(args.out) / "gallery.md"}')


if __name__ == '__main__':
    main()
