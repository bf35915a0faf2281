"""Sites, axes, MACs, budget, structure and slicing; no method or backbone is named here."""
# ruff: noqa: F401

from .axes import Axis, scale_axes, slice_axes
from .budget import parse_target, solve_budget
from .checks import NonFiniteError, check_finite, check_finite_gates, check_finite_state
from .cost import CostModel
from .forward import eval_mode
from .gate import BaseGate
from .io import atomic_folder, atomic_write, locked, remove_stale, write_tensors
from .latency import LatencyModel, LatencyTable, load_table
from .macs import COUNTED, MacsModel, MacsReport, count_forward_macs, count_params
from .products import BytesModel, ParamsModel
from .progress import Progress
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
