"""Audit of a shard: recounts its totals from the columns of a replica that no worker has changed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s
from opic.model.books import BooksAudit
from opic.model.cash import CLASS_BITS, CLASSES_MAX, Flag
from opic.replica.page_columns import DENSE, LASTING, SPARSE
from opic.replica.replica import Replica, live_cash


def audit_replica(replica: Replica, minted: int) -> BooksAudit:
    """Recount the books. The caller must hold the replica's lock.

    Args:
        replica: the replica of the shard.
        minted: grains minted in the shard.
    """
    books, state = replica.books, replica.state
    recount, pages = recounted(replica)
    recount["extra"] = replica.classes.extra()
    wrong = [f"{k} is {getattr(books, k)}, counted {n}" for k, n in recount.items() if getattr(books, k) != n]
    unknown = np.flatnonzero((state & Flag.KNOWN) == 0)
    if len(unknown) > books.forgotten:  # Whether any is looked at depends on it.
        wrong.append(f"forgotten is {books.forgotten}, and {len(unknown)} pages are not known")
    for name in (column.name for column in (*DENSE, *SPARSE) if column.name not in LASTING):
        if left := np.count_nonzero(replica.columns.stored(name, unknown)):
            wrong.append(f"{name} has {left:,} values of pages that are not known")
    return BooksAudit(minted, pages, books.pool, books.net, tuple(wrong))


def recounted(replica: Replica) -> tuple[dict[str, Any], int]:
    """Return the totals of the books that follow from the columns, by name, and the grains on all pages."""
    books, state, v = replica.books, replica.state, replica.v
    known = (state & Flag.KNOWN) != 0
    gone, open_ = known & ((state & Flag.GONE) != 0), (state & Flag.OPEN) != 0
    live = known & ~gone
    # Credit and v may each be so large that adding two of them overflows; the cash of a page never is.
    cash, spent = live_cash(books, v, state), replica.spent()
    slots = state & CLASS_BITS
    totals = {
        "clock": _total(spent) + books.taken_back + books.h_forgotten + books.elsewhere,
        "live": int(live.sum()),
        "gone": int(gone.sum()),
        "open": int(open_.sum()),
        "open_cash": _total(cash[open_]),
        "v_gone": _total(v[gone]),
        "h_gone": _total(spent[gone]),
        "known_by": _count_by(slots[known]),
        "live_by": _count_by(slots[live]),
        "open_by": _count_by(slots[open_]),
    }
    return totals, _total(cash[live]) + _total(v[gone])


def _count_by(slots: NDArray[np.uint8]) -> tuple[int, ...]:
    return (0, *np.bincount(slots, minlength=CLASSES_MAX)[1:].tolist())


def _total(values: Int64s) -> int:
    """Return the exact sum. The sum of a column of total history may exceed 2^63, where numpy would wrap."""
    high, low = values >> 32, values & 0xFFFFFFFF
    return (int(high.sum()) << 32) + int(low.sum())
