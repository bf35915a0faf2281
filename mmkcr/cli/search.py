"""Search: train gates and weights together, to find which units a model can do without.

The training of a config whose backbone has gates, with the arguments of mmkcr train. A config
of your own becomes one by `mmkcr init CONFIG --stage search`. Afterwards `mmkcr slim` cuts the
model.

Examples:
    mmkcr search configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py
    mmkcr search SEARCH_CONFIG --resume --work-dir work_dirs/search
    mmkcr search SEARCH_CONFIG --init scores/sensitivity.json \\
        --cfg-options load_from=CHECKPOINT
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmkcr.cli.fields import argument, runs
from mmkcr.cli.launch import start_training
from mmkcr.cli.train import TrainJob, training_config
from mmkcr.engine.build import backbone_config, load_config
from mmkcr.engine.compressed_config import expand_compression


@dataclass(frozen=True)
class SearchJob(TrainJob):
    """Arguments of ``mmkcr search``."""

    init: str | None = argument('sensitivity.json of `mmkcr compress`, whose order of units the '
                                'gates begin with', metavar='SCORES')


def has_gates(part: Any) -> bool:
    """Whether a backbone anywhere in a config has gates."""
    return isinstance(part, Mapping) and (
        part.get('gates') is not None or any(map(has_gates, part.values())))


@runs(SearchJob, quiet=False)
def main(args: SearchJob) -> None:
    """Check that there are gates, else refuse the config; then train."""
    given = load_config(args.config, compressed=False)
    config = expand_compression(given)
    if not has_gates(config.get('model')):
        subnet = config.get('model') and backbone_config(config).get('structure') is not None
        raise ValueError('expected a backbone with `gates` to search on, found ' + (
            f'a subnet in `{args.config}`: search on the config of its dense network' if subnet else
            f'none in `{args.config}`: `mmkcr init {shlex.quote(str(args.config))} --stage search` '
            'writes one'))
    if args.init is not None:
        key = 'model.scores' if given.get('compression') is None else 'compression.scores'
        args = replace(args, cfg_options={**(args.cfg_options or {}), key: args.init})
    start_training(training_config(given, args))
