"""The estimator by recorded pages: the same as FindGlobalPR, whatever interrupts it."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from experiments.algorithms.global_pagerank import find_global_pagerank
from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph, CrawledLinks
from opic.graph.page_selection import outlink_counts, pf_scores, sc_scores
from opic.local.crawl_pages import PageNumbers
from opic.local.estimator import Estimator, EstimatorOptions
from opic.local.fetcher import RecordedFetcher
from opic.local.journal import Journal
from opic.local.selection import check_selection, choose
from opic.model.events import CrawlEvent

DOMAIN, LOCAL_PAGES, PAGES = "a.example", 20, 150


def url_of(page: int) -> str:
    return f"http://{'a' if page < LOCAL_PAGES else f'h{page % 7}'}.example/{page}"


def web(seed: int) -> dict[str, CrawlEvent]:
    """A random web: pages with up to six links, some of them gone, some dangling."""
    choice = random.Random(seed)
    events = {}
    for page in range(PAGES):
        links = [url_of(int(PAGES * choice.random() ** 2)) for _ in range(choice.randrange(7))]
        gone = page >= LOCAL_PAGES and choice.random() < 0.1
        events[url_of(page)] = CrawlEvent(url_of(page), links=links, status=404 if gone else 200)
    return events


class Killed(BaseException):
    """Ends an estimator as a kill would, as far as one process can."""


class Flaky(RecordedFetcher):
    """Is killed before its `left`-th page, and takes pages in another order each time."""

    def __init__(self, events: Mapping[str, CrawlEvent], left: int, seed: int) -> None:
        super().__init__(events)
        self._left, self._choice = left, random.Random(seed)

    def fetch(self, urls: Sequence[str], took: Callable[[CrawlEvent], object], stopped: Callable[[], bool]) -> None:
        for url in self._choice.sample(urls, len(urls)):
            if not self._left:
                raise Killed
            self._left -= 1
            super().fetch([url], took, stopped)


def local(events: Mapping[str, CrawlEvent]) -> list[CrawlEvent]:
    return [event for url, event in events.items() if url.startswith(f"http://{DOMAIN}/")]


def ranked(estimator: Estimator) -> tuple[object, ...]:
    while not estimator.done and estimator.round():
        pass
    found = estimator.ranking()
    return found.urls, found.importance, found.outside_fetched, found.failed, found.frontier


def undisturbed(events: Mapping[str, CrawlEvent], options: EstimatorOptions) -> tuple[object, ...]:
    estimator = Estimator(DOMAIN, options, RecordedFetcher(events), Journal(DOMAIN))
    estimator.open(local(events), ())
    return ranked(estimator)


Score = Callable[[CrawledGraph, np.ndarray], np.ndarray]
SCORES: dict[str, Score] = {"sc": sc_scores, "pf": pf_scores, "outlinks": lambda graph, _: outlink_counts(graph)}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("seed", range(5))
def test_list_equals_that_of_find_global_pagerank(name: str, seed: int) -> None:
    events = web(seed)
    urls, importance, *_ = undisturbed(events, EstimatorOptions(40, name, 5))
    numbers = PageNumbers(DOMAIN)
    pages = [numbers.id_of(event.url) for event in local(events)]
    links = CrawledLinks(pages, [numbers.ids_of(event.links) for event in local(events)])

    def score(graph: CrawledGraph, ranks: np.ndarray) -> np.ndarray:
        outside = [not numbers.is_local(page) for page in graph.candidates.tolist()]
        return np.where(outside, SCORES[name](graph, ranks), -np.inf)

    def fetch(wanted: Sequence[int]) -> dict[int, np.ndarray]:
        there = {page: events[numbers.urls[page]] for page in wanted}
        return {page: numbers.ids_of(event.links) for page, event in there.items() if event.status == 200}

    *_, last = find_global_pagerank(links, fetch, score, iterations=8, count=5)
    expected = dict(zip([numbers.urls[page] for page in pages], last.estimate, strict=True))
    assert importance == pytest.approx([expected[url] for url in urls], abs=1e-12)
    assert sum(importance) == pytest.approx(1)
    assert importance == sorted(importance, reverse=True)


def test_rounds_whose_pages_all_failed_do_not_look_settled() -> None:
    events = web(3)
    for url, event in events.items():
        if not url.startswith(f"http://{DOMAIN}/") and sum(map(ord, url)) % 3:
            event.status, event.links = 500, []
    estimator = Estimator(DOMAIN, EstimatorOptions(20, "sc", 1), RecordedFetcher(events), Journal(DOMAIN))
    estimator.open(local(events), ())
    fetched = []
    while not estimator.done and estimator.round():
        fetched.append(estimator.outside_fetched)
    assert len(fetched) > len(set(fetched) - {0}) > 2  # Some rounds fetched nothing.
    assert [count for count, _ in estimator.ranking().changes] == sorted(set(fetched) - {0})


@pytest.mark.parametrize("select", ["sc", "random"])
@pytest.mark.parametrize("crawls_itself", [False, True])
def test_killed_estimator_ends_with_the_same_list(tmp_path: Path, select: str, crawls_itself: bool) -> None:
    events, options = web(7), EstimatorOptions(30, select, 7, local_max=15)
    crawl, seeds = (None, [url_of(0), url_of(3)]) if crawls_itself else (local(events), [])
    whole = Estimator(DOMAIN, options, RecordedFetcher(events), Journal(DOMAIN))
    whole.open(crawl, seeds)
    expected = ranked(whole)
    kills = 0
    while True:
        with Journal(DOMAIN, tmp_path) as journal:
            estimator = Estimator(DOMAIN, options, Flaky(events, 4, kills), journal)
            try:
                estimator.open(crawl, seeds)
                assert ranked(estimator) == expected
                break
            except Killed:
                kills += 1
    assert kills >= 30 // 4


def test_domain_without_pages_is_refused() -> None:
    estimator = Estimator("b.example", EstimatorOptions(), RecordedFetcher({}), Journal("b.example"))
    with pytest.raises(BadInput, match=r"no page of b\.example was fetched"):
        estimator.open(local(web(1)), ())
    with pytest.raises(BadInput, match=r"no page of b\.example was fetched"):
        estimator.open(None, ["http://b.example/"])


def test_domain_without_links_out_is_ranked_by_itself() -> None:
    events = {url: CrawlEvent(url, links=["http://a.example/2"]) for url in map(url_of, range(3))}
    urls, importance, fetched, failed, frontier = undisturbed(events, EstimatorOptions(10, "sc"))
    assert urls[0] == "http://a.example/2"
    assert sum(importance) == pytest.approx(1)
    assert (fetched, failed, frontier) == (0, 0, [])


def test_redirect_out_and_back_is_a_chain_of_links() -> None:
    out, back = "http://b.example/", "http://a.example/back"
    events = {
        "http://a.example/": CrawlEvent("http://a.example/", status=301, redirect=out),
        out: CrawlEvent(out, status=302, redirect=back),
        back: CrawlEvent(back, links=["http://a.example/"]),
        "http://a.example/other": CrawlEvent("http://a.example/other"),
    }
    urls, _, fetched, failed, frontier = undisturbed(events, EstimatorOptions(10, "sc"))
    assert urls[-1] == "http://a.example/other"
    assert (fetched, failed, frontier) == (1, 0, [])


def test_vanished_candidates_are_tried_once_and_count_as_fetches() -> None:
    gone = [f"http://b.example/{n}" for n in range(30)]
    events = {
        "http://a.example/": CrawlEvent("http://a.example/", links=gone),
        **{url: CrawlEvent(url, status=404) for url in gone},
    }
    *_, fetched, failed, frontier = undisturbed(events, EstimatorOptions(20, "sc", 3))
    assert (fetched, failed, len(frontier)) == (0, 20, 10)
    assert undisturbed(events, EstimatorOptions(100, "sc", 3))[2:] == (0, 30, [])


def test_last_event_of_a_page_counts() -> None:
    a, b = "http://a.example/", "http://a.example/b"
    estimator = Estimator(DOMAIN, EstimatorOptions(0), RecordedFetcher({}), Journal(DOMAIN))
    estimator.open([CrawlEvent(a), CrawlEvent(b), CrawlEvent(a, status=404), CrawlEvent(b, status=500)], ())
    assert estimator.ranking().urls == [b]


def test_pages_chosen_per_host_are_limited() -> None:
    links = CrawledLinks([0], [range(1, 30)])
    numbers = PageNumbers(DOMAIN)
    for page in range(30):
        numbers.id_of(f"http://{'trap' if page < 20 else page}.example/{page}")
    graph = links.graph()
    falling = -np.arange(29.0)
    chosen = choose(falling, graph, numbers, 5, 2)
    assert [numbers.urls[graph.candidates[column]] for column in chosen] == [
        "http://trap.example/1",
        "http://trap.example/2",
        "http://20.example/20",
        "http://21.example/21",
        "http://22.example/22",
    ]
    assert choose(np.full(29, -np.inf), graph, numbers, 5, None) == []


def test_unknown_selection_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="--select best: there are sc, pf, outlinks, random, combined"):
        check_selection("best")


@pytest.mark.slow
def test_frontier_of_a_million_pages_is_held_and_selected_from() -> None:
    def crawl() -> Iterator[CrawlEvent]:
        for page in range(1_000):
            links = [f"http://h{n % 977}.example/{n}" for n in range(page * 1_000, (page + 1) * 1_000)]
            yield CrawlEvent(f"http://a.example/{page}", links=[*links, f"http://a.example/{page // 2}"])

    began = time.monotonic()
    estimator = Estimator(DOMAIN, EstimatorOptions(20, "sc", 10), RecordedFetcher({}), Journal(DOMAIN))
    estimator.open(crawl(), ())
    assert estimator.round()
    assert estimator.round()
    found = estimator.ranking()
    assert (len(found.urls), found.failed, len(found.frontier)) == (1_000, 20, 10)
    assert time.monotonic() - began < 60
