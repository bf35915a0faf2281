"""Plots and tables. Every function is pure: data in, a text or one file out."""

from .masks import plot_channel_masks, plot_kept_shares, plot_mask_evolution
from .plots import plot_curve, plot_gate_histograms
from .progress import shown
from .sensitivity import plot_metric_over_time, plot_sensitivity
from .tables import format_table

__all__ = [
    'format_table', 'plot_channel_masks', 'plot_curve', 'plot_gate_histograms',
    'plot_kept_shares', 'plot_mask_evolution', 'plot_metric_over_time', 'plot_sensitivity', 'shown'
]
