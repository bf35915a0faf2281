"""Slim a trained supernet: search config + checkpoint + budget in, subnet out.

Writes structure.json and subnet.pth (weights inherited), which an ordinary
config of the task model loads with backbone=dict(structure='.../structure.json').

Of a checkpoint with an EMAHook the averaged weights and gates are used.

Examples:
    mmkcr slim CONFIG CHECKPOINT --target-macs 12.6G --divisor 8
    mmkcr slim CONFIG CHECKPOINT --target-macs 80% --shape 224 224
    mmkcr slim CONFIG CHECKPOINT --target-bytes 40MB
    mmkcr slim CONFIG CHECKPOINT --target-latency 12ms --runtime onnxruntime \\
        --threads 1 --batch 1
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mmkcr.apis.slim_files import SubnetFiles, slim_files
from mmkcr.cli.fields import Timed, argument, find_target, read_shape, runs, target
from mmkcr.closed_form.report import sentences, site_table, size_table
from mmkcr.core.file_names import STRUCTURE, SUBNET
from mmkcr.core.products import state_bytes
from mmkcr.deploy.latency_table import check_prediction, find_table
from mmkcr.models.counting import describe_proposals, part_rows
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class SlimJob(Timed):
    """Arguments of ``mmkcr slim``."""

    config: str = argument('config of the search', positional=True)
    checkpoint: str = argument('checkpoint of the search', positional=True)
    target_macs: str | None = target('macs', '12.6G',
                                     '; default: the channels whose gates are open')
    target_params: str | None = target('params', '12M')
    target_bytes: str | None = target('bytes', '40MB', ' (of the state_dict)')
    target_latency: str | None = target('latency', '12ms', ', of a table that was measured')
    divisor: int = argument('sizes are multiples of it, or full (%(default)s)', 1)
    part: str | None = argument(
        'what the target is about; default: what the price of the config counts, else the '
        'backbone of a detector, else the model', choices=('model', 'backbone'))
    out: str | None = argument('folder to write to (work_dirs/<config name>/slim)', metavar='DIR')


def print_files(files: SubnetFiles, metrics: Sequence[dict[str, float]] = ()) -> None:
    """Print the kept units, and the networks side by side.

    Args:
        files (SubnetFiles): The compressed network.
        metrics (Sequence[dict]): Of the dense, slim and fine-tuned network. Defaults to none.
    """
    dense, slim, structure = files.dense, files.slim, files.structure
    print(site_table(structure))
    megabytes = [state_bytes(network) / 1e6 for network in (dense, slim)]
    print(size_table(structure, [('weights (MB)', *megabytes)], metrics))
    if files.parts:
        print(format_table(('part', 'MACs (G)', 'slim', 'left'), part_rows(files.parts)))
    for sentence in sentences(structure, structure.provenance.get('agreement')):
        print(sentence)
    if proposals := describe_proposals(slim):
        print(proposals)
    if predicted := structure.provenance.get('latency'):
        print(check_prediction(dense, slim, predicted))
    for note in files.notes:
        print(note)


@runs(SlimJob)
def main(args: SlimJob) -> None:
    """Slim, write and print."""
    (cost, target), table = find_target(args), find_table(args)
    files = slim_files(args.config, args.checkpoint, target, args.divisor, read_shape(args),
                       args.out, args.cfg_options, args.part, table, args.force_table,
                       'macs' if table else cost.name)
    print_files(files)
    print(f'Wrote {files.folder / STRUCTURE} and {files.folder / SUBNET}')
