"""The bound of exact importance holds for the state that is told and for all later ones, before they are settled."""

from collections.abc import Mapping

import numpy as np
import pytest
from exact_readers import asked, shares
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from linked_web import Web
from plain_flow import exact, transitions
from servers import Server

from opic.model.cash import MILLION, Flag
from opic.model.classes import check_classes, encode_classes
from opic.model.events import Record

DAMPING = 0.85
URLS = [f"http://s{page % 7}.org/{page}" for page in range(16)]
PAGE = st.integers(0, len(URLS) - 1)
CLASSES = [
    {"name": "heavy", "weight": 5, "hosts": ["s1.org"]},
    {"name": "light", "weight": 0.1, "hosts": ["s2.org", "s3.org"]},
]
DEED = st.one_of(
    st.tuples(st.just("read"), PAGE, st.lists(PAGE, max_size=5)),
    st.tuples(st.just("read"), PAGE, st.lists(PAGE, max_size=5)),
    st.tuples(st.sampled_from(["gone", "fail", "forget", "seed", "again"]), PAGE, st.just([])),
    st.tuples(st.just("classes"), st.integers(0, 2), st.just([])),
    st.tuples(st.just("settle"), st.just(0), st.just([])),
    st.tuples(st.just("deliver"), st.just(0), st.lists(PAGE, min_size=1, max_size=5)),
)


@pytest.fixture(autouse=True)
def _settles_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opic.query.exact.LOOK_SECONDS", 3_600.0)
    monkeypatch.setattr("opic.query.exact.WAIT_SECONDS", 0.0)
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)


class Watched:
    """A crawl, whose links are as the pages showed them, and a query on it that settles when it is told to."""

    def __init__(self, server: Server, shards: int) -> None:
        self.web = Web(server, "web", shards)
        self.query = asked(self.web.crawl)
        assert self.query.exact is not None
        self.exact = self.query.exact

    def do(self, deed: str, page: int, links: list[int]) -> None:
        web, url, shown = self.web, URLS[page], [URLS[link] for link in links]
        if deed == "classes":
            value = encode_classes(check_classes(CLASSES[:page]))
            web.last = [Record(web.offset, web.at_us, value, "classes")]
            web.offset += 1
            web.again()
        elif deed == "forget":
            web.forget(url)
        elif deed == "seed":
            web.trust(url, 0.0)
        elif deed == "again":
            web.read(url, web.links.get(url, []))
        elif deed == "deliver":
            web.writer.deliver({link % len(web.crawl) for link in links})
        elif deed == "settle":
            self.exact.settled()
        else:
            web.read(url, shown, {"read": 200, "gone": 404, "fail": 500}[deed])

    def truth(self) -> dict[str, float]:
        """PageRank of the known graph, with the weights of classes in the random jump."""
        pages = {page.url: page for page in self.web.crawl.pages() if not page.has(Flag.GONE)}
        at = {url: number for number, url in enumerate(pages)}
        if not at:
            return {}
        crawl = self.web.crawl
        homes = [crawl.replicas[crawl.shard_of(url).number] for url in pages]  # New weights are under way to some.
        extra = [home.books.extra[page.slot] for home, page in zip(homes, pages.values(), strict=True)]
        weights = 1 + np.array(extra) / MILLION
        links = {
            at[url]: [at[link] for link in self.web.links.get(url, []) if link in at]
            for url, page in pages.items()
            if page.has(Flag.OPEN)
        }
        return dict(zip(at, exact(transitions(links, set(), len(at)), weights, DAMPING).tolist(), strict=True))

    def told(self) -> tuple[dict[str, float], float]:
        found = [page for page in self.query.importance(URLS, "exact") if page]
        (bound,) = {page["error_bound"] for page in found} or {2.0}
        assert isinstance(bound, float)
        return shares(found), bound


def distance(told: Mapping[str, float], truth: Mapping[str, float]) -> float:
    """The L1 distance of two distributions, at most 2."""
    found = sum(abs(told.get(url, 0.0) - truth.get(url, 0.0)) for url in told.keys() | truth.keys())
    return min(found, 2.0)  # It may be more by rounding.


def watch(server: Server, shards: int, deeds: list[tuple[str, int, list[int]]]) -> None:
    """Compare what is told after each deed with the state that it is of, and with all later ones."""
    server.reset()
    watched, truths = Watched(server, shards), list[dict[str, float]]()
    watched.do("read", 0, [1])
    watched.exact.view()
    watched.exact.start()
    try:
        for deed in [("settle", 0, []), *deeds]:
            watched.do(*deed)
            if deed[0] == "settle":
                truths.clear()
            truths.append(watched.truth())
            told, bound = watched.told()
            if deed[0] == "settle" and shards == 1:
                assert bound <= 0.01
            for truth in truths:
                assert distance(told, truth) <= bound
    finally:
        watched.exact.close()
        watched.web.crawl.client.close()


deeds_of = st.lists(DEED, min_size=5, max_size=30)


@examples(15)
@given(deeds=deeds_of, shards=st.sampled_from([1, 3]))
def test_bound_holds_before_changes_are_settled(
    valkey: Server, deeds: list[tuple[str, int, list[int]]], shards: int
) -> None:
    watch(valkey, shards, deeds)


@pytest.mark.slow
@examples(200)
@given(deeds=deeds_of, shards=st.sampled_from([1, 3]))
def test_bound_holds_before_changes_are_settled_in_many_examples(
    valkey: Server, deeds: list[tuple[str, int, list[int]]], shards: int
) -> None:
    watch(valkey, shards, deeds)
