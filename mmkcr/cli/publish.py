"""Publish a trained model: one file with its weights, its structure and its metadata.

Optimizer, schedules, logs, the second set of weights beside an EMAHook and the state of
regularisers stay behind. The name ends in the first 8 digits of the file's SHA-256. Any
reader that runs no code takes the file (torch.load with weights_only=True), and so does
a config as its structure file: compression=dict(structure='NAME-HASH.pth'), or
backbone=dict(structure='NAME-HASH.pth') of a `mmkcr.Searchable`.

Examples:
    mmkcr publish CONFIG CHECKPOINT --out published
    mmkcr test CONFIG published/NAME-HASH.pth \\
        --cfg-options compression.structure=published/NAME-HASH.pth
"""

from dataclasses import dataclass

from mmkcr.apis.publish import publish
from mmkcr.cli.fields import Configured, Trusting, argument, runs


@dataclass(frozen=True)
class PublishJob(Configured, Trusting):
    """Arguments of ``mmkcr publish``."""

    config: str = argument('config of a deployment, retraining or dense model', positional=True)
    checkpoint: str | None = argument('its checkpoint (`load_from` of the config)',
                                      positional=True, nargs='?')
    out: str | None = argument("folder (the checkpoint's)", metavar='DIR')
    name: str | None = argument("of the file, before the hash (the config's)")
    half: bool = argument('store matrices in 16 bits: half the size', False)


@runs(PublishJob)
def main(args: PublishJob) -> None:
    """Publish and print."""
    published = publish(args.config, args.checkpoint, args.out, args.name, args.cfg_options,
                        args.half)
    meta, size = published.meta, published.bytes
    structure = 'with its structure' if meta['structure'] else 'dense'
    print(f'{meta["model"]}, {meta["params"] / 1e6:.4g} M parameters, {structure}: '
          f'{size["published"] / 1e6:.2f} MB of {size["checkpoint"] / 1e6:.2f} MB')
    print(f'Wrote {published.path}')
