"""The step: how a batch of records takes effect in the store. The other half is `opic.lua`.

A batch is decoded; its URLs become ids; the pages it reads are fetched; then its events are worked through one after
the other in memory, each seeing what those before it paid, exactly as `opic.ledger` has it; and what they change in
all goes to the store in one call, which either takes effect whole or is refused because something moved. Then the
batch is worked out again. So it does not matter who sends a batch, how often, or how it was cut.
"""

from collections.abc import Sequence
from copy import copy
from hashlib import blake2b
from itertools import islice

import msgpack
import numpy as np

from opic.cash import BOOK_FIELDS, MILLION, ROUND_BITS, Books, Flag, gone_until_us, split
from opic.errors import BadUrl, FenceMoved, StoreUnavailable
from opic.events import Event, Limits, Outcome, Record, decode_record
from opic.ledger import Audit, Measure
from opic.store import columns
from opic.store.columns import DIGEST_BYTES, Int64s, by_block
from opic.store.connection import store_errors
from opic.store.keys import ROWS_I64, ROWS_MEASURES, ROWS_U8
from opic.store.shard import Shard
from opic.urls import canonical_url, host_of, registered_domain

LINKS_A_STEP_MAX = 4_000  # Other clients wait for a whole call: this many increments are 4 to 8 ms.
LINKS_KNOWN_MAX = 1_000_000  # Raw links whose id is remembered, about 200 bytes each.
REFUSALS_MAX = 1_000  # In a row. Another worker steps in between now and then, not a thousand times.
BAD_LINK = -1
OPEN, GONE, KNOWN, EXCLUDED = int(Flag.OPEN), int(Flag.GONE), int(Flag.KNOWN), int(Flag.EXCLUDED)


class Store:
    """One shard's writer. It holds nothing that the store does not: it may be killed between any two statements."""

    def __init__(self, shard: Shard, limits: Limits | None = None, retry_seconds: float = 60.0) -> None:
        """Write to an open shard.

        Args:
            shard: to write to.
            limits: of events; one over them becomes a dead letter.
            retry_seconds: the first wait of a page whose fetch failed, doubling up to a day; 0 is none.
        """
        self.shard, self.limits, self.retry_seconds = shard, limits or Limits(), retry_seconds
        self.rules = shard.rules
        self.books = Books()
        self._stale = True
        self._next: dict[str, int] = {}
        self.link_ids: dict[str, int] = {}  # As it came -> id, or BAD_LINK.
        self._domains: dict[str, int] = {}
        # By id, of all pages; they grow by doubling. Pending sums are zero between batches.
        self._state = np.zeros(0, np.uint8)
        self._domain = np.zeros(0, np.int32)
        self._pending = np.zeros(0, np.int64)
        self._pending_inflow = np.zeros(0, np.int64)

    def next_offset(self, partition: str) -> int:
        """Return the offset of the first record of the partition that has not taken effect."""
        return self.shard.next_offset(partition)

    def audit(self) -> Audit:
        """Recount the books from the columns."""
        return self.shard.audit()

    def apply(self, partition: str, records: Sequence[Record]) -> None:
        """Let records take effect, each once; those that have already do nothing.

        Args:
            partition: of the log, with its source: offsets are counted for each apart.
            records: in order of their offsets.

        Raises:
            StoreUnavailable: the store was away in between. What took effect is known to it: apply the same again.
        """
        start = 0
        decoded = [decode_record(record, self.limits) for record in records]
        while start < len(records):
            end, links = start, 0
            while end < len(records) and (end == start or links + len(decoded[end].links) <= LINKS_A_STEP_MAX):
                links += len(decoded[end].links) + len(decoded[end].seeds) + 1
                end += 1
            self._apply_once(partition, records[start:end], decoded[start:end])
            start = end

    def _apply_once(self, partition: str, records: Sequence[Record], events: Sequence[Event]) -> None:
        for _ in range(REFUSALS_MAX):
            if self._stale:
                self._reload()
            if partition not in self._next:
                self._next[partition] = self.next_offset(partition)
            begin = self._next[partition]
            skip = next((i for i, record in enumerate(records) if record.offset >= begin), len(records))
            if skip == len(records):
                return
            # Until the store says OK, what this batch does to our copies is not true.
            self._stale = True
            try:
                batch = _Batch(self, records[skip:], events[skip:])
            except FenceMoved:
                continue
            reply = self._send(batch, partition, begin, records[-1].offset + 1)
            if reply == b"OK":
                self._stale = False
                self.books = batch.books
                self.books.version += 1
                self._next[partition] = records[-1].offset + 1
                return
        raise StoreUnavailable("the shard moved under every one of a thousand tries: too many workers on one shard")

    def _send(self, batch: "_Batch", partition: str, begin: int, end: int) -> bytes:
        batch.books.check()
        keys, blob = batch.payload()
        with store_errors():
            reply = self.shard.client.fcall(
                "opic_1_step", len(keys), *keys, self.books.version, partition, begin, end, self.retry_seconds, blob
            )
        return bytes(reply[0])

    def _reload(self) -> None:
        """Forget all that may have moved; ids, and with them links and domains, never do."""
        found = self.shard.columns()
        self.books = found.books
        self._next.clear()
        self._grow(len(found.state))
        self._state[:] = 0
        self._state[: len(found.state)] = found.state
        self._pending[:] = 0
        self._pending_inflow[:] = 0
        self.shard.directory.reload()
        self._stale = False

    def _grow(self, ids: int) -> None:
        if ids <= len(self._state):
            return
        size = max(1024, 2 * ids)
        for name in ("_state", "_domain", "_pending", "_pending_inflow"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def resolve(self, events: Sequence[Event]) -> None:
        """See to it that `link_ids` knows every URL of these events; new pages get ids in order of first sight."""
        known = self.link_ids
        if len(known) > LINKS_KNOWN_MAX:
            for raw in list(islice(known, LINKS_KNOWN_MAX // 2)):
                del known[raw]
        misses: dict[str, str] = {}  # Raw -> canonical.
        for event in events:
            for raw in (event.url, *event.links) if event.url else event.seeds:
                if raw not in known and raw not in misses:
                    try:
                        misses[raw] = canonical_url(raw, self.limits.url_bytes_max)
                    except BadUrl:
                        known[raw] = BAD_LINK
        if not misses:
            return
        urls = list(dict.fromkeys(misses.values()))
        ids = dict(zip(urls, self.shard.directory.assign(urls, self.rules.inflow), strict=True))
        self._grow(max(ids.values()) + 1)
        for raw, url in misses.items():
            known[raw] = ids[url]
        if self.rules.inflow:
            for url, page_id in ids.items():
                domain = registered_domain(host_of(url))
                self._domain[page_id] = self._domains.setdefault(domain, len(self._domains))


class _Batch:
    """The effect of some records on the shard, worked out in memory."""

    def __init__(self, store: Store, records: Sequence[Record], events: Sequence[Event]) -> None:
        self.store, self.rules = store, store.rules
        self.books = copy(store.books)
        self.state, self.pending = store._state, store._pending
        self.deposits: list[Int64s] = []
        self.deposits_inflow: list[Int64s] = []
        self.spent: dict[int, int] = {}
        self.changed: set[int] = set()
        self.dirty: set[int] = set()
        self.fetches: list[float] = []
        self.letters: list[str | bytes] = []

        store.resolve(events)
        self.state, self.pending = store._state, store._pending  # Resolving may have grown them.
        links = [self._links(event) for event in events]
        self._fetch(events, [ids for ids, _ in links])
        for record, event, (ids, bad_links) in zip(records, events, links, strict=True):
            self.books.bad_links += bad_links
            self._decide(record, event, ids)

    def _links(self, event: Event) -> tuple[Int64s, int]:
        """Return the ids of an event's distinct links to other pages, in order; and how many links were bad."""
        if not event.links:
            return np.empty(0, np.int64), 0
        found = list(map(self.store.link_ids.__getitem__, event.links))
        ids = dict.fromkeys(found)
        ids.pop(self.store.link_ids[event.url], None)
        bad_links = 0
        if BAD_LINK in ids:
            del ids[BAD_LINK]
            bad_links = found.count(BAD_LINK)
        return np.fromiter(ids, np.int64, len(ids)), bad_links

    def _fetch(self, events: Sequence[Event], links: Sequence[Int64s]) -> None:
        """Fetch the rows of all pages whose cash or record this batch needs to see."""
        wanted = {self.store.link_ids[e.url] for e in events if e.outcome in (Outcome.READ, Outcome.GONE)}
        for ids in links:
            if len(ids):
                wanted.update(ids[(self.state[ids] & GONE) != 0].tolist())
        for event in events:
            wanted.update(i for i in map(self.store.link_ids.__getitem__, event.seeds) if self.state[i] & GONE)
        ids_wanted = sorted(wanted)
        rows = self.store.shard.rows(ids_wanted, states=False) if ids_wanted else None
        if rows is not None and rows.books.version != self.store.books.version:
            raise FenceMoved("another worker stepped in between")
        self.v: dict[int, int] = dict(zip(ids_wanted, rows.v.tolist(), strict=True)) if rows else {}
        self.h: dict[int, int] = dict(zip(ids_wanted, rows.spent.tolist(), strict=True)) if rows else {}
        unpack = columns.Record.unpack
        self.record = {i: unpack(r) for i, r in zip(ids_wanted, rows.records, strict=True)} if rows else {}

    # One record; compare opic.ledger, method by method.

    def _decide(self, record: Record, event: Event, links: Int64s) -> None:
        books, store = self.books, self.store
        if event.outcome is Outcome.SEEDS:
            books.seeds += len(event.seeds)
            for url in event.seeds:
                page = store.link_ids[url]
                self._know(np.array([page]))
                self._come_back(page)
                self._set(page, int(self.state[page]) & ~EXCLUDED)
        elif event.outcome is Outcome.DEAD:
            books.dead_letters += 1
            self.letters += (event.reason, str(record.offset), record.value)
        else:
            page = store.link_ids[event.url]
            self._know(np.array([page]))
            if event.outcome is Outcome.READ:
                self._read(page, event, links)
            elif event.outcome is Outcome.GONE:
                self._go_away(page, event.at_us)
            elif event.outcome is Outcome.EXCLUDED:
                self._set(page, int(self.state[page]) | EXCLUDED)
                books.exclusions += 1
            else:
                books.failures += 1
            self.fetches += (page, int(event.outcome is Outcome.FAILED), record.time_us / MILLION)
        amount = books.grant_due(self.rules.regrant_ppm, self.rules.grant)
        books.credit += amount
        books.pool -= amount * books.live

    def _read(self, page: int, event: Event, links: Int64s) -> None:
        books, rules, state = self.books, self.rules, self.state
        self._come_back(page)
        if len(links):
            self._know(links)
            for child in links[(state[links] & GONE) != 0].tolist():
                if event.at_us >= self.record[child].gone_until_us:
                    self._come_back(child)

        v = self.v[page] + int(self.pending[page])
        cash, spent, record = v + books.credit, self._spent(page), self.record[page]
        share = split(cash, len(links), rules.q)
        digest = _digest(links)
        if state[page] & OPEN:
            if digest != record.digest:
                books.misplace(spent if digest else 0, spent if record.digest else 0)
            books.v_open -= cash
        else:
            books.misplace(spent if digest else 0, 0)
            books.open += 1
            books.v_open += v - cash
        self._set(page, (int(state[page]) | OPEN) & ~EXCLUDED)

        books.clock += cash
        books.rounds += (cash << ROUND_BITS) // (books.live * rules.grant)
        books.rounding += share.rounding
        books.pool += share.virtual
        books.reads += 1
        books.links += len(links)
        self.pending[page] -= cash
        self.spent[page] = self.spent.get(page, 0) + cash
        record.reads += 1
        record.digest = digest
        record.measures = (*record.measures, Measure(books.clock, cash, event.at_us))[-rules.measures_max :]
        self.dirty.add(page)
        if share.share:
            self._deposit(page, links, share.share)

    def _deposit(self, page: int, links: Int64s, grains: int) -> None:
        states = self.state[links]
        self.pending[links] += grains  # Distinct, so no increment hides another.
        self.deposits.append(links)
        self.books.v_open += grains * int(np.count_nonzero(states & OPEN))
        self.books.v_gone += grains * int(np.count_nonzero(states & GONE))
        if self.rules.inflow:
            domain = self.store._domain
            across = links[domain[links] != domain[page]]
            if len(across):
                self.store._pending_inflow[across] += grains
                self.deposits_inflow.append(across)

    def _spent(self, page: int) -> int:
        return self.h[page] + self.spent.get(page, 0)

    def _set(self, page: int, state: int) -> None:
        if self.state[page] != state:
            self.state[page] = state
            self.changed.add(page)

    def _know(self, pages: Int64s) -> None:
        new = pages[self.state[pages] == 0]
        if len(new):
            self.state[new] = KNOWN
            self.changed.update(new.tolist())
            self.books.live += len(new)
            self.books.pool -= self.books.credit * len(new)

    def _go_away(self, page: int, at_us: int) -> None:
        books, record = self.books, self.record[page]
        books.departures += 1
        record.times_gone += 1
        record.gone_until_us = max(record.gone_until_us, gone_until_us(at_us, record.times_gone))
        self.dirty.add(page)
        state = int(self.state[page])
        if state & GONE:
            return
        v, spent = self.v[page] + int(self.pending[page]), self._spent(page)
        if state & OPEN:
            books.open -= 1
            books.v_open -= v
            books.misplace(0, spent if record.digest else 0)
        self._set(page, (state | GONE) & ~OPEN)
        books.live -= 1
        books.gone += 1
        books.pool += books.credit
        books.v_gone += v
        books.h_gone += spent

    def _come_back(self, page: int) -> None:
        state = int(self.state[page])
        if not state & GONE:
            return
        books = self.books
        self._set(page, state & ~GONE)
        books.live += 1
        books.gone -= 1
        books.pool -= books.credit
        books.v_gone -= self.v[page] + int(self.pending[page])
        books.h_gone -= self._spent(page)

    # What goes to the store.

    def payload(self) -> tuple[list[str], bytes]:
        """Return the keys and the blob of the step call, and take the pending sums back to zero."""
        keys, store = self.store.shard.keys, self.store
        names = [keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails]
        reads = np.fromiter(self.spent, np.int64, len(self.spent))
        touched = np.unique(np.concatenate([*self.deposits, reads]))
        spent = np.fromiter(sorted(self.spent), np.int64, len(self.spent))
        spent_by = np.array([self.spent[i] for i in spent.tolist()], np.int64)
        across = np.unique(np.concatenate([*self.deposits_inflow, np.empty(0, np.int64)]))

        amounts: list[list[int]] = []
        for column, ids, sums in (
            ("v", touched, self.pending[touched]),
            ("h", spent, spent_by),
            ("f", across, store._pending_inflow[across]),
        ):
            for block, offsets, at in by_block(ids, ROWS_I64):
                names.append(keys.block(column, block))
                amounts.append(np.column_stack((offsets, sums[at])).ravel().tolist())
        self.pending[touched] = 0
        store._pending_inflow[across] = 0

        states: list[list[int]] = []
        changed = np.fromiter(sorted(self.changed), np.int64, len(self.changed))
        for block, offsets, at in by_block(changed, ROWS_U8):
            names.append(keys.block("s", block))
            states.append(np.column_stack((offsets, self.state[changed[at]])).ravel().tolist())

        measures: list[list[str | bytes]] = []
        dirty = np.fromiter(sorted(self.dirty), np.int64, len(self.dirty))
        for block, offsets, at in by_block(dirty, ROWS_MEASURES):
            names.append(keys.block("m", block))
            pairs = zip(offsets.tolist(), dirty[at].tolist(), strict=True)
            measures.append([part for o, i in pairs for part in (str(o), self.record[i].pack())])

        before, after = self.store.books, self.books
        totals: list[str] = []
        for name in BOOK_FIELDS:
            if difference := getattr(after, name) - getattr(before, name):
                totals += (name, str(difference))
        blob = msgpack.packb([totals, amounts, states, measures, self.fetches, self.letters], use_bin_type=False)
        return names, blob


def _digest(links: Int64s) -> int:
    """See `opic.ledger.links_digest`: the same, of an array."""
    if not len(links):
        return 0
    packed = np.sort(links).astype("<i8").tobytes()
    return int.from_bytes(blake2b(packed, digest_size=DIGEST_BYTES).digest(), "little") or 1
