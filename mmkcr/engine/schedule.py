"""Scaling the length of a training, and its learning rates."""

from collections.abc import Mapping

from mmengine.config import Config, ConfigDict

#: Keys of hooks that count epochs or iterations: mmpretrain's, mmdet's, MMEngine's and ours.
_OF_HOOKS = ('begin', 'begin_epoch', 'begin_iter', 'interval', 'until', 'switch_epoch',
             'num_last_epochs', 'action_epoch')


def _all_schedulers(config: Config) -> list[ConfigDict]:
    """All schedulers of a config: it has one, or a list, or either for each optimizer."""
    given = config.get('param_scheduler') or []
    by_optimizer = isinstance(given, Mapping) and 'type' not in given
    schedulers = []
    for group in given.values() if by_optimizer else [given]:
        schedulers += group if isinstance(group, (list, tuple)) else [group]
    return schedulers


def stretch_schedule(config: Config, factor: float) -> None:
    """Scale the epochs, or iterations, of a schedule and of the hooks that follow it, in place.

    A step that began before the end still does, at most in the last epoch or iteration.
    """
    def scale(entry: dict, *keys: str, end: int | None = None) -> None:
        for key in keys:
            if key in entry:
                given = entry[key]
                # a beginning may be 0, a length may not
                entry[key] = max(round(given * factor), int(not key.startswith('begin')))
                if end is not None and key.startswith('begin') and given < end:
                    entry[key] = min(entry[key], max(round(end * factor), 1) - 1)

    if factor == 1:
        return
    loop = config.train_cfg
    before = loop.get('max_epochs') or loop.get('max_iters')
    scale(loop, 'max_epochs', 'max_iters', 'val_begin')
    if loop.get('dynamic_intervals'):
        # an interval may be the whole run, so that its end is validated
        length = loop.get('max_epochs') or loop.max_iters
        loop.dynamic_intervals = [(max(round(begin * factor), 1), min(interval, length))
                                  for begin, interval in loop.dynamic_intervals]
    for scheduler in _all_schedulers(config):
        scale(scheduler, 'begin', end=scheduler.get('end'))
        scale(scheduler, 'end', 'T_max')
        for key in {'milestones', 'periods'} & set(scheduler):
            scheduler[key] = [max(round(step * factor), 1) for step in scheduler[key]]
        wanted = scheduler.get('step_size', 1) * factor
        scale(scheduler, 'total_steps', 'step_size')
        if 'gamma' in scheduler and 'milestones' not in scheduler:
            # what rounding the step (1 of `ExponentialLR`) changes: as much decay in the whole run
            scheduler.gamma **= scheduler.get('step_size', 1) / wanted
    for hook in config.get('custom_hooks') or []:
        for part in (hook, *(hook.get('schedule') or ())):  # of mmpretrain's `SwitchRecipeHook`
            scale(part, *_OF_HOOKS, end=before)
        if 'decay' in hook and 'interval' not in hook:  # else its steps are scaled already
            # the same factor over the whole run, spread over `factor` times as many steps
            hook.decay = hook.decay**(1 / factor)


def scale_rates(config: Config, factor: float) -> None:
    """Scale a config's learning rates, including its schedulers' bounds, in place.

    Raises:
        ValueError: The config has no learning rate.
    """
    optimizer = (config.get('optim_wrapper') or {}).get('optimizer') or {}
    if 'lr' not in optimizer:
        raise ValueError('expected a config with `optim_wrapper.optimizer.lr` to scale, found none')
    optimizer.lr *= factor
    for scheduler in _all_schedulers(config):
        for key in ('eta_min', 'eta_max'):
            # bounds of momentum schedulers have the same names, but are no rates
            if scheduler['type'].endswith('LR') and scheduler.get(key):
                scheduler[key] *= factor
