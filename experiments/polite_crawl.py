"""A crawl in virtual time whose pages the service's hot order chooses, with leases, host delays and revisit times.

`opic.frontier.hot_order` and `opic.frontier.picking` take the time as an argument, so hours of a crawl take seconds.
`experiments.opic_engine` stands for the store: it moves cash as the service does. A chosen page is leased at once,
as by an endpoint that is alone, and each lease ends with an event. Each crawler asks for pages, fetches them one after
the other, and reports each; if it gets none, it asks again when the answer says so.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from experiments.opic_engine import Engine, EngineRules, PageLinks
from experiments.strategies import CUT
from opic.arrays import Float64s, Int64s
from opic.frontier.crawl_orders import NEVER, ByColumn, RankedPages
from opic.frontier.hot_order import HotOrder
from opic.frontier.next_answers import RETRY_SECONDS_DEFAULT, RETRY_SECONDS_MIN
from opic.frontier.page_keys import NOWHERE
from opic.frontier.picking import first_free, pick
from opic.frontier.scheduler import BATCH_SHARE
from opic.model.cash import MILLION, Flag

GRANTS: Final = EngineRules()
READ_FIRST: Final = 2.0**40  # Keys of pages never read are above this, keys of read ones below.


@dataclass(frozen=True, slots=True)
class CrawlTerms:
    """How a crawl goes on. Times are in seconds.

    n                   pages a crawler asks for at once
    crawlers            that fetch at the same time, each one page at a time
    fetch_seconds       mean time of a fetch; it varies evenly by FETCH_SPREAD of it
    host_delay_seconds  least time between two suggestions of one host
    revisit_seconds     least time from the read of a page to its next suggestion
    lease_seconds       how long a suggestion is a crawler's own
    """

    n: int
    crawlers: int = 8
    fetch_seconds: float = 1.0
    host_delay_seconds: float = 0.0
    revisit_seconds: float = 0.0
    lease_seconds: float = 300.0


FETCH_SPREAD: Final = 0.8


@dataclass(frozen=True, slots=True)
class Order:
    """An order of suggestions.

    discovery  factor on the cash of pages never read
    cut        whether a large batch ends at half of its best page's cash, as the service's does
    keys       returns other keys than the cash, all over 0, for known pages; None for the cash
    """

    discovery: float = 1.0
    cut: bool = False
    keys: Callable[["PoliteCrawl", Int64s], Float64s] | None = None


class CrawlColumns:
    """The pages of an engine, as a hot order reads them; see `opic.frontier.page_keys.OrderColumns`."""

    def __init__(self, engine: Engine, host: Int64s, revisit_seconds: float) -> None:
        """Take the host number of each page."""
        self._engine, self._revisit = engine, revisit_seconds
        self.host, self.hosts = host, int(host.max()) + 1
        self.state = np.zeros(len(engine), np.uint8)
        self.read_at = np.zeros(len(engine))  # When each page was last read; 0 if never.

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.state)

    @property
    def v(self) -> Int64s:
        """Cash minus credit."""
        return self._engine.columns.v

    def credits(self) -> Int64s:
        """Return the credit of each class, (8,): there is one class."""
        return np.full(8, self._engine.credit)

    def last_read_us(self, ids: Int64s) -> Int64s:
        """Return when pages were last read, in microseconds; 0 if never."""
        return (self.read_at[ids] * MILLION).astype(np.int64)

    def nearness(self, ids: Int64s) -> Int64s:
        """Return zeros: depths are not known."""
        return np.zeros(len(ids), np.int64)

    def within_depth(self, least: int) -> Int64s:
        """Return no page."""
        del least
        return np.zeros(0, np.int64)

    def ruled_out(self, ids: Int64s) -> None:
        """Return None: there are no rules."""
        del ids

    def host_full(self, ids: Int64s) -> None:
        """Return None: any number of pages of a host may be read."""
        del ids

    def given_up(self, ids: Int64s) -> None:
        """Return None: no fetch fails."""
        del ids

    def priority(self, ids: Int64s) -> None:
        """Return None: all pages have the same."""
        del ids

    def preferred(self) -> Int64s:
        """Return no page."""
        return np.zeros(0, np.int64)

    def not_before(self, ids: Int64s) -> None:
        """Return None: no page is held back."""
        del ids

    def revisit_at(self, ids: Int64s) -> Float64s | None:
        """Return when pages may be offered again after their last read; None if at any time."""
        if not self._revisit:
            return None
        return np.where(self.read_at[ids] > 0, self.read_at[ids] + self._revisit, 0.0)


class PoliteCrawl:
    """One crawl of a graph."""

    def __init__(
        self, links: PageLinks, host: Int64s, order: Order, terms: CrawlTerms, *, compiled: bool, seed: int = 3
    ) -> None:
        """Start without known pages.

        Args:
            links: of each page.
            host: (N,) the host number of each page.
            order: in which pages are suggested.
            terms: how the crawl goes on.
            compiled: as in `Engine`.
            seed: of the times of fetches, and of the random order.
        """
        self.engine, self.order, self.terms = Engine(links, GRANTS, compiled=compiled), order, terms
        self.columns = CrawlColumns(self.engine, host, terms.revisit_seconds)
        self.hot = HotOrder(self.columns, order.discovery, single=terms.host_delay_seconds > 0)
        self.rng = np.random.default_rng(seed)
        self.draw = self.rng.random(len(self.engine)) + 1e-9  # For the random order: drawn anew at each read.
        self.found = np.zeros(len(self.engine))  # For each known page, how many were known before.
        self.weights = 1 / (links.degrees + 1)
        self.now, self.done, self.answers, self.short, self.empty = 1.0, 0, 0, 0, 0
        self.last = -1  # The page that was read last.
        self._leased = self._ranked = 0
        self._read: list[int] = []  # Pages that were read since the last answer, which have yet to take effect.
        self._batches: list[deque[int]] = [deque() for _ in range(terms.crawlers)]
        self._coming = [(self.now, number) for number in range(terms.crawlers)]

    def know(self, pages: Int64s) -> None:
        """Make pages known: the seeds."""
        self.engine.know(pages)
        self.columns.state[pages] = Flag.KNOWN
        self.hot.changed(pages)
        self._rank()

    def run(self, reads: int) -> None:
        """Crawl until this number of reads has taken effect since the start."""
        while self.done < reads:
            self.now, crawler = heapq.heappop(self._coming)
            batch = self._batches[crawler]
            if batch:
                page = batch.popleft()
                self.columns.read_at[page], self.done = self.now, self.done + 1
                self.last = page
                self._read.append(page)
                self._leased -= 1
            if not batch:
                batch += self._ask()
                self._leased += len(batch)
            wait = self._fetch_seconds() if batch else self._retry_after()
            heapq.heappush(self._coming, (self.now + wait, crawler))
        self.take_effect()

    def _fetch_seconds(self) -> float:
        return self.terms.fetch_seconds * (1 + FETCH_SPREAD * (2 * self.rng.random() - 1))

    def take_effect(self) -> None:
        """Move the cash of the pages that were read, and tell the hot order."""
        if not self._read:
            return
        read, self._read = np.array(self._read), []
        self.engine.read(read)
        starts, targets = self.engine.links
        found = np.concatenate([targets[starts[page] : starts[page + 1]] for page in read.tolist()])
        self.columns.state[found] |= np.uint8(Flag.KNOWN)
        self.columns.state[read] |= np.uint8(Flag.OPEN)
        self.draw[read] = self.rng.random(len(read)) + 1e-9
        read = np.unique(read)
        self.hot.changed(np.unique(np.concatenate((read, found))))
        self.hot.note_reads(read, self.now)
        self.hot.release(read)
        self._rank()

    def _rank(self) -> None:
        known = self.engine.known
        self.found[known[self._ranked :]] = np.arange(self._ranked, len(known))
        self._ranked = len(known)

    def _ask(self) -> list[int]:
        """Return the pages of an answer, and lease them."""
        self.take_effect()
        n, keys = self.terms.n, self.order.keys
        if keys is None:
            picked = pick([self.hot], n, [self.now])
        else:
            every, known = np.arange(len(self.columns)), np.flatnonzero(self.columns.state)
            column = np.full(len(every), NOWHERE)
            column[known] = keys(self, known)
            read_us = np.where(self.columns.state & Flag.OPEN, self.columns.last_read_us(every), NEVER)
            by = ByColumn(RankedPages(column, read_us), self.columns)
            picked = pick([self.hot], n, [self.now], by=[by])
            self.hot.drop(by)
        self.answers += 1
        self.short += len(picked) < n
        self.empty += not len(picked)
        ids, hosts = picked.ids, picked.hosts
        if self.order.cut and len(ids) and (n + self._leased) * BATCH_SHARE > len(self.engine.known):
            few = picked.counts >= picked.counts[0] * CUT
            ids, hosts = ids[few], hosts[few]
        self.hot.hold(ids, np.full(len(ids), self.now + self.terms.lease_seconds))
        if self.terms.host_delay_seconds:
            self.hot.rest(hosts, np.full(len(hosts), self.now + self.terms.host_delay_seconds))
        pages: list[int] = ids.tolist()
        return pages

    def _retry_after(self) -> float:
        first = first_free([self.hot])
        return RETRY_SECONDS_DEFAULT if first is None else min(max(first, RETRY_SECONDS_MIN), RETRY_SECONDS_DEFAULT)


def by_draw(crawl: PoliteCrawl, ids: Int64s) -> Float64s:
    """Return the keys of the order Random: a number drawn at each read."""
    draws: Float64s = crawl.draw[ids]
    return draws


def by_age(crawl: PoliteCrawl, ids: Int64s) -> Float64s:
    """Return the keys of the order Cycle: pages never read, by discovery; then the others, by their last read."""
    read = (crawl.columns.state[ids] & Flag.OPEN) != 0
    return np.where(read, READ_FIRST - crawl.columns.read_at[ids], 2 * READ_FIRST - crawl.found[ids])


def by_cash_per_link(crawl: PoliteCrawl, ids: Int64s) -> Float64s:
    """Return the cash by the links of the last read and one more; for pages never read, by those of an average page."""
    read = crawl.columns.state == (Flag.KNOWN | Flag.OPEN)
    mean = float(crawl.weights[read].mean()) if read.any() else 1.0
    weights = np.where(read[ids], crawl.weights[ids], mean)
    keys: Float64s = np.maximum(np.abs(crawl.columns.v[ids] + crawl.engine.credit) * weights, 1e-9)
    return keys


ORDERS: Final = {
    "cash": Order(cut=True),
    "cash, not cut": Order(),
    "cash, never read times 3": Order(discovery=3.0, cut=True),
    "cash per link": Order(keys=by_cash_per_link),
    "cycle": Order(keys=by_age),
    "random": Order(keys=by_draw),
}
