"""The paper's graph, and a crawl of it by the paper's payout: what window policies are judged on.

Every page is known from the start, the crawl is greedy, a page at a time, and the virtual page pays what it holds at
once, equally to all. It is in whole grains, but what a read leaves over is dropped: a few parts of 10^6.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opic.model.windows import Past, estimate

GRANT = 1 << 21
MEASURES_MAX = 64  # Of a page: more than a window of 8 months holds of all but the busiest.
DAMPING_PERCENT = 85
CHANGES_A_MONTH = 100  # Links change so many times while N reads go by, a few each time.
Floats = NDArray[np.float64]
Links = list[set[int]]
Measures = list[list[tuple[int, int]]]


def make_links(pages: int, rng: np.random.Generator) -> Links:
    """Draw in-degrees by a power law, 1/k^2.1, and for each page so many others that link to it."""
    degrees = np.arange(1, pages // 2)
    chances = degrees**-2.1
    linked_by = rng.choice(degrees, pages, p=chances / chances.sum())
    links: Links = [set() for _ in range(pages)]
    for page, count in enumerate(linked_by.tolist()):
        for by in rng.choice(pages, count, replace=False).tolist():
            if by != page:
                links[by].add(page)
    return links


def pagerank(links: Links) -> Floats:
    """Return exact PageRank: damping 0.85, uniform teleport, dangling mass uniform."""
    pages = len(links)
    of = np.array([page for page in range(pages) for _ in links[page]])
    to = np.array([child for children in links for child in sorted(children)])
    out, rank = np.bincount(of, minlength=pages), np.full(pages, 1 / pages)
    for _ in range(200):
        paid = DAMPING_PERCENT / 100 * np.bincount(to, rank[of] / out[of], pages)
        rank = paid + (1 - paid.sum()) / pages
    return rank


def past_of(measures: Measures, cash: list[int], history: list[int], now: int) -> Past:
    """Put what was kept of each page, all of them live, into the form that policies read."""
    every = [measure for page in measures for measure in page]
    return Past(
        starts=np.cumsum([0, *map(len, measures)]),
        clock=np.array([clock for clock, _ in every]),
        spent=np.array([spent for _, spent in every]),
        cash=np.array(cash),
        history=np.array(history),
        live=np.ones(len(cash), np.bool_),
        now=now,
    )


@dataclass(frozen=True, slots=True)
class Crawl:
    """What a crawl left: the past, how far the clock moves in a month of N reads, and PageRank as it is at the end."""

    past: Past
    month: float
    exact: Floats


def crawl(pages: int, seed: int, reads_a_page: int = 40, change: float = 0.0) -> Crawl:
    """Crawl a graph of its own for each seed.

    Args:
        pages: N.
        seed: of the graph, and of what changes in it.
        reads_a_page: months, of N reads each.
        change: share of the links that change in a month: two at random change their targets. So importance drifts,
            and pages keep the numbers of their links, both ways.
    """
    rng = np.random.default_rng(seed)
    links = make_links(pages, rng)
    changed = _changing(links, rng)
    every = pages // CHANGES_A_MONTH
    links_at_once = change * sum(map(len, links)) / CHANGES_A_MONTH
    owed = 0.0
    v, credit, now, half = [GRANT] * pages, 0, 0, 0
    history, measures = [0] * pages, [deque[tuple[int, int]](maxlen=MEASURES_MAX) for _ in range(pages)]
    heap = [(-GRANT, page) for page in range(pages)]
    for read in range(reads_a_page * pages):
        if change and read % every == 0:
            owed += links_at_once
            while owed >= 2:
                changed()
                owed -= 2
        negative, page = heapq.heappop(heap)
        while -negative != v[page]:
            negative, page = heapq.heappop(heap)
        cash, children = v[page] + credit, links[page]
        now, half = now + cash, half if read >= reads_a_page * pages // 2 else now + cash
        history[page] += cash
        measures[page].append((now, cash))
        v[page] -= cash
        share = cash * DAMPING_PERCENT // (100 * len(children)) if children else 0
        for child in children:
            v[child] += share
            heapq.heappush(heap, (-v[child], child))
        credit += (cash - share * len(children)) // pages
        heapq.heappush(heap, (-v[page], page))
    month = (now - half) / (reads_a_page / 2)
    past = past_of([list(m) for m in measures], [c + credit for c in v], history, now)
    return Crawl(past, month, pagerank(links))


def _changing(links: Links, rng: np.random.Generator) -> Callable[[], None]:
    """Return what lets two links change their targets."""
    pairs = [(page, child) for page, children in enumerate(links) for child in sorted(children)]

    def changed() -> None:
        while True:
            one, other = (int(n) for n in rng.integers(len(pairs), size=2))
            (a, b), (c, d) = pairs[one], pairs[other]
            if a != d and c != b and d not in links[a] and b not in links[c]:
                break
        links[a].discard(b)
        links[c].discard(d)
        links[a].add(d)
        links[c].add(b)
        pairs[one], pairs[other] = (a, d), (c, b)

    return changed


def errors(found: Crawl, policy: str, months: int = 8, k: int = 8) -> tuple[float, float]:
    """Return the mean relative error in percent, of all pages and of the most important tenth."""
    relative = abs(estimate(policy, found.past, months * found.month, k) - found.exact) / found.exact
    top = np.argsort(-found.exact)[: len(found.exact) // 10]
    return 100 * float(relative.mean()), 100 * float(relative[top].mean())
