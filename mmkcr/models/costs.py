"""Cost models of budgets, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from torch import nn

from mmkcr.core import COUNTED, CostModel, LatencyModel, LatencyTable, MacsModel, load_table
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


class Priced(nn.Module):
    """A loss about the cost of a supernet.

    Args:
        cost (str): One of :data:`~mmkcr.core.COUNTED`, ``'latency'`` or of :attr:`more`.
        table (str, optional): File of :class:`~mmkcr.core.LatencyTable`, with ``'latency'``.
        input_shape (Sequence[int], optional): That of the table's images. Defaults to None: not
            checked.
        force_table (bool): Accept a table of another machine. Defaults to False.

    Raises:
        FileNotFoundError: There is no such table.
        ValueError: Another cost, a table without ``'latency'`` or missing with it, or as in
            :func:`~mmkcr.core.load_table`.
    """

    #: Further names, and what builds their cost from the MACs of the network.
    more: ClassVar[Mapping[str, Callable[[MacsModel], CostModel]]] = {}

    def __init__(self, cost: str, table: str | None, input_shape: Sequence[int] | None = None,
                 force_table: bool = False) -> None:
        super().__init__()
        self.input_shape = None if input_shape is None else tuple(input_shape)
        names = [*COUNTED, *self.more, 'latency']
        if cost not in names:
            raise ValueError(f'expected `cost` of a price among {names}, found {cost!r}')
        if (cost == 'latency') != (table is not None):
            raise ValueError("expected a `table` with the `cost` 'latency', found "
                             f'{table!r} with {cost!r}')
        self.cost = cost
        about = {} if input_shape is None else dict(input_shape=list(input_shape))
        self.table = None if table is None else load_table(table, about, force_table)
        self._of: tuple[MacsModel, CostModel] | None = None

    def cost_model(self, macs: MacsModel) -> CostModel:
        """The cost of a supernet that is priced, and that the target limits."""
        if self._of is None or self._of[0] is not macs:  # rebuilt if the supernet's count was
            cost = 'macs' if self.cost == 'latency' else self.cost
            self._of = macs, self.more[cost](macs) if cost in self.more else \
                cost_model(cost, macs, self.table)
        return self._of[1]
