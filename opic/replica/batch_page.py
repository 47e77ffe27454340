"""What a batch works with while it is decided: pages that it reads or whose state may change, and amounts of pages."""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from opic.arrays import Int64s, Uint32s
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
        """The page's class."""
        return self.state & CLASS_BITS


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


class Amounts:
    """Amounts that pages receive, noted part by part; a page may come several times."""

    def __init__(self) -> None:
        self._pages, self._amounts = [NO_NUMBERS], [NO_NUMBERS]

    def add(self, pages: Int64s, amounts: Int64s) -> None:
        """Note the amounts of some pages, (n,) each."""
        self._pages.append(pages)
        self._amounts.append(amounts)

    def columns(self) -> tuple[Uint32s, Int64s]:
        """Return all pages and their amounts, (n,) each."""
        return np.concatenate(self._pages).astype(np.uint32), np.concatenate(self._amounts)
