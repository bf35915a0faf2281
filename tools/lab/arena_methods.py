"""The methods of the arena: stages that a network of the budget comes from."""

import copy
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from mmengine.config import Config

from mmkcr.apis.build import load_config, read_config
from mmkcr.engine.schedule import all_schedulers
from .compress_study import VARIANTS

CONFIGS = Path(__file__).resolve().parent / 'arena_stages'
#: Hidden units and whole heads: what most methods cut.
SITES = ('mlp_hidden', 'heads')
_WIDTH = ('mlp_hidden', 'head_channels')  # the default of `mmkcr compress`


class Method(NamedTuple):
    """One way to a network within the budget.

    Args:
        label (str): In tables.
        stages (dict[str, dict]): Of a study; ``{method}`` in front of a name makes it the
            method's own, ``MACS`` stands for the budget.
        before (str, optional): The stage with the network before it is retrained.
        after (str): The stage with the network after it.
        deploy (str): Config of the network.
        least (float): Smallest budget that its units can meet. Defaults to 0.
        overrides (dict): Of the config ``deploy``. Defaults to none.
        length (float): Of the search, in lengths of its config; the retraining makes up for it.
            Defaults to 1.
    """

    label: str
    stages: Mapping[str, Mapping[str, Any]]
    before: str
    after: str
    deploy: str = 'tune_{net}.py'
    least: float = 0.
    overrides: Mapping[str, Any] = {}  # noqa: RUF012
    length: float = 1.


def _cut(label: str, call: str = 'cut', **arguments: Any) -> Method:
    """Cut the dense network in closed form, or by a simple control, and fine-tune."""
    sites = arguments.get('sites')
    overrides = {'model.backbone.sites': sites} if sites else {}
    return Method(label, {
        '{method}-cut': dict(call=f'lab.arena:{call}', config='start_{net}.py', start='start',
                             arguments=dict(arguments, target='MACS')),
        '{method}': dict(train='tune_{net}.py', start='{method}-cut', overrides=overrides)},
        '{method}-cut', '{method}', overrides=overrides)


def _refit(what: str, *sites: str) -> Method:
    """The closed form with other kinds of site than hidden units and heads."""
    return _cut(f'closed-form refit, {what}', variant='refit', sites=list(sites))


def _variant(name: str, label: str = '') -> Method:
    """Cut by one of :data:`~lab.compress_study.VARIANTS`."""
    return _cut(label or VARIANTS[name].label, variant=name)


def _late(label: str, variant: str) -> Method:
    """Cut when a search would end, after as many batches of the dense network, and fine-tune.

    So it has as few batches after the cut as Once for Both.
    """
    method = _cut(label, variant=variant)
    stages = {name: dict(stage, start='more') if stage.get('start') == 'start' else
              dict(stage, options='RETRAINING') for name, stage in method.stages.items()}
    more = dict(train='start_{net}.py', start='start', options='RETRAINING')
    return method._replace(stages=dict(more=more, **stages))


def _searched(label: str, search: str, retrain: str, deploy: str, name: str = '{method}',
              target: str = 'model.price.target', search_with: Mapping[str, Any] = {},  # noqa: B006
              retrain_with: Mapping[str, Any] = {}, start: str = '',  # noqa: B006
              least: float = 0.,
              slim: Mapping[str, Any] = dict(target='MACS', divisor=1),  # noqa: B006,B008
              search_options: Mapping[str, Any] = {},  # noqa: B006
              retrain_options: Mapping[str, Any] = {}) -> Method:  # noqa: B006
    """Search, slim and retrain."""
    begin = dict(start=start) if start else {}
    searching, retraining = (dict(options=dict(options)) if options else {}
                             for options in (search_options, retrain_options))
    return Method(label, {
        f'{name}-search': dict(train=f'{search}_{{net}}.py', **begin, **searching,
                               overrides={target: 'MACS', **search_with}),
        f'{name}-slim': dict(slim=f'{name}-search', **slim),
        '{method}': dict(train=f'{retrain}_{{net}}.py', start=f'{name}-slim', **retraining,
                         overrides=dict(retrain_with))},
        f'{name}-slim', '{method}', f'{deploy}_{{net}}.py', least)


def _warm_trial(kind: str, label: str, length: float = 1., name: str = '{method}',
                retrain_options: Mapping[str, Any] = {}, **options: Any) -> Method:  # noqa: B006
    """KCR or DCS from the dense network with something changed.

    Args:
        kind (str): ``'kcr'`` or ``'dcs'``.
        label (str): In tables.
        length (float): See :class:`Method`. Defaults to 1.
        name (str): Of the stages of the search. Defaults to the method's.
        retrain_options (dict): Options of the retraining. Defaults to none.
        **options: Of the search.
    """
    # without heads DCS reaches less: their queries and keys are masked
    deploy, least = ('dcs-deploy', 0.6) if kind == 'dcs' else ('tune', 0.)
    return _searched(label, f'{kind}-warm', f'{kind}-short', deploy, name, start='start',
                     search_options=options, retrain_options=retrain_options,
                     least=least)._replace(length=length)


def _kcr_trial(change: str, *args: Any, **options: Any) -> Method:
    """KCR from the dense network, see :func:`_warm_trial`."""
    return _warm_trial('kcr', f'KCR from the dense network, {change}', *args, **options)


def _dcs_trial(change: str, *args: Any, **options: Any) -> Method:
    """DCS from the dense network without IB, see :func:`_warm_trial`."""
    return _warm_trial('dcs', f'DCS from the dense network, no IB, {change}', *args, **options)


#: Options of a search, by what they are of: where a config with `compression` has them, and where
#: one that wraps its supernet itself does.
_PLACES: Mapping[str, Tuple[str, str]] = {
    'RATE': ('compression.architecture.lr', 'optim_wrapper.architecture.lr'),
    'INIT': ('compression.gates.init', 'model.architecture.backbone.gates.init'),
    'SCORES': ('compression.scores', 'model.scores'),
}
#: The order of units that the closed form finds in the data.
_SCORES_FILE = '{stages}/scores/sensitivity.json'
_SCORES = dict(call='lab.arena:scores', config='start_{net}.py', start='start')


def _from_refit(refitted: bool) -> Method:
    """KCR whose gates begin with the order of units that the closed form finds in the data.

    Args:
        refitted (bool): Retrain the dense network's weights, refitted to what the search keeps,
            and not those that the gates were trained on.
    """
    change = 'gates by data' + (', refitted' if refitted else '')
    method = _by_data(_kcr_trial(change, name='kcr-data', SCORES=_SCORES_FILE))
    if not refitted:
        return method
    stages = dict(method.stages)
    tune = dict(stages.pop('{method}'), start='{method}-slim')
    stages['{method}-slim'] = dict(call='lab.arena:refit', config='start_{net}.py',
                                   start='kcr-data-slim', arguments=dict(dense='{stages}/start'))
    return method._replace(stages=dict(stages, **{'{method}': tune}), before='{method}-slim')


def _by_data(method: Method) -> Method:
    """A trial whose gates begin with the order of units that the closed form finds in the data."""
    return method._replace(stages=dict(scores=_SCORES, **method.stages))


def _dcs_price(weight: float) -> Method:
    """DCS with a price on open masks, in the search and in the retraining."""
    price = {'compression.regularizers.mask.weight': weight}
    return _dcs_trial(f'price {weight} on open masks', retrain_options=price, **price)


def _dcs_masks(change: str, **options: Any) -> Method:
    """DCS with masks of another form, in the search, the retraining and the network."""
    sites = [dict(kind='qk_mask', **options), 'mlp_hidden']
    searched = {'compression.sites': sites}
    return _dcs_trial(change, retrain_options=searched, **searched)._replace(
        overrides={'model.backbone.sites': sites})


def _ofb_trial(method: str, change: str, options: Mapping[str, Any], length: float = 1.) -> Method:
    """Once for Both with something changed.

    Args:
        method (str): ``'ofb'``, or ``'ofb-plain'`` without masked image modelling.
        change (str): In tables.
        options (dict): Of the search.
        length (float): See :class:`Method`. Defaults to 1.
    """
    base = _MAIN[method]
    stages = dict(base.stages)
    stages['{method}-search'] = dict(stages['{method}-search'], options=options)
    trial = base._replace(label=f'{base.label}, {change}', stages=stages, length=length)
    return _by_data(trial) if 'SCORES' in options else trial


#: Batches of a search that trains weights and gates in turns, as multiples of an epoch or iteration
#: of training: 7 of an epoch's 10 batches are the weights', and as many the gates'.
_BATCHES: Mapping[str, float] = {'mmkcr.BilevelTrainLoop': 1.4, 'mmkcr.IterBilevelTrainLoop': 2}
#: What a network begins with that has such a config.
BACKBONE = 'backbone_{net}.py'
_NO_KCR, _LIGHT_KCR = ({'model.regularizers.kcr.weight': weight} for weight in (0., 0.0125))
_DCS = dict(search='dcs-search', retrain='dcs-retrain', deploy='dcs-deploy', name='dcs',
            least=0.6)  # no heads: their queries and keys are masked
_OFB = dict(retrain='ofb-retrain', deploy='ofb-retrain', start='start', slim={})
_MAIN: Mapping[str, Method] = {
    'narrow': Method('narrower, dense, from scratch', {
        '{method}-backbone': dict(train=BACKBONE, overrides='CLASSIFIER'),
        '{method}': dict(train='dense_{net}.py', start='{method}-backbone', overrides='NARROW')},
        '', '{method}', 'dense_{net}.py'),
    'random': _variant('random'),
    'weight': _variant('weight'),
    'variance': _variant('variance'),
    'refit': _variant('refit', 'closed-form refit'),
    'random-width': _cut('random units, width of heads', variant='random', sites=list(_WIDTH)),
    'refit-width': _refit('width of heads', *_WIDTH),
    'kcr': _searched('KCR', 'kcr-search', 'kcr-retrain', 'tune'),
    'kcr-plain': _searched('KCR without its term', 'kcr-search', 'kcr-retrain', 'tune',
                           search_with=_NO_KCR, retrain_with=_NO_KCR),
    'kcr-warm': _searched('KCR from the dense network', 'kcr-warm', 'kcr-short', 'tune',
                          start='start'),
    'kcr-warm-plain': _searched('KCR from the dense network, no term', 'kcr-warm', 'kcr-short',
                                'tune', start='start', search_with=_NO_KCR,
                                retrain_with=_NO_KCR),
    'dcs': _searched('DCS', **_DCS),
    'dcs-plain': _searched('DCS without IB', **_DCS,
                           retrain_with={'model.regularizers.ib.weight': 0.}),
    'dcs-warm': _searched('DCS from the dense network, no IB', 'dcs-warm', 'dcs-short',
                          'dcs-deploy', start='start', least=0.6),
    'ofb': _searched('OFB', 'ofb-search', **_OFB),
    'ofb-plain': _searched('OFB without PMIM', 'ofb-plain', **_OFB),
}
_OFB_TRIALS: Mapping[str, Tuple[Any, ...]] = dict(
    short=('search half as long', {}, 0.5),
    long=('search half as long again', {}, 1.5),
    slow=("a fifth of the gates' rate", dict(RATE=2e-2)),
    fast=("five times the gates' rate", dict(RATE=5e-1)),
    uniform=('gates from equal chances', dict(INIT='uniform')),
    data=('gates by data', dict(SCORES=_SCORES_FILE)))
#: What was tried beside: lengths of the search, rates and start of the gates, gates and weights of
#: the refit, masks that start half open, or that are priced.
_TRIALS: Mapping[str, Method] = {
    'random-refit': _variant('random_refit'),
    'random-late': _late('random units, cut as late as by a search', 'random'),
    'refit-late': _late('closed-form refit, cut as late as by a search', 'refit'),
    'refit-stream': _refit('stream too', *SITES, 'embedding'),
    'refit-all': _refit('width of heads, stream', *_WIDTH, 'embedding'),
    'kcr-short': _kcr_trial('search half as long', 0.5),
    'kcr-long': _kcr_trial('search half as long again', 1.5),
    'kcr-slow': _kcr_trial("a fifth of the gates' rate", RATE=1e-2),
    'kcr-fast': _kcr_trial("five times the gates' rate", RATE=2.5e-1),
    'kcr-open': _kcr_trial('gates from 2, temperature from 1', INIT=2., **{
        'compression.hooks.0.initial': 1.}),
    'kcr-light': _searched('KCR from the dense network, term / 16', 'kcr-warm',
                           'kcr-short', 'tune', start='start', search_with=_LIGHT_KCR,
                           retrain_with=_LIGHT_KCR),
    'kcr-data': _from_refit(False),
    'kcr-refit': _from_refit(True),
    'dcs-short': _dcs_trial('search half as long', 0.5),
    'dcs-long': _dcs_trial('search half as long again', 1.5),
    'dcs-slow': _dcs_trial("a fifth of the gates' rate", RATE=1e-2),
    'dcs-fast': _dcs_trial("five times the gates' rate", RATE=2.5e-1),
    'dcs-open': _dcs_trial('gates from 2 instead of 0.5', INIT=2.),
    'dcs-half': _dcs_trial('masks from a bias of 0', **{'compression.sites': [
        dict(kind='qk_mask', init=0.), 'mlp_hidden']}),
    'dcs-price': _dcs_price(0.3),
    'dcs-price1': _dcs_price(1),
    'dcs-price3': _dcs_price(3),
    'dcs-shared': _dcs_masks('one mask for all heads', share_heads=True),
    'dcs-rank': _dcs_masks('masks of rank 4', rank=4),
    'dcs-data': _by_data(_dcs_trial('gates by data', SCORES=_SCORES_FILE)),
    **{f'{name}-{key}': _ofb_trial(name, *change) for name in ('ofb', 'ofb-plain')
       for key, change in _OFB_TRIALS.items()},
}
#: Of another library, for a ViT of timm (``--net timm-vit-nano``).
_OTHERS: Mapping[str, Method] = {
    'torch-pruning': _cut('Torch-Pruning, weights', 'prune'),
    'torch-pruning-taylor': _cut('Torch-Pruning, first order', 'prune', importance='taylor'),
    'torch-pruning-refit': _cut('Torch-Pruning, weights; refitted', 'prune', refit='least-squares'),
}
#: In the order of the table.
METHODS: Mapping[str, Method] = {**_MAIN, **_TRIALS, **_OTHERS}


def main_methods(net: str) -> List[str]:
    """Methods of the docs' table of a network: those that it has configs for.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
    """
    names = (*_MAIN, *_OTHERS) if net.startswith('timm-') else tuple(_MAIN)
    # timm's networks have no `arch` that a narrower one could be made of
    return [name for name in names if not missing_configs(net, name)
            and (name != 'narrow' or not net.startswith('timm-'))]


def missing_configs(net: str, name: str) -> List[str]:
    """Configs that a method needs and a network has not.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
        name (str): Of :data:`METHODS`.
    """
    method = METHODS[name]
    files = [stage['train'] for stage in method.stages.values() if 'train' in stage]
    return [file.name for file in (_file(net, train) for train in (*files, method.deploy))
            if not file.is_file() and file.name != BACKBONE.replace('{net}', net)]


def _file(net: str, train: str) -> Path:
    return CONFIGS / train.replace('{net}', net)


def placed_options(net: str, train: str, options: Mapping[str, Any]) -> Dict[str, Any]:
    """Options by the keys that they have in a config.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
        train (str): The config of a stage.
        options (dict): Some by the names of :data:`_PLACES`.
    """
    wraps = read_config(_file(net, train)).get('compression') is None
    return {_PLACES[key][wraps] if key in _PLACES else key: value
            for key, value in options.items()}


def late_options(net: str) -> Dict[str, Any]:
    """Length and schedule of the retraining after Once for Both, which is as long as its search.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
    """
    config = read_config(_file(net, 'ofb-retrain_{net}.py'))
    return _of_length(config, _length(config))


def length_options(net: str, method: Method) -> Dict[str, Dict[str, Any]]:
    """Options of a search that is longer or shorter than its config's, and of its retraining.

    Together they have as many batches as without, but for what rounding to whole epochs takes.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
        method (Method): One whose length is not 1; others have no such options.

    Returns:
        dict: By stage, as :class:`Method` names them.
    """
    if method.length == 1:
        return {}
    name = next(stage for stage in method.stages if stage.endswith('-search'))
    files = [_file(net, method.stages[stage]['train']) for stage in (name, '{method}')]
    search, retrain = map(read_config, files)
    length = round(method.length * _length(search))
    loop = load_config(files[0]).train_cfg.get('type')  # which `compression` sets
    freed = (_length(search) - length) * _BATCHES.get(loop, 1)
    return {name: _of_length(search, length),
            '{method}': _of_length(retrain, _length(retrain) + int(freed))}


def _length(config: Config) -> int:
    return config.train_cfg.get('max_epochs') or config.train_cfg.max_iters


def _of_length(config: Config, length: int) -> Dict[str, Any]:
    """Options of a training of another length, with the same warm-up."""
    config = copy.deepcopy(config)
    last = all_schedulers(config)[-1]
    last.end = length
    if 'T_max' in last:
        last.T_max = length - last.begin
    key = 'max_epochs' if 'max_epochs' in config.train_cfg else 'max_iters'
    return {f'train_cfg.{key}': length, 'param_scheduler': config.to_dict()['param_scheduler']}
