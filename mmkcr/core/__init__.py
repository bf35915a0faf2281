"""Sites, axes, MACs, budget, structure and slicing; no method or backbone is named here."""

from .axes import Axis, scale_axes, slice_axes, sync_sizes
from .budget import parse_target, solve_budget
from .checks import NonFiniteError, check_finite, check_finite_gates, check_finite_state
from .cost import CostModel
from .forward import eval_mode
from .gate import BaseGate, NoisyGate
from .io import atomic_folder, atomic_write, locked, remove_stale, write_tensors
from .latency import LatencyModel, LatencyTable, load_table
from .macs import COUNTED, MacsModel, MacsReport, count_forward_macs, count_params
from .products import BytesModel, ParamsModel
from .selection import (
    TOLERANCE,
    allowed_ratio_sizes,
    can_meet,
    choose_options,
    choose_within,
    select_units,
)
from .sites import Cost, MaskPoint, Site, SiteHolder, Unsupported, block_of
from .structure import KEPT, SiteEntry, Structure, digest

__all__ = [
    'Axis', 'BaseGate', 'BytesModel', 'COUNTED', 'Cost', 'CostModel', 'KEPT', 'LatencyModel',
    'LatencyTable', 'MacsModel', 'MacsReport', 'MaskPoint', 'NoisyGate', 'NonFiniteError',
    'ParamsModel', 'Site', 'SiteEntry', 'SiteHolder', 'Structure', 'TOLERANCE',
    'Unsupported', 'allowed_ratio_sizes', 'atomic_folder', 'atomic_write', 'block_of', 'can_meet',
    'check_finite', 'check_finite_gates', 'check_finite_state', 'choose_options', 'choose_within',
    'count_forward_macs', 'count_params', 'digest', 'eval_mode', 'load_table', 'locked',
    'parse_target', 'remove_stale', 'scale_axes', 'select_units', 'slice_axes',
    'solve_budget', 'sync_sizes', 'write_tensors'
]
