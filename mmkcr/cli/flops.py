"""MACs and parameters of a model, from its config alone.

Any classifier, detector or segmentor of the host libraries, dense, supernet
or subnet. MACs are what the papers' tables call FLOPs, attention products
included; no data set and no checkpoint is needed.

Examples:
    mmkcr flops mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py
    mmkcr flops CONFIG --shape 288 288 --by-module 3
"""

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmkcr.apis import macs_report
from mmkcr.cli.fields import argument, runs
from mmkcr.cli.shared import Configured, Shaped, given_shape
from mmkcr.core import MacsReport, count_params
from mmkcr.engine.build import build_model, default_shape, load_config
from mmkcr.models.counting import counted_proposals, macs_by_part
from mmkcr.models.tasks import find_task
from mmkcr.models.two_stage import most_proposals
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class FlopsJob(Configured, Shaped):
    """Arguments of ``mmkcr flops``."""

    config: str = argument('config file, or library::path', positional=True)
    by_module: int | None = argument(
        'one row a module, down to this depth of the path (default 2)', nargs='?', const=2,
        metavar='DEPTH')
    json: bool = argument('print JSON instead of tables', False)


def describe(report: MacsReport, model: torch.nn.Module, shape: Sequence[int],
             depth: int | None) -> dict:
    """All that is printed, as JSON types."""
    content = dict(input_shape=list(shape), macs=report.total, params=count_params(model),
                   operators=report.operators, parts=macs_by_part(report, model),
                   proposals=most_proposals(find_task(model)))
    if depth is not None:
        content['modules'] = {
            name: dict(macs=module_macs(report, name, module), params=count_params(module))
            for name, module in model.named_modules()
            if name and name.count('.') < depth and any(True for _ in module.parameters())
        }
    return content


def module_macs(report: MacsReport, name: str, module: torch.nn.Module) -> int:
    """MACs of a module; of a list of modules, which has no forward, the sum."""
    if name in report.modules:
        return report.modules[name]
    return sum(module_macs(report, f'{name}.{child}', below)
               for child, below in module.named_children())


def print_tables(content: dict) -> None:
    """Print the totals, and modules or operators."""
    total = content['macs'] or 1
    height, width = content['input_shape'][1:]
    print(f'One image of {height} x {width}: {content["macs"] / 1e9:.4g} G MACs, '
          f'{content["params"] / 1e6:.4g} M parameters')
    for what in ('operator', 'part'):
        rows = [(name, f'{macs / 1e9:.4g}', f'{macs / total:.1%}')
                for name, macs in content[f'{what}s'].items()]
        print(format_table((what, 'MACs (G)', 'share'), rows))
    if 'modules' in content:
        rows = [(name, f'{v["macs"] / 1e9:.4g}', f'{v["macs"] / total:.1%}',
                 f'{v["params"] / 1e6:.4g}') for name, v in content['modules'].items()]
        print(format_table(('module', 'MACs (G)', 'share', 'parameters (M)'), rows))


@runs(FlopsJob)
def main(args: FlopsJob) -> None:
    """Count and print."""
    config = load_config(args.config, args.cfg_options)
    with contextlib.redirect_stdout(sys.stderr):
        model = build_model(config)
        shape = given_shape(args) or default_shape(config, model)
        report = macs_report(model, shape)
    content = describe(report, model, shape, args.by_module)
    if args.json:
        print(json.dumps(dict(config=args.config, **content), indent=2))
    else:
        print_tables(content)
        if content['proposals'] is not None:
            print(counted_proposals(model))
