"""A batch of records: what it asks of the store, what happens, and what goes back. `opic.store.step` sends it.

Its events are worked through one after the other in memory, each seeing what those before it paid, exactly as
`opic.ledger` has it; what they change in all goes to the store in one call.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from opic.cash import CLASS_BITS, DAY_US, MILLION, ROUND_BITS, Books, Flag, gone_until_us, roll, split
from opic.classes import NO_ROOM, NO_WEIGHTS, Classes
from opic.errors import BadInput, BadUrl, FenceMoved
from opic.events import Event, Outcome, Record
from opic.ledger import Measure
from opic.series import Entry, entry_due
from opic.store import columns
from opic.store.columns import DIGEST_BYTES, Bytes, Int64s, by_block
from opic.store.far import FAR
from opic.store.ids import URLS_A_CALL
from opic.store.keys import ROWS_I64, ROWS_MEASURES, ROWS_U8
from opic.store.links import MISSING, hashes
from opic.transfer import NO_NUMBERS, Transfer
from opic.urls import canonical_url, host_of, shard_of

if TYPE_CHECKING:
    from opic.store.step import Input, Store

LINKS_A_STEP_MAX = 4_000  # Other clients wait for a whole call: this many increments are 4 to 8 ms.
BAD_LINK = -1  # In the place of an id: a string that names no page.
ID_BITS = 40  # Ids of a shard are smaller; an event's place in its batch stands above them.
FORGET_US = 2 * DAY_US  # A record of a call counts as a repeat for a day; times of records may run back by another.
OPEN, GONE, KNOWN, EXCLUDED = int(Flag.OPEN), int(Flag.GONE), int(Flag.KNOWN), int(Flag.EXCLUDED)
TAGGED = int(Flag.TAGGED)


class Batch:
    """The effect of some records on the shard: prepared (who is named), decided (what happens), sent (`payload`)."""

    before: Books  # It, and `books`, are there once it is decided.
    books: Books

    def __init__(self, store: "Store", inputs: "Sequence[Input]", start: int, offsets: Mapping[str, int]) -> None:
        """Take as many inputs from `start` on as one step takes; `offsets` are the next ones of the partitions."""
        self.events: list[Event] = []
        end, links = start, 0
        while end < len(inputs):
            event = inputs[end].decoded(store.limits)
            links += len(event.links) + len(event.seeds) + 1
            if event.transfer is not None:
                links += len(event.transfer.urls)
            if end > start and (links > LINKS_A_STEP_MAX or event.concerns_classes):
                break
            self.events.append(event)
            end += 1
            if event.concerns_classes:  # It has a step of its own.
                break
        self.store, self.rules, self.inputs, self.end = store, store.rules, inputs[start:end], end
        self.offsets = {one.partition: one.record.offset + 1 for one in self.inputs}  # The next ones after this.
        self._advances = [text for name, at in self.offsets.items() for text in (name, str(offsets[name]), str(at))]
        self.deposits: list[Int64s] = []
        self.deposits_inflow: list[Int64s] = []
        self.deposits_far: list[Int64s] = []
        self.grants = 0  # For every page of the other shards.
        self.spent: dict[int, int] = {}
        self.read: list[int] = []  # A page as often as it is read.
        self.changed: set[int] = set()
        self.dirty: set[int] = set()
        self.fetches: list[float] = []
        self.letters: list[str | bytes] = []
        self.calls: dict[bytes, int] = {}
        self.entry: Entry | None = None
        self.entries: list[bytes] = []
        self.defined: Classes | None = None
        self.touched = self.sums = np.empty(0, np.int64)  # What the step adds to v; known once it is worked out.
        self._new: dict[int, str] = {}  # URLs of pages that were not cached.
        self._look_up()

    def _look_up(self) -> None:
        """Look for the ids of all URLs as they came; those that are not cached are to be asked for."""
        self._raw: list[str] = []  # Each event's own URL or its seeds, and its links.
        self._ends: list[int] = []  # Of each event's part.
        for event in self.events:
            if event.url:
                self._raw.append(event.url)
                self._raw += event.links
            elif event.transfer is not None:
                self._raw += event.transfer.urls
            else:
                self._raw += event.seeds
            self._ends.append(len(self._raw))
        self._hashes = hashes(self._raw)
        self._ids = self.store.links.find(self._hashes)
        self._missing = np.flatnonzero(self._ids == MISSING)
        shards, number = self.store.shards, self.store.shard.number
        if shards > 1 and len(self._missing):
            self._ids[self._missing] = self.store.far.find(self._hashes[self._missing], number)
            self._missing = np.flatnonzero(self._ids == MISSING)
        self.looked_up, self.cached = len(self._raw), len(self._raw) - len(self._missing)
        self._misses: dict[str, str | None] = {}  # As it came -> canonical, None for a bad link; by first sight.
        bytes_max = self.store.limits.url_bytes_max
        for raw in map(self._raw.__getitem__, self._missing.tolist()):
            if raw not in self._misses:
                try:
                    self._misses[raw] = canonical_url(raw, bytes_max)
                except BadUrl:
                    self._misses[raw] = None
        self._unknown = [url for url in dict.fromkeys(self._misses.values()) if url is not None]
        self._far: dict[str | None, int] = {}
        if shards > 1:
            far = [url for url in self._unknown if shard_of(host_of(url), shards) != number]
            self._far = {url: self.store.far.number(url) for url in far}
            self._unknown = [url for url in self._unknown if url not in self._far]

    def ids_commands(self) -> list[list[Any]]:
        """Return the commands that ask for the ids of the URLs that this worker doesn't know, if there are any."""
        if not self._unknown:
            return []
        return self.store.shard.directory.request(self._unknown[:URLS_A_CALL], self.rules.inflow)

    def resolve(self, replies: Sequence[Any]) -> None:
        """Take the replies to them; then all pages that the batch names have ids, and `wanted` is known."""
        store = self.store
        ids_of: dict[str | None, int] = {None: BAD_LINK, **self._far}
        if self._unknown:
            directory = store.shard.directory
            ids = directory.answer(replies) or []  # None if others gave ids meanwhile: again, then.
            ids += directory.assign(self._unknown[len(ids) :], self.rules.inflow)
            named = dict(zip(self._unknown, ids, strict=True))
            store.learn(named)
            ids_of.update(named)
            self._new = {page: url for url, page in named.items()}
        if len(self._missing):
            found = [ids_of[self._misses[self._raw[i]]] for i in self._missing.tolist()]
            self._ids[self._missing] = found
            is_far = self._ids[self._missing] >= FAR
            here, away = self._missing[~is_far], self._missing[is_far]
            store.links.put(self._hashes[here], self._ids[here])
            if len(away):
                store.far.put(self._hashes[away], self._ids[away])
        self._gather()

    def _gather(self) -> None:
        """Tell pages, seeds, links and deposits apart; which links are distinct and lead elsewhere; what is wanted."""
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
        # Pages of a transfer are distinct: its amounts are put into the order of their ids.
        brings = np.array([event.transfer is not None for event in self.events])
        self._order = {at: np.argsort(ids[starts[at] : ends[at]]) for at in np.flatnonzero(brings).tolist()}
        linked = (paged | brings)[event]
        linked[starts[paged]] = False
        bad = linked & (ids == BAD_LINK)
        self.bad_links = np.bincount(event[bad], minlength=count).tolist()
        linked &= ~bad & (ids != own[event])
        pairs = _distinct(event[linked] << ID_BITS | ids[linked])
        self.far_links = [NO_NUMBERS] * count
        if self.store.shards > 1:
            away = (pairs & FAR) != 0
            self.far_links = _by_event(pairs[away] & (FAR - 1) | pairs[away] >> ID_BITS << ID_BITS, count)
            pairs = pairs[~away]
        self.all_links = pairs & ((1 << ID_BITS) - 1)
        self.links = _by_event(pairs, count)
        # Seen must be the cash or the record of pages that are read, that go away, that may come back.
        wanted = {
            page for page, e in zip(self.pages, self.events, strict=True) if e.outcome in (Outcome.READ, Outcome.GONE)
        }
        wanted.update(self.all_links[(state[self.all_links] & GONE) != 0].tolist())
        wanted.update(page for seeds in self.seeds for page in seeds if state[page] & GONE)
        self.wanted = np.fromiter(sorted(wanted), np.int64, len(wanted))

    def wants(self) -> list[list[Any]]:
        """Return the commands that read what `decide` has to see."""
        commands = [self.store.shard.rows_command(self.wanted)]
        if names := [one.record.call for one in self.inputs if one.record.call]:
            commands.append(["ZMSCORE", self.store.shard.keys.seen, *names])
        return commands

    def decide(self, replies: Sequence[Any], sent: "Batch | None") -> None:
        """Work out what happens, event by event.

        Args:
            replies: to `wants`, as things were before the batch `sent`.
            sent: the batch whose step is under way, if any.
        """
        store = self.store
        self.before = store.books if sent is None else sent.books
        rows = store.shard.rows_answer(replies[0])
        names = [one.record.call for one in self.inputs if one.record.call]
        times = zip(names, replies[1] if names else (), strict=True)
        self.seen = {name: int(float(time_us)) for name, time_us in times if time_us is not None}
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
        self.urls = self._urls() if store.classes or self.events[0].concerns_classes else {}
        self._told = {} if sent is None else sent.calls
        for place, one in enumerate(self.inputs):
            record = one.record
            last = self.entry or self._note(Entry(record.time_us, self.books.rounds, self.books.clock))
            if record.call and self._repeats(record):
                self.books.repeats += 1
            else:
                self.books.bad_links += self.bad_links[place]
                self._decide(one, self.events[place], place)
            self.books.time_us = record.time_us
            if entry_due(last, self.books):
                self._note(Entry.of(self.books))
        self.books.version += 1
        self.books.check()

    def _repeats(self, record: Record) -> bool:
        """Tell whether a record of a call took effect before, within a day of record time; remember it."""
        last = self.calls.get(record.call, self._told.get(record.call, self.seen.get(record.call)))
        if last is not None and record.time_us - last < DAY_US:
            return True
        self.calls[record.call] = record.time_us
        return False

    def _note(self, entry: Entry) -> Entry:
        self.entry = entry
        self.entries.append(entry.pack())
        return entry

    def _follow(self, sent: "Batch") -> None:
        """Take over the pages that the batch before read or saw go away: their rows are older than that."""
        for page in sent.dirty:
            if page not in self.v:
                at = int(np.searchsorted(sent.touched, page))
                moved = at < len(sent.touched) and sent.touched[at] == page
                self.v[page] = sent.v[page] + (int(sent.sums[at]) if moved else 0)
            self.h[page] = sent.h[page] + sent.spent.get(page, 0)
            self.record[page] = sent.record[page]

    def _urls(self) -> dict[int, str]:
        """Find the URLs of pages that become known here, or are classified anew: their classes follow from them."""
        named = [page for page in self.pages if page != BAD_LINK]
        named += [page for seeds in self.seeds for page in seeds]
        named += [page for event in self.events for page in range(*event.ids) if page < len(self.state)]
        ids = _distinct(np.concatenate([np.array(named, np.int64), self.all_links]))
        anew = self.events[0].concerns_classes
        ids = ids[(self.state[ids] != 0) == anew]
        urls = {page: self._new[page] for page in ids.tolist() if page in self._new}
        rest = [page for page in ids.tolist() if page not in urls]
        return urls | (self.store.shard.urls_of(rest) if rest else {})

    # One record; compare opic.ledger, method by method.

    def _decide(self, one: "Input", event: Event, place: int) -> None:
        books, store = self.books, self.store
        if event.outcome is Outcome.SEEDS:
            books.seeds += len(event.seeds)
            for page in self.seeds[place]:
                self._know_one(page)
                self._come_back(page)
                self._set(page, int(self.state[page]) & ~EXCLUDED)
        elif event.outcome is Outcome.CLASSES:
            self._define(one, event)
        elif event.outcome is Outcome.CLASSIFY:
            for page in sorted(self.urls):
                state = int(self.state[page])
                if not (state & TAGGED and store.classes.has_tags(state & CLASS_BITS)):
                    self._classify(page, self.urls[page])
        elif event.outcome is Outcome.DEAD:
            self._refuse(one, event.reason)
        elif event.transfer is not None:
            self._receive(event.transfer, self.links[place], self._order[place])
        elif event.outcome is Outcome.GRANT:
            books.grant_all(event.grant)
            self.grants += event.grant
        else:
            page = self.pages[place]
            self._know_one(page)
            if event.tags and store.classes:
                self._classify(page, event.url, event.tags)
            if event.outcome is Outcome.READ:
                self._read(page, event, self.links[place], self.far_links[place])
            elif event.outcome is Outcome.GONE:
                self._go_away(page, event.at_us)
            elif event.outcome is Outcome.EXCLUDED:
                self._set(page, int(self.state[page]) | EXCLUDED)
                books.exclusions += 1
            else:
                books.failures += 1
            self.fetches += (page, int(event.outcome is Outcome.FAILED), one.record.time_us / MILLION)
        if store.shards == 1:
            books.pay(self.rules)

    def _refuse(self, one: "Input", reason: str) -> None:
        self.books.dead_letters += 1
        self.letters += (reason, one.partition, str(one.record.offset), one.record.value)

    def _define(self, one: "Input", event: Event) -> None:
        try:
            if self.rules.continuous:
                raise BadInput(NO_WEIGHTS)
            classes = self.store.classes.redefined(event.classes, self.books.known_by)
            if not self.books.reweigh(classes.extra()):
                raise BadInput(NO_ROOM)
            self.store.classes = self.defined = classes
        except BadInput as error:
            self._refuse(one, str(error))

    def _classify(self, page: int, url: str, tags: Sequence[str] = ()) -> None:
        slot, tagged = self.store.classes.slot_of(url, tags)
        state = int(self.state[page])
        old, live, opened = state & CLASS_BITS, not state & GONE, bool(state & OPEN)
        if slot == old or self.books.reclass(old, slot, live=live, opened=opened):
            self._set(page, state & ~(CLASS_BITS | TAGGED) | slot | (TAGGED if tagged else 0))

    def _meet(self, pages: Int64s, at_us: Int64s | int) -> Bytes:
        """Make pages known, and bring back those that links may, since they were fetched at that time or those."""
        states: Bytes = self.state[pages]
        if self.some_unknown and not states.all():
            self._know(pages[states == 0])
            states = self.state[pages]
        if self.some_gone:
            gone = np.flatnonzero(states & GONE)
            for child, at in zip(pages[gone].tolist(), np.broadcast_to(at_us, len(pages))[gone].tolist(), strict=True):
                if at >= self.record[child].gone_until_us:
                    self._come_back(child)
            states = self.state[pages]
        return states

    def _read(self, page: int, event: Event, links: Int64s, far: Int64s) -> None:
        books, rules, state, count = self.books, self.rules, self.state, len(links) + len(far)
        self._come_back(page)
        states = self._meet(links, event.at_us)

        v = self.v[page] + int(self.pending[page])
        slot = int(state[page]) & CLASS_BITS
        cash, spent, record = v + books.credit_of(slot), self._spent(page), self.record[page]
        digest = _digest(np.concatenate([links, np.sort(self.store.far.digest[far])]) if len(far) else links)
        gives = cash >= 0 or (int(state[page]) & OPEN and digest == record.digest)
        share = split(cash, count if gives else 0, rules.q)
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
        books.links += count
        self.pending[page] -= cash
        self.spent[page] = self.spent.get(page, 0) + cash
        record.reads += 1
        record.digest = digest
        record.measures = (*record.measures, Measure(books.clock, gave, event.at_us))[-rules.measures_max :]
        self.read.append(page)
        record.anchors = roll(record.anchors, books.clock, self._spent(page), rules)
        self.dirty.add(page)
        if share.share:
            self._deposit(page, links, states, share.share)
        if len(far):
            self._send(page, far, share.share, event.at_us)

    def _send(self, page: int, far: Int64s, grains: int, at_us: int) -> None:
        """Pay pages of other shards, which a link also makes known: so those too that get nothing."""
        table = self.store.far
        self.books.net += grains * len(far)
        table.grains[far] += grains
        table.at_us[far] = np.maximum(table.at_us[far], at_us)
        if self.rules.inflow:
            table.inflow[far] += grains * (table.domain[far] != self.store.domain[page])
        self.deposits_far.append(far)

    def _receive(self, transfer: Transfer, pages: Int64s, order: Int64s) -> None:
        """Let what another shard sent arrive; compare `opic.ledger`, where it does so page by page."""
        books, grains, inflow = self.books, transfer.grains[order], transfer.inflow[order]
        books.grant_all(transfer.grant)
        states = self._meet(pages, transfer.at_us[order])
        books.net -= int(grains.sum())
        self._move(pages, grains)
        books.open_cash += int(grains[(states & OPEN) != 0].sum())
        books.v_gone += int(grains[(states & GONE) != 0].sum())
        across = inflow != 0
        self.store.pending_inflow[pages[across]] += inflow[across]
        self.deposits_inflow.append(pages[across])

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

    def _move(self, pages: Int64s, grains: Int64s | int) -> None:
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
        self.some_gone = True
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
        names = [keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails, keys.series]
        names += [keys.sent, keys.seen]
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
            amounts += columns.increments(offsets, sums, edges)
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

        if self.defined is not None:  # A hash, like a bucket of records.
            names.append(keys.classes)
            short = msgpack.packb([(slot, one.name) for slot, one in self.defined.placed])
            measures.append(["definitions", self.defined.pack(), "names", short])

        outboxes: list[str | bytes] = []
        for to, transfer in self._transfers().items():
            names.append(keys.outbox(to))
            outboxes += (str(to), transfer.pack())

        before, after = self.before.flat(), self.books.flat()
        totals: list[str] = []
        for name in (after | before).keys() - {"version"}:  # The step counts that itself.
            if difference := after.get(name, 0) - before.get(name, 0):
                totals += (name, str(difference))
        calls = [part for name, time_us in self.calls.items() for part in (time_us, name)]
        rest = [outboxes, self.fetches, self.letters, self.entries, calls, self.books.time_us - FORGET_US]
        return names, msgpack.packb([self._advances, totals, amounts, states, measures, *rest], use_bin_type=False)

    def _transfers(self) -> dict[int, Transfer]:
        """Return what goes to other shards."""
        far, time_us = np.concatenate([*self.deposits_far, NO_NUMBERS]), self.books.time_us
        found = self.store.far.take(_distinct(far), time_us)
        if self.grants:
            for to in set(range(self.store.shards)) - {self.store.shard.number}:
                found[to] = replace(found.get(to, Transfer(time_us)), grant=self.grants)
        return found


def _by_event(pairs: Int64s, count: int) -> list[Int64s]:
    """Split increasing pairs of an event's place and a number into the numbers of each event."""
    numbers = pairs & ((1 << ID_BITS) - 1)
    edges = np.searchsorted(pairs >> ID_BITS, np.arange(count + 1)).tolist()
    return [numbers[a:b] for a, b in pairwise(edges)]


def _distinct(numbers: Int64s) -> Int64s:
    """Return each number >= 0 once, increasing: `np.unique`, which hashes, takes ten times as long."""
    ordered = np.sort(numbers)
    distinct: Int64s = ordered[np.diff(ordered, prepend=-1) != 0]
    return distinct


def _digest(links: Int64s) -> int:
    """See `opic.ledger.links_digest`: the same, of increasing ids."""
    if not len(links):
        return 0
    packed = links.astype("<i8", copy=False).tobytes()
    return int.from_bytes(blake2b(packed, digest_size=DIGEST_BYTES).digest(), "little") or 1
