"""List the models of this package: sizes, data, and metrics that were measured here.

A row without a result has not been run at its full length; its size is counted. MACs are of one
image, attention included; of detectors and segmentors, of the backbone alone. Some small networks
come trained: --path names their weights beside their configs. Several models of one config differ
by --cfg-options, which --path prints, too.

Examples:
    mmkcr zoo
    mmkcr zoo 'kcr-*_swin-mini_*'
    mmkcr zoo kcr-deploy_vit-mini_1xb64_digits --path
    mmkcr test $(mmkcr zoo compress-30_vit-mini_digits --path)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from mmkcr.apis.inference import model_index
from mmkcr.cli.fields import argument, runs
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class ZooJob:
    """Arguments of ``mmkcr zoo``."""

    pattern: str = argument('names to list, as of files: kcr-* (all)', '*', positional=True,
                            nargs='?')
    trained: bool = argument('only those with weights', False)
    path: bool = argument('print the files instead: the config, the weights where they are, and '
                          '--cfg-options where the model has them', False)


def format_results(entry: Mapping[str, Any]) -> str:
    """Measured metrics, as in ``box AP 0.66, mask AP 0.55``."""
    metrics = [metric for result in entry.get('Results') or ()
               for metric in (result.get('Metrics') or {}).items()]
    return ', '.join(f'{name} {value}' for name, value in metrics)


def format_size(value: float | None, unit: float) -> str:
    """A size in a unit, as text; '' where it is not known."""
    return f'{value / unit:.4g}' if value else ''


@runs(ZooJob)
def main(args: ZooJob) -> None:
    """Read the metafiles and print; a pattern that fits no name is refused."""
    entries = {name: entry for name, entry in model_index().items()
               if fnmatch(name, args.pattern) and ('Weights' in entry or not args.trained)}
    if not entries:
        raise ValueError(f'expected a name of a model, found none that fits `{args.pattern}`')
    if args.path:
        for entry in entries.values():
            options = [f'{key}={value}' for key, value in entry.get('Options', {}).items()]
            print(*(entry[key] for key in ('Config', 'Weights') if key in entry),
                  *(['--cfg-options', *options] if options else []))
        return
    rows = []
    for name, entry in entries.items():
        meta = entry.get('Metadata') or {}
        sizes = format_size(meta.get('FLOPs'), 1e9), format_size(meta.get('Parameters'), 1e6)
        rows.append((name, *sizes,
                     meta.get('Training Data', ''), format_results(entry),
                     'here' if 'Weights' in entry else ''))
    print(format_table(('model', 'MACs (G)', 'params (M)', 'data', 'measured', 'weights'), rows))
