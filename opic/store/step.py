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
from typing import Any

import msgpack
import numpy as np

from opic.cash import CLASS_BITS, MILLION, ROUND_BITS, Books, Flag, gone_until_us, roll, split
from opic.classes import NO_ROOM, NO_WEIGHTS, Classes
from opic.errors import BadInput, BadUrl, FenceMoved, StoreUnavailable
from opic.events import Event, Limits, Outcome, Record, decode_record
from opic.ledger import Audit, Measure
from opic.store import columns
from opic.store.columns import DIGEST_BYTES, Bytes, Int64s, by_block
from opic.store.connection import store_errors
from opic.store.keys import ROWS_I64, ROWS_MEASURES, ROWS_U8
from opic.store.shard import Rows, Shard
from opic.urls import canonical_url, host_of, registered_domain

LINKS_A_STEP_MAX = 4_000  # Other clients wait for a whole call: this many increments are 4 to 8 ms.
LINKS_KNOWN_MAX = 1_000_000  # Raw links whose id is remembered, about 200 bytes each.
REFUSALS_MAX = 1_000  # In a row. Another worker steps in between now and then, not a thousand times.
BAD_LINK = -1
OPEN, GONE, KNOWN, EXCLUDED = int(Flag.OPEN), int(Flag.GONE), int(Flag.KNOWN), int(Flag.EXCLUDED)
TAGGED = int(Flag.TAGGED)


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
        self.books, self.classes = Books(), Classes()
        self._stale = True
        self._next: dict[str, int] = {}
        self.link_ids: dict[str, int] = {}  # As it came -> id, or BAD_LINK.
        self._domains: dict[str, int] = {}
        # By id, of all pages; they grow by doubling. Pending sums are zero between batches.
        self.state = np.zeros(0, np.uint8)
        self.domain = np.zeros(0, np.int32)
        self.pending = np.zeros(0, np.int64)
        self.pending_inflow = np.zeros(0, np.int64)

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
        decoded = [decode_record(record, self.limits, self.link_ids) for record in records]
        for _ in range(REFUSALS_MAX):
            try:
                self._stream(partition, records, decoded)
            except FenceMoved:
                continue
            return
        raise StoreUnavailable("the shard moved under every one of a thousand tries: too many workers on one shard")

    def _stream(self, partition: str, records: Sequence[Record], events: Sequence[Event]) -> None:
        """Send the records in batches, working one out while the server applies the one before.

        The rows that a batch wants are asked for just before the step of the batch before it, on one connection: they
        are of the instant before that step, and what it changes in them we know.

        Raises:
            FenceMoved: a step was refused. Those before it took effect, none after it will.
        """
        if self._stale:
            self._reload()
        if partition not in self._next:
            self._next[partition] = self.next_offset(partition)
        begin = self._next[partition]
        start = next((i for i, record in enumerate(records) if record.offset >= begin), len(records))
        if start == len(records):
            return
        self._forget_links()
        # Until the last step is confirmed, what these batches do to our copies is not true.
        self._stale = True
        pool = self.shard.client.connection_pool
        with store_errors():
            line = pool.get_connection()
        try:
            sent: _Batch | None = None
            batch = _Batch(self, records, events, start)
            with store_errors():
                line.send_command(*self.shard.rows_command(batch.wanted))
                rows = self.shard.rows_answer(line.read_response())
            while True:
                following = _Batch(self, records, events, batch.end) if batch.end < len(records) else None
                batch.decide(rows, sent)
                if sent is not None:
                    begin = self._confirm(line, partition, sent)
                keys, blob = batch.payload()
                with store_errors():
                    if following is not None:
                        line.send_command(*self.shard.rows_command(following.wanted))
                    line.send_command(
                        "FCALL", "opic_1_step", len(keys), *keys,
                        batch.before.version, partition, begin, records[batch.end - 1].offset + 1,
                        self.retry_seconds, blob,
                    )  # fmt: skip
                    if following is not None:
                        rows = self.shard.rows_answer(line.read_response())
                sent = batch
                if following is None:
                    break
                batch = following
            self._confirm(line, partition, sent)
            self._stale = False
        except BaseException:
            line.disconnect()  # Answers may still be under way: nobody else may take them for his.
            raise
        finally:
            pool.release(line)

    def _confirm(self, line: Any, partition: str, sent: "_Batch") -> int:
        """Wait for the answer to a step; return the offset after it."""
        with store_errors():
            reply = line.read_response()
        if reply[0] != b"OK":
            raise FenceMoved(f"another worker stepped in between: {reply}")
        self.books = sent.books
        self._next[partition] = sent.records[-1].offset + 1
        return self._next[partition]

    def _forget_links(self) -> None:
        """Make room: the half that was learned first goes."""
        if len(self.link_ids) > LINKS_KNOWN_MAX:
            for raw in list(islice(self.link_ids, LINKS_KNOWN_MAX // 2)):
                del self.link_ids[raw]

    def _reload(self) -> None:
        """Forget all that may have moved; ids, and with them links and domains, never do."""
        found = self.shard.columns()
        self.classes = self.shard.classes()  # Were they changed since, then so was the version.
        self.books = found.books
        self._next.clear()
        self._grow(len(found.state))
        self.state[:] = 0
        self.state[: len(found.state)] = found.state
        self.pending[:] = 0
        self.pending_inflow[:] = 0
        self.shard.directory.reload()
        self._stale = False

    def _grow(self, ids: int) -> None:
        if ids <= len(self.state):
            return
        size = max(1024, 2 * ids)
        for name in ("state", "domain", "pending", "pending_inflow"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def resolve(self, events: Sequence[Event]) -> list[list[int]]:
        """See to it that `link_ids` knows every URL of these events; new pages get ids in order of first sight.

        Returns:
            For each event the ids of its links as they came, BAD_LINK among them. Strings are looked up once: for
            pages that are known that is most of what a link costs.
        """
        id_of = self.link_ids.__getitem__
        found: list[list[int] | None] = []
        for event in events:
            try:
                for url in (event.url,) if event.url else event.seeds:
                    id_of(url)
                found.append(list(map(id_of, event.links)))
            except KeyError:
                found.append(None)
        if None in found:
            self._assign([event for event, ids in zip(events, found, strict=True) if ids is None])
        return [list(map(id_of, e.links)) if ids is None else ids for e, ids in zip(events, found, strict=True)]

    def _assign(self, events: Sequence[Event]) -> None:
        known = self.link_ids
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
                self.domain[page_id] = self._domains.setdefault(domain, len(self._domains))


class _Batch:
    """The effect of some records on the shard: prepared (who is named), decided (what happens), sent (`payload`)."""

    before: Books  # It, and `books`, are there once it is decided.
    books: Books

    def __init__(self, store: Store, records: Sequence[Record], events: Sequence[Event], start: int) -> None:
        """Prepare as many records from `start` on as one step takes."""
        end, links = start, 0
        while end < len(events) and (end == start or links + len(events[end].links) <= LINKS_A_STEP_MAX):
            if events[end].concerns_classes and end > start:
                break
            links += len(events[end].links) + len(events[end].seeds) + 1
            end += 1
            if events[end - 1].concerns_classes:
                break
        self.store, self.rules, self.end = store, store.rules, end
        self.records, self.events = records[start:end], events[start:end]
        self.deposits: list[Int64s] = []
        self.deposits_inflow: list[Int64s] = []
        self.spent: dict[int, int] = {}
        self.changed: set[int] = set()
        self.dirty: set[int] = set()
        self.fetches: list[float] = []
        self.letters: list[str | bytes] = []
        self.defined: Classes | None = None
        self.touched = self.sums = np.empty(0, np.int64)  # What the step adds to v; known once it is worked out.

        found = store.resolve(self.events)
        self.links = [self._links(event, ids) for event, ids in zip(self.events, found, strict=True)]
        self.wanted = self._wanted()

    def _links(self, event: Event, found: list[int]) -> tuple[Int64s, int]:
        """Return the ids of an event's distinct links to other pages, in order; and how many links were bad."""
        if not found:
            return np.empty(0, np.int64), 0
        ids = dict.fromkeys(found)
        ids.pop(self.store.link_ids[event.url], None)
        bad_links = 0
        if BAD_LINK in ids:
            del ids[BAD_LINK]
            bad_links = found.count(BAD_LINK)
        return np.fromiter(ids, np.int64, len(ids)), bad_links

    def _wanted(self) -> Int64s:
        """Return the pages whose cash or record must be seen: those that are read, that go away, that may come back."""
        id_of, state = self.store.link_ids.__getitem__, self.store.state
        wanted = {id_of(e.url) for e in self.events if e.outcome in (Outcome.READ, Outcome.GONE)}
        for ids, _ in self.links:
            if len(ids) and int(np.bitwise_or.reduce(state[ids])) & GONE:
                wanted.update(ids[(state[ids] & GONE) != 0].tolist())
        for event in self.events:
            wanted.update(i for i in map(id_of, event.seeds) if state[i] & GONE)
        return np.fromiter(sorted(wanted), np.int64, len(wanted))

    def decide(self, rows: Rows, sent: "_Batch | None") -> None:
        """Work out what happens, event by event.

        Args:
            rows: of the pages wanted, as they were before the batch `sent`.
            sent: the batch whose step is under way, if any.
        """
        store = self.store
        self.before = store.books if sent is None else sent.books
        if rows.books.version != (self.before.version if sent is None else sent.before.version):
            raise FenceMoved("another worker stepped in between")
        self.books = copy(self.before)
        self.state, self.pending = store.state, store.pending  # Preparing the next batch may have grown them.
        wanted, v, unpack = self.wanted.tolist(), rows.v, columns.Record.unpack
        if sent is not None and len(sent.touched):
            at = np.searchsorted(sent.touched, self.wanted).clip(max=len(sent.touched) - 1)
            v = v + np.where(sent.touched[at] == self.wanted, sent.sums[at], 0)
        self.v: dict[int, int] = dict(zip(wanted, v.tolist(), strict=True))
        self.h: dict[int, int] = dict(zip(wanted, rows.spent.tolist(), strict=True))
        self.record = {i: unpack(r) for i, r in zip(wanted, rows.records, strict=True)}
        if sent is not None:
            self._follow(sent)
        self.urls = self._urls() if store.classes or self.events[0].concerns_classes else {}
        for record, event, (ids, bad_links) in zip(self.records, self.events, self.links, strict=True):
            self.books.bad_links += bad_links
            self._decide(record, event, ids)
        self.books.version += 1
        self.books.check()

    def _follow(self, sent: "_Batch") -> None:
        """Take over the pages that the batch before read or saw go away: their rows are older than that."""
        for page in sent.dirty:
            if page not in self.v:
                at = int(np.searchsorted(sent.touched, page))
                moved = at < len(sent.touched) and sent.touched[at] == page
                self.v[page] = sent.v[page] + (int(sent.sums[at]) if moved else 0)
            self.h[page] = sent.h[page] + sent.spent.get(page, 0)
            self.record[page] = sent.record[page]

    def _urls(self) -> dict[int, str]:
        """Read the URLs of pages that become known here, or are classified anew: their classes follow from them."""
        state, id_of = self.state, self.store.link_ids.__getitem__
        named = [i for e in self.events for i in map(id_of, (e.url,) if e.url else e.seeds)]
        named += [i for e in self.events for i in range(*e.ids) if i < len(state) and state[i]]
        ids = np.unique(np.concatenate([np.array(named, np.int64), *(ids for ids, _ in self.links)]))
        if not self.events[0].concerns_classes:
            ids = ids[state[ids] == 0]
        return self.store.shard.urls_of(ids.tolist()) if len(ids) else {}

    # One record; compare opic.ledger, method by method.

    def _decide(self, record: Record, event: Event, links: Int64s) -> None:
        books, store = self.books, self.store
        if event.outcome is Outcome.SEEDS:
            books.seeds += len(event.seeds)
            for url in event.seeds:
                page = store.link_ids[url]
                self._know_one(page)
                self._come_back(page)
                self._set(page, int(self.state[page]) & ~EXCLUDED)
        elif event.outcome is Outcome.CLASSES:
            self._define(record, event)
        elif event.outcome is Outcome.CLASSIFY:
            for page in sorted(self.urls):
                state = int(self.state[page])
                if not (state & TAGGED and store.classes.has_tags(state & CLASS_BITS)):
                    self._classify(page, self.urls[page])
        elif event.outcome is Outcome.DEAD:
            self._refuse(record, event.reason)
        else:
            page = store.link_ids[event.url]
            self._know_one(page)
            if event.tags and store.classes:
                self._classify(page, canonical_url(event.url, self.store.limits.url_bytes_max), event.tags)
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
        books.pay(self.rules)

    def _refuse(self, record: Record, reason: str) -> None:
        self.books.dead_letters += 1
        self.letters += (reason, str(record.offset), record.value)

    def _define(self, record: Record, event: Event) -> None:
        try:
            if self.rules.continuous:
                raise BadInput(NO_WEIGHTS)
            classes = self.store.classes.redefined(event.classes, self.books.known_by)
            if not self.books.reweigh(classes.extra()):
                raise BadInput(NO_ROOM)
            self.store.classes = self.defined = classes
        except BadInput as error:
            self._refuse(record, str(error))

    def _classify(self, page: int, url: str, tags: Sequence[str] = ()) -> None:
        slot, tagged = self.store.classes.slot_of(url, tags)
        state = int(self.state[page])
        old, live, opened = state & CLASS_BITS, not state & GONE, bool(state & OPEN)
        if slot == old or self.books.reclass(old, slot, live=live, opened=opened):
            self._set(page, state & ~(CLASS_BITS | TAGGED) | slot | (TAGGED if tagged else 0))

    def _read(self, page: int, event: Event, links: Int64s) -> None:
        books, rules, state = self.books, self.rules, self.state
        self._come_back(page)
        states = state[links]
        if len(links):
            if not states.all():
                self._know(links[states == 0])
                states = state[links]
            if int(np.bitwise_or.reduce(states)) & GONE:
                for child in links[(states & GONE) != 0].tolist():
                    if event.at_us >= self.record[child].gone_until_us:
                        self._come_back(child)
                states = state[links]

        v = self.v[page] + int(self.pending[page])
        slot = int(state[page]) & CLASS_BITS
        cash, spent, record = v + books.credit_of(slot), self._spent(page), self.record[page]
        digest = _digest(links)
        gives = cash >= 0 or (int(state[page]) & OPEN and digest == record.digest)
        share = split(cash, len(links) if gives else 0, rules.q)
        if state[page] & OPEN:
            if digest != record.digest:
                books.misplace(spent if digest else 0, spent if record.digest else 0)
            books.open_cash -= cash
        else:
            books.misplace(spent if digest else 0, 0)
            books.count(slot, opened=1)
        self._set(page, (int(state[page]) | OPEN) & ~EXCLUDED)

        gave = max(cash, 0)
        books.clock += gave
        books.taken_back += gave - cash
        books.rounds += (gave << ROUND_BITS) // rules.round_grains(books.live)
        books.rounding += share.rounding
        books.pool += share.virtual
        books.reads += 1
        books.links += len(links)
        self.pending[page] -= cash
        self.spent[page] = self.spent.get(page, 0) + cash
        record.reads += 1
        record.digest = digest
        record.measures = (*record.measures, Measure(books.clock, gave, event.at_us))[-rules.measures_max :]
        record.anchors = roll(record.anchors, books.clock, self._spent(page), rules)
        self.dirty.add(page)
        if share.share:
            self._deposit(page, links, states, share.share)

    def _deposit(self, page: int, links: Int64s, states: Bytes, grains: int) -> None:
        self._move(links, grains)
        self.books.open_cash += grains * int(np.count_nonzero(states & OPEN))
        self.books.v_gone += grains * int(np.count_nonzero(states & GONE))
        if self.rules.inflow:
            domain = self.store.domain
            across = links[domain[links] != domain[page]]
            if len(across):
                self.store.pending_inflow[across] += grains
                self.deposits_inflow.append(across)

    def _spent(self, page: int) -> int:
        return self.h[page] + self.spent.get(page, 0)

    def _set(self, page: int, state: int) -> None:
        if self.state[page] != state:
            self.state[page] = state
            self.changed.add(page)

    def _know_one(self, page: int) -> None:
        if not self.state[page]:
            self._know(np.array([page]))

    def _know(self, new: Int64s) -> None:
        self.changed.update(new.tolist())
        if not self.store.classes:
            self.state[new] = KNOWN
            return self._admit(new, 0)
        slots = np.array([self.store.classes.slot_of(self.urls[page])[0] for page in new.tolist()], np.uint8)
        self.state[new] = KNOWN | slots
        for slot in np.unique(slots).tolist():
            self.books.count(slot, known=int(np.count_nonzero(slots == slot)))
            self._admit(new[slots == slot], slot)
        return None

    def _admit(self, pages: Int64s, slot: int) -> None:
        self.books.count(slot, live=len(pages))
        if self.rules.continuous:
            self._move(pages, -self.books.credit)
        else:
            self.books.pool -= self.books.credit_of(slot) * len(pages)

    def _move(self, pages: Int64s, grains: int) -> None:
        self.pending[pages] += grains  # Distinct, so no increment hides another.
        self.deposits.append(pages)

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
        slot = state & CLASS_BITS
        cash = v + books.credit_of(slot)
        if state & OPEN:
            books.count(slot, opened=-1)
            books.open_cash -= cash
            books.misplace(0, spent if record.digest else 0)
        self._set(page, (state | GONE) & ~OPEN)
        books.count(slot, live=-1)
        books.gone += 1
        if self.rules.continuous:
            books.pool += cash
            self._move(np.array([page]), -v)
        else:
            books.pool += books.credit_of(slot)
            books.v_gone += v
        books.h_gone += spent

    def _come_back(self, page: int) -> None:
        state = int(self.state[page])
        if not state & GONE:
            return
        books = self.books
        self._set(page, state & ~GONE)
        books.gone -= 1
        books.v_gone -= self.v[page] + int(self.pending[page])
        books.h_gone -= self._spent(page)
        self._admit(np.array([page]), state & CLASS_BITS)

    # What goes to the store.

    def payload(self) -> tuple[list[str], bytes]:
        """Return the keys and the blob of the step call, and take the pending sums back to zero."""
        keys, store = self.store.shard.keys, self.store
        names = [keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails]
        reads = np.fromiter(self.spent, np.int64, len(self.spent))
        self.touched = touched = np.unique(np.concatenate([*self.deposits, reads]))
        self.sums = self.pending[touched]
        spent = np.fromiter(sorted(self.spent), np.int64, len(self.spent))
        spent_by = np.array([self.spent[i] for i in spent.tolist()], np.int64)
        across = np.unique(np.concatenate([*self.deposits_inflow, np.empty(0, np.int64)]))

        amounts: list[list[int]] = []
        for column, ids, sums in (
            ("v", touched, self.sums),
            ("h", spent, spent_by),
            ("f", across, store.pending_inflow[across]),
        ):
            for block, offsets, at in by_block(ids, ROWS_I64):
                names.append(keys.block(column, block))
                amounts.append(columns.increments(offsets, sums[at]))
        self.pending[touched] = 0
        store.pending_inflow[across] = 0

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

        if self.defined is not None:  # A hash, like a bucket of records.
            names.append(keys.classes)
            short = msgpack.packb([(slot, one.name) for slot, one in self.defined.placed])
            measures.append(["definitions", self.defined.pack(), "names", short])

        before, after = self.before.flat(), self.books.flat()
        totals: list[str] = []
        for name in (after | before).keys() - {"version"}:  # The step counts that itself.
            if difference := after.get(name, 0) - before.get(name, 0):
                totals += (name, str(difference))
        blob = msgpack.packb([totals, amounts, states, measures, self.fetches, self.letters], use_bin_type=False)
        return names, blob


def _digest(links: Int64s) -> int:
    """See `opic.ledger.links_digest`: the same, of an array."""
    if not len(links):
        return 0
    packed = np.sort(links).astype("<i8").tobytes()
    return int.from_bytes(blake2b(packed, digest_size=DIGEST_BYTES).digest(), "little") or 1
