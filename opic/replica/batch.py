"""Batch processing: computes the effect of a batch of events on a shard, using a replica's arrays.

Events are processed in order, and each sees the payments of the events before it, exactly as in `opic.model.ledger`.
Only scalars are computed sequentially: the cash of the pages that are read, the totals, the pool. Pages that are read
or change state in the batch are small objects while it is processed; numpy computes everything else for the whole
batch. A batch does not change the replica: `Replica.apply` does, given the effect.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

import numpy as np

from opic.arrays import Int64s, distinct
from opic.errors import BadInput, OutOfOrder
from opic.model.books import Books
from opic.model.cash import CLASS_BITS, DAY_US, MILLION, ROUND_BITS, Flag, split
from opic.model.classes import WeightClasses
from opic.model.events import ALONE, CheckedEvent, Outcome
from opic.model.series import ENTRY_ROUNDS, ENTRY_US, Entry
from opic.model.transfer import NO_NUMBERS, Transfer
from opic.replica.batch_page import NO_AMOUNTS, Amounts, BatchPage, batch_pages
from opic.replica.effect import NO_DIGEST, Effect, entry_digest, links_digest, pack_bits
from opic.replica.inputs import Input, Item
from opic.replica.note_changes import host_changes, note_changes
from opic.replica.page_lookup import Context, PageLookup
from opic.replica.shown_links import FIRST, OTHER, SAME
from opic.replica.state_changes import StateChanges
from opic.replica.trust_changes import TrustChanges

# Gives a journal record of 40 to 60 kB: smaller records cost more per event, larger ones block the server.
LINKS_A_BATCH_MAX: Final = 8_000
# Total size of the input records: a few thousand long URLs, or dead letters, which are stored unchanged.
BYTES_A_BATCH_MAX: Final = 1 << 20
NEVER: Final = 1 << 63
READ: Final = Outcome.READ
READ_COLUMNS: Final = (  # Of the effect: the first values of each read.
    ("read_page", np.uint32), ("read_cash", np.int64), ("read_share", np.int64), ("read_at_us", np.int64),
    ("read_digest", np.uint64), ("read_links", np.uint32),
)  # fmt: skip
OPEN, GONE, KNOWN, EXCLUDED, TAGGED = map(int, (Flag.OPEN, Flag.GONE, Flag.KNOWN, Flag.EXCLUDED, Flag.TAGGED))


class Batch:
    """A batch: as many inputs as fit into one effect. Call `decide` once."""

    effect: Effect
    books: Books

    def __init__(self, context: Context, inputs: Sequence[Input], start: int) -> None:
        """Take as many inputs from `start` on as fit into one journal record; an oversized input gets its own batch."""
        self.context, self.replica, self.rules = context, context.replica, context.rules
        self.events: list[CheckedEvent] = []
        self.items: list[Item] = []  # Per event: where it comes from.
        end, links, size = start, 0, 0
        while end < len(inputs):  # A record's events are all in one batch.
            events = inputs[end].decoded(context.limits)
            size += len(inputs[end].record.value)
            alone = False
            for event in events:
                links += len(event.links) + len(event.seeds) + 1
                alone |= event.outcome in ALONE
                if event.transfer is not None:
                    links += len(event.transfer.urls)
                    alone |= bool(event.transfer.classes)
            full = links > LINKS_A_BATCH_MAX or size > BYTES_A_BATCH_MAX
            if end > start and (full or alone):
                break
            self.events += events
            self.items += inputs[end].items()
            end += 1
            if alone:  # It gets a journal record of its own.
                break
        self.inputs, self.end = inputs[start:end], end
        self.offsets = {item.partition: item.record.offset + 1 for item in self.inputs}  # Next offset to read.
        self.calls: dict[bytes, int] = {}  # Name of a call with an Idempotency-Key -> time of its record.
        self.letters: list[str | bytes] = []  # Flat: reason, partition, offset, index, value, size of the whole value.
        self.fetches: list[float] = []  # Flat: page, 1 if the fetch failed, time; three numbers per fetch.
        self.unread: list[tuple[int, int]] = []  # Fetches that did not read the page: page, 1 if the fetch failed.
        self.outboxes: dict[int, tuple[int, bytes, bytes]] = {}  # Receiving shard: number, previous digest, entry.

    # Preparation: the pages that the batch names.

    def decide(self, seen: Mapping[bytes, int]) -> Effect:
        """Compute the effect of the batch.

        Args:
            seen: calls with an Idempotency-Key that already took effect, with the times of their records.

        Raises:
            StoreFull: a total would overflow its range.
            OutOfOrder: an entry from another shard does not follow the last entry taken from it.
        """
        self.repeats = [bool(item.record.call) and self._repeats(item, seen) for item in self.items]
        self.books, self.entry = copy(self.replica.books), self.replica.series[-1] if self.replica.series else None
        self.entries: list[Entry] = []
        self.grants, self.placed = 0, b""  # Grains granted to every page of the other shards; classes for them.
        self.taken: dict[int, bytes] = {}
        self.moved, self.inflow = list[Amounts](), list[Amounts]()  # By other ways than reads.
        # One tuple per read: READ_COLUMNS, its event, its relation to the read before.
        self.reads: list[tuple[int, int, int, int, int, int, int, int]] = []
        self.far_sent: list[Int64s] = []  # Per read: the remote pages that it links to,
        # and what each of them is owed: grains, fetch time, nearness, the domain it comes from; then their number.
        self.far_owed: list[tuple[int, int, int, int, int]] = []
        self.trust = TrustChanges(self.replica, self.context.keep_links)
        self.named = PageLookup(self.context, self.events, self.repeats)
        self.notes = note_changes(self.replica.columns, self.named, self.events)
        self.metas: dict[int, bytes] = {}
        self._hold(self.named.event_of)
        self._await_entry()
        try:
            self._work_through()
        except BaseException:
            self.context.far.drop()
            raise
        self.books.version += 1
        self.books.check(0 if self.replica.shard else self.rules.minted)
        self._finish()
        return self.effect

    def _repeats(self, item: Item, seen: Mapping[bytes, int]) -> bool:
        """Return whether the same call already took effect within a day of record time; otherwise remember it."""
        call, time_us = item.call, item.record.time_us
        previous_us = self.calls.get(call, seen.get(call))
        if previous_us is not None and time_us - previous_us < DAY_US:
            return True
        self.calls[call] = time_us
        return False

    def _hold(self, event_of: Int64s) -> None:
        """Make an object of each page that may change by more than deposits; count open pages among the others."""
        columns, count = self.replica.columns, len(self.events)
        state = columns.state[self.named.links]
        gone = self.named.links[(state & GONE) != 0]
        named = [page for page in self.named.own if page >= 0]
        for pages in self.named.seeds.values():
            seeds = np.array(pages, np.int64)
            named += seeds[(columns.state[seeds] & (GONE | EXCLUDED)) != 0].tolist()
        named += self.named.forgotten.tolist()
        named += [page for e in self.events for page in range(*e.ids) if page < self.named.first]
        ids = distinct(np.concatenate((np.array(named, np.int64), gone)))
        self.pages = batch_pages(self.replica, ids)
        mark = self.context.marks(self.named.first + len(self.named.new_urls))
        mark[ids] = True
        is_held = mark[self.named.links]
        mark[ids] = False
        self.hits: dict[int, list[BatchPage]] = {}
        for index in np.flatnonzero(is_held).tolist():
            self.hits.setdefault(int(event_of[index]), []).append(self.pages[int(self.named.links[index])])
        self.still = ~is_held
        self.open_links = np.bincount(event_of[((state & OPEN) != 0) & ~is_held], minlength=count).tolist()
        self.link_states = state
        self.states = StateChanges(self.context, self.named, self.books, self.pages, self.moved)

    # One record at a time. Each method corresponds to one of opic.model.ledger.

    def _work_through(self) -> None:
        books, pays = self.books, self.context.shards == 1
        for index, item in enumerate(self.items):
            time_us = item.record.time_us
            if self.entry is None:
                self._note(Entry(time_us, books.rounds, books.clock))
            if self.repeats[index]:
                books.repeats += 1
            else:
                books.bad_links += self.named.bad_links[index]
                event = self.events[index]
                if event.url:
                    self._fetched(event, index, time_us)
                else:
                    self._decide(item, event, index)
                if pays and (amount := books.due(self.rules)):
                    books.grant_all(amount)
            books.time_us = time_us
            if time_us >= self.next_entry_us or books.rounds >= self.next_entry_rounds:
                self._note(Entry.of(books))

    def _note(self, entry: Entry) -> None:
        self.entry = entry
        self.entries.append(entry)
        self._await_entry()

    def _await_entry(self) -> None:
        """Compute when the next entry of the series is due, as `opic.model.series.entry_due` does."""
        self.next_entry_us, self.next_entry_rounds = NEVER, NEVER
        if self.entry is not None:
            self.next_entry_us = self.entry.time_us + ENTRY_US
            self.next_entry_rounds = self.entry.rounds + ENTRY_ROUNDS

    def _fetched(self, event: CheckedEvent, index: int, time_us: int) -> None:
        books, outcome, page = self.books, event.outcome, self.pages[self.named.own[index]]
        new = self.named.new_by_event[index]
        if not page.state:
            self.states.know(index, 1)
            new -= 1
        elif not page.state & KNOWN:
            self.states.come_back(page)
        if event.tags and self.states.classes:
            self.states.classify(page, event.url, event.tags)
        if event.meta is not None:
            self.metas[page.id] = event.meta
        if event.name is not None:
            self.metas[~page.id] = event.name.encode()
        if outcome is READ:
            self._read(page, event, index, new)
        elif outcome is Outcome.GONE:
            self.states.go_away(page, event.at_us)
        elif outcome is Outcome.EXCLUDED:
            page.state |= EXCLUDED
            books.exclusions += 1
        else:
            books.failures += 1
        failed = int(outcome is Outcome.FAILED)
        self.fetches += (page.id, failed, time_us / MILLION)
        if outcome is not READ:
            self.unread.append((page.id, failed))

    def _decide(self, item: Item, event: CheckedEvent, index: int) -> None:
        """Process a record that is not a crawl event."""
        books, outcome = self.books, event.outcome
        if outcome is Outcome.SEEDS:
            books.seeds += len(event.seeds)
            self.states.know(index, self.named.new_by_event[index])
            seeds = self.named.seeds.get(index, ())
            if event.trust is not None:
                self.trust.give(event.trust, seeds, len(self.reads))
            for number in seeds:
                if (seed := self.pages.get(number)) is not None:
                    self.states.come_back(seed)
                    seed.state &= ~EXCLUDED
                if event.meta is not None:
                    self.metas[number] = event.meta
        elif outcome is Outcome.CLASSES:
            self._define(item, event)
        elif outcome is Outcome.CLASSIFY:
            known = {number: page for number, page in sorted(self.pages.items()) if page.state & KNOWN}
            urls = self.context.urls_of(list(known))
            for number, page in known.items():
                if not (page.state & TAGGED and self.states.classes.has_tags(page.slot)):
                    self.states.classify(page, urls[number])
        elif outcome is Outcome.FORGET:
            self._forget()
        elif outcome is Outcome.DEAD:
            self._refuse(item, event.reason, event.value)
        elif event.transfer is not None:
            self._receive(item, event.transfer, index)
        elif event.count is not None:
            books.take_count(event.count)
        else:
            books.grant_all(event.grant)
            self.grants += event.grant

    def _refuse(self, item: Item, reason: str, value: bytes | None = None) -> None:
        """Make a dead letter of a record, or of one of its events, whose value is given."""
        self.books.dead_letters += 1
        record = item.record
        index = "" if value is None else str(item.number)
        whole = record.value if value is None else value
        size = record.value_bytes or len(whole)
        self.letters += (reason, item.partition, str(record.offset), index, whole, str(size))

    def _define(self, item: Item, event: CheckedEvent) -> None:
        if event.placed is None:
            try:
                self.states.redefine(event.classes)
            except BadInput as error:
                self._refuse(item, str(error))
            return
        if event.placed.version != self.states.classes.version + 1:
            raise OutOfOrder("another worker defined classes first")
        self.placed = event.placed.pack()
        self.states.set_classes(event.placed)

    def _forget(self) -> None:
        for number in self.named.forgotten.tolist():
            self.states.forget(self.pages[number])
            self.metas[number] = b""
            if self.rules.normalize:
                self.metas[~number] = b""
            self.unread.append((number, 0))
        if trusted := set(self.named.forgotten.tolist()).intersection(self.replica.trust or ()):
            self.trust.give(0.0, sorted(trusted), 0)

    def _read(self, page: BatchPage, event: CheckedEvent, index: int, new: int) -> None:
        """Process the read of a page. `new` of its links lead to pages that become known."""
        books, rules, at_us = self.books, self.rules, event.at_us
        if page.state & GONE:
            self.states.come_back(page)
        if new:
            self.states.know(index, new)
        hits = self.hits.get(index, ())
        for child in hits:
            if child.state & GONE and at_us >= child.gone_until_us:
                self.states.come_back(child)
        start, end = self.named.edges[index], self.named.edges[index + 1]
        far = self.named.far_links[index] if self.named.far_links else NO_NUMBERS
        refused = self.named.refused.get(index, 0)
        count = end - start + len(far) + refused
        packed = self.named.packed_links[8 * start : 8 * end]
        if len(far):
            packed += self.named.packed_far[8 * self.named.far_edges[index] : 8 * self.named.far_edges[index + 1]]
        digest = links_digest(packed)
        state, spent = page.state, page.spent
        slot = state & CLASS_BITS
        cash = page.v + (books.credit_of(slot) if slot else books.credit)
        gives = cash >= 0 or (state & OPEN and digest == page.digest)
        share, virtual, rounding = split(cash, count if gives else 0, rules.q)
        again = self._open(page, digest, cash)
        gave = cash if cash > 0 else 0
        books.clock += gave
        books.taken_back += gave - cash
        books.rounds += (gave << ROUND_BITS) // rules.round_grains(books.live)
        books.rounding += rounding
        books.pool += virtual
        books.reads += 1
        books.links += count
        page.v -= cash
        page.spent = spent + cash
        self.reads.append((page.id, cash, share, at_us, digest, end - start, index, again))
        if share:
            books.open_cash += share * self.open_links[index]
            for child in hits:
                self._deposit(child, share)
        if refused:
            books.refuse(share * refused, abs(share) * refused)
        if len(far):
            nearness = self.notes.to_links["nearness"]
            self._send(page, far, share, at_us, nearness[index] if nearness else 0)

    def _open(self, page: BatchPage, digest: int, cash: int) -> int:
        """Note what a read shows of a page, which spends its cash; return how it relates to the read before."""
        books, spent = self.books, page.spent
        before, page.digest = page.digest, digest
        if page.state & OPEN:
            books.open_cash -= cash
            page.state &= ~EXCLUDED
            if digest == before:
                return SAME
            books.misplace(spent if digest else 0, spent if before else 0)
            return OTHER
        if spent:
            books.misplace(spent if digest else 0, 0)
        books.count(page.slot, opened=1)
        page.state = (page.state | OPEN) & ~EXCLUDED
        return FIRST

    def _deposit(self, page: BatchPage, grains: int) -> None:
        page.v += grains
        if page.state & OPEN:
            self.books.open_cash += grains
        elif page.state & GONE:
            self.books.v_gone += grains

    def _send(self, page: BatchPage, far: Int64s, grains: int, at_us: int, nearness: int) -> None:
        """Pay pages of other shards. A link also makes a page known, so pages that receive nothing are sent too."""
        self.books.net += grains * len(far)
        domain = 0
        if self.rules.inflow:
            number, names = int(self.replica.columns.host[page.id]), self.replica.hosts.names
            name = names[number] if number < len(names) else self.named.host_names[number - len(names)]
            domain = self.context.far.domain_of(name)
        self.far_sent.append(far)
        self.far_owed.append((grains, at_us, nearness, domain, len(far)))

    def _receive(self, item: Item, transfer: Transfer, index: int) -> None:
        """Process a transfer from another shard; `opic.model.ledger` does the same page by page."""
        source = int(item.partition.partition(":")[2])
        previous = self.taken.get(source, self.replica.taken.get(source, NO_DIGEST))
        if item.previous is not None and item.previous != previous:
            raise OutOfOrder(
                f"entry {item.record.offset} of shard {source} for shard {self.replica.shard} does not follow the last "
                "entry taken: a shard lost the end of what it had written; restore all shards from one backup"
            )
        self.taken[source] = entry_digest(previous, item.record.value)
        books, order = self.books, self.named.order[index]
        grains, inflow, at_us = transfer.grains[order], transfer.inflow[order], transfer.at_us[order]
        if transfer.classes:
            self.states.set_classes(WeightClasses.unpack(transfer.classes))
        if transfer.grant:
            books.grant_all(transfer.grant)
        start, end = self.named.edges[index], self.named.edges[index + 1]
        pages = self.named.links[start:end]
        self.states.know(index, self.named.new_by_event[index])
        books.net -= int(transfer.grains.sum())
        if len(order) < len(transfer.grains):
            refused = np.delete(transfer.grains, order)
            books.refuse(int(refused.sum()), int(np.abs(refused).sum()))
        still = self.still[start:end]
        open_ = still & ((self.link_states[start:end] & OPEN) != 0)
        books.open_cash += int(grains[open_].sum())
        for position in np.flatnonzero(~still).tolist():
            page, amount = self.pages[int(pages[position])], int(grains[position])
            if page.state & GONE and at_us[position] >= page.gone_until_us:
                self.states.come_back(page)
            self._deposit(page, amount)
        self.moved.append((pages, grains))
        across = inflow != 0
        if self.rules.inflow and across.any():
            self.inflow.append((pages[across], inflow[across]))

    # The result.

    def _finish(self) -> None:
        replica, named = self.replica, self.named
        reads = list(zip(*self.reads, strict=True)) if self.reads else [()] * 8
        if self.far_owed or self.grants or self.placed:
            self._fill_outboxes()
        moved_page, moved = map(np.concatenate, zip(NO_AMOUNTS, *self.moved, strict=True))
        inflow_page, inflow = map(np.concatenate, zip(NO_AMOUNTS, *self.inflow, strict=True))
        self.effect = Effect(
            lsn=replica.head.lsn + 1,
            previous=replica.head.digest,
            books=self.books,
            pages=named.first + len(named.new_urls),
            host_count=len(replica.hosts.names) + len(named.host_names),
            first_page=named.first,
            fingerprints=named.new_fingerprints,
            hosts=named.new_hosts.astype(np.uint32),
            urls=named.new_urls,
            host_names=named.host_names,
            moved_page=moved_page.astype(np.uint32),
            moved=moved,
            inflow_page=inflow_page.astype(np.uint32),
            inflow=inflow,
            fetched_page=np.array([page for page, _ in self.unread], np.uint32),
            failed=np.array([failed for _, failed in self.unread], np.uint8),
            entries=self.entries,
            offsets=self.offsets,
            sent={
                to: (number + 1, entry_digest(before, entry)) for to, (number, before, entry) in self.outboxes.items()
            },
            taken=self.taken,
            calls=self.calls,
            metas=self.metas,
            forgotten=named.forgotten.astype(np.uint32),
            **self._read_fields(reads),
            **self.states.effect_fields(),
            noted=self.notes.noted,
            **host_changes(replica, named, self.events, self.items),
            **self.trust.effect_fields(reads[6], named.far_links, self.context.far),
        )
        if self.trust.kept_from >= 0:
            self.trust.note_new_links(self.effect, reads[7], self.context.shown)

    def _read_fields(self, reads: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return the fields of the effect about reads and their links, and which of these are from other domains."""
        links, edges = self.named.links, self.named.edges
        across = self.named.across if self.rules.inflow else None
        if len(links) != sum(reads[5]):
            keep = np.zeros(len(links), np.bool_)
            for index in reads[6]:
                keep[edges[index] : edges[index + 1]] = True
            links, across = links[keep], None if across is None else across[keep]
        fields = {name: np.array(column, dtype) for (name, dtype), column in zip(READ_COLUMNS, reads, strict=False)}
        packed = np.empty(0, np.uint8) if across is None else pack_bits(across)
        return {**fields, "links": links.astype(np.uint32), "across": packed}

    def _fill_outboxes(self) -> None:
        """Turn the payments to other shards into outbox entries, and clear them from the table."""
        time_us = self.books.time_us
        transfers = self.context.far.paid(self.far_sent, self.far_owed, time_us, inflow=self.rules.inflow)
        if self.grants or self.placed:
            for to in set(range(self.context.shards)) - {self.replica.shard}:
                waiting = transfers.get(to, Transfer(time_us))
                transfers[to] = replace(waiting, grant=self.grants, classes=self.placed)
        for to, transfer in transfers.items():
            number, before = self.replica.sent.get(to, (0, NO_DIGEST))
            self.outboxes[to] = number, before, transfer.pack()
