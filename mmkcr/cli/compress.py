"""Compress any checkpoint in closed form: minutes, unlabelled images, nothing trained.

Writes structure.json, subnet.pth and config.py, an ordinary config of the compressed model that
train, test, inferencers and export take as it is; and sensitivity.json, the loss of every site at
every size. The folder keeps the calibration (.profiles), so another target needs no new one.
Several targets share one calibration and get a folder each, as macs-60 for 60%.

A network of timm or transformers needs no config: the folder that `mmkcr.load` reads is written.
CHECKPOINT is a local file; a folder of `save_pretrained` has its own weights. Images are read as
the network's own settings say. Nothing is fetched from a hub but with --pretrained.

A call that was killed goes on where it was if it is repeated: behind the last refitted block, in
--distil and --finetune from the latest checkpoint, and --evaluate compresses nothing again.

Examples:
    mmkcr compress CONFIG CHECKPOINT --target-macs 60%
    mmkcr compress mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py CHECKPOINT \\
        --target-macs 70% --calibration FOLDER --images 256 --out slim
    mmkcr compress CONFIG CHECKPOINT --target-bytes 40MB        # or --target-params 12M
    mmkcr compress CONFIG CHECKPOINT --target-latency 12ms --runtime onnxruntime \\
        --threads 1 --batch 1
    mmkcr compress CONFIG CHECKPOINT --target-macs 80% 60% 45% 30% --out slim
    mmkcr compress CONFIG CHECKPOINT --structure searched/structure.json
    mmkcr compress timm::vit_small_patch16_224 CHECKPOINT --target-macs 60% --calibration FOLDER
    mmkcr compress transformers::FOLDER --target-macs 60% --calibration FOLDER
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import torch

from mmkcr.apis.networks import is_named, load_with_images, named_folder
from mmkcr.apis.saved import save
from mmkcr.cli.compress_job import CompressJob, check_targets, name_targets
from mmkcr.cli.fields import check_named, find_target, read_shape, require_checkpoint, runs
from mmkcr.closed_form.batches import batch_digest, images_digest
from mmkcr.closed_form.compression import compress_network
from mmkcr.closed_form.options import check_kinds
from mmkcr.closed_form.progress import CompressProgress
from mmkcr.core.file_names import STRUCTURE
from mmkcr.core.io import check_new_folder
from mmkcr.core.processes import find_rank, join_torchrun
from mmkcr.models.search_space import leave_ordinary
from mmkcr.version import __version__

#: Options that need labels, a training schedule, or parts that a config names.
_OF_CONFIGS = ('cfg_options', 'compare', 'distil', 'evaluate', 'finetune', 'int8', 'part',
               'profiles', 'scope', 'structure', 'target_latency')


def compress_named(args: CompressJob) -> None:
    """Compress a network of timm or transformers; write folders that :func:`mmkcr.load` reads.

    Args:
        args (CompressJob): Arguments of the command.

    Raises:
        FileNotFoundError, ImportError, ValueError: Options, files or a network that do not fit.
    """
    check_named(args, _OF_CONFIGS)
    check_kinds(args.sites or ())
    check_targets(args)
    out = Path(args.out or named_folder(args.config) / 'compress')
    places = {out / name: most for name, most in name_targets(args)}
    work = out.with_name(f'.{out.name}.progress')
    for place in places if not work.exists() else ():
        check_new_folder(place)
    print(f'Reading {args.config}', file=sys.stderr, flush=True)
    network, images = load_with_images(
        args.config, args.checkpoint, args.calibration, args.most_images, seed=args.seed,
        shape=read_shape(args), pretrained=args.pretrained)
    options = replace(args, cost=find_target(args)[0].name, input_shape=network.shape,
                      logits=network.gives_scores())
    network.model.to(args.device)
    key = dict(options.compression(), version=__version__, torch=torch.__version__, target=None,
               weights=batch_digest(list(network.model.state_dict().values())).hex(),
               images=images_digest(images), sources=images.sources())
    shared = CompressProgress(work, key)
    for place, most in places.items():
        if shared.has(f'{place.name}.saved') and (place / STRUCTURE).is_file():
            continue
        done = CompressProgress(work / place.name, dict(key, target=most), shared)
        try:
            result = compress_network(network.model, images, replace(options, target=most),
                                      done=done)
        except ValueError:  # refused arguments leave nothing to continue
            shared.withdraw()
            raise
        leave_ordinary(result.model)
        if find_rank() > 0:
            continue
        save(result, place)
        shared.save(f'{place.name}.saved', {})
        print(result)
        slim = f'{args.config.partition("::")[0]}::{place}'
        print(f'Wrote {place}. Next: `mmkcr.load({str(place)!r})` in Python, `mmkcr export '
              f'{shlex.quote(slim)}`, `mmkcr latency {shlex.quote(args.config)} '
              f'{shlex.quote(slim)}`.')
    if find_rank() == 0:
        shared.remove()


@runs(CompressJob)
def main(args: CompressJob) -> None:
    """Compress, write and print."""
    if is_named(args.config):
        compress_named(args)
    else:
        require_checkpoint(args)
        join_torchrun()
        # before the hosts are imported and a model is built, which takes seconds
        if find_rank() == 0:
            print(f'Reading {args.config} and {args.checkpoint}', file=sys.stderr, flush=True)
        from mmkcr.cli.compress_config import compress_config
        compress_config(args)
