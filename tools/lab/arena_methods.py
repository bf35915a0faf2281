"""The methods of the arena: stages that a network of the budget comes from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
    """

    label: str
    stages: Mapping[str, Mapping[str, Any]]
    before: str
    after: str
    deploy: str = 'tune_{net}.py'
    least: float = 0.
    overrides: Mapping[str, Any] = {}  # noqa: RUF012


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


def _searched(label: str, search: str, retrain: str, deploy: str, name: str = '{method}',
              target: str = 'model.price.target', search_with: Mapping[str, Any] = {},  # noqa: B006
              retrain_with: Mapping[str, Any] = {}, start: str = '',  # noqa: B006
              least: float = 0.,
              slim: Mapping[str, Any] = dict(target='MACS', divisor=1)  # noqa: B006,B008
              ) -> Method:
    """Search, slim and retrain."""
    begin = dict(start=start) if start else {}
    return Method(label, {
        f'{name}-search': dict(train=f'{search}_{{net}}.py', **begin,
                               overrides={target: 'MACS', **search_with}),
        f'{name}-slim': dict(slim=f'{name}-search', **slim),
        '{method}': dict(train=f'{retrain}_{{net}}.py', start=f'{name}-slim',
                         overrides=dict(retrain_with))},
        f'{name}-slim', '{method}', f'{deploy}_{{net}}.py', least)


#: What a network begins with that has such a config.
BACKBONE = 'backbone_{net}.py'
_NO_KCR = {'model.regularizers.kcr.weight': 0.}
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
#: Of another library, for a ViT of timm (``--net timm-vit-nano``).
_OTHERS: Mapping[str, Method] = {
    'torch-pruning': _cut('Torch-Pruning, weights', 'prune'),
    'torch-pruning-taylor': _cut('Torch-Pruning, first order', 'prune', importance='taylor'),
    'torch-pruning-refit': _cut('Torch-Pruning, weights; refitted', 'prune', refit='least-squares'),
}
#: In the order of the table.
METHODS: Mapping[str, Method] = {**_MAIN, **_OTHERS}


def main_methods(net: str) -> list[str]:
    """Methods of the docs' table of a network: those that it has configs for.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
    """
    names = (*_MAIN, *_OTHERS) if net.startswith('timm-') else tuple(_MAIN)
    # timm's networks have no `arch` that a narrower one could be made of
    return [name for name in names if not missing_configs(net, name)
            and (name != 'narrow' or not net.startswith('timm-'))]


def missing_configs(net: str, name: str) -> list[str]:
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
