"""Where links are kept, a yield counts the links that the read before did not show, wherever they lead."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from linked_web import PAGES, Web
from same_state import assert_same_replica, small_blocks
from servers import Server

from opic.ingest import Writer
from opic.model.cash import DAY_US, MILLION
from opic.replica import Crawl

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

DAY_SECONDS = DAY_US / MILLION  # From each event to the next.


class PlainYields:
    """Links as last read, what each page has shown in all, and its yield."""

    def __init__(self) -> None:
        self.links, self.at = dict[str, set[str]](), dict[str, int]()
        self.seen, self.rate = dict[str, int](), dict[str, float]()

    def read(self, url: str, links: Sequence[str], at: int) -> None:
        before, self.links[url] = self.links.get(url), set(links) - {url}
        new = len(self.links[url] - before) if before is not None else 0
        self.seen[url] = self.seen[url] + new if self.seen.get(url) else len(self.links[url])
        self.rate[url] = new / ((at - self.at[url]) * DAY_SECONDS) if url in self.at else 0.0
        self.at[url] = at


def yields_of(crawl: Crawl) -> dict[str, tuple[int, float]]:
    found = {}
    crawl.follow()
    for url, place in zip(PAGES, crawl.ids_of(PAGES), strict=True):
        assert place is not None
        columns = crawl.replicas[place[0]].columns
        seen, rate = (columns.values_of(name, np.array([place[1]])) for name in ("seen", "rate"))
        found[url] = int(seen[0]), float(rate[0])
    return found


@pytest.mark.parametrize("shards", [1, 3, 16])
def test_yield_counts_links_that_the_read_before_did_not_show(valkey: Server, shards: int) -> None:
    draw, plain = random.Random(shards), PlainYields()
    with small_blocks():
        web = Web(valkey, f"yields-{shards}", shards)
        for url in PAGES:
            plain.read(url, [], web.offset)
            web.read(url, [])
        for step in range(150):
            url, links = draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 6))
            plain.read(url, links, web.offset)
            web.read(url, links)
            if step % 40 == 39:  # Another worker goes on.
                for writer in web.writer.stores:
                    writer.checkpoint()
                web.writer = Writer(web.opened(shards, keep_links=True))
        web.writer.drain()
        found = yields_of(web.crawl)
        assert {url: seen for url, (seen, _) in found.items()} == plain.seen
        assert [rate for _, rate in found.values()] == pytest.approx([plain.rate[url] for url in found], rel=1e-6)
        assert sum(rate > 0 for _, rate in found.values()) > 5
        again = web.opened(shards)
        again.follow()
        for one, other in zip(web.crawl.replicas, again.replicas, strict=True):
            assert_same_replica(one, other)


def test_first_read_after_links_are_kept_is_compared_with_no_earlier_one(valkey: Server) -> None:
    """The read before is not known, so pages that become known count, as without kept links."""
    web = Web(valkey, "began", keep_links=False)
    web.read(PAGES[0], PAGES[1:3])
    web.writer = Writer(web.opened(keep_links=True))
    web.read(PAGES[0], [*PAGES[2:5]])
    assert found_rate(web) == np.float32(2 / DAY_SECONDS)  # Two pages became known.
    web.read(PAGES[0], [PAGES[1], *PAGES[2:5]])
    assert found_rate(web) == np.float32(1 / DAY_SECONDS)  # One link is new, to a page known before.


def test_read_after_links_are_no_longer_kept_ignores_links_from_before(valkey: Server) -> None:
    """One writer ends the keeping of links and begins it again: a read before that counts no more."""
    web = Web(valkey, "ended")
    (store,) = web.writer.stores
    web.read(PAGES[1], PAGES[2:6])
    web.read(PAGES[0], [PAGES[1]])
    web.read(PAGES[0], [PAGES[2]])  # The writer now holds what pages showed.
    store.keep_links = False
    web.read(PAGES[6], [])
    store.keep_links = True
    web.read(PAGES[0], PAGES[3:5])
    assert found_rate(web) == 0  # No page became known.
    web.read(PAGES[0], PAGES[3:6])
    assert found_rate(web) == np.float32(1 / DAY_SECONDS)


def found_rate(web: Web) -> np.float32:
    (replica,) = web.crawl.follow()
    (place,) = web.crawl.ids_of([PAGES[0]])
    assert place is not None
    return np.float32(replica.columns.values_of("rate", np.array([place[1]]))[0])


def test_page_that_returns_shows_no_new_links_in_its_next_read(valkey: Server) -> None:
    web = Web(valkey, "away")
    web.read(PAGES[1], PAGES[2:6])
    web.read(PAGES[0], PAGES[1:3])
    web.read(PAGES[0], [], status=404)
    web.read(PAGES[0], PAGES[3:5])
    assert found_rate(web) == 0
