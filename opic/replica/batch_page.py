"""What a batch works with while it is decided: pages that it reads or whose state may change, and amounts of pages."""

from dataclasses import dataclass, fields
from typing import Final

from opic.arrays import Int64s
from opic.model.cash import CLASS_BITS
from opic.model.ledger_page import ColumnKind
from opic.model.transfer import NO_NUMBERS
from opic.replica.page_columns import BY_NAME
from opic.replica.replica import Replica


@dataclass(slots=True)
class BatchPage:
    """What a batch reads of a page and changes: its columns, as Python numbers."""

    id: int
    v: int
    state: int
    spent: int
    digest: int
    times_gone: int
    gone_until_us: int

    @property
    def slot(self) -> int:
        return self.state & CLASS_BITS


Amounts = tuple[Int64s, Int64s]  # Pages, and what each receives; a page may come several times.
NO_AMOUNTS: Final[Amounts] = (NO_NUMBERS, NO_NUMBERS)
NUMBERS: Final = tuple(column.name for column in fields(BatchPage)[1:])
HISTORY: Final = {name for name in NUMBERS if BY_NAME[name].kind is ColumnKind.HISTORY}


def batch_pages(replica: Replica, ids: Int64s) -> dict[int, BatchPage]:
    """Return pages by id, as they are before the batch; ids of pages that it makes known have the state 0."""
    columns, histories, rows = replica.columns, replica.histories.rows, replica.columns.row[ids]
    numbers = (
        (getattr(histories, name)[rows] if name in HISTORY else getattr(columns, name)[ids]).tolist()
        for name in NUMBERS
    )
    return {page: BatchPage(page, *others) for page, *others in zip(ids.tolist(), *numbers, strict=True)}
