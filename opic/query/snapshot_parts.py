"""The columns of one shard in a snapshot, copied while other threads let the replica follow its journal."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from opic.arrays import Bools, Int64s, Uint8s, Uint32s
from opic.errors import StoreUnavailable
from opic.model.books import Books
from opic.model.series import Entry
from opic.query.host_index import frozen
from opic.replica.crawl import Outdated
from opic.replica.effect import Effect, Head
from opic.replica.hosts import HostTable
from opic.replica.replica import Replica, live_cash

COPIES_MAX = 4  # Attempts to copy a replica that is reloaded, or grows by too much, in the meantime.
ROOM = 1_024  # Space for pages that become known during a copy: one for every ROOM pages, and at least ROOM.


@dataclass(frozen=True, slots=True)
class Part:
    """A shard's columns, (n,) each, by id, as of one record of its journal."""

    replica: Replica
    loads: int  # Load count of the replica at that time; after a reload ids may mean other pages.
    head: Head
    books: Books
    series: Int64s  # (m, 3): time, rounds and clock.
    round_counts: Sequence[Entry]
    cash: Int64s  # Only meaningful for live pages.
    sums: Int64s  # H + C, the same.
    state: Uint8s
    host: Uint32s
    hosts: HostTable

    @classmethod
    def of(cls, replica: Replica) -> "Part":
        """Copy the columns that change in place.

        Raises:
            StoreUnavailable: loading the replica failed, or it was reloaded again and again.
        """
        for left in reversed(range(COPIES_MAX)):
            # A small crawl that is fed may grow by too much each time: nothing changes during the last copy.
            with nullcontext() if left else replica.lock:
                if (part := cls._copied(replica)) is not None:
                    return part
        raise StoreUnavailable(f"shard {replica.shard} was reloaded repeatedly while it was read: try again")

    @classmethod
    def _copied(cls, replica: Replica) -> "Part | None":
        """Copy the columns without the lock, 20 ms for a million pages, and with it again what changed in the meantime.

        None if the replica was reloaded, or grew by too much.
        """
        changed: list[Int64s] = [np.empty(0, np.int64)]

        def note(_: Effect, ids: Int64s) -> None:
            changed.append(ids)

        with replica.reading():
            loads, columns, histories, pages = replica.loads, replica.columns, replica.histories, len(replica)
            replica.listeners.append(note)
        try:
            room = pages + max(pages // ROOM, ROOM)
            v, sums, state = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
            v[:pages], state[:pages] = columns.v[:pages], columns.state[:pages]
            # Rows may be added in the meantime; their pages are among those that changed.
            np.take(histories.rows.spent, columns.row[:pages], out=sums[:pages], mode="clip")
            with replica.reading():
                if replica.loads != loads or (end := len(replica)) > room:
                    return None
                ids = np.concatenate(changed)
                v[ids], sums[ids], state[ids] = replica.v[ids], replica.spent(ids), replica.state[ids]
                series = np.array(replica.series, np.int64).reshape(-1, 3)
                totals = replica.head, replica.books, series, replica.round_counts
                host, hosts = frozen(replica.host), replica.hosts
        finally:
            with replica.lock:
                replica.listeners.remove(note)
        cash = live_cash(totals[1], v[:end], state[:end])
        sums[:end] += cash
        return cls(replica, loads, *totals, frozen(cash), frozen(sums[:end]), frozen(state[:end]), host, hosts)

    def histories(self) -> tuple[Int64s, Int64s, Int64s, tuple[Int64s, Int64s] | None]:
        """Return the measures of the pages, as in `Measures`: starts, clock, cash; and the older anchor of each page.

        Those newer than the columns are left out.

        Raises:
            Outdated: the replica was reloaded since.
        """
        replica = self.replica
        with replica.lock:
            if replica.loads != self.loads:
                raise Outdated
            rows = replica.columns.row[: len(self.state)]
            measures, anchors = replica.histories.measures(rows), replica.histories.older_anchors(rows)
        starts, clock, spent = measures.starts, measures.clock, measures.cash
        then = clock <= self.books.clock
        if not then.all():
            counts = np.zeros(len(then) + 1, np.int64)
            np.cumsum(then, out=counts[1:])
            starts, clock, spent = counts[starts], clock[then], spent[then]
        if anchors:
            then = (anchors[0] > 0) & (anchors[0] <= self.books.clock)
            anchors = np.where(then, anchors[0], 0), np.where(then, anchors[1], 0)
        return starts, clock, spent, anchors

    def dangling(self) -> Bools:
        """Return a mask of the pages that had no links when they were last read."""
        with self.replica.lock:
            if self.replica.loads != self.loads:
                raise Outdated
            rows = self.replica.columns.row[: len(self.state)]
            table = self.replica.histories.rows
            dangling: Bools = (table.reads[rows] > 0) & (table.digest[rows] == 0)
            return dangling
