"""OPIC in memory, for experiments on graphs of a hundred thousand pages and millions of reads.

The rules are those of `opic.model.ledger`, in whole grains, so that the same reads end in the same amounts
(tests/unit/experiments/test_opic_engine.py). What a crawl of a service adds is left out: URLs, classes of pages, pages
that go away, shards. One rule is added, for the paper's synthetic graphs: the virtual page as one more link of each
page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from opic.arrays import Float64s, Int64s
from opic.graph.crawled import LinkMatrix
from opic.graph.pagerank import ITERATIONS_MAX, NotConverged
from opic.model.cash import GRANT_GRAINS, MILLION, MINTED_CONTINUOUS, MINTED_GRAINS
from opic.model.windows import Past

ONE_MORE_LINK: Final = -1  # As `q`: a page with k links gives 1/(k + 1) of its cash to the virtual page.
KNOWN, READ = 1, 2  # Of `Columns.state`; 0 is a page not discovered yet.
CLOCK, POOL, CREDIT, LIVE, OPEN, OPEN_CASH, READS = range(7)  # Places in `Engine.books`.


@dataclass(frozen=True, slots=True)
class EngineRules:
    """How cash moves.

    q            share of the virtual page in parts of a million, or ONE_MORE_LINK
    continuous   the virtual page pays all it has after each read (the paper); otherwise by grants
    regrant_ppm  a further grant is this share of a grant, and due below this residual; 0 = never
    measures     measures kept of each page
    """

    q: int = 150_000
    continuous: bool = False
    regrant_ppm: int = 10_000
    measures: int = 0


PAPER_RULES: Final = EngineRules(q=ONE_MORE_LINK, continuous=True)


class PageLinks(NamedTuple):
    """Page i links to targets[starts[i]:starts[i + 1]]: distinct other pages."""

    starts: Int64s  # (N + 1,)
    targets: Int64s  # (links,)

    @classmethod
    def of(cls, links: LinkMatrix) -> "PageLinks":
        """Take the links of a matrix."""
        return cls(links.indptr.astype(np.int64), links.indices.astype(np.int64))

    @property
    def degrees(self) -> Int64s:
        """(N,) Number of links of each page."""
        return np.diff(self.starts)


class Columns(NamedTuple):
    """A value, or a row of values, per page. The cash of a known page is v plus the credit."""

    v: Int64s
    history: Int64s
    state: NDArray[np.int8]
    reads: Int64s
    clocks: Int64s  # (N, measures): the clock after the read number n is at n mod measures,
    spent: Int64s  # and the cash that it spent.
    found: Int64s  # The known pages, in order of discovery; the first LIVE entries count.


def _crawl(  # noqa: PLR0917 - numba compiles a function of arrays and numbers
    links: PageLinks,
    columns: Columns,
    books: Int64s,
    order: Int64s,
    count: int,
    q: int,
    continuous: bool,
    regrant_ppm: int,
) -> None:
    """Read `count` pages: those of `order`, or, if it is empty, always the one with the most cash."""
    v, history, state, reads, clocks, spent, found = columns
    greedy, kept = len(order) == 0, clocks.shape[1]
    heap = [(np.int64(0), np.int64(0)) for _ in range(0)]
    if greedy:
        heap = [(-v[page], page) for page in found[: books[LIVE]]]
        heapify(heap)
    for number in range(count):
        if greedy:
            worth, page = heappop(heap)
            while -worth != v[page]:
                worth, page = heappop(heap)
        else:
            page = order[number]
        cash = v[page] + books[CREDIT]
        start, end = links.starts[page], links.starts[page + 1]
        leaving = cash // (end - start + 1) if q < 0 else cash // MILLION * q + cash % MILLION * q // MILLION
        share = (cash - leaving) // (end - start) if end > start else 0
        books[OPEN_CASH] -= cash if state[page] == READ else 0
        books[OPEN] += 0 if state[page] == READ else 1
        state[page] = READ
        books[CLOCK] += cash
        books[READS] += 1
        history[page] += cash
        if kept:
            clocks[page, reads[page] % kept], spent[page, reads[page] % kept] = books[CLOCK], cash
        reads[page] += 1
        v[page] -= cash
        for child in links.targets[start:end]:
            if not state[child]:
                state[child], found[books[LIVE]] = KNOWN, child
                v[child] = -books[CREDIT] if continuous else 0
                books[POOL] -= 0 if continuous else books[CREDIT]
                books[LIVE] += 1
            v[child] += share
            books[OPEN_CASH] += share if state[child] == READ else 0
            if greedy:
                heappush(heap, (-v[child], child))
        if greedy:
            heappush(heap, (-v[page], page))
        books[POOL] += cash - share * (end - start)
        grant = np.int64(0)
        if continuous:
            grant = books[POOL] // books[LIVE]
        elif regrant_ppm and books[OPEN_CASH] * MILLION < regrant_ppm * GRANT_GRAINS * books[OPEN]:
            grant = np.int64(GRANT_GRAINS * regrant_ppm // MILLION)
        books[CREDIT] += grant
        books[POOL] -= grant * books[LIVE]
        books[OPEN_CASH] += grant * books[OPEN]


@cache
def _compiled() -> Callable[..., Any]:
    from numba import njit

    compiled: Callable[..., Any] = njit(cache=True)(_crawl)
    return compiled


class Engine:
    """A crawl of a graph."""

    def __init__(self, links: PageLinks, rules: EngineRules, *, compiled: bool = True) -> None:
        """Start with no page known.

        Args:
            links: of each page; may be replaced later by those of a graph that changed.
            rules: how cash moves.
            compiled: compile the loop over reads, which takes seconds, and then 100 times fewer for each read.
        """
        pages = len(links.starts) - 1
        self.links, self.rules = links, rules
        self._loop: Callable[..., Any] = _compiled() if compiled else _crawl
        self.columns = Columns(
            v=np.zeros(pages, np.int64),
            history=np.zeros(pages, np.int64),
            state=np.zeros(pages, np.int8),
            reads=np.zeros(pages, np.int64),
            clocks=np.zeros((pages, rules.measures), np.int64),
            spent=np.zeros((pages, rules.measures), np.int64),
            found=np.zeros(pages, np.int64),
        )
        self.books = np.zeros(READS + 1, np.int64)
        self.books[POOL] = MINTED_CONTINUOUS if rules.continuous else MINTED_GRAINS
        self.books[CREDIT] = 0 if rules.continuous else GRANT_GRAINS

    def __len__(self) -> int:
        """Count the pages of the graph."""
        return len(self.columns.v)

    def know(self, pages: Int64s) -> None:
        """Make pages known that were not: the seeds. Under the continuous payout the pool is paid out once after."""
        live = int(self.books[LIVE])
        self.columns.found[live : live + len(pages)] = pages
        self.columns.state[pages] = KNOWN
        self.books[LIVE] += len(pages)
        if self.rules.continuous:
            self.columns.v[pages] = -self.books[CREDIT]
            payout = self.books[POOL] // self.books[LIVE]
            self.books[CREDIT] += payout
            self.books[POOL] -= payout * self.books[LIVE]
        else:
            self.books[POOL] -= self.books[CREDIT] * len(pages)

    @property
    def known(self) -> Int64s:
        """The known pages, in order of discovery."""
        return self.columns.found[: self.books[LIVE]]

    @property
    def cash(self) -> Int64s:
        """(N,) Cash of each page, in grains; 0 for a page not discovered yet."""
        return np.where(self.columns.state > 0, self.columns.v + self.books[CREDIT], 0)

    @property
    def credit(self) -> int:
        """The sum of all grants to each page so far, in grains."""
        return int(self.books[CREDIT])

    @property
    def clock(self) -> int:
        """G, all cash spent by reads."""
        return int(self.books[CLOCK])

    def read(self, order: Int64s) -> None:
        """Read known pages in this order; each gives what it holds when it is read."""
        if len(order):
            self._crawl(order.astype(np.int64), len(order))

    def read_greedily(self, count: int) -> None:
        """Read the page with the most cash, so many times; of equal ones the first."""
        self._crawl(np.zeros(0, np.int64), count)

    def _crawl(self, order: Int64s, count: int) -> None:
        rules = self.rules
        self._loop(self.links, self.columns, self.books, order, count, rules.q, rules.continuous, rules.regrant_ppm)

    def estimate(self) -> Float64s:
        """(N,) Return (H + C)/(G + 1), where 1 stands for the cash of all pages."""
        received = self.columns.history + self.cash
        return received / max(int(received.sum()), 1)

    def history_estimate(self) -> Float64s:
        """(N,) Return H/G."""
        return self.columns.history / max(self.clock, 1)

    def past(self) -> Past:
        """Return what window policies read."""
        columns, kept = self.columns, max(self.rules.measures, 1)
        counts = np.minimum(columns.reads, self.rules.measures)
        starts = np.concatenate(([0], np.cumsum(counts)))
        page = np.repeat(np.arange(len(self)), counts)
        number = np.arange(int(starts[-1])) - starts[page] + (columns.reads - counts)[page]
        return Past(
            starts=starts,
            clock=columns.clocks[page, number % kept],
            spent=columns.spent[page, number % kept],
            cash=self.cash,
            history=columns.history.copy(),
            live=columns.state > 0,
            now=self.clock,
            all_at_once=self.rules.continuous,
        )


def fixed_point(links: PageLinks, rules: EngineRules, threshold: float = 1e-12) -> Float64s:
    """(N,) Return the importance that the estimates approach, all pages being known, by power iteration.

    Raises:
        NotConverged: the threshold is too small for float64.
    """
    importance = np.full(len(links.starts) - 1, 1 / (len(links.starts) - 1))
    step = off_line_step(links, rules)
    for _ in range(ITERATIONS_MAX):
        previous, importance = importance, step(importance)
        if np.abs(importance - previous).sum() < threshold:
            return importance
    raise NotConverged(f"the importance did not settle to {threshold:g} in {ITERATIONS_MAX:,} iterations: use more")


def off_line_step(links: PageLinks, rules: EngineRules) -> Callable[[Float64s], Float64s]:
    """Return one iteration of the off-line algorithm, x <- L x: cash of each page after all have been read at once."""
    pages = len(links.starts) - 1
    shares, _ = payment_shares(links, rules)
    shape = (pages, pages)
    backward = sparse.csr_array((np.ones(len(links.targets)), links.targets, links.starts), shape=shape).T.tocsr()

    def step(importance: Float64s) -> Float64s:
        paid: Float64s = backward @ (importance * shares)
        paid += (importance.sum() - paid.sum()) / pages
        return paid

    return step


def payment_shares(links: PageLinks, rules: EngineRules) -> tuple[Float64s, Float64s]:
    """(N,), (N,) Return the shares of a page's cash that each of its links and the virtual page get."""
    degrees = links.degrees.astype(np.float64)
    share = np.divide(1 - rules.q / MILLION, degrees, out=np.zeros(len(degrees)), where=degrees > 0)
    shares: Float64s = np.where(degrees > 0, 1 / (degrees + 1), 0.0) if rules.q < 0 else share
    return shares, 1 - shares * degrees
