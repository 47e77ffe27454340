"""The replica: the state of one shard in memory, as of one record of its journal.

Worker, endpoint, audit, backup and commands hold the same object. It is loaded from the checkpoint and follows the
journal (`opic.replica.follow`); `apply` is the only way in which it changes. A worker applies the effect that it has
just decided, and takes it back by `undo` where the store refused it.

A page's columns are by id: 26 bytes, 8 for its fingerprint and about 9 for the way from the fingerprint to the id; one
that was read has 44 more for its history and 28 for each measure that is kept.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opic.errors import StoreUnavailable
from opic.model.cash import Books, CrawlRules, Flag
from opic.model.classes import WeightClasses
from opic.model.series import ENTRIES_MAX, PACKED, Entry
from opic.replica.columns import Growing, Undo
from opic.replica.effect import Effect, Head
from opic.replica.histories import Histories
from opic.replica.hosts import HostTable
from opic.replica.index import FingerprintIndex
from opic.replica.url_tail import UrlTail

Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]
Uint32s = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ids = Uint32s | Int64s
PAGES_A_BLOCK = 4_080  # Of a checkpoint: an int64 column of it fits the allocator's class of 32 KiB.

Listener = Callable[[Effect, Int64s], object]
# Given pages and columns of the same length: those for which an effect is due, and their places in the columns.
Due = Callable[..., tuple[Any, ...]]


def _all_due(*columns: Any) -> tuple[Any, ...]:
    return columns


class PageColumns(Growing):
    """Columns by page id. Places past the known pages are zero."""

    COLUMNS = (("v", "i8"), ("inflow", "i8"), ("state", "u1"), ("host", "u4"), ("row", "u4"))
    v: Int64s  # Cash less the credit of the page's class.
    inflow: Int64s  # What came by links from other registered domains.
    state: Bytes  # See `opic.model.cash.Flag`.
    host: Uint32s
    row: Uint32s  # In the histories; 0 is none.


@dataclass(slots=True)
class Before:
    """What a replica was before an effect: for `Replica.undo`."""

    undo: Undo
    head: Head
    books: Books
    pages: int
    rows: int
    slots: int
    hosts: int
    series: list[Entry]
    classes: WeightClasses
    sent: dict[int, tuple[int, bytes]]
    taken: dict[int, bytes]


class Replica:
    """One shard's state. One thread at a time changes it; whoever reads holds `lock`."""

    def __init__(self, rules: CrawlRules, shard: int = 0) -> None:
        """Start with genesis."""
        self.rules = rules
        self.lock = threading.RLock()
        self.listeners: list[Listener] = []  # Told of each effect that was applied, and the pages that it changed.
        self.effect_listeners: list[Callable[[Effect], object]] = []  # Told of the effect alone.
        self.load_listeners: list[Callable[[Any], object]] = []  # Told of each load, with its `Loading`.
        self.loads = 0  # How often it was made anew: ids may be other pages' since.
        self.shard = shard
        self.reset()

    def reset(self) -> None:
        """Go back to genesis."""
        self.head = Head()
        self.books = Books.genesis(self.rules, self.shard)
        self.pages = 0
        self.columns = PageColumns()
        self.index = FingerprintIndex()
        self.hosts = HostTable()
        self.histories = Histories(self.rules)
        self.series: list[Entry] = []
        self.classes = WeightClasses()
        self.sent: dict[int, tuple[int, bytes]] = {}  # Entries so far, digest of the last; by shard.
        self.taken: dict[int, bytes] = {}  # The digest of the last entry that came from each shard.
        self.tail = UrlTail()
        self.whole = True  # Else loading it broke off, and it shows nothing.
        self.loads += 1

    def __len__(self) -> int:
        """Count the known pages, gone ones among them."""
        return self.pages

    # The one way in.

    def apply(self, effect: Effect, *, keep: bool = False) -> Before | None:
        """Let an effect happen, the next one of the journal.

        Args:
            effect: its `previous` is this replica's digest; the caller has checked.
            keep: return what is needed to take it back.
        """
        before = self._before() if keep else None
        self.hosts.append(effect.host_names)
        self._add_pages(effect)
        self.change_pages(effect, before.undo if before else None)
        self.take_totals(effect)
        for told in self.effect_listeners:
            told(effect)
        if self.listeners:
            changed = touched(effect)
            for listener in self.listeners:
                listener(effect, changed)
        return before

    def change_pages(self, effect: Effect, undo: Undo | None, due: "Due | None" = None) -> None:
        """Do what an effect does to pages; while loading, only to those of blocks for which it is `due`."""
        due = due or _all_due
        self._move_cash(effect, undo, due)
        self._note_histories(effect, undo, due)
        pages, state = due(effect.state_page, effect.state)
        if undo is not None:
            undo.keep(self.columns, "state", pages)
        self.columns.state[pages] = state

    def take_totals(self, effect: Effect) -> None:
        """Take over all that is not by page."""
        self.books, self.head = copy(effect.books), effect.head
        if effect.entries:  # A new list: whoever holds the old one keeps it.
            new = [Entry(*PACKED.unpack(packed)) for packed in effect.entries]
            self.series = [*self.series, *new][-ENTRIES_MAX:]
        if effect.classes is not None:
            self.classes = WeightClasses.unpack(effect.classes)
        self.sent |= effect.sent
        self.taken |= effect.taken

    def _before(self) -> Before:
        return Before(
            Undo(), self.head, self.books, self.pages, self.histories.count, self.histories.slot_count,
            len(self.hosts), self.series, self.classes, dict(self.sent), dict(self.taken),
        )  # fmt: skip

    def undo(self, before: Before) -> None:
        """Take back the last effect that was applied with `keep`."""
        before.undo.restore()
        self.columns.clear_rows(before.pages, self.pages)
        self.index.truncate(before.pages)
        self.tail.truncate(before.pages)
        self.hosts.truncate(before.hosts)
        self.histories.truncate(before.rows, before.slots)
        self.pages, self.head, self.books = before.pages, before.head, before.books
        self.series, self.classes = before.series, before.classes
        self.sent, self.taken = before.sent, before.taken

    def _add_pages(self, effect: Effect) -> None:
        count = len(effect.fingerprints)
        if not count:
            return
        first, self.pages = self.pages, self.pages + count
        self.columns.reserve(self.pages)
        self.index.append(effect.fingerprints)
        self.columns.host[first : self.pages] = effect.hosts
        self.tail.append(count, effect.packed_urls)

    def _move_cash(self, effect: Effect, undo: Undo | None, due: "Due") -> None:
        columns = self.columns
        shares = np.repeat(effect.read_share, effect.read_links)
        links, shares = due(effect.links, shares)
        reads, spent = due(effect.read_page, effect.read_cash)
        moved, amounts = due(effect.moved_page, effect.moved)
        if undo is not None:
            undo.keep(columns, "v", np.concatenate((links, reads, moved)))
        np.add.at(columns.v, links, shares)
        np.subtract.at(columns.v, reads, spent)
        np.add.at(columns.v, moved, amounts)
        if self.rules.inflow:
            across = unpack_bits(effect.across, len(effect.links))
            pages, grains = due(effect.links[across], np.repeat(effect.read_share, effect.read_links)[across])
            others, amounts = due(effect.inflow_page, effect.inflow)
            if undo is not None:
                undo.keep(columns, "inflow", np.concatenate((pages, others)))
            np.add.at(columns.inflow, pages, grains)
            np.add.at(columns.inflow, others, amounts)

    def _note_histories(self, effect: Effect, undo: Undo | None, due: "Due") -> None:
        clock = effect.clock_before + np.cumsum(np.maximum(effect.read_cash, 0))
        pages, clock, cash, at_us, digest = due(
            effect.read_page, clock, effect.read_cash, effect.read_at_us, effect.read_digest
        )
        gone, times, until_us = due(effect.gone_page, effect.gone_times, effect.gone_until_us)
        both = np.concatenate((pages, gone)) if len(gone) else pages
        columns, histories = self.columns, self.histories
        without = both[columns.row[both] == 0]
        if len(without):
            new = distinct_in_order(without)
            if undo is not None:
                undo.keep(columns, "row", new)
            columns.row[new] = histories.add(len(new))
        if len(pages):
            histories.read(columns.row[pages], clock, cash, at_us, digest, undo)
        if len(gone):
            histories.go(columns.row[gone], times, until_us, undo)

    # What may be asked.

    @contextmanager
    def reading(self) -> Iterator["Replica"]:
        """Hold the lock to read.

        Raises:
            StoreUnavailable: loading the replica broke off; it shows nothing until it is loaded.
        """
        with self.lock:
            if not self.whole:
                raise StoreUnavailable(f"shard {self.shard} could not be read to its end: try again")
            yield self

    @property
    def state(self) -> Bytes:
        """State bytes, (pages,)."""
        return self.columns.state[: self.pages]

    @property
    def v(self) -> Int64s:
        """Cash less credit, (pages,)."""
        return self.columns.v[: self.pages]

    @property
    def host(self) -> Uint32s:
        """Host numbers, (pages,)."""
        return self.columns.host[: self.pages]

    def cash(self, ids: Ids | slice = slice(None)) -> Int64s:
        """Return what pages hold; a gone one has given its grants back, and may owe."""
        v, state = self.v[ids], self.state[ids]
        return np.where(state & Flag.GONE, v, held(self.books, v, state))

    def spent(self, ids: Ids | slice = slice(None)) -> Int64s:
        """Return the total history of pages."""
        spent: Int64s = self.histories.rows.spent[self.columns.row[: self.pages][ids]]
        return spent

    def find(self, fingerprints: Uint64s) -> Int64s:
        """Return the ids of pages by the fingerprints of their URLs, -1 for one that is not known."""
        return self.index.find(fingerprints)

    def urls_of_tail(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the URLs that are in memory, of the pages that became known last."""
        return self.tail.get(ids)


def held(books: Books, v: Int64s, state: Bytes) -> Int64s:
    """Return what live pages hold; of others it means nothing."""
    if not books.weighted:
        return v + books.credit
    cash: Int64s = v + np.array(books.credits(), np.int64)[state & 0x07]
    return cash


def touched(effect: Effect) -> Int64s:
    """Return the pages whose cash or state an effect changed, increasing, each once."""
    new = np.arange(effect.first_page, effect.first_page + len(effect.fingerprints))
    parts: Sequence[NDArray[np.generic]] = (
        new, effect.links, effect.read_page, effect.state_page, effect.moved_page, effect.gone_page
    )  # fmt: skip
    ids = np.sort(np.concatenate([part.astype(np.int64) for part in parts]))
    once: Int64s = ids[np.diff(ids, prepend=-1) != 0]
    return once


def pack_bits(flags: Bools) -> Bytes:
    """Pack flags, eight in a byte."""
    return np.packbits(flags, bitorder="little")


def unpack_bits(packed: Bytes, count: int) -> Bools:
    """Unpack what `pack_bits` packed."""
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def distinct_in_order(ids: Uint32s) -> Uint32s:
    """Return each id once, in the order of their first places."""
    _, first = np.unique(ids, return_index=True)
    return ids[np.sort(first)]
