"""How wrong window policies are on the paper's graph: levels and order, under the paper's payout and under grants."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from paper_graph import MEASURES_MAX, Crawl, crawl, errors, make_links, pagerank, past_of

from opic.model.cash import CrawlRules
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger import Ledger
from opic.model.windows import Past

pytestmark = pytest.mark.slow

PAGES = 1_000
GRANT = 1 << 21
READS_A_PAGE = 40
SEED = 1
NOW_US = 1_790_000_000_000_000


@cache
def crawled_as_in_the_paper() -> Crawl:
    return crawl(PAGES, SEED, READS_A_PAGE)


@cache
def crawled_under_grants() -> Crawl:
    """The ledger with its further grants, greedy in batches of a hundredth; and the month as in the paper's."""
    links = [sorted(children) for children in make_links(PAGES, np.random.default_rng(SEED))]
    ledger, urls = Ledger(CrawlRules(measures_max=MEASURES_MAX)), [f"http://h{i}.example/" for i in range(PAGES)]
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
    return Crawl(
        past, (ledger.books.clock - half) / (READS_A_PAGE / 2), pagerank([set(children) for children in links])
    )


def test_errors_of_policies_on_the_papers_graph_have_the_known_levels_and_order() -> None:
    found = crawled_as_in_the_paper()
    interpolation, top_interpolation = errors(found, "interpolation")
    variable, top_variable = errors(found, "variable")
    improved, _ = errors(found, "improved", 4)
    fixed_8, top_fixed_8 = errors(found, "fixed")
    fixed_4, _ = errors(found, "fixed", 4)
    _, top_static = errors(found, "static")
    assert interpolation < 2.5
    assert variable < 2.5
    assert abs(interpolation - variable) < 1
    assert 2 * max(interpolation, variable) < improved < 7
    assert improved < fixed_8 < fixed_4 < 20
    assert top_static < top_interpolation < top_fixed_8 < top_variable < 6


def test_four_measures_serve_interpolation_as_well_as_all() -> None:
    found = crawled_as_in_the_paper()
    past = found.past
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
    assert errors(Crawl(few, found.month, found.exact), "interpolation")[0] < 1.25 * errors(found, "interpolation")[0]


def test_under_grants_all_history_is_best_and_windows_are_noisy() -> None:
    """The clock all but stops once the grant has drained: a window is then a glance at small further grants."""
    found = crawled_under_grants()
    static, _ = errors(found, "static")
    assert static < 1
    assert found.month < 0.1 * GRANT * PAGES
    for policy in ("interpolation", "variable", "improved", "fixed"):
        assert errors(found, policy)[0] > 3 * static
    # Eight rounds hold most of the clock there ever was. Interpolation says so, and counts all.
    rounds = replace(found, month=GRANT * PAGES)
    assert errors(rounds, "interpolation") == errors(rounds, "static")
