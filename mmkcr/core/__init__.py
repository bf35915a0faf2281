"""Structure, MACs, budget and slicing. No method or backbone is named here."""

from .axes import Member, scale_members, slice_members, sync_sizes
from .budget import parse_target, solve_budget
from .finite import check_finite, check_finite_gates
from .io import atomic_write
from .macs import MacsModel, MacsReport, count_forward_macs, count_params
from .options import allowed_ratio_sizes, can_meet, choose_options
from .selection import TOLERANCE, select_units
from .sites import SearchableLayer, searchable_layers
from .slicing import slice_conv, slice_linear, slice_norm, slice_parameter, take
from .structure import Site, Structure

__all__ = [
    'MacsModel', 'MacsReport', 'Member', 'SearchableLayer', 'Site', 'Structure', 'TOLERANCE',
    'allowed_ratio_sizes', 'atomic_write', 'can_meet', 'check_finite', 'check_finite_gates',
    'choose_options', 'count_forward_macs', 'count_params', 'parse_target', 'scale_members',
    'searchable_layers', 'select_units', 'slice_conv', 'slice_linear', 'slice_members',
    'slice_norm', 'slice_parameter', 'solve_budget', 'sync_sizes', 'take'
]
