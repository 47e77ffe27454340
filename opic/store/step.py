"""The step: how a batch of records takes effect in the store. The other half is `opic.lua`.

A batch is decoded; its URLs become ids; the pages it reads are fetched; then its events are worked through one after
the other in memory, each seeing what those before it paid, exactly as `opic.ledger` has it; and what they change in
all goes to the store in one call, which either takes effect whole or is refused because something moved. Then the
batch is worked out again. So it does not matter who sends a batch, how often, or how it was cut.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np

from opic.cash import BOOK_FIELDS, MILLION, ROUND_BITS, Books, Flag, gone_until_us, roll, split
from opic.errors import BadUrl, FenceMoved, StoreUnavailable
from opic.events import Event, Limits, Outcome, Record, decode_record
from opic.ledger import Audit, Measure
from opic.series import Entry, entry_due
from opic.store import columns
from opic.store.columns import DIGEST_BYTES, Bytes, Int64s, by_block
from opic.store.connection import Line
from opic.store.ids import URLS_A_CALL
from opic.store.keys import ROWS_I64, ROWS_MEASURES, ROWS_U8
from opic.store.links import MISSING, LinkCache, hashes
from opic.store.shard import Rows, Shard
from opic.urls import canonical_url, host_of, registered_domain

LINKS_A_STEP_MAX = 4_000  # Other clients wait for a whole call: this many increments are 4 to 8 ms.
AUTHORITIES_MAX = 1_000_000  # Hosts, with port and user, whose domain is remembered.
REFUSALS_MAX = 1_000  # In a row. Another worker steps in between now and then, not a thousand times.
BAD_LINK = -1  # In the place of an id: a string that names no page.
ID_BITS = 40  # Ids of a shard are smaller; an event's place in its batch stands above them.
INCREMENT_MAX = 1 << 52  # Of a cell at once, since Lua numbers are doubles. A credit may be larger, if paid at once.
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
        self.entry: Entry | None = None  # The last of the series.
        self._stale = True
        self._next: dict[str, int] = {}
        self.links = LinkCache()
        self._domains: dict[str, int] = {}
        self._domain_of: dict[str, int] = {}  # By authority, as it stands in canonical URLs.
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

    def apply(
        self, partition: str, records: Sequence[Record], on_step: Callable[[float], object] = lambda _: None
    ) -> None:
        """Let records take effect, each once; those that have already do nothing.

        Args:
            partition: of the log, with its source: offsets are counted for each apart.
            records: in order of their offsets.
            on_step: told the seconds that each step took, from the answer to the one before it to its own.

        Raises:
            StoreUnavailable: the store was away in between. What took effect is known to it: apply the same again.
        """
        events: list[Event | None] = [None] * len(records)  # Decoded as their turn comes.
        for _ in range(REFUSALS_MAX):
            try:
                self._stream(partition, records, events, on_step)
            except FenceMoved:
                continue
            return
        raise StoreUnavailable("the shard moved under every one of a thousand tries: too many workers on one shard")

    def _stream(
        self,
        partition: str,
        records: Sequence[Record],
        events: list[Event | None],
        on_step: Callable[[float], object],
    ) -> None:
        """Send the records in batches, working one out while the server applies the one before.

        All on one connection, each batch in turn: the ids of the batch after it are asked for; it is decided, from
        rows of the instant before the step under way and from what that step changes in them, which we know; that step
        is confirmed; the rows of the batch after it are asked for, just before its own step.

        Raises:
            FenceMoved: a step was refused. Those before it took effect, none after it will.
        """
        answered = time.perf_counter()
        if self._stale:
            self._reload()
        if partition not in self._next:
            self._next[partition] = self.next_offset(partition)
        begin = self._next[partition]
        start = next((i for i, record in enumerate(records) if record.offset >= begin), len(records))
        if start == len(records):
            return
        # Until the last step is confirmed, what these batches do to our copies is not true.
        self._stale = True
        line = Line(self.shard.client)
        try:
            sent: _Batch | None = None
            batch = _Batch(self, records, events, start)
            asked = batch.ids_commands()
            line.send(*asked)
            batch.resolve(line.answers(len(asked)))
            line.send(self.shard.rows_command(batch.wanted))
            rows = self.shard.rows_answer(line.answer())
            while True:
                following = _Batch(self, records, events, batch.end) if batch.end < len(records) else None
                asked = following.ids_commands() if following is not None else []
                line.send(*asked)
                batch.decide(rows, sent)
                keys, blob = batch.payload()
                if sent is not None:
                    begin = self._confirm(line, partition, sent)
                    on_step(time.perf_counter() - answered)
                    answered = time.perf_counter()
                step = [
                    "FCALL", "opic_1_step", len(keys), *keys,
                    batch.before.version, partition, begin, batch.records[-1].offset + 1, self.retry_seconds, blob,
                ]  # fmt: skip
                if following is None:
                    line.send(step)
                    break
                following.resolve(line.answers(len(asked)))
                line.send(self.shard.rows_command(following.wanted), step)
                rows = self.shard.rows_answer(line.answer())
                sent, batch = batch, following
            self._confirm(line, partition, batch)
            on_step(time.perf_counter() - answered)
            self._stale = False
        finally:
            line.close()

    def _confirm(self, line: Line, partition: str, sent: "_Batch") -> int:
        """Wait for the answer to a step; return the offset after it."""
        reply = line.answer()
        if reply[0] != b"OK":
            raise FenceMoved(f"another worker stepped in between: {reply}")
        self.books, self.entry = sent.books, sent.entry
        self._next[partition] = sent.records[-1].offset + 1
        return self._next[partition]

    def _reload(self) -> None:
        """Forget all that may have moved; ids, and with them links and domains, never do."""
        found = self.shard.columns()
        self.books = found.books
        # Read after the books: if it is newer than they are, the step is refused.
        self.entry = next(iter(self.shard.series(newest=1)), None)
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

    def learn(self, ids: Mapping[str, int]) -> None:
        """Make room for pages, and work out their domains; by canonical URL."""
        self._grow(max(ids.values()) + 1)
        if not self.rules.inflow:
            return
        numbers = []
        for url in ids:
            authority = url.split("/", 3)[2]
            number = self._domain_of.get(authority)
            if number is None:
                domain = registered_domain(host_of(url))
                number = self._domain_of[authority] = self._domains.setdefault(domain, len(self._domains))
            numbers.append(number)
        self.domain[list(ids.values())] = numbers
        if len(self._domain_of) > AUTHORITIES_MAX:
            self._domain_of.clear()


class _Batch:
    """The effect of some records on the shard: prepared (who is named), decided (what happens), sent (`payload`)."""

    before: Books  # It, and `books`, are there once it is decided.
    books: Books

    def __init__(self, store: Store, records: Sequence[Record], decoded: list[Event | None], start: int) -> None:
        """Take as many records from `start` on as one step takes; `decoded` keeps what they say for the next try."""
        self.events: list[Event] = []
        end, links = start, 0
        while end < len(records):
            event = decoded[end] = decoded[end] or decode_record(records[end], store.limits)
            links += len(event.links) + len(event.seeds) + 1
            if links > LINKS_A_STEP_MAX and end > start:
                break
            self.events.append(event)
            end += 1
        self.store, self.rules, self.records, self.end = store, store.rules, records[start:end], end
        self.deposits: list[Int64s] = []
        self.deposits_inflow: list[Int64s] = []
        self.spent: dict[int, int] = {}
        self.read: list[int] = []  # A page as often as it is read.
        self.changed: set[int] = set()
        self.dirty: set[int] = set()
        self.fetches: list[float] = []
        self.letters: list[str | bytes] = []
        self.entry: Entry | None = None
        self.entries: list[bytes] = []
        self.touched = self.sums = np.empty(0, np.int64)  # What the step adds to v; known once it is worked out.
        self._look_up()

    def _look_up(self) -> None:
        """Look for the ids of all URLs as they came; those that are not cached are to be asked for."""
        self._raw: list[str] = []  # Each event's own URL or its seeds, and its links.
        self._ends: list[int] = []  # Of each event's part.
        for event in self.events:
            if event.url:
                self._raw.append(event.url)
                self._raw += event.links
            else:
                self._raw += event.seeds
            self._ends.append(len(self._raw))
        self._hashes = hashes(self._raw)
        self._ids = self.store.links.find(self._hashes)
        self._missing = np.flatnonzero(self._ids == MISSING)
        self._misses: dict[str, str | None] = {}  # As it came -> canonical, None for a bad link; by first sight.
        bytes_max = self.store.limits.url_bytes_max
        for raw in map(self._raw.__getitem__, self._missing.tolist()):
            if raw not in self._misses:
                try:
                    self._misses[raw] = canonical_url(raw, bytes_max)
                except BadUrl:
                    self._misses[raw] = None
        self._unknown = [url for url in dict.fromkeys(self._misses.values()) if url is not None]

    def ids_commands(self) -> list[list[Any]]:
        """Return the commands that ask for the ids of the URLs that this worker doesn't know, if there are any."""
        if not self._unknown:
            return []
        return self.store.shard.directory.request(self._unknown[:URLS_A_CALL], self.rules.inflow)

    def resolve(self, replies: Sequence[Any]) -> None:
        """Take the replies to them; then all pages that the batch names have ids, and `wanted` is known."""
        store = self.store
        ids_of: dict[str | None, int] = {None: BAD_LINK}
        if self._unknown:
            directory = store.shard.directory
            ids = directory.answer(replies) or []  # None if others gave ids meanwhile: again, then.
            ids += directory.assign(self._unknown[len(ids) :], self.rules.inflow)
            named = dict(zip(self._unknown, ids, strict=True))
            store.learn(named)
            ids_of.update(named)
        if len(self._missing):
            found = [ids_of[self._misses[self._raw[i]]] for i in self._missing.tolist()]
            self._ids[self._missing] = found
            store.links.put(self._hashes[self._missing], self._ids[self._missing])
        self._gather()

    def _gather(self) -> None:
        """Tell pages, seeds and links apart; which links are distinct and lead to other pages; and what is wanted."""
        count, state = len(self.events), self.store.state
        starts, ends = np.array([0, *self._ends[:-1]]), np.array(self._ends)
        paged = np.array([bool(event.url) for event in self.events])
        own = np.full(count, BAD_LINK)
        own[paged] = self._ids[starts[paged]]
        self.pages = own.tolist()
        self.seeds = [
            self._ids[a:b].tolist() if event.seeds else []
            for event, a, b in zip(self.events, starts.tolist(), ends.tolist(), strict=True)
        ]
        event = np.repeat(np.arange(count), ends - starts)
        ids = self._ids
        linked = paged[event]
        linked[starts[paged]] = False
        bad = linked & (ids == BAD_LINK)
        self.bad_links = int(np.count_nonzero(bad))
        linked &= ~bad & (ids != own[event])
        pairs = _distinct(event[linked] << ID_BITS | ids[linked])
        self.all_links = pairs & ((1 << ID_BITS) - 1)
        edges = np.searchsorted(pairs >> ID_BITS, np.arange(count + 1)).tolist()
        self.links = [self.all_links[a:b] for a, b in pairwise(edges)]
        # Seen must be the cash or the record of pages that are read, that go away, that may come back.
        wanted = {
            page for page, e in zip(self.pages, self.events, strict=True) if e.outcome in (Outcome.READ, Outcome.GONE)
        }
        wanted.update(self.all_links[(state[self.all_links] & GONE) != 0].tolist())
        wanted.update(page for seeds in self.seeds for page in seeds if state[page] & GONE)
        self.wanted = np.fromiter(sorted(wanted), np.int64, len(wanted))

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
        self.entry = store.entry if sent is None else sent.entry
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
        states = self.state[self.all_links]
        self.some_unknown = not states.all()  # If not, no event need look.
        self.some_gone = bool((states & GONE).any())
        self.books.bad_links += self.bad_links
        for place, record in enumerate(self.records):
            last = self.entry or self._note(Entry(record.time_us, self.books.rounds, self.books.clock))
            self._decide(record, self.events[place], place)
            self.books.time_us = record.time_us
            if entry_due(last, self.books):
                self._note(Entry.of(self.books))
        self.books.version += 1
        self.books.check()

    def _note(self, entry: Entry) -> Entry:
        self.entry = entry
        self.entries.append(entry.pack())
        return entry

    def _follow(self, sent: "_Batch") -> None:
        """Take over the pages that the batch before read or saw go away: their rows are older than that."""
        for page in sent.dirty:
            if page not in self.v:
                at = int(np.searchsorted(sent.touched, page))
                moved = at < len(sent.touched) and sent.touched[at] == page
                self.v[page] = sent.v[page] + (int(sent.sums[at]) if moved else 0)
            self.h[page] = sent.h[page] + sent.spent.get(page, 0)
            self.record[page] = sent.record[page]

    # One record; compare opic.ledger, method by method.

    def _decide(self, record: Record, event: Event, place: int) -> None:
        books = self.books
        if event.outcome is Outcome.SEEDS:
            books.seeds += len(event.seeds)
            for page in self.seeds[place]:
                self._know_one(page)
                self._come_back(page)
                self._set(page, int(self.state[page]) & ~EXCLUDED)
        elif event.outcome is Outcome.DEAD:
            books.dead_letters += 1
            self.letters += (event.reason, str(record.offset), record.value)
        else:
            page = self.pages[place]
            self._know_one(page)
            if event.outcome is Outcome.READ:
                self._read(page, event, self.links[place])
            elif event.outcome is Outcome.GONE:
                self._go_away(page, event.at_us)
            elif event.outcome is Outcome.EXCLUDED:
                self._set(page, int(self.state[page]) | EXCLUDED)
                books.exclusions += 1
            else:
                books.failures += 1
            self.fetches += (page, int(event.outcome is Outcome.FAILED), record.time_us / MILLION)
        books.pay(self.rules)

    def _read(self, page: int, event: Event, links: Int64s) -> None:
        books, rules, state = self.books, self.rules, self.state
        self._come_back(page)
        states = state[links]
        if self.some_unknown and not states.all():
            self._know(links[states == 0])
            states = state[links]
        if self.some_gone:
            for child in links[(states & GONE) != 0].tolist():
                if event.at_us >= self.record[child].gone_until_us:
                    self._come_back(child)
            states = state[links]

        v = self.v[page] + int(self.pending[page])
        cash, spent, record = v + books.credit, self._spent(page), self.record[page]
        share = split(cash, len(links), rules.q)
        digest = _digest(links)
        if state[page] & OPEN:
            if digest != record.digest:
                books.misplace(spent if digest else 0, spent if record.digest else 0)
            books.open_cash -= cash
        else:
            books.misplace(spent if digest else 0, 0)
            books.open += 1
        self._set(page, (int(state[page]) | OPEN) & ~EXCLUDED)

        books.clock += cash
        books.rounds += (cash << ROUND_BITS) // rules.round_grains(books.live)
        books.rounding += share.rounding
        books.pool += share.virtual
        books.reads += 1
        books.links += len(links)
        self.pending[page] -= cash
        self.spent[page] = self.spent.get(page, 0) + cash
        record.reads += 1
        record.digest = digest
        record.measures = (*record.measures, Measure(books.clock, cash, event.at_us))[-rules.measures_max :]
        self.read.append(page)
        record.anchors = roll(record.anchors, books.clock, self._spent(page), rules)
        self.dirty.add(page)
        if share.share:
            self._deposit(page, links, states, share.share)

    def _deposit(self, page: int, links: Int64s, states: Bytes, grains: int) -> None:
        self._move(links, grains)
        self.books.open_cash += grains * int(np.count_nonzero(states & OPEN))
        if self.some_gone:
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
        self.state[new] = KNOWN
        self.changed.update(new.tolist())
        self._admit(new)

    def _admit(self, pages: Int64s) -> None:
        self.books.live += len(pages)
        if self.rules.continuous:
            self._move(pages, -self.books.credit)
        else:
            self.books.pool -= self.books.credit * len(pages)

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
        cash = v + books.credit
        if state & OPEN:
            books.open -= 1
            books.open_cash -= cash
            books.misplace(0, spent if record.digest else 0)
        self._set(page, (state | GONE) & ~OPEN)
        self.some_gone = True
        books.live -= 1
        books.gone += 1
        if self.rules.continuous:
            books.pool += cash
            self._move(np.array([page]), -v)
        else:
            books.pool += books.credit
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
        self._admit(np.array([page]))

    # What goes to the store.

    def payload(self) -> tuple[list[str], bytes]:
        """Return the keys and the blob of the step call, and take the pending sums back to zero."""
        keys, store = self.store.shard.keys, self.store
        names = [keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails, keys.series]
        reads = np.fromiter(self.spent, np.int64, len(self.spent))
        self.touched = touched = _distinct(np.concatenate([*self.deposits, reads]))
        self.sums = self.pending[touched]
        spent = np.fromiter(sorted(self.spent), np.int64, len(self.spent))
        spent_by = np.array([self.spent[i] for i in spent.tolist()], np.int64)
        across = _distinct(np.concatenate([*self.deposits_inflow, np.empty(0, np.int64)]))
        buckets, times = np.unique(np.array(self.read, np.int64) // ROWS_MEASURES, return_counts=True)

        amounts: list[list[int]] = []
        for column, ids, sums in (
            ("v", touched, self.sums),
            ("h", spent, spent_by),
            ("f", across, store.pending_inflow[across]),
            ("r", buckets, times),
        ):
            blocks, edges, offsets = by_block(ids, ROWS_I64)
            names += [keys.block(column, block) for block in blocks]
            amounts += _increments(offsets, sums, edges)
        self.pending[touched] = 0
        store.pending_inflow[across] = 0

        states: list[list[int | bytes]] = []
        changed = np.fromiter(sorted(self.changed), np.int64, len(self.changed))
        packed = self.state[changed].tobytes()
        blocks, edges, offsets = by_block(changed, ROWS_U8)
        names += [keys.block("s", block) for block in blocks]
        # New pages have ids in a row: runs are shorter to send and to write than single bytes.
        starts = np.flatnonzero(np.diff(changed) != 1) + 1
        for a, b in pairwise(edges):
            runs = pairwise([a, *starts[(starts > a) & (starts < b)].tolist(), b])
            states.append([part for c, d in runs for part in (int(offsets[c]), packed[c:d])])

        measures: list[list[str | bytes]] = []
        dirty = sorted(self.dirty)
        blocks, edges, offsets = by_block(np.array(dirty, np.int64), ROWS_MEASURES)
        names += [keys.block("m", block) for block in blocks]
        rows = offsets.tolist()
        for a, b in pairwise(edges):
            measures.append([part for i in range(a, b) for part in (str(rows[i]), self.record[dirty[i]].pack())])

        before, after = self.before, self.books
        totals: list[str] = []
        for name in BOOK_FIELDS[1:]:  # All but the version, which the step counts itself.
            if difference := getattr(after, name) - getattr(before, name):
                totals += (name, str(difference))
        blob = msgpack.packb(
            [totals, amounts, states, measures, self.fetches, self.letters, self.entries], use_bin_type=False
        )
        return names, blob


def _distinct(numbers: Int64s) -> Int64s:
    """Return each number >= 0 once, increasing: `np.unique`, which hashes, takes ten times as long."""
    ordered = np.sort(numbers)
    distinct: Int64s = ordered[np.diff(ordered, prepend=-1) != 0]
    return distinct


def _increments(offsets: Int64s, sums: Int64s, edges: Sequence[int]) -> list[list[int]]:
    """Return offset, amount, offset, amount, .. for each block; `edges` say where one begins."""
    pairs: list[int] = np.column_stack((offsets, sums)).ravel().tolist()
    blocks = [pairs[2 * a : 2 * b] for a, b in pairwise(edges)]
    if len(sums) and int(np.abs(sums).max()) > INCREMENT_MAX:
        for block in blocks:
            _cut_large(block)
    return blocks


def _cut_large(pairs: list[int]) -> None:
    """Put several increments in the place of one whose amount a double might not hold."""
    for at in range(0, len(pairs), 2):
        left = pairs[at + 1]
        while abs(left) > INCREMENT_MAX:
            part = INCREMENT_MAX if left > 0 else -INCREMENT_MAX
            pairs += (pairs[at], part)
            left -= part
        pairs[at + 1] = left


def _digest(links: Int64s) -> int:
    """See `opic.ledger.links_digest`: the same, of increasing ids."""
    if not len(links):
        return 0
    packed = links.astype("<i8", copy=False).tobytes()
    return int.from_bytes(blake2b(packed, digest_size=DIGEST_BYTES).digest(), "little") or 1
