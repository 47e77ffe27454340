"""The ledger: the specification of how cash moves, in plain Python.

It keeps every page in a dict and processes one record at a time. `opic.replica.batch` does the same in columns and
batches. Given the same log, both end in exactly the same state, however records are batched (tests/properties).

Cash moves as follows. Genesis mints M grains for the virtual page (`books.pool`). A page that becomes known receives
all that was granted so far (`credit`). A read takes a page's whole cash, gives the share d of it to its links in equal
parts and the rest to the virtual page. When the cash on read pages falls below a share of one grant for each of them,
every page is granted that share. A page that goes away returns its grants. After genesis, no grain is created or lost.

A page that is forgotten leaves nothing but its id, and its cash goes to the virtual page. A later event, seed or link
with its URL makes it known again, with all that was granted so far; other pages' kept links then lead to it again.
A link to a page that is not known, on a host with as many known pages as it may have, pays the virtual page instead.

Classes of pages may have weights: a page of a class with weight w receives w times each grant. If a page's weight falls
after it spent its grants, its cash is negative, and its next read takes back what it overpaid.

A page's depth is the least that was seen: an event may give its page's depth, and its links are one deeper than the
depth given, or than the depth known for the page if none is given. The last metadata, `not_before` and priority given
for a page, the status of its last event and the links that a read shows, from the first trusted seed on, are kept; its
failed fetches in a row, and its host's, are counted up to an event that reports anything else or a seed. With
normalization rules, a redirect to another name is no read, and `next` hands out the name that answered last.

With many shards, each has its own ledger. What a read pays to a page of another shard goes into an outbox and becomes a
record of the other's log. The shards' accounts with the virtual page add up to its cash. Shard 0 grants, counts rounds.

With the continuous payout (the paper's), the virtual page pays all it has to all live pages after every record. A page
that becomes known starts with nothing, and a page that goes away gives all its cash to the virtual page.
"""

from collections import Counter, deque
from collections.abc import Sequence

from opic.errors import BadInput, BadUrl
from opic.model.books import Books, BooksAudit, count_by, pool_floor
from opic.model.cash import (
    CLASS_BITS,
    DAY_US,
    FORGOTTEN,
    ROUND_BITS,
    CrawlRules,
    Flag,
    PageMeasure,
    gone_until_us,
    roll,
    split,
)
from opic.model.classes import NO_ROOM, NO_WEIGHTS, WeightClasses
from opic.model.event_checks import decode_events
from opic.model.events import CheckedEvent, EventLimits, Outcome, Record
from opic.model.host_failures import HostFailures, note_hosts
from opic.model.ledger_page import LedgerPage, note
from opic.model.page_notes import one_deeper
from opic.model.series import ENTRIES_MAX, Entry, entry_due
from opic.model.transfer import Deposit, Transfer, far_number, links_digest
from opic.model.trust import with_trust
from opic.urls.canonical import host_of, registered_domain, shard_of


class Ledger:
    """One shard in memory, with the store's interface."""

    def __init__(
        self, rules: CrawlRules | None = None, limits: EventLimits | None = None, shard: int = 0, shards: int = 1
    ) -> None:
        """Start with genesis, which is in shard 0."""
        self.rules = rules or CrawlRules()
        self.limits = (limits or EventLimits()).under(self.rules)
        self.books = Books.genesis(self.rules, shard)
        self.pages: dict[str, LedgerPage] = {}
        self.host_pages = Counter[str]()  # Known pages.
        self.host_failures: dict[str, HostFailures] = {}  # In a row.
        self.classes = WeightClasses()
        self.shard, self.shards = shard, shards
        self._minted = 0 if shard else self.rules.minted
        self.grants: dict[int, int] = dict.fromkeys(set(range(shards)) - {shard}, 0)  # On their way to other shards,
        self.outbox: dict[int, dict[str, Deposit]] = {to: {} for to in self.grants}  # and deposits.
        self.placed: list[WeightClasses] = []  # Classes that this shard sent to the others.
        self._seen: dict[bytes, int] = {}
        self.trust: dict[str, float] | None = None  # Weights of the trusted pages; None if no links are kept.
        self.series, self.round_counts = (deque[Entry](maxlen=ENTRIES_MAX) for _ in range(2))
        self._next_offset: dict[str, int] = {}

    def next_offset(self, partition: str) -> int:
        """Return the offset of the first record of the partition that has not taken effect."""
        return self._next_offset.get(partition, 0)

    def apply(self, partition: str, records: Sequence[Record]) -> None:
        """Apply records, each once. Records below `next_offset` are redeliveries and are skipped."""
        for record in records:
            if record.offset < self.next_offset(partition):
                continue
            for index, event in enumerate(decode_events(partition, record, self.limits)):
                if not self.series:
                    self.series.append(Entry(record.time_us, self.books.rounds, self.books.clock))
                if self._repeats(record.call_of(index), record.time_us):
                    self.books.repeats += 1
                else:
                    self._decide(event)
                    note_hosts(self.host_failures, event, record.time_us)
                self.books.time_us = record.time_us
                self.books.check(self._minted)
                if entry_due(self.series[-1], self.books):
                    self.series.append(Entry.of(self.books))
            self._next_offset[partition] = record.offset + 1

    def _repeats(self, call: bytes, time_us: int) -> bool:
        """Return whether the same call already took effect within a day of record time; otherwise remember it."""
        last = self._seen.get(call)
        if not call or (last is not None and time_us - last < DAY_US):
            return last is not None
        self._seen[call] = time_us
        return False

    def pop_transfer(self, to: int) -> Transfer:
        """Remove and return the transfer that waits for another shard: the next record of our partition there."""
        due, self.grants[to], deposits, self.outbox[to] = self.grants[to], 0, self.outbox[to], {}
        return Transfer.of(self.books.time_us, due, deposits)

    def cash(self, page: LedgerPage) -> int:
        """Return the page's cash in grains. It may be negative if the page's weight was cut or the page is gone."""
        return page.v + self._credit(page)

    def audit(self) -> BooksAudit:
        """Recount the books from the pages."""
        pages, books = [p for p in self.pages.values() if p.has(Flag.KNOWN)], self.books
        gone = [p for p in pages if p.has(Flag.GONE)]
        open_ = [p for p in pages if p.has(Flag.OPEN)]
        recount = {
            "clock": sum(p.spent for p in pages) + books.taken_back + books.h_forgotten,
            "live": len(pages) - len(gone),
            "gone": len(gone),
            "open": len(open_),
            "open_cash": sum(self.cash(p) for p in open_),
            "v_gone": sum(p.v for p in gone),
            "h_gone": sum(p.spent for p in gone),
            "known_by": count_by(p.slot for p in pages),
            "live_by": count_by(p.slot for p in pages if not p.has(Flag.GONE)),
            "open_by": count_by(p.slot for p in open_),
            "extra": self.classes.extra(),
        }
        wrong = tuple(f"{k} is {getattr(books, k)}, counted {n}" for k, n in recount.items() if getattr(books, k) != n)
        return BooksAudit(self._minted, sum(self.cash(p) for p in pages), books.pool, books.net, wrong)

    # One record.

    def _decide(self, event: CheckedEvent) -> None:
        books = self.books
        if event.outcome is Outcome.SEEDS:
            books.seeds += len(event.seeds)
            self.trust = with_trust(self.trust, event.trust, event.seeds)
            for url in event.seeds:
                page = self._know(url)
                self._come_back(page)
                page.state &= ~Flag.EXCLUDED
                note(page, event)
        elif event.outcome is Outcome.CLASSES:
            self._define(event)
        elif event.outcome is Outcome.CLASSIFY:
            for page in list(self.pages.values())[slice(*event.ids)]:
                if page.has(Flag.KNOWN) and not (page.has(Flag.TAGGED) and self.classes.has_tags(page.slot)):
                    self._classify(page)
        elif event.outcome is Outcome.FORGET:
            for url in event.seeds:
                self._forget(url, expires=event.expires)
        elif event.outcome is Outcome.DEAD:
            books.dead_letters += 1
        elif event.transfer is not None:
            self._receive(event.transfer)
        elif event.outcome is Outcome.GRANT:
            books.grant_all(event.grant)
            self.grants = {to: due + event.grant for to, due in self.grants.items()}
        elif event.count is not None:
            if books.take_count(event.count):
                self.round_counts.append(Entry(event.at_us, event.count.rounds, event.count.clock))
        else:
            page = self._know(event.url)
            note(page, event)
            if event.tags and self.classes:
                self._classify(page, event.tags)
            if event.outcome is Outcome.READ:
                self._read(page, event)
            elif event.outcome is Outcome.GONE:
                self._go_away(page, event.at_us)
            elif event.outcome is Outcome.EXCLUDED:
                page.state |= Flag.EXCLUDED
                books.exclusions += 1
            else:
                books.failures += 1  # Also a redirect to another name of the page.
        if self.shards == 1:
            books.grant_all(books.due(self.rules))

    def _read(self, page: LedgerPage, event: CheckedEvent) -> None:
        books = self.books
        self._come_back(page)
        children, far, refused = self._children(page, event)
        count = len(children) + len(far) + refused
        page.links = (*(child.url for child in children), *far) if self.trust is not None else None
        cash = self.cash(page)
        digest = links_digest([*(child.id for child in children), *map(far_number, far)])
        # A page with negative cash takes it back from its links; if these have changed, from the virtual page.
        gives = cash >= 0 or (page.has(Flag.OPEN) and digest == page.digest)
        share = split(cash, count if gives else 0, self.rules.q)
        if page.has(Flag.OPEN):
            if digest != page.digest:
                books.misplace(page.spent if digest else 0, page.spent if page.digest else 0)
            books.open_cash -= cash
        else:  # Its current links did not receive what it spent before it went away.
            books.misplace(page.spent if digest else 0, 0)
            books.count(page.slot, opened=1)
        page.state = (page.state | Flag.OPEN) & ~Flag.EXCLUDED
        page.digest = digest

        spent = max(cash, 0)
        books.clock += spent
        books.taken_back += spent - cash
        books.rounds += (spent << ROUND_BITS) // self.rules.round_grains(books.live)
        books.rounding += share.rounding
        books.pool += share.virtual
        books.reads += 1
        books.links += count
        page.v -= cash
        page.spent += cash
        page.reads += 1
        page.measures.append(PageMeasure(books.clock, spent, event.at_us))
        while len(page.measures) > self.rules.measures_max:
            page.measures.popleft()
        page.anchors = roll(page.anchors, books.clock, page.spent, self.rules)
        domain = registered_domain(host_of(page.url))
        nearness = one_deeper(event.nearness or page.nearness)
        for child in children:
            child.nearness = max(child.nearness, nearness)
            self._deposit(child, share.share, share.share * self._counts_as_inflow(domain, child.url))
        for url in far:
            self._send(url, share.share, share.share * self._counts_as_inflow(domain, url), event.at_us, nearness)
        books.refuse(share.share * refused, abs(share.share) * refused)

    def _counts_as_inflow(self, domain: str, url: str) -> bool:
        return self.rules.inflow and registered_domain(host_of(url)) != domain

    def _children(self, page: LedgerPage, event: CheckedEvent) -> tuple[list[LedgerPage], list[str], int]:
        """Return the distinct pages linked to, in order; the URLs of those in other shards; how many links are refused.

        A link makes a page known, unless its host has all the pages that it may, or brings it back in time.
        """
        children: dict[str, LedgerPage] = {}
        far, refused = dict[str, None](), set[str]()
        for link in event.links:
            try:
                url = self.limits.canonical(link)
            except BadUrl:
                self.books.bad_links += 1
                continue
            if url == page.url or url in children or url in refused:
                continue
            if shard_of(host_of(url), self.shards) != self.shard:
                far[url] = None
                continue
            if (child := self._linked(url)) is None:
                refused.add(url)
                continue
            children[url] = child
            if child.has(Flag.GONE) and event.at_us >= child.gone_until_us:
                self._come_back(child)
        return list(children.values()), list(far), len(refused)

    def _send(self, url: str, grains: int, inflow: int, at_us: int, nearness: int) -> None:
        self.books.net += grains
        deposit = self.outbox[shard_of(host_of(url), self.shards)].setdefault(url, Deposit())
        deposit.add(grains, inflow, at_us, nearness)

    def _receive(self, transfer: Transfer) -> None:
        """Process a transfer from another shard: classes, then grants, then deposits, which make pages known."""
        if transfer.classes:
            self._place(WeightClasses.unpack(transfer.classes))
        self.books.grant_all(transfer.grant)
        nearness = transfer.nearness.tolist() or [0] * len(transfer.urls)
        columns = (transfer.grains.tolist(), transfer.inflow.tolist(), transfer.at_us.tolist(), nearness)
        for url, grains, inflow, at_us, near in zip(transfer.urls, *columns, strict=True):
            self.books.net -= grains
            if (page := self._linked(url)) is None:
                self.books.refuse(grains, abs(grains))
                continue
            page.nearness = max(page.nearness, near)
            if page.has(Flag.GONE) and at_us >= page.gone_until_us:
                self._come_back(page)
            self._deposit(page, grains, inflow)

    def _deposit(self, page: LedgerPage, grains: int, inflow: int) -> None:
        """Add cash to a page. A gone page keeps what links send it and has it when it comes back."""
        page.v += grains
        if page.has(Flag.OPEN):
            self.books.open_cash += grains
        elif page.has(Flag.GONE):
            self.books.v_gone += grains
        page.inflow += inflow

    # Changes of a page's state: known, gone, back. With grants, `v` does not change; the page's credit does.

    def _credit(self, page: LedgerPage) -> int:
        return 0 if page.has(Flag.GONE) else self.books.credit_of(page.slot)

    def _linked(self, url: str) -> LedgerPage | None:
        """Return the page that a link leads to; None if its host has no room for one more known page."""
        page, most = self.pages.get(url), self.limits.host_pages_max
        known = page is not None and page.has(Flag.KNOWN)
        return None if most and not known and self.host_pages[host_of(url)] >= most else self._know(url)

    def _know(self, url: str) -> LedgerPage:
        page = self.pages.get(url)
        if page is None or not page.has(Flag.KNOWN):
            page = self.pages[url] = LedgerPage(url, id=len(self.pages) if page is None else page.id)
            page.state |= self.classes.slot_of(url)[0] if self.classes else 0
            self.books.count(page.slot, known=1)
            self.host_pages[host_of(url)] += 1
            self._admit(page)
        return page

    def _admit(self, page: LedgerPage) -> None:
        """Count a page as live. With grants, its cash includes all that was granted so far; otherwise it is `v`."""
        self.books.count(page.slot, live=1)
        if self.rules.continuous:
            page.v -= self.books.credit
        else:
            self.books.pool -= self.books.credit_of(page.slot)

    def _go_away(self, page: LedgerPage, at_us: int) -> None:
        books = self.books
        books.departures += 1
        page.times_gone += 1
        page.gone_until_us = max(page.gone_until_us, gone_until_us(at_us, page.times_gone))
        if page.has(Flag.GONE):
            return
        cash = self.cash(page)
        if page.has(Flag.OPEN):
            books.count(page.slot, opened=-1)
            books.open_cash -= cash
            books.misplace(0, page.spent if page.digest else 0)
        page.state, page.links = (page.state | Flag.GONE) & ~Flag.OPEN, None
        books.count(page.slot, live=-1)
        books.gone += 1
        if self.rules.continuous:
            books.pool += cash
            page.v = 0
        else:
            books.pool += books.credit_of(page.slot)
        books.v_gone += page.v
        books.h_gone += page.spent

    def _come_back(self, page: LedgerPage) -> None:
        if not page.has(Flag.GONE):
            return
        books = self.books
        page.state &= ~Flag.GONE
        books.gone -= 1
        books.v_gone -= page.v
        books.h_gone -= page.spent
        self._admit(page)

    def _forget(self, url: str, *, expires: bool) -> None:
        page = self.pages.get(url)
        if page is None or not page.has(Flag.KNOWN) or (expires and (page.stays or url in (self.trust or {}))):
            return
        self.books.forget(page.state, page.v, page.spent, drifts=page.digest != 0)
        self.pages[url] = LedgerPage(url, page.id, state=FORGOTTEN)
        self.host_pages[host_of(url)] -= 1
        if self.trust and url in self.trust:
            self.trust = with_trust(self.trust, 0.0, [url])

    # Classes. `v` does not change here either: the page's cash changes by the difference of the credits.

    def _define(self, event: CheckedEvent) -> None:
        """Apply new definitions. Weights apply at once; known pages change class when they are classified again."""
        if event.placed is not None:
            self.placed.append(event.placed)
            return self._place(event.placed)
        try:
            if self.rules.continuous:
                raise BadInput(NO_WEIGHTS)
            classes = self.classes.redefined(event.classes, self.books.known_by)
            if not self.books.reweigh(classes.extra()):
                raise BadInput(NO_ROOM)
            self.classes = classes
        except BadInput:
            self.books.dead_letters += 1
        return None

    def _place(self, classes: WeightClasses) -> None:
        """Apply classes that shard 0 decided for all shards."""
        self.books.reweigh(classes.extra(), surely=True)
        self.classes = classes.taken_by(len(self.pages))

    def _classify(self, page: LedgerPage, tags: Sequence[str] = ()) -> None:
        slot, tagged = self.classes.slot_of(page.url, tags)
        live, opened = not page.has(Flag.GONE), page.has(Flag.OPEN)
        floor = pool_floor(self.rules.minted, self.shard, self.shards)
        if slot == page.slot or self.books.reclass(page.slot, slot, live=live, opened=opened, floor=floor):
            page.state = page.state & ~(CLASS_BITS | Flag.TAGGED) | slot | (Flag.TAGGED if tagged else 0)
