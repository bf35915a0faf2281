"""MACs and parameters of a model, from its config alone.

Any classifier, detector or segmentor of the host libraries, dense, supernet
or subnet. MACs are called FLOPs in the papers' tables, attention products
included; no data set and no checkpoint is needed. A network of timm or transformers has a name in
place of a config: timm::NAME, or timm::FOLDER and transformers::FOLDER of `save_pretrained`.

Examples:
    mmkcr flops mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py
    mmkcr flops CONFIG --shape 288 288
    mmkcr flops timm::vit_small_patch16_224
"""

import contextlib
import json
import sys
from dataclasses import dataclass

from mmkcr.apis import macs_report
from mmkcr.apis.networks import build_network
from mmkcr.cli.fields import Configured, Shaped, argument, read_shape, runs
from mmkcr.core import count_params
from mmkcr.models.counting import describe_proposals, macs_by_part
from mmkcr.models.tasks import find_task
from mmkcr.models.two_stage import most_proposals
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class FlopsJob(Configured, Shaped):
    """Arguments of ``mmkcr flops``."""

    config: str = argument('config file, library::path, or timm::NAME', positional=True)
    json: bool = argument('print JSON instead of tables', False)


@runs(FlopsJob)
def main(args: FlopsJob) -> None:
    """Count and print."""
    with contextlib.redirect_stdout(sys.stderr):
        network = build_network(args.config, read_shape(args), args.cfg_options)
        model, shape = network.model, network.shape
        report = macs_report(model, shape)
    parts, params = macs_by_part(report, model), count_params(model)
    if args.json:
        print(json.dumps(dict(
            config=args.config, input_shape=list(shape), macs=report.total, params=params,
            operators=report.operators, parts=parts,
            proposals=most_proposals(find_task(model))), indent=2))
        return
    print(f'One image of {shape[1]} x {shape[2]}: {report.total / 1e9:.4g} G MACs, '
          f'{params / 1e6:.4g} M parameters')
    for what, rows in dict(operator=report.operators, part=parts).items():
        print(format_table((what, 'MACs (G)', 'share'), [
            (name, f'{macs / 1e9:.4g}', f'{macs / (report.total or 1):.1%}')
            for name, macs in rows.items()]))
    if sentence := describe_proposals(model):
        print(sentence)
