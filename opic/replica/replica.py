"""The replica: the in-memory state of one shard, as of one record of its journal.

The worker, the endpoint, audits, backups and commands all use this class. A replica is loaded from the checkpoint and
follows the journal (`opic.replica.follow`); only `apply` changes it. A worker applies the effect that it has just
decided, and calls `undo` if the store refuses it.

Columns are indexed by page id. A page takes 25 bytes, 8 more for its fingerprint, and about 9 for the index from
fingerprint to id; a page that was read takes 44 more for its history and 28 for each measure that is kept. A sparse
column (`opic.replica.page_columns`) takes its 1 to 8 bytes for each page up to the last one with another value than the
default.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint8s, Uint32s, Uint64s, distinct, turns, values_at
from opic.errors import StoreUnavailable
from opic.model.books import Books
from opic.model.cash import HEARD_OF, MILLION, CrawlRules, Flag
from opic.model.classes import WeightClasses
from opic.model.host_failures import Patience
from opic.model.ledger_page import Column, ColumnKind
from opic.model.page_notes import NEAREST, failures_of_given_up
from opic.model.series import ENTRIES_MAX, Entry
from opic.replica.columns import Undo
from opic.replica.effect import Effect, Head, unpack_bits
from opic.replica.histories import Histories
from opic.replica.hosts import HostTable
from opic.replica.index import FingerprintIndex
from opic.replica.page_changes import note_changed_links
from opic.replica.page_columns import BY_NAME, YIELDS, HostColumns, Ids, PageColumns
from opic.replica.page_yields import counts_by_read, note_yields
from opic.replica.url_tail import UrlTail

PAGES_A_BLOCK = 4_080  # Pages per block of a checkpoint: an int64 column fits the allocator's 32 KiB size class.

Listener = Callable[[Effect, Int64s], object]
# Takes pages and columns of the same length; returns the pages that an effect must be applied to, and their columns.
Due = Callable[[Sequence[Any]], tuple[Any, ...]]
ALL_DUE: Final[Due] = tuple
ENDED: Final = -1


class Keeping(NamedTuple):
    """Since when and why a shard keeps links, if it does."""

    since: int = 0  # The record that began it: links of earlier ones count no more. 0: all count; ENDED: none are kept.
    by_setting: bool = False  # Only because OPIC_KEEP_LINKS is on; False once a page of the crawl was trusted.


# What an effect replaces as a whole.
REPLACED: Final = ("head", "books", "pages", "series", "round_counts", "classes", "sent", "taken", "trust", "keeping")


@dataclass(slots=True)
class Before:
    """The state of a replica before an effect, for `Replica.undo`."""

    undo: Undo
    replaced: dict[str, Any]  # REPLACED, with their values.
    rows: int
    slots: int
    hosts: int


class Replica:
    """One shard's state. Only one thread at a time may change it; readers hold `lock`, or compare `version`."""

    def __init__(self, rules: CrawlRules, shard: int = 0, *, yields: bool = True) -> None:
        """Start at genesis; `yields` keeps what reads of each page have discovered."""
        self.rules, self.keeps_yields = rules, yields
        self.lock = threading.RLock()
        self.listeners: list[Listener] = []  # Called with each applied effect and the pages that it changed.
        self.effect_listeners: list[Callable[[Effect], object]] = []  # Called with each applied effect.
        self.load_listeners: list[Callable[[Any], object]] = []  # Called with the `Loading` of each load.
        self.version = 0  # Odd while the replica is followed or loaded; larger afterwards.
        self.loads = 0  # Number of resets. Ids read before a reset may belong to other pages after it.
        self.shard = shard
        self.reset()

    def reset(self) -> None:
        """Go back to genesis."""
        self.head = Head()
        self.books = Books.genesis(self.rules, self.shard)
        self.pages = 0
        self.columns = PageColumns()
        self.index = FingerprintIndex()
        self.hosts, self.host_failures = HostTable(), HostColumns()
        self.histories = Histories(self.rules)
        self.series: list[Entry] = []
        self.round_counts: list[Entry] = []  # Of the whole crawl, in shard 0 of many.
        self.classes = WeightClasses()
        self.sent: dict[int, tuple[int, bytes]] = {}  # By receiving shard: number of entries, digest of the last.
        self.taken: dict[int, bytes] = {}  # By sending shard: digest of the last entry taken.
        self.trust: dict[int, float] | None = None  # Weights of trusted pages; None if the shard keeps no links.
        self.keeping = Keeping()
        self.tail = UrlTail()
        self.whole = True  # False after a failed load; the replica can't be read then.
        self.loads += 1

    def __len__(self) -> int:
        """Return the number of known pages, including gone pages."""
        return self.pages

    # Changes.

    def apply(self, effect: Effect, *, keep: bool = False) -> Before | None:
        """Apply the next effect of the journal.

        Args:
            effect: its `previous` must be the digest of this replica's head; the caller checks this.
            keep: return the state that `undo` needs.
        """
        before = None
        if keep:
            replaced = {name: getattr(self, name) for name in REPLACED}
            before = Before(Undo(), replaced, self.histories.count, self.histories.slot_count, len(self.hosts.names))
        if len(effect.fingerprints):
            self._add_pages(effect)
        self.change_pages(effect, before.undo if before else None)
        self.take_totals(effect, before.undo if before else None)
        for effect_listener in self.effect_listeners:
            effect_listener(effect)
        if self.listeners:
            changed = touched(effect)
            for listener in self.listeners:
                listener(effect, changed)
        return before

    def change_pages(self, effect: Effect, undo: Undo | None, due: Due = ALL_DUE) -> None:
        """Apply an effect to the pages. While loading, `due` selects the pages whose blocks lack the effect."""
        self._move_cash(effect, undo, due)
        self._note_histories(effect, undo, due)
        pages, state = due((effect.state_page, effect.state))
        if undo is not None:
            undo.keep(self.columns, pages, "state")
        self.columns.state[pages] = state
        for name, (ids, values) in effect.noted.items():
            self.columns.note(name, *due((ids, values)), undo=undo)
        if effect.again:
            (again,) = due((effect.again_pages(),))
            seconds = np.full(len(again), effect.books.time_us // MILLION, np.uint32)
            self.columns.put("known_again", again, seconds, undo)
        if len(effect.forgotten):
            self.columns.clear(*due((effect.forgotten,)), undo=undo)

    def take_totals(self, effect: Effect, undo: Undo | None = None) -> None:
        """Apply an effect to everything that is not per page."""
        if len(effect.failing_host):
            failing = effect.failing_times, effect.failing_first_us, effect.failing_last_us
            self.host_failures.note(effect.failing_host, failing, undo)
        self.books, self.head = copy(effect.books), effect.head
        if effect.entries:  # Builds a new list, so that readers of the old one are not affected.
            self.series = [*self.series, *effect.entries][-ENTRIES_MAX:]
        books = effect.books
        if books.counted_clock > (self.round_counts[-1].clock if self.round_counts else 0):
            new = [Entry(books.time_us, books.counted_rounds, books.counted_clock)]
            self.round_counts = [*self.round_counts, *new][-ENTRIES_MAX:]
        if effect.classes is not None:
            self.classes = WeightClasses.unpack(effect.classes)
        if effect.ends_links:
            self.trust, self.keeping = None, Keeping(ENDED)
        if effect.trusted is not None:  # A new dict, as above.
            since = effect.lsn if self.trust is None else self.keeping.since
            self.keeping = Keeping(since, effect.by_setting)
            self.trust = {page: weight for page, weight in {**(self.trust or {}), **effect.trusted}.items() if weight}
        self.sent, self.taken = {**self.sent, **effect.sent}, {**self.taken, **effect.taken}

    def undo(self, before: Before) -> None:
        """Undo the last effect, which was applied with `keep`."""
        before.undo.restore()
        pages = before.replaced["pages"]
        self.columns.clear_rows(pages, self.pages)
        self.index.truncate(pages)
        self.tail.truncate(pages)
        self.hosts.truncate(before.hosts)
        self.histories.truncate(before.rows, before.slots)
        for name, value in before.replaced.items():
            setattr(self, name, value)

    def _add_pages(self, effect: Effect) -> None:
        self.hosts.append(effect.host_names)
        count = len(effect.fingerprints)
        first, self.pages = self.pages, self.pages + count
        self.columns.reserve(self.pages)
        self.index.append(effect.fingerprints)
        self.columns.host[first : self.pages] = effect.hosts
        self.tail.append(count, effect.packed_urls)

    def _move_cash(self, effect: Effect, undo: Undo | None, due: Due) -> None:
        columns = self.columns
        paid = effect.links, np.repeat(effect.read_share, effect.read_links)
        links, shares = due(paid)
        reads, spent = due((effect.read_page, effect.read_cash))
        moved, amounts = due((effect.moved_page, effect.moved))
        if undo is not None:
            undo.keep(columns, np.concatenate((links, reads, moved)), "v")
        np.add.at(columns.v, links, shares)
        np.subtract.at(columns.v, reads, spent)
        np.add.at(columns.v, moved, amounts)
        if self.rules.inflow:
            across = unpack_bits(effect.across, len(effect.links))
            pages, grains = due([column[across] for column in paid])
            others, amounts = due((effect.inflow_page, effect.inflow))
            if undo is not None:
                undo.keep(columns, np.concatenate((pages, others)), "inflow")
            np.add.at(columns.inflow, pages, grains)
            np.add.at(columns.inflow, others, amounts)

    def _note_histories(self, effect: Effect, undo: Undo | None, due: Due) -> None:
        given = np.maximum(effect.read_cash, 0)
        clock = effect.books.clock - int(given.sum()) + np.cumsum(given)  # After each read.
        number = np.arange(len(clock))
        reads = effect.read_page, clock, effect.read_cash, effect.read_at_us, effect.read_digest, number
        pages, clock, cash, at_us, digest, number = due(reads)
        gone, times, until_us = due((effect.gone_page, effect.gone_times, effect.gone_until_us))
        both = np.concatenate((pages, gone)) if len(gone) else pages
        if not len(both):
            return
        columns, histories, turn = self.columns, self.histories, turns(pages)
        # Before the reads are recorded: both columns need the read before.
        kept = number >= effect.kept_from if effect.kept_from >= 0 else number < 0
        if len(pages) and (self.keeps_yields or kept.any()):
            read_rows = columns.row[pages]
            before_us, before = histories.last_read_us(read_rows), histories.rows.digest[read_rows]
            if self.keeps_yields:
                links, new = counts_by_read(effect)
                note_yields(columns, pages, links[number], new[number], at_us, before_us, turn, undo)
            effect.other_links = digest != before
            if kept.any():
                reads_kept = pages[kept], at_us[kept], digest[kept], before_us[kept], before[kept]
                note_changed_links(columns, *reads_kept, undo)
        without = both[columns.row[both] == 0]
        if len(without):
            first = without[np.sort(np.unique(without, return_index=True)[1])]  # Each once, in order of appearance.
            if undo is not None:
                undo.keep(columns, first, "row")
            columns.row[first] = histories.add(len(first))
        if len(pages):
            histories.read(columns.row[pages], clock, cash, at_us, digest, turn, undo)
        if len(gone):
            histories.go(columns.row[gone], times, until_us, undo)

    # Reads.

    def has(self, column: Column) -> bool:
        """Tell whether the replica keeps a column, by the rules and its settings."""
        return self.rules.inflow if column.name == "inflow" else self.keeps_yields if column in YIELDS else True

    def column(self, name: str, ids: Ids) -> NDArray[Any]:
        """Return the values of a column of pages, (n,), wherever it is kept."""
        return self.columns_of([name], ids)[0]

    def columns_of(self, names: Sequence[str], ids: Ids) -> list[NDArray[Any]]:
        """Return the values of columns of pages, (n,) each, wherever they are kept."""
        values, rows = list[NDArray[Any]](), self.columns.row[ids]
        for name in names:
            kind = BY_NAME[name].kind
            if kind is ColumnKind.SPARSE:
                values.append(self.columns.values_of(name, ids))
            else:
                values.append(
                    getattr(self.histories.rows, name)[rows]
                    if kind is ColumnKind.HISTORY
                    else getattr(self.columns, name)[ids]
                )
        return values

    @contextmanager
    def following(self) -> Iterator[None]:
        """Hold the lock to follow the journal or to load."""
        with self.lock:
            outer, self.version = self.version, self.version | 1
            try:
                yield
            finally:
                self.version += not outer & 1  # A load while following ends nothing.

    @contextmanager
    def reading(self, *, locked: bool = True) -> Iterator["Replica"]:
        """Hold the lock to read; without it, what was read is worth nothing if `version` is odd, or another then.

        Raises:
            StoreUnavailable: the last load failed; the replica can't be read until it is loaded.
        """
        with self.lock if locked else nullcontext():
            if not self.whole:
                raise StoreUnavailable(f"shard {self.shard} could not be read to its end: try again")
            yield self

    @property
    def state(self) -> Uint8s:
        """State bytes, (pages,)."""
        return self.columns.state[: self.pages]

    @property
    def v(self) -> Int64s:
        """Cash minus credit, (pages,)."""
        return self.columns.v[: self.pages]

    @property
    def host(self) -> Uint32s:
        """Host numbers, (pages,)."""
        return self.columns.host[: self.pages]

    def cash(self, ids: Ids | slice = slice(None)) -> Int64s:
        """Return the cash of pages. A gone page has returned its grants, so its cash may be negative."""
        v, state = self.columns.v[: self.pages][ids], self.columns.state[: self.pages][ids]
        return np.where(state & Flag.GONE, v, live_cash(self.books, v, state))

    def spent(self, ids: Ids | slice = slice(None)) -> Int64s:
        """Return the total history of pages."""
        spent: Int64s = self.histories.rows.spent[self.columns.row[: self.pages][ids]]
        return spent

    def may_expire(self, ids: Ids) -> Bools:
        """Return a mask of the pages that were never read, gone or excluded, and are neither seeds nor trusted."""
        heard_of = (self.columns.state[ids] & (HEARD_OF | Flag.KNOWN)) != Flag.KNOWN
        seeds = self.columns.stored("nearness", ids) == NEAREST
        may_expire: Bools = ~(heard_of | seeds | np.isin(ids, list(self.trust or ())))
        return may_expire

    def given_up(self, ids: Ids, patience: Patience) -> Bools | None:
        """Return a mask of the pages that are given up, or whose hosts are; None if nothing ever failed."""
        pages = self.failed_for_good(ids, patience)
        if not len(self.host_failures.times):
            return pages
        hosts = values_at(self.host_failures.given_up(patience), self.columns.host[ids], False)
        return hosts if pages is None else pages | hosts

    def failed_for_good(self, ids: Ids, patience: Patience) -> Bools | None:
        """Return a mask of the pages that are given up after their own failures; None if no page ever failed."""
        if not len(self.columns.failures):
            return None
        return self.columns.values_of("failures", ids) >= failures_of_given_up(patience.max_failures)

    def given_up_pages(self, patience: Patience) -> Int64s:
        """Return the pages that are given up, or whose hosts are, ascending. Costs .1 ms a million pages."""
        pages = np.flatnonzero(self.columns.failures >= failures_of_given_up(patience.max_failures))
        hosts = self.host_failures.given_up(patience)
        return np.union1d(pages, np.flatnonzero(values_at(hosts, self.host, False))) if hosts.any() else pages

    def find(self, fingerprints: Uint64s) -> Int64s:
        """Return the ids of pages by the fingerprints of their URLs, -1 for an unknown page."""
        ids = self.index.find(fingerprints)
        if self.books.forgotten:
            ids[(self.columns.state[ids] & Flag.KNOWN) == 0] = -1  # Whatever the state at -1 is.
        return ids


def live_cash(books: Books, v: Int64s, state: Uint8s) -> Int64s:
    """Return the cash of live pages; the values for other pages are meaningless."""
    if not books.weighted:
        return v + books.credit
    cash: Int64s = v + np.array(books.credits(), np.int64)[state & 0x07]
    return cash


def touched(effect: Effect) -> Int64s:
    """Return the distinct ids of pages whose cash or state an effect changed, increasing."""
    new = np.arange(effect.first_page, effect.first_page + len(effect.fingerprints))
    parts: Sequence[NDArray[np.generic]] = (
        new, effect.links, effect.read_page, effect.state_page, effect.moved_page, effect.gone_page,
        *(pages for pages, _ in effect.noted.values()),
    )  # fmt: skip
    return distinct(np.concatenate([part.astype(np.int64) for part in parts]))
