"""Exact importance under hostile and broken input: the bound stays true, and memory and time stay what they should be.

PageRank is computed here from the links that were sent, with networkx or scipy.
"""

import time

import numpy as np
import pytest
from exact_readers import asked, error_and_bound, error_by_place, pagerank, truth
from linked_web import PAGES, Web
from logs import record
from servers import Server

from opic import arrays
from opic.ingest import Writer
from opic.model.events import EventLimits

FARM = 100_000
FARM_LINKS = 8
BATCH = 1_000
SETTLE_SECONDS_MAX = 20.0  # Of a second or two, on a busy machine.


def test_page_that_alternates_between_two_sets_of_links_takes_no_more_memory(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "GARBAGE_MIN", 500)
    web = Web(valkey, "alternates")
    sets = [[f"http://side{side}.org/{page}" for page in range(100)] for side in (0, 1)]
    for page in PAGES:
        web.read(page, [PAGES[0], *sets[0][:3], *sets[1][:3]])
    query, largest = asked(web.crawl), 0
    assert query.exact is not None
    for turn in range(100):
        web.read(PAGES[0], sets[turn % 2])
        if turn % 20 < 2:  # One set, and then the other.
            error, bound = error_and_bound(query, truth(web))
            assert error <= bound <= 0.01
        else:
            query.importance(PAGES[:1])
        largest = max(largest, query.exact.flows.kept.pool.used)
    assert largest <= 2 * 500 + 200
    assert query.exact.flows.kept.generation == 1  # Links were not read anew.


@pytest.mark.slow
def test_link_farm_keeps_the_bound_true(valkey: Server) -> None:
    """And to one page, which the rest of the web does not link to."""
    web, draw = Web(valkey, "farm"), np.random.default_rng(11)
    targets = draw.integers(0, FARM, (FARM, FARM_LINKS))
    targets[:, 0] = 0
    rows = [sorted(set(row) - {page}) for page, row in enumerate(targets.tolist())]
    for page in PAGES:
        web.read(page, [PAGES[0], PAGES[5]])
    farm = [f"http://farm.example/{page}" for page in range(FARM)]
    for first in range(0, FARM, BATCH):
        pages = range(first, first + BATCH)
        web.writer.apply("farm/0", [record(page, farm[page], [farm[to] for to in rows[page]]) for page in pages])
    query = asked(web.crawl)
    begun = time.monotonic()
    view = query.exact_view()
    assert time.monotonic() - begun < SETTLE_SECONDS_MAX
    ends = [(14 + page, 14 + to) for page, row in enumerate(rows) for to in row]
    ends += [(page, to) for page in range(14) for to in (0, 5) if to != page]
    sources, to = np.array(ends, np.int64).T
    expected = pagerank(sources, to, 14 + FARM).tolist()
    assert error_by_place(web.crawl, view, dict(zip([*PAGES, *farm], expected, strict=True))) <= view.bound <= 0.01
    assert query.top(1)[0]["url"] == farm[0]
    assert query.exact is not None
    assert query.exact.flows.kept.pool.used == len(ends)
    assert query.exact.flows.importance.visits.nbytes <= 8 * 2 * (14 + FARM)


@pytest.mark.slow
@pytest.mark.parametrize("links_max", [10_000, 100_000])
def test_page_with_very_many_links_keeps_the_bound_true(valkey: Server, links_max: int) -> None:
    """All of them where the limit allows; else the first ones, and the bound is that of these."""
    many = [f"http://t{page % 97}.org/{page}" for page in range(100_000)]
    web = Web(valkey, f"many-{links_max}")
    web.writer = Writer(web.crawl, EventLimits(links_max=links_max))
    web.read(PAGES[0], many)
    web.read(PAGES[1], [PAGES[0]])
    urls = [*PAGES[:2], *many[:links_max]]
    assert web.crawl.totals().live == len(urls)
    query = asked(web.crawl)

    def check(ends: list[tuple[int, int]]) -> None:
        sources, to = np.array(ends, np.int64).T
        expected = dict(zip(urls, pagerank(sources, to, len(urls)).tolist(), strict=True))
        view = query.exact_view()
        assert error_by_place(web.crawl, view, expected) <= view.bound <= 0.01

    check([(1, 0), *((0, 2 + page) for page in range(links_max))])
    web.read(PAGES[0], [PAGES[1]])  # All of these links are gone again.
    check([(1, 0), (0, 1)])


@pytest.mark.parametrize("shards", [1, 3])
def test_importance_is_zero_once_all_pages_are_gone(valkey: Server, shards: int) -> None:
    """And then one comes back."""
    web = Web(valkey, f"all-gone-{shards}", shards)
    for page, url in enumerate(PAGES):
        web.read(url, [PAGES[(page + 1) % 14], PAGES[(page + 5) % 14]])
    web.writer.drain()
    query = asked(web.crawl)
    query.exact_view()
    for url in PAGES:
        web.read(url, [], status=404)
    web.writer.drain()
    for reader in (query, asked(web.opened(shards))):
        found = reader.importance(PAGES, "exact")
        assert [(page["importance"], page["gone"], page["error_bound"]) for page in found if page] == [
            (0, True, 0)
        ] * 14
        assert reader.top(5, policy="exact") == []
        assert [host["importance"] for host in reader.sites("host", policy="exact")["hosts"]] == []
    web.read(PAGES[3], [PAGES[4]])  # Nothing is known of page 4 but that it was gone: it may be back.
    web.writer.drain()
    for reader in (query, asked(web.opened(shards))):
        expected = truth(web)
        assert PAGES[3] in expected
        error, bound = error_and_bound(reader, expected)
        assert error <= bound <= 0.01
