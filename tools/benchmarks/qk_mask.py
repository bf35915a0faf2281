"""What the masks on queries and keys cost: a subnet with them and without.

The subnet has one keep ratio everywhere. Both run in turns, on one thread and by its CPU clock, or
on more by the wall clock.

Example:
    python tools/benchmarks/qk_mask.py \
        configs/dcs/search/dcs-search_efficientvit-b1_8xb64_in1k-100.py --target-macs 0.46G
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import torch
from mmengine.config import Config
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from lab.model_zoo import task_config
from mmkcr.apis.build import build_model, default_shape, load_config
from mmkcr.apis.cli import Parser, command, quiet_hosts
from mmkcr.apis.latency import measure_pair, scatter_gates
from mmkcr.apis.slim import slim
from mmkcr.core import atomic_write
from mmkcr.models.utils import find_backbone
from mmkcr.visualization import format_table


def build(model: Dict[str, Any], **backbone: Any) -> nn.Module:
    """A task model whose backbone has further arguments."""
    model = dict(model, backbone=dict(model['backbone'], **backbone))
    return build_model(Config(dict(model=model, default_scope='mmpretrain')))


def variants(config: Config, target: str) -> Dict[str, nn.Module]:
    """Subnets with the same weights, ``without`` masks and ``with`` them.

    Raises:
        ValueError: The backbone has no masks.
    """
    model = task_config(config)
    supernet = build(model, gates=dict(type='mmkcr.GumbelChannelGate'))
    if not getattr(find_backbone(supernet), 'masks', dict)():
        raise ValueError('expected a backbone with masks on queries and keys, found '
                         f'`{type(find_backbone(supernet)).__name__}` without')
    scatter_gates(supernet)
    masked, structure = slim(supernet, target, 8, default_shape(config, supernet))
    without = build(model, structure=structure.to_dict(), qk_mask=None)
    without.load_state_dict({key: value for key, value in masked.state_dict().items()
                             if '.mask.' not in key})
    return {'without': without, 'with': masked}


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print and write."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='search or retrain config of a backbone with masks')
    parser.add_argument('--target-macs', required=True, help='of the subnet, with its masks')
    parser.add_argument('--batch-size', type=int, default=8, help='images (%(default)s)')
    parser.add_argument('--threads', type=int, default=1, help='of torch (%(default)s)')
    parser.add_argument('--repeats', type=int, default=20, help='pairs (%(default)s)')
    parser.add_argument('--out', metavar='FILE', help='JSON file '
                        '(work_dirs/benchmarks/qk_mask_<config name>.json)')
    args = parser.parse_args(argv)
    quiet_hosts()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    config = load_config(args.config)
    models = variants(config, args.target_macs)
    images = torch.randn(args.batch_size, *default_shape(config, models['with']))
    timing = measure_pair(models['without'], models['with'], images, args.repeats,
                          clock=time.thread_time if args.threads == 1 else time.perf_counter)
    content = timing.to_dict()
    result = dict(config=args.config, target_macs=args.target_macs, batch_size=args.batch_size,
                  threads=args.threads, clock='cpu' if args.threads == 1 else 'wall',
                  machine=machine_info(), **content)
    low, high = content['ratio_quartiles']
    rows = [(side, f'{content["macs"][key] / 1e9:.3f}', f'{content["seconds"][key] * 1e3:.1f}')
            for side, key in (('without', 'dense'), ('with', 'slim'))]
    print(format_table(('masks', 'MACs (G)', 'ms'), rows, title=Path(args.config).stem))
    print(f'ratio of MACs {timing.macs_ratio:.3f}, of time {timing.ratio:.3f} (quartiles {low:.3f} '
          f'to {high:.3f})')
    out = Path(args.out or f'work_dirs/benchmarks/qk_mask_{Path(args.config).stem}.json')
    with atomic_write(out) as path:
        path.write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
    main()
