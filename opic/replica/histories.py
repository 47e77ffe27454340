"""Histories of pages that were read or went away: total history, recent measures, number of reads and departures.

Most known pages were never read, so a page gets a row only at its first read or departure. Each measure takes a slot;
the slots of a page are a linked list from the newest to the oldest. Once a page has the maximum number of measures, a
new one reuses the slot of the oldest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s, Uint32s
from opic.model.cash import ANCHOR_ROUNDS, Anchor, CrawlRules, PageMeasure
from opic.model.ledger_page import COLUMNS, ColumnKind
from opic.replica.columns import Growing, Undo

NO_SLOT: Final = 0  # Slots are numbered from 1.


class _Rows(Growing):
    COLUMNS = (
        *((column.name, column.dtype) for column in COLUMNS if column.kind is ColumnKind.HISTORY),
        ("newest", "u4"),  # Slot of its newest measure.
        ("kept", "u2"),  # Number of measures kept.
    )
    spent: Int64s
    digest: NDArray[np.uint64]
    gone_until_us: Int64s
    reads: Uint32s
    newest: Uint32s
    kept: NDArray[np.uint16]
    times_gone: NDArray[np.uint16]


class _Slots(Growing):
    COLUMNS = (("clock", "i8"), ("cash", "i8"), ("at_us", "i8"), ("older", "u4"))
    clock: Int64s
    cash: Int64s
    at_us: Int64s
    older: Uint32s


class _Anchors(Growing):
    """Up to two anchors per row, the older one first. Used only with the continuous payout."""

    COLUMNS = (("clock_1", "i8"), ("spent_1", "i8"), ("clock_2", "i8"), ("spent_2", "i8"), ("anchored", "u1"))
    clock_1: Int64s
    spent_1: Int64s
    clock_2: Int64s
    spent_2: Int64s
    anchored: NDArray[np.uint8]  # Number of anchors.


KEPT_ROWS: Final = tuple(column for column in _Rows.COLUMNS if column[0] != "newest")  # What of a row is stored.
KEPT_ANCHORS: Final = _Anchors.COLUMNS
MEASURES: Final = ("clock", "cash", "at_us")


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of n pages, oldest first: those of page i are starts[i] to starts[i + 1]."""

    starts: Int64s  # (n + 1,)
    clock: Int64s  # (m,), as are the others.
    cash: Int64s
    at_us: Int64s


class Histories:
    """Rows of pages, numbered from 1. Row 0 stands for a page without a history."""

    def __init__(self, rules: CrawlRules) -> None:
        self.rules = rules
        self.rows, self.slots, self.anchors = _Rows(), _Slots(), _Anchors()
        self.count = self.slot_count = 1  # The next numbers; 0 means none.
        self.reserve(1)
        self.slots.reserve(1)

    def reserve(self, count: int) -> None:
        self.rows.reserve(count)
        if self.rules.continuous:
            self.anchors.reserve(count)

    def add(self, count: int) -> Uint32s:
        first, self.count = self.count, self.count + count
        self.reserve(self.count)
        return np.arange(first, self.count, dtype=np.uint32)

    def truncate(self, count: int, slot_count: int) -> None:
        """Drop all rows from `count` on and all slots from `slot_count` on."""
        self.rows.clear_rows(count, self.count)
        if self.rules.continuous:
            self.anchors.clear_rows(count, self.count)
        self.slots.clear_rows(slot_count, self.slot_count)
        self.count, self.slot_count = count, slot_count

    def read(  # noqa: PLR0917 - columns of one table
        self,
        rows: Uint32s,
        clock: Int64s,
        cash: Int64s,
        at_us: Int64s,
        digest: NDArray[np.uint64],
        turn: tuple[Int64s, Int64s],
        undo: Undo | None,
    ) -> None:
        """Record reads, in the order of the log. All arrays have shape (n,).

        Args:
            rows: rows of the pages that were read; a page may be read several times.
            clock: the clock after each read.
            cash: cash spent by each read; negative if the page owed, and the measure is then 0.
            at_us: time of each fetch.
            digest: digest of the page's links at each read.
            turn: `turns` of the rows, or of the pages.
            undo: receives the old values; may be None.
        """
        order, nth = turn
        if undo is not None:
            undo.keep(self.rows, rows, "spent", "digest", "reads", "newest", "kept")
            if self.rules.continuous:
                undo.keep(self.anchors, rows, *(name for name, _ in _Anchors.COLUMNS))
        for wave in range(int(nth.max(initial=-1)) + 1):  # Usually one wave: each page is read once.
            positions = order[nth == wave]
            self._read_once(
                rows[positions], clock[positions], cash[positions], at_us[positions], digest[positions], undo
            )

    def _read_once(  # noqa: PLR0917 - columns of one table
        self, rows: Uint32s, clock: Int64s, cash: Int64s, at_us: Int64s, digest: NDArray[np.uint64], undo: Undo | None
    ) -> None:
        table = self.rows
        table.spent[rows] += cash
        table.digest[rows] = digest
        table.reads[rows] += np.uint32(1)
        full = table.kept[rows] >= self.rules.measures_max
        slots = np.zeros(len(rows), np.uint32)
        fresh = np.flatnonzero(~full)
        slots[fresh] = np.arange(self.slot_count, self.slot_count + len(fresh), dtype=np.uint32)
        self.slot_count += len(fresh)
        self.slots.reserve(self.slot_count)
        table.kept[rows[fresh]] += np.uint16(1)
        again = np.flatnonzero(full)
        if len(again):
            slots[again] = self._oldest(rows[again])
            if undo is not None:
                undo.keep(self.slots, slots[again], *(name for name, _ in _Slots.COLUMNS))
        newest = table.newest[rows]
        self.slots.older[slots] = np.where(newest == slots, NO_SLOT, newest)
        self.slots.clock[slots], self.slots.cash[slots], self.slots.at_us[slots] = clock, np.maximum(cash, 0), at_us
        table.newest[rows] = slots
        if self.rules.continuous:
            self._anchor(rows, clock)

    def _oldest(self, rows: Uint32s) -> Uint32s:
        slots = self.rows.newest[rows]
        for _ in range(self.rules.measures_max - 1):
            slots = self.slots.older[slots]
        return slots

    def _anchor(self, rows: Uint32s, clock: Int64s) -> None:
        """Update anchors as `opic.model.cash.roll` does: the first, then the last two that are ANCHOR_ROUNDS apart."""
        a = self.anchors
        last = np.where(a.anchored[rows] > 1, a.clock_2[rows], a.clock_1[rows])
        due = (a.anchored[rows] == 0) | (clock - last >= ANCHOR_ROUNDS * self.rules.minted)
        rows, clock = rows[due], clock[due]
        count = a.anchored[rows]
        full = rows[count == 2]
        a.clock_1[full], a.spent_1[full] = a.clock_2[full], a.spent_2[full]
        later = rows[count > 0]
        a.clock_2[later], a.spent_2[later] = clock[count > 0], self.rows.spent[later]
        first = rows[count == 0]
        a.clock_1[first], a.spent_1[first] = clock[count == 0], self.rows.spent[first]
        a.anchored[rows] = np.minimum(count + 1, 2)

    def go(self, rows: Uint32s, times: Uint32s, until_us: Int64s, undo: Undo | None) -> None:
        """Record that pages went away: how often so far, and the time before which no link brings them back."""
        if undo is not None:
            undo.keep(self.rows, rows, "times_gone", "gone_until_us")
        self.rows.times_gone[rows] = times
        self.rows.gone_until_us[rows] = until_us

    def measures(self, rows: Uint32s) -> Measures:
        """Return the measures of pages, given their rows; row 0 has none."""
        kept = self.rows.kept[rows].astype(np.int64)
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(kept, out=starts[1:])
        measure_slots = np.zeros(int(starts[-1]), np.uint32)
        slots, left = self.rows.newest[rows], kept.copy()
        some = np.flatnonzero(left)
        slots = slots[some]
        while len(some):
            left[some] -= 1
            measure_slots[starts[some] + left[some]] = slots
            more = left[some] > 0
            some, slots = some[more], self.slots.older[slots[more]]
        return Measures(
            starts, self.slots.clock[measure_slots], self.slots.cash[measure_slots], self.slots.at_us[measure_slots]
        )

    def last_read_us(self, rows: Uint32s) -> Int64s:
        """Return the latest time among the kept measures of pages, given their rows; 0 for row 0 and without reads."""
        slots = self.rows.newest[rows]
        latest: Int64s = self.slots.at_us[slots]
        for _ in range(self.rules.measures_max - 1):
            slots = self.slots.older[slots]
            if not slots.any():
                break
            latest = np.maximum(latest, self.slots.at_us[slots])
        return latest

    def measures_of(self, row: int) -> list[PageMeasure]:
        """Return the measures of one page, oldest first."""
        measures = self.measures(np.array([row], np.uint32))
        columns = (measures.clock.tolist(), measures.cash.tolist(), measures.at_us.tolist())
        return [PageMeasure(*numbers) for numbers in zip(*columns, strict=True)]

    def anchors_of(self, row: int) -> tuple[Anchor, ...]:
        """Return the anchors of one page."""
        if not self.rules.continuous:
            return ()
        a = self.anchors
        both = ((int(a.clock_1[row]), int(a.spent_1[row])), (int(a.clock_2[row]), int(a.spent_2[row])))
        return both[: int(a.anchored[row])]

    def older_anchors(self, rows: Uint32s) -> tuple[Int64s, Int64s] | None:
        """Return the clock and the total history of each page's older anchor, 0 where there is none."""
        return (self.anchors.clock_1[rows], self.anchors.spent_1[rows]) if self.rules.continuous else None

    # Serialisation for the checkpoint.

    def pack(self, offsets: NDArray[np.uint16], rows: Uint32s) -> bytes:
        """Pack the rows of the pages of a block; `offsets` are the positions of these pages in the block."""
        table, measures = self.rows, self.measures(rows)
        parts: list[NDArray[np.generic]] = [np.array([len(rows), len(measures.clock)], "<u4"), offsets.astype("<u2")]
        parts += [getattr(table, name)[rows].astype(f"<{dtype}") for name, dtype in KEPT_ROWS]
        if self.rules.continuous:
            parts += [getattr(self.anchors, name)[rows].astype(f"<{dtype}") for name, dtype in _Anchors.COLUMNS]
        parts += [measures.clock.astype("<i8"), measures.cash.astype("<i8"), measures.at_us.astype("<i8")]
        return b"".join(part.tobytes() for part in parts)

    def unpack(self, packed: bytes) -> tuple[NDArray[np.uint16], Uint32s]:
        """Add rows packed by `pack`; return the positions of the pages in their block, and their rows.

        Raises:
            ValueError: the length is wrong.
        """
        n, m = np.frombuffer(packed, "<u4", 2).tolist()
        offset = 8

        def read_array(dtype: str, count: int) -> NDArray[np.generic]:
            nonlocal offset
            array = np.frombuffer(packed, f"<{dtype}", count, offset)
            offset += array.nbytes
            return array

        offsets = read_array("u2", n)
        table = {name: read_array(dtype, n) for name, dtype in KEPT_ROWS}
        anchors = {name: read_array(dtype, n) for name, dtype in KEPT_ANCHORS} if self.rules.continuous else {}
        measures = [read_array("i8", m) for _ in MEASURES]
        if offset != len(packed) or int(table["kept"].sum(dtype=np.int64)) != m:
            raise ValueError("rows of histories have a wrong length")
        return offsets.astype(np.uint16), self.adopt(table, anchors, measures)

    def adopt(
        self,
        table: Mapping[str, NDArray[Any]],
        anchors: Mapping[str, NDArray[Any]],
        measures: Sequence[NDArray[Any]],
    ) -> Uint32s:
        """Add rows with all that they hold; return their numbers.

        Args:
            table: (n,) each, by the names of KEPT_ROWS.
            anchors: likewise; empty under grants.
            measures: clock, cash and time of the measures, (m,) each: row by row, `kept` of each row, oldest first.
        """
        rows = self.add(len(table["kept"]))
        for name, values in table.items():
            getattr(self.rows, name)[rows] = values
        for name, values in anchors.items():
            getattr(self.anchors, name)[rows] = values
        first, self.slot_count = self.slot_count, self.slot_count + len(measures[0])
        self.slots.reserve(self.slot_count)
        for name, values in zip(MEASURES, measures, strict=True):
            getattr(self.slots, name)[first : self.slot_count] = values
        kept = self.rows.kept[rows].astype(np.int64)
        ends = first + np.cumsum(kept)
        older = np.arange(first - 1, self.slot_count - 1, dtype=np.uint32)
        older[(ends - kept)[kept > 0] - first] = NO_SLOT
        self.slots.older[first : self.slot_count] = older
        self.rows.newest[rows] = np.where(kept > 0, ends - 1, NO_SLOT)
        return rows
