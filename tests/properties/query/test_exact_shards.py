"""Whatever a crawl on sixteen shards reads, exact importance is PageRank as networkx computes it, within its bound."""

import pytest
from exact_readers import asked, error_and_bound, shares, truth
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_web import Web
from servers import Server

from opic.ingest import Writer
from opic.model.events import EventLimits
from opic.query.verification import verified
from opic.urls.canonical import host_of, shard_of

pytestmark = pytest.mark.slow

SHARDS = 16
URLS = [f"http://s{page % 24}.org/{page}" for page in range(36)]
PAGE = st.integers(0, len(URLS) - 1)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), PAGE, st.lists(PAGE, max_size=6)),
        st.tuples(st.sampled_from(["redirect", "trust"]), PAGE, st.lists(PAGE, min_size=1, max_size=1)),
        st.tuples(st.sampled_from(["gone", "fail", "forget", "look"]), PAGE, st.just([])),
        st.tuples(st.just("deliver"), st.just(0), st.lists(st.integers(0, SHARDS - 1), min_size=1, max_size=SHARDS)),
    ),
    min_size=5,
    max_size=30,
)


def test_hosts_of_this_test_are_in_most_shards() -> None:
    assert len({shard_of(host_of(url), SHARDS) for url in URLS}) > SHARDS / 2


@settings(max_examples=25)
@given(deeds=DEEDS, bound=st.sampled_from([0.1, 0.01, 0.001]), host_pages_max=st.sampled_from([0, 0, 1]))
def test_bound_holds_for_readers_that_follow_and_for_new_ones(
    valkey: Server, deeds: list[tuple[str, int, list[int]]], bound: float, host_pages_max: int
) -> None:
    """Also while deposits are on their way between shards, and where links to full hosts are refused."""
    valkey.reset()
    web = Web(valkey, "web", SHARDS)
    web.writer = Writer(web.crawl, EventLimits(host_pages_max=host_pages_max))
    following = asked(web.crawl, bound)
    for deed, page, links in [*deeds, ("look", 0, [])]:
        url, shown = URLS[page], [URLS[link] for link in links]
        if deed == "trust":
            web.trust(url)
        elif deed == "forget":
            web.forget(url)
        elif deed == "deliver":
            web.writer.deliver(set(links))
        elif deed != "look":
            web.read(url, shown, {"read": 200, "redirect": 301, "gone": 404, "fail": 500}[deed])
        if web.offset and (deed == "deliver" or host_pages_max):
            found = verified(following)  # Links of a shard's own pages that were refused are not stored.
            assert found["error"] <= found["error_bound"]  # type: ignore[operator]
        if web.offset and deed == "look":
            web.writer.drain()
            if host_pages_max:
                assert verified(following)["error_bound"] <= bound  # type: ignore[operator]
                continue
            expected = truth(web)
            for query in (following, asked(web.opened(SHARDS), bound)):
                error, told = error_and_bound(query, expected)
                assert error <= told <= bound
                assert not expected or told > 0
                assert not expected or sum(shares(query.importance(list(expected))).values()) == pytest.approx(1.0)
