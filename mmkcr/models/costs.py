"""Cost models of budgets, by name."""

from mmkcr.core import COUNTED, CostModel, LatencyModel, LatencyTable, MacsModel
from .tasks import momentum_copies


def cost_model(cost: str, macs: MacsModel, table: LatencyTable | None = None) -> CostModel:
    """Build the cost model of a budget.

    Args:
        cost (str): ``'macs'``, ``'params'`` or ``'bytes'``. With a ``table``, ``'macs'`` means
            time.
        macs (MacsModel): MACs of the network.
        table (LatencyTable, optional): Measured on it. Defaults to None.

    Raises:
        ValueError: Another cost, two at once, or a table of another network.
    """
    if cost not in COUNTED or table is not None and cost != 'macs':
        raise ValueError(f'expected a budget of {list(COUNTED)} or, with a table of latencies, of '
                         f'time, found {cost!r}{" with a table" if table is not None else ""}')
    if table is not None:
        return LatencyModel(macs, table)
    if cost == 'macs':
        return macs
    return COUNTED[cost](macs.model, macs.sites, momentum_copies(macs.model))
