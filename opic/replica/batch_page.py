"""A page that a batch reads, or whose state it may change, as an object while the batch is decided."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opic.model.cash import CLASS_BITS
from opic.replica.replica import Replica

Int64s = NDArray[np.int64]


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


def batch_pages(replica: Replica, ids: Int64s) -> dict[int, BatchPage]:
    """Return pages by id, as they are before the batch; ids of pages that it makes known have the state 0."""
    columns, rows = replica.columns, replica.histories.rows
    row = columns.row[ids]
    numbers = zip(
        ids.tolist(), columns.v[ids].tolist(), columns.state[ids].tolist(), rows.spent[row].tolist(),
        rows.digest[row].tolist(), rows.times_gone[row].tolist(), rows.gone_until_us[row].tolist(), strict=True,
    )  # fmt: skip
    return {page: BatchPage(page, *others) for page, *others in numbers}
