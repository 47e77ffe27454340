"""How a batch of events changes the states and classes of pages: they become known, go away, come back, are forgotten.

The methods correspond to those of `opic.model.ledger` that do the same page by page. They change the books of the batch
and the pages that it holds as objects; all other pages that become known are counted, and get their states, together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opic.errors import BadInput
from opic.model.books import Books, pool_floor
from opic.model.cash import CLASS_BITS, FORGOTTEN, Flag, gone_until_us
from opic.model.classes import NO_ROOM, NO_WEIGHTS, ClassesChange, WeightClasses
from opic.replica.batch_page import Amounts, BatchPage
from opic.replica.page_lookup import Context, PageLookup

OPEN, GONE, KNOWN, TAGGED = map(int, (Flag.OPEN, Flag.GONE, Flag.KNOWN, Flag.TAGGED))


class StateChanges:
    """The changes of one batch."""

    def __init__(
        self,
        context: Context,
        named: PageLookup,
        books: Books,
        batch_pages: Mapping[int, BatchPage],
        moved: list[Amounts],
    ) -> None:
        """Start a batch.

        Args:
            context: of the batch.
            named: the pages that its events name.
            books: as of the event that is being decided.
            batch_pages: the pages that may change by more than deposits, by increasing id.
            moved: changes of v beside those by reads.
        """
        replica = context.replica
        self.classes, self._defined = replica.classes, False
        self._rules, self._named, self._books, self._held, self._moved = context.rules, named, books, batch_pages, moved
        self._shard, self._shards = replica.shard, context.shards
        self._before = {page.id: page.state for page in batch_pages.values()}
        self._gone: dict[int, BatchPage] = {}
        self._again: dict[int, str] = {}
        self._known = named.first  # The next page that becomes known.
        self._new_states = np.zeros(len(named.new_urls), np.uint8)
        # The held pages that become known, by the event that makes them known.
        self._new_held: dict[int, list[BatchPage]] = {}
        if news := [page for page in batch_pages if page >= named.first]:
            known_after = np.cumsum(named.new_by_event)
            events = np.searchsorted(known_after, np.array(news, np.int64) - named.first, side="right").tolist()
            for page, event in zip(news, events, strict=True):
                self._new_held.setdefault(event, []).append(batch_pages[page])

    def know(self, index: int, count: int) -> None:
        """Make the next `count` new pages known, by event `index`."""
        if not count:
            return
        first, self._known = self._known, self._known + count
        pages, start = range(first, first + count), first - self._named.first
        objects = [page for page in self._new_held.get(index, ()) if page.id in pages]
        if not self.classes:
            self._new_states[start : start + count] = KNOWN
            for page in objects:
                page.state = KNOWN
            self._admit(pages, 0, objects)
            return
        by_slot: dict[int, list[int]] = {}
        for number, url in zip(pages, self._named.new_urls[start : start + count], strict=True):
            slot = self.classes.slot_of(url)[0]
            self._new_states[number - self._named.first] = KNOWN | slot
            by_slot.setdefault(slot, []).append(number)
        for page in objects:
            page.state = int(self._new_states[page.id - self._named.first])
        for slot, numbers in by_slot.items():
            self._books.count(slot, known=len(numbers))
            self._admit(numbers, slot, [page for page in objects if page.slot == slot])

    def _admit(self, pages: Sequence[int], slot: int, objects: Sequence[BatchPage]) -> None:
        """Count pages as live. `objects` are the objects of those among them that have one."""
        books = self._books
        books.count(slot, live=len(pages))
        if not self._rules.continuous:
            books.pool -= books.credit_of(slot) * len(pages)
        elif books.credit:
            self._moved.append((np.array(pages, np.int64), np.full(len(pages), -books.credit)))
            for page in objects:
                page.v -= books.credit

    def go_away(self, page: BatchPage, at_us: int) -> None:
        """Note that a page is gone, as an event of this time says."""
        books = self._books
        books.departures += 1
        page.times_gone += 1
        page.gone_until_us = max(page.gone_until_us, gone_until_us(at_us, page.times_gone))
        self._gone[page.id] = page
        if page.state & GONE:
            return
        slot = page.slot
        cash = page.v + books.credit_of(slot)
        if page.state & OPEN:
            books.count(slot, opened=-1)
            books.open_cash -= cash
            books.misplace(0, page.spent if page.digest else 0)
        page.state = (page.state | GONE) & ~OPEN
        books.count(slot, live=-1)
        books.gone += 1
        if self._rules.continuous:
            books.pool += cash
            self._moved.append((np.array([page.id], np.int64), np.array([-page.v], np.int64)))
            page.v = 0
        else:
            books.pool += books.credit_of(slot)
        books.v_gone += page.v
        books.h_gone += page.spent

    def come_back(self, page: BatchPage) -> None:
        """Make a page live again if it is gone, or known again if it was forgotten."""
        if not page.state & GONE:
            return
        books = self._books
        if page.state & KNOWN:
            page.state &= ~GONE
            books.gone -= 1
            books.v_gone -= page.v
            books.h_gone -= page.spent
        else:
            self._again[page.id] = url = self._named.again[page.id]
            page.state = KNOWN | (self.classes.slot_of(url)[0] if self.classes else 0)
            books.count(page.slot, known=1)
        self._admit((page.id,), page.slot, (page,))

    def forget(self, page: BatchPage) -> None:
        self._books.forget(page.state, page.v, page.spent, drifts=page.digest != 0)
        page.state = FORGOTTEN

    # Classes of pages.

    def redefine(self, change: ClassesChange) -> None:
        """Define classes, in a crawl of one shard.

        Raises:
            BadInput: they are invalid.
        """
        if self._rules.continuous:
            raise BadInput(NO_WEIGHTS)
        classes = self.classes.redefined(change, self._books.known_by)
        if not self._books.reweigh(classes.extra()):
            raise BadInput(NO_ROOM)
        self.classes, self._defined = classes, True

    def set_classes(self, classes: WeightClasses) -> None:
        """Take classes that shard 0 decided for all shards."""
        self._books.reweigh(classes.extra(), surely=True)
        self.classes, self._defined = classes.taken_by(self._named.first), True

    def classify(self, page: BatchPage, url: str, tags: Sequence[str] = ()) -> None:
        """Put a page into the class of its URL and tags, if the pool can pay for it."""
        slot, tagged = self.classes.slot_of(url, tags)
        live, opened = not page.state & GONE, bool(page.state & OPEN)
        floor = pool_floor(self._rules.minted, self._shard, self._shards)
        if slot == page.slot or self._books.reclass(page.slot, slot, live=live, opened=opened, floor=floor):
            page.state = page.state & ~(CLASS_BITS | TAGGED) | slot | (TAGGED if tagged else 0)

    def effect_fields(self) -> dict[str, Any]:
        changed = [page for page in self._held.values() if page.state != self._before[page.id]]
        new, gone = np.arange(len(self._new_states)) + self._named.first, self._gone.values()
        return {
            "state_page": np.concatenate((new, np.array([page.id for page in changed], np.int64))).astype(np.uint32),
            "state": np.concatenate((self._new_states, np.array([page.state for page in changed], np.uint8))),
            "gone_page": np.array([page.id for page in gone], np.uint32),
            "gone_times": np.array([page.times_gone for page in gone], np.uint32),
            "gone_until_us": np.array([page.gone_until_us for page in gone], np.int64),
            "again": self._again,
            "classes": self.classes.pack() if self._defined else None,
        }
