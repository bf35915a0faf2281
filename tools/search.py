"""Search: train gates and weights together, to find which units a model can do without.

The training of a config whose backbone has gates, with the arguments of tools/train.py. A config
of your own becomes one by `mmkcr init CONFIG --stage search`. Afterwards `mmkcr slim` cuts the
model.

Examples:
    python tools/search.py configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py
    python tools/search.py SEARCH_CONFIG --resume --work-dir work_dirs/search
    python tools/search.py SEARCH_CONFIG --init scores/sensitivity.json \\
        --cfg-options load_from=CHECKPOINT
"""

from typing import Any, Mapping, Optional, Sequence

from train import make_parser, train

from mmkcr.apis.build import backbone_config, load_config
from mmkcr.apis.cli import command


def has_gates(part: Any) -> bool:
    """Whether a backbone anywhere in a config has gates."""
    if not isinstance(part, Mapping):
        return False
    return part.get('gates') is not None or any(map(has_gates, part.values()))


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Check that there are gates, and train."""
    parser = make_parser(__doc__)
    parser.add_argument('--init', metavar='SCORES', help='sensitivity.json of `mmkcr compress`, '
                        'whose order of units the gates begin with')
    args = parser.parse_args(argv)
    config = load_config(args.config)
    if not has_gates(config.get('model')):
        wanted = 'expected a backbone with `gates` to search on, found'
        if config.get('model') and backbone_config(config).get('structure') is not None:
            raise ValueError(f'{wanted} a subnet in `{args.config}`: search on the config of its '
                             'dense network')
        raise ValueError(f'{wanted} none in `{args.config}`: `mmkcr init {args.config} --stage '
                         'search` writes a config with them')
    if args.init is not None:
        read = load_config(args.config, compressed=False)
        key = 'model.scores' if read.get('compression') is None else 'compression.scores'
        args.cfg_options = {**(args.cfg_options or {}), key: args.init}
    train(args)


if __name__ == '__main__':
    main()
