"""What the masks on queries and keys cost: a subnet without them, fused and separate.

The subnet has one keep ratio everywhere. Each variant with masks is timed in turns with the one
without: its linear layers computed with those of queries, keys and values, as at inference, and on
their own, as in training.

Example:
    python tools/benchmarks/qk_mask.py \
        configs/dcs/search/dcs-search_efficientvit-b1_8xb64_in1k-100.py --target-macs 0.46G
"""

import copy
import json
import time
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import torch
from mmengine.config import Config
from torch import nn

from mmkcr.apis.build import build_model, default_shape, load_config
from mmkcr.apis.cli import Parser, command, quiet_hosts
from mmkcr.apis.latency import measure_pair, scatter_gates
from mmkcr.apis.machine import machine_info
from mmkcr.apis.model_zoo import task_config
from mmkcr.apis.slim import slim
from mmkcr.compression import atomic_write
from mmkcr.models.utils import find_backbone
from mmkcr.visualization import format_table


def build(model: Dict[str, Any], **backbone: Any) -> nn.Module:
    """A task model whose backbone has further arguments."""
    model = dict(model, backbone=dict(model['backbone'], **backbone))
    return build_model(Config(dict(model=model, default_scope='mmpretrain')))


def variants(config: Config, target: str) -> Dict[str, nn.Module]:
    """Subnets with the same weights: ``without`` masks, ``fused`` and ``separate``.

    Raises:
        ValueError: The backbone has no masks.
    """
    model = task_config(config)
    supernet = build(model, gates=dict(type='mmkcr.GumbelChannelGate'))
    if not getattr(find_backbone(supernet), 'masks', dict)():
        raise ValueError('expected a backbone with masks on queries and keys, found '
                         f'`{type(find_backbone(supernet)).__name__}` without')
    scatter_gates(supernet)
    fused, structure = slim(supernet, target, 8, default_shape(config, supernet))
    separate = copy.deepcopy(fused)
    for module in separate.modules():
        if hasattr(module, 'fuse_mask'):
            module.fuse_mask = False
    without = build(model, structure=structure.to_dict(), qk_mask=None)
    without.load_state_dict({key: value for key, value in fused.state_dict().items()
                             if '.mask.' not in key})
    return dict(without=without, fused=fused, separate=separate)


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print and write."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='search or retrain config of a backbone with masks')
    parser.add_argument('--target-macs', required=True, help='of the subnet, with its masks')
    parser.add_argument('--batch-size', type=int, default=8, help='images (%(default)s)')
    parser.add_argument('--repeats', type=int, default=20, help='pairs (%(default)s)')
    parser.add_argument('--out', metavar='FILE', help='JSON file '
                        '(work_dirs/benchmarks/qk_mask_<config name>.json)')
    args = parser.parse_args(argv)
    quiet_hosts()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = load_config(args.config)
    models = variants(config, args.target_macs)
    images = torch.randn(args.batch_size, *default_shape(config, models['fused']))
    timings = {name: measure_pair(models['without'], models[name], images, args.repeats,
                                  clock=time.thread_time) for name in ('fused', 'separate')}
    rows, result = [], dict(config=args.config, target_macs=args.target_macs,
                            batch_size=args.batch_size, clock='cpu', machine=machine_info())
    for name, timing in timings.items():
        result[name] = timing.to_dict()
        low, high = result[name]['ratio_quartiles']
        rows.append((name, f'{timing.macs_dense / 1e9:.3f}', f'{timing.macs_slim / 1e9:.3f}',
                     f'{timing.macs_ratio:.3f}', f'{timing.ratio:.3f} ({low:.3f} to {high:.3f})'))
    print(format_table(('masks', 'MACs without (G)', 'with', 'ratio', 'time ratio (quartiles)'),
                       rows, title=Path(args.config).stem))
    out = Path(args.out or f'work_dirs/benchmarks/qk_mask_{Path(args.config).stem}.json')
    with atomic_write(out) as path:
        path.write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
    main()
