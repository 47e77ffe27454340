"""Links to pages that a full host of another shard refuses: none for exact importance, on any number of shards."""

import random

import pytest
from exact_readers import asked
from linked_web import Web
from servers import Server

from opic.ingest import Writer
from opic.model.events import EventLimits
from opic.query.queries import Query
from opic.query.verification import verified

LIMITED = EventLimits(host_pages_max=3)
HUBS = [f"http://hub{number}.org/" for number in range(12)]
TRAP = [f"http://trap.org/{number}" for number in range(40)]


def limited(server: Server, name: str, shards: int) -> Web:
    web = Web(server, name, shards)
    web.writer = Writer(web.crawl, LIMITED)
    return web


def error_and_bound(query: Query) -> tuple[float, float]:
    """As `opic verify` finds them, from the stored links."""
    found = verified(query)
    assert isinstance(found["error"], float)
    assert isinstance(found["error_bound"], float)
    return found["error"], found["error_bound"]


@pytest.mark.parametrize("shards", [1, 4])
def test_refused_links_leave_the_bound_as_small_as_without_them(valkey: Server, shards: int) -> None:
    web, draw = limited(valkey, f"refused-{shards}", shards), random.Random(shards)
    following = asked(web.crawl)
    for number, hub in enumerate(HUBS):
        web.read(hub, [HUBS[number - 1], HUBS[number - 5], *draw.sample(TRAP, 12)])
        if number % 4 == 3:
            web.writer.drain()
            for query in (following, asked(web.opened(shards))):
                error, bound = error_and_bound(query)
                assert error <= bound <= 0.01
    assert following.policy == "exact"
    assert following.exact is not None
    assert not following.exact.flows.kept.pool.unknown


def test_refused_link_counts_once_its_page_is_known(valkey: Server) -> None:
    web = limited(valkey, "refused-later", 4)
    following = asked(web.crawl)
    for number, hub in enumerate(HUBS):
        web.read(hub, [HUBS[number - 1], *TRAP[:8]])
    web.writer.drain()
    assert error_and_bound(following)[1] <= 0.01
    assert following.importance([TRAP[7]]) == [None]
    web.trust(TRAP[7])  # Who names a page wants it.
    web.writer.drain()
    error, bound = error_and_bound(following)
    assert error <= bound <= 0.01
    late, first = following.importance([TRAP[7], TRAP[0]])
    assert late is not None
    assert first is not None
    assert late["importance"] == pytest.approx(first["importance"], rel=0.2)


def test_link_on_its_way_between_shards_widens_the_bound_until_it_arrives(valkey: Server) -> None:
    web = limited(valkey, "refused-coming", 4)
    following = asked(web.crawl, 1e-6)
    for number, hub in enumerate(HUBS):
        web.read(hub, [HUBS[number - 1]])
    web.writer.drain()
    assert error_and_bound(following)[1] <= 1e-6
    for turn in range(3):
        web.read(HUBS[turn], [HUBS[turn - 1], *TRAP[4 * turn : 4 * turn + 4]])
        error, bound = error_and_bound(following)
        assert error <= bound
        if web.crawl.shard_of(HUBS[turn]).number != web.crawl.shard_of(TRAP[0]).number:
            assert bound > 0.05
        web.writer.drain()
        error, bound = error_and_bound(following)
        assert error <= bound <= 1e-6
