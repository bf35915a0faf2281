"""The main job in a minute: make a trained network smaller, time it, draw what it sees.

The network comes with the package: a UPerNet with a small Swin, trained on scenes of handwritten
digits. Its backbone is compressed in closed form from unlabelled training scenes. Prints the table
of `mmkcr compress` with the mIoU on held-out scenes, and the time of one image as a share of the
dense backbone's; writes the compressed network and before_after.png. Ends with a small frontier: is
int8, or both, better than the cut?

Examples:
    python tools/quickstart.py
    python tools/quickstart.py --target-macs 30% --work-dir work_dirs/quickstart-30
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from demo.before_after import draw, draw_pairs, find_images, load

from lab.digits import write_digits
from mmkcr.apis.inference import model_index
from mmkcr.cli import compress, frontier
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core.file_names import CONFIG, SUBNET
from mmkcr.deploy.latency import measure_pair
from mmkcr.deploy.runtimes import quiet
from mmkcr.models.tasks import find_task
from mmkcr.visualization import format_table

NETWORK = 'dense_upernet_swin-mini_digit-scenes'
DATA, PICTURE = 'data/digits', 'before_after.png'
IMAGES, SHOWN, PAIRS = 36, 3, 30
RUNTIMES = {'onnxruntime': 'ONNX Runtime', 'openvino': 'OpenVINO'}


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--target-macs', default='50%', metavar='TARGET',
                        help='MACs of the backbone that stay (%(default)s)')
    parser.add_argument('--work-dir', default='work_dirs/quickstart', metavar='DIR',
                        help='folder for everything that is written (%(default)s)')
    return parser


def time_ratios(models: Sequence[Any], shape: tuple[int, int, int]) -> dict[str, tuple[float, ...]]:
    """Median and quartiles of the backbones' time, slim over dense, by runtime."""
    torch.set_num_threads(1)
    images = torch.randn(1, *shape)
    backbones = [find_task(built.model).backbone for built in models]
    found = {}
    for runtime, name in RUNTIMES.items():
        if find_spec(runtime):
            timing = measure_pair(*backbones, images, PAIRS, runtime=runtime, threads=1)
            found[name] = timing.ratio, *timing.quartiles
    return found


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Compress, time and draw."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if not Path(DATA).exists():
        write_digits(DATA)
    network, slim = model_index()[NETWORK], Path(args.work_dir) / 'slim'
    scenes = Path(DATA) / 'scenes/images'
    given = [network['Config'], network['Weights'], '--calibration', str(scenes / 'training'),
             '--images', str(IMAGES)]
    with quiet():  # the hosts' logs
        compress.main([*given, '--target-macs', args.target_macs, '--evaluate', '--out', str(slim)])
    models = [load(files, None, 'cpu') for files in (
        (network['Config'], network['Weights']), (str(slim / CONFIG), str(slim / SUBNET)))]
    images = find_images([str(scenes / 'validation')], SHOWN)
    (dense, shape), (smaller, _) = (
        draw(model, images, labels=False) for model in models)
    ratios = time_ratios(models, shape)
    print(format_table(('backbone, one image, one thread', 'time, slim / dense', 'quartiles'), [
        (runtime, f'{ratio:.2f}', f'{low:.2f} to {high:.2f}')
        for runtime, (ratio, low, high) in ratios.items()]))
    picture, (ratio, *_) = Path(args.work_dir) / PICTURE, next(iter(ratios.values()))
    draw_pairs(picture, (dense, smaller), (
        'dense', f'{args.target_macs} of the MACs, {ratio:.2f} of the time'))
    print(f'Wrote {picture}')
    with quiet():
        frontier.main([*given, '--targets', args.target_macs, '--sides', '--out',
                       str(Path(args.work_dir) / 'frontier')])
    print('Your own network: `mmkcr compress CONFIG CHECKPOINT --target-macs 60% --calibration '
          "IMAGES`. The papers' searches: `make quickstart-papers`.")


if __name__ == '__main__':
    main()
