"""The pages of a crawl at rest, as the shards of another crawl: cash to the grain, histories, classes, trust, totals.

The new shards are replicas in memory. What a shard's books count beside its pages goes to shard 0, once. The shards
share the clock up to now, and count for themselves from here on (`Books.elsewhere`).
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s
from opic.errors import StoreDamaged
from opic.migration.places import Places, last_of_each
from opic.model.books import Books
from opic.model.cash import MILLION, CrawlRules, Flag
from opic.model.classes import WeightClasses
from opic.model.crawl_clock import Clocks
from opic.model.series import ENTRIES_MAX, Entry
from opic.replica.audit import audit_replica, recounted
from opic.replica.histories import KEPT_ANCHORS, KEPT_ROWS, Measures
from opic.replica.index import FingerprintIndex
from opic.replica.page_columns import DENSE, SPARSE, HostColumns
from opic.replica.replica import Keeping, Replica

NUMBERS: Final = ("host", "row")  # Columns of numbers that each shard gives.
SHARED: Final = ("credit", "time_us", "extra")  # What the books of all shards say alike.


class MovedPages:
    """The shards of the new crawl, as replicas."""

    def __init__(self, places: Places, rules: CrawlRules) -> None:
        """Take the pages where they are to be, and the rules of the new crawl.

        Raises:
            StoreFull: the sum of the clocks is past 2^62.
        """
        self.places, self.rules = places, rules
        source = places.source
        parts = [replica.books for replica in source]
        self._clocks = Clocks([replica.series for replica in source], parts, rules, source[0].round_counts)
        self.books = Books.merged(parts, rules)
        self._was = source[0].rules

    def shard(self, number: int, digests: Sequence[NDArray[np.uint64] | None]) -> Replica:
        """Return a shard of the new crawl.

        Args:
            number: of the shard.
            digests: of the links that each page showed last, by shard of the source and id; None where they stay.

        Raises:
            StoreDamaged: its books don't balance: the source is damaged.
        """
        pages, source = self.places.pages[number], self.places.source
        made = Replica(self.rules, number, yields=source[0].keeps_yields)
        made.pages = len(pages)
        made.columns.reserve(made.pages)
        for column in DENSE:
            if column.name not in NUMBERS and made.has(column):
                getattr(made.columns, column.name)[: made.pages] = self.places.column(column.name, pages)
        for column in SPARSE:
            values = self.places.column(column.name, pages)
            if made.has(column) and values.any():
                made.columns.room(column.name, int(np.flatnonzero(values)[-1]) + 1)[:] = 0
                end = len(getattr(made.columns, column.name))
                getattr(made.columns, column.name)[: min(end, made.pages)] = values[:end]
        self._number_hosts(made, pages)
        self._add_histories(made, pages, digests)
        made.index = FingerprintIndex.of(self.places.prints(pages))
        self._take_rest(made)
        self._take_books(made)
        audit = audit_replica(made, 0 if number else self.rules.minted)
        if not audit.conserved:
            raise StoreDamaged(
                f"the books of shard {number} would not balance: {'; '.join(audit.mismatches)}: run `opic audit`"
            )
        return made

    def _number_hosts(self, made: Replica, pages: Int64s) -> None:
        """Number the hosts in the order in which their pages come, and take their failures along."""
        source, key = self.places.source, np.zeros(len(pages), np.int64)
        for shard, positions, ids in self.places.split(pages):
            key[positions] = source[shard].columns.host[ids].astype(np.int64) | shard << 32
        once, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        order = np.argsort(first)
        numbers = np.empty(len(once), np.uint32)
        numbers[order] = np.arange(len(once))
        made.columns.host[: made.pages] = numbers[inverse]
        hosts = once[order]
        names = [source[host >> 32].hosts.names[host & 0xFFFFFFFF] for host in hosts.tolist()]
        made.hosts.append(names)
        for column in HostColumns.SPARSE:
            values = np.zeros(len(hosts), column.dtype)
            for shard, replica in enumerate(source):
                here = np.flatnonzero(hosts >> 32 == shard)
                values[here] = replica.host_failures.stored(column.name, hosts[here] & 0xFFFFFFFF)
            if len(values):
                made.host_failures.put(column.name, np.arange(len(hosts)), values, None)

    def _add_histories(self, made: Replica, pages: Int64s, digests: Sequence[NDArray[np.uint64] | None]) -> None:
        """Take the histories of pages along, with the last measures that the new rules keep."""
        rows = self.places.column("row", pages)
        with_row = np.flatnonzero(rows)
        pages, rows = pages[with_row], rows[with_row]
        table = {name: np.zeros(len(pages), dtype) for name, dtype in KEPT_ROWS}
        anchors = {name: np.zeros(len(pages), dtype) for name, dtype in KEPT_ANCHORS} if self.rules.continuous else {}
        parts: list[tuple[Int64s, Measures, Int64s]] = []
        for shard, positions, ids in self.places.split(pages):
            histories = self.places.source[shard].histories
            for columns, source_rows in ((table, histories.rows), (anchors, histories.anchors)):
                for name, values in columns.items():
                    values[positions] = getattr(source_rows, name)[rows[positions]]
            if (own := digests[shard]) is not None:
                table["digest"][positions] = own[ids]
            measures = histories.measures(rows[positions])
            parts.append((positions, measures, self._clocks.translate(shard, measures.clock)))
        counts = table["kept"].astype(np.int64)
        starts, columns3 = np.cumsum(counts) - counts, [np.zeros(int(counts.sum()), np.int64) for _ in range(3)]
        for positions, measures, clock in parts:
            shift = np.repeat(starts[positions] - measures.starts[:-1], counts[positions])
            to = shift + np.arange(len(clock))
            for column, values in zip(columns3, (clock, measures.cash, measures.at_us), strict=True):
                column[to] = values
        if self.rules.measures_max < self._was.measures_max:
            last = last_of_each(counts, self.rules.measures_max)
            columns3 = [column[last] for column in columns3]
            table["kept"] = np.minimum(table["kept"], self.rules.measures_max)
        made.columns.row[with_row] = made.histories.adopt(table, anchors, columns3)

    def _take_rest(self, made: Replica) -> None:
        """Take along what is neither per page nor per host."""
        source, number = self.places.source, made.shard
        many, first = self.places.shards > 1, source[0]
        now = Entry.of(self.books)
        series = [entry for entry in self._clocks.series if entry.clock < now.clock or entry.time_us < now.time_us]
        alone = len(source) == 1 and not many  # Then nothing needs to be known of now.
        made.series = list(first.series) if alone or not self.books.reads else [*series, now][-ENTRIES_MAX:]
        if many and number == 0:
            made.round_counts = made.series if len(source) == 1 else list(first.round_counts)
        placed, version = first.classes.placed, first.classes.version
        if many and (placed or version):
            made.classes = WeightClasses(placed, version or 1, made.pages)
        elif placed:
            made.classes = WeightClasses(placed)
        if any(replica.trust is not None for replica in source):
            made.trust = {}
            for shard, replica in enumerate(source):
                trusted = np.array(list(replica.trust or ()), np.int64)
                pages = self.places.number(shard, trusted)
                for page, home, weight in zip(
                    self.places.id[pages].tolist(),
                    self.places.shard[pages].tolist(),
                    (replica.trust or {}).values(),
                    strict=True,
                ):
                    if home == number:
                        made.trust[page] = weight
            made.keeping = Keeping(0, first.keeping.by_setting)
        else:
            made.keeping = first.keeping

    def _misplaced(self) -> tuple[int, int]:
        """Return the history that counts as spent along other links, both ways, under another damping.

        A page gave its links another part of it than the damping says now, of which the bound takes its own part.
        """
        spent = sum(
            int(replica.histories.rows.spent[: replica.histories.count].astype(object).sum())
            for replica in self.places.source
        )
        more = max(MILLION - self._was.q, MILLION - self.rules.q)
        return spent, -(-spent * more // (MILLION - self.rules.q))

    def _forgotten(self, number: int) -> int:
        """Return how many pages a shard forgot: those that are, and in shard 0 those too that are known again."""
        now = [int((self.places.column("state", pages) & Flag.KNOWN == 0).sum()) for pages in self.places.pages]
        return now[number] if number else self.books.forgotten - sum(now[1:])

    def _take_books(self, made: Replica) -> None:
        """Give shard 0 the totals that no page has, and each shard those of its pages."""
        number, many, whole = made.shard, self.places.shards > 1, self.books
        books = copy(whole) if number == 0 else replace(Books(), **{name: getattr(whole, name) for name in SHARED})
        books.net = books.elsewhere = 0
        books.rounds, books.forgotten = whole.rounds, self._forgotten(number)
        counted = (whole.rounds, whole.clock, whole.live) if many and number == 0 else (0, 0, 0)
        books.counted_rounds, books.counted_clock, books.counted_live = counted
        made.books = books
        totals, grains = recounted(made)
        own = totals.pop("clock")
        for name, value in totals.items():
            setattr(books, name, value)
        books.clock, books.elsewhere = whole.clock, whole.clock - own
        if number == 0 and self.rules.q != self._was.q:
            books.misplace(*self._misplaced())
        books.pool = (0 if number else self.rules.minted) - grains
