"""Plots and tables. Every function is pure: data in, a text or one file out."""

from mmkcr.lazy import lazy_names

_HOMES = dict(
    format_table='tables', plot_channel_masks='masks', plot_curve='plots',
    plot_gate_histograms='plots', plot_kept_shares='masks', plot_mask_evolution='masks',
    plot_metric_over_time='sensitivity', plot_sensitivity='sensitivity', shown='progress')

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
