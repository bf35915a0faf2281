"""Scaling the length of a training, and its learning rates."""

from typing import Dict, Mapping

from mmengine.config import Config


def stretch_schedule(config: Config, factor: float) -> None:
    """Scale the epochs, or iterations, of a schedule and of the hooks that follow it, in place.

    Args:
        config (Config): Epoch-based or iteration-based.
        factor (float): Above 0.
    """
    def scale(entry: Dict, *keys: str) -> None:
        for key in keys:
            if key in entry:
                # a beginning may be 0, a length may not
                entry[key] = max(round(entry[key] * factor), int(key != 'begin'))

    if factor == 1:
        return
    scale(config.train_cfg, 'max_epochs', 'max_iters')
    groups = config.get('param_scheduler') or []
    for group in groups.values() if isinstance(groups, Mapping) else [groups]:
        for scheduler in group if isinstance(group, list) else [group]:
            scale(scheduler, 'begin', 'end', 'T_max')
            if 'milestones' in scheduler:
                scheduler.milestones = [max(round(m * factor), 1) for m in scheduler.milestones]
    for hook in config.get('custom_hooks', []):
        scale(hook, 'begin', 'interval', 'until')
        if 'decay' in hook and 'interval' not in hook:  # else its steps are scaled already
            # the same factor over the whole run, spread over `factor` times as many steps
            hook.decay = hook.decay**(1 / factor)


def scale_rates(config: Config, factor: float) -> None:
    """Scale a config's learning rates, including its schedulers' bounds, in place.

    Args:
        config (Config): A config with one optimizer.
        factor (float): Above 0.

    Raises:
        ValueError: It has no ``optim_wrapper.optimizer.lr``.
    """
    optimizer = (config.get('optim_wrapper') or {}).get('optimizer') or {}
    if 'lr' not in optimizer:
        raise ValueError('expected a config with `optim_wrapper.optimizer.lr` to scale, found none')
    optimizer.lr *= factor
    schedulers = config.get('param_scheduler') or []
    for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
        for key in ('eta_min', 'eta_max'):
            # bounds of momentum schedulers have the same names, but are no rates
            if scheduler['type'].endswith('LR') and scheduler.get(key):
                scheduler[key] *= factor
