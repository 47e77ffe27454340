"""How wrong window policies are on the paper's graph: levels and order, under the paper's payout and under grants."""

import heapq
from collections import deque
from functools import cache

import numpy as np
import pytest

from opic.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.ledger import Ledger, Rules
from opic.windows import Past, estimate

pytestmark = pytest.mark.slow

PAGES = 1_000
GRANT = 1 << 21
MEASURES_MAX = 64
READS_A_PAGE = 40
NOW_US = 1_790_000_000_000_000
Measures = list[list[tuple[int, int]]]


@cache
def graph() -> tuple[list[list[int]], "np.ndarray"]:
    """In-degrees by a power law, 1/k^2.1, from pages at random; and its exact PageRank."""
    rng = np.random.default_rng(1)
    degrees = np.arange(1, PAGES // 2)
    chances = degrees**-2.1
    linked_by = rng.choice(degrees, PAGES, p=chances / chances.sum())
    links: list[set[int]] = [set() for _ in range(PAGES)]
    for page, count in enumerate(linked_by.tolist()):
        for by in rng.choice(PAGES, count, replace=False).tolist():
            if by != page:
                links[by].add(page)
    of = np.array([page for page in range(PAGES) for _ in links[page]])
    to = np.array([child for page in range(PAGES) for child in links[page]])
    out, rank = np.bincount(of, minlength=PAGES), np.full(PAGES, 1 / PAGES)
    for _ in range(200):
        paid = 0.85 * np.bincount(to, rank[of] / out[of], PAGES)
        rank = paid + (1 - paid.sum()) / PAGES
    return [sorted(children) for children in links], rank


def past_of(measures: Measures, cash: list[int], history: list[int], now: int) -> Past:
    every = [measure for page in measures for measure in page]
    return Past(
        starts=np.cumsum([0, *map(len, measures)]),
        clock=np.array([clock for clock, _ in every]),
        spent=np.array([cash_ for _, cash_ in every]),
        cash=np.array(cash),
        history=np.array(history),
        live=np.ones(PAGES, np.bool_),
        now=now,
    )


@cache
def crawled_as_in_the_paper() -> tuple[Past, float]:
    """Greedy, all pages known, the virtual page paying at once; and how far the clock moves in a month of N reads.

    The ledger does not pay so. Here it is in whole grains, but what a read leaves over is dropped: a few parts of 10^6.
    """
    links, _ = graph()
    v, credit, now, half = [GRANT] * PAGES, 0, 0, 0
    history, measures = [0] * PAGES, [deque[tuple[int, int]](maxlen=MEASURES_MAX) for _ in range(PAGES)]
    heap = [(-GRANT, page) for page in range(PAGES)]
    for read in range(READS_A_PAGE * PAGES):
        negative, page = heapq.heappop(heap)
        while -negative != v[page]:
            negative, page = heapq.heappop(heap)
        cash = v[page] + credit
        now, half = now + cash, half if read >= READS_A_PAGE * PAGES // 2 else now + cash
        history[page] += cash
        measures[page].append((now, cash))
        v[page] -= cash
        share = cash * 85 // (100 * len(links[page])) if links[page] else 0
        for child in links[page]:
            v[child] += share
        credit += (cash - share * len(links[page])) // PAGES
        for child in (page, *links[page]):
            heapq.heappush(heap, (-v[child], child))
    month = (now - half) / (READS_A_PAGE / 2)
    return past_of([list(m) for m in measures], [c + credit for c in v], history, now), month


@cache
def crawled_under_grants() -> tuple[Past, float]:
    """The ledger with its further grants, greedy in batches of a hundredth; and the month as above."""
    links, _ = graph()
    ledger, urls = Ledger(Rules(measures_max=MEASURES_MAX)), [f"http://h{i}.example/" for i in range(PAGES)]
    values = [
        encode_crawl_event(CrawlEvent(url=url, links=[urls[i] for i in children]))
        for url, children in zip(urls, links, strict=True)
    ]
    ledger.apply("p", [Record(0, NOW_US, encode_seeds(urls), kind="seeds")])
    pages, offset, half = [ledger.pages[url] for url in urls], 0, 0
    for batch in range(100 * READS_A_PAGE):
        half = ledger.books.clock if batch == 50 * READS_A_PAGE else half
        for page in np.argsort([-page.v for page in pages], kind="stable")[: PAGES // 100].tolist():
            offset += 1
            ledger.apply("p", [Record(offset, NOW_US + offset, values[page])])
    measures = [[(m.clock, m.cash) for m in page.measures] for page in pages]
    past = past_of(measures, [ledger.cash(p) for p in pages], [p.spent for p in pages], ledger.books.clock)
    return past, (ledger.books.clock - half) / (READS_A_PAGE / 2)


def errors(past: Past, month: float, policy: str, months: int = 8, k: int = 8) -> tuple[float, float]:
    """Mean relative error in percent, of all pages and of the most important tenth."""
    _, exact = graph()
    relative = abs(estimate(policy, past, months * month, k) - exact) / exact
    return 100 * float(relative.mean()), 100 * float(relative[np.argsort(-exact)[: PAGES // 10]].mean())


def test_levels_and_order_are_those_known_of_the_paper_s_graph() -> None:
    past, month = crawled_as_in_the_paper()
    interpolation, top_interpolation = errors(past, month, "interpolation")
    variable, top_variable = errors(past, month, "variable")
    improved, _ = errors(past, month, "improved", 4)
    fixed_8, top_fixed_8 = errors(past, month, "fixed")
    fixed_4, _ = errors(past, month, "fixed", 4)
    _, top_static = errors(past, month, "static")
    assert interpolation < 2.5
    assert variable < 2.5
    assert abs(interpolation - variable) < 1
    assert 2 * max(interpolation, variable) < improved < 7
    assert improved < fixed_8 < fixed_4 < 20
    assert top_static < top_interpolation < top_fixed_8 < top_variable < 6


def test_four_measures_serve_interpolation_as_well_as_all() -> None:
    past, month = crawled_as_in_the_paper()
    at = np.concatenate([np.arange(max(a, b - 4), b) for a, b in zip(past.starts, past.starts[1:], strict=False)])
    counts = np.minimum(np.diff(past.starts), 4)
    few = Past(
        np.concatenate(([0], np.cumsum(counts))),
        past.clock[at],
        past.spent[at],
        past.cash,
        past.history,
        past.live,
        past.now,
    )
    assert errors(few, month, "interpolation")[0] < 1.25 * errors(past, month, "interpolation")[0]


def test_under_grants_all_history_is_best_and_windows_are_noisy() -> None:
    """The clock all but stops once the grant has drained: a window is then a glance at small further grants."""
    past, month = crawled_under_grants()
    static, _ = errors(past, month, "static")
    assert static < 1
    assert month < 0.1 * GRANT * PAGES
    for policy in ("interpolation", "variable", "improved", "fixed"):
        assert errors(past, month, policy)[0] > 3 * static
    # Eight rounds hold most of the clock there ever was. Interpolation says so, and counts all.
    assert errors(past, GRANT * PAGES, "interpolation") == errors(past, GRANT * PAGES, "static")
