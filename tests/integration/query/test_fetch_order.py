"""Where links are kept, pages are suggested by exact importance: as a plain sort by the plain formula has them."""

import gc
import random
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from frontiers import AT_ONCE, until
from linked_web import PAGES, Web
from ordered_web import MANY, Ordered
from processes import wait_until
from servers import Server
from serving import serving

from opic.frontier import Frontier, PolitenessSettings, page_sources
from opic.frontier.key_blocks import KeyBlocks
from opic.ingest.shard_writer import ShardWriter
from opic.model.cash import Flag
from opic.query.exact import Exact
from opic.query.fetch_order import FetchOrder, FetchView
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.urls.canonical import host_of

NEAR = 1e-6  # The order is settled to a bound of 2e-9.
WAIT_SECONDS = 20.0


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("delay", [0.0, 300.0])
def test_order_equals_a_plain_sort_whatever_crawlers_do(
    valkey: Server, shards: int, delay: float, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases and host delays hold; a large batch ends at half of its best page's key."""
    if long:  # As with very many pages, most of them on hosts that rest.
        for name in ("BLOCKS_FIRST", "BLOCKS_WIDE"):
            monkeypatch.setattr(page_sources, name, 1)
    draw = random.Random(f"{shards} {delay} {long}")
    web = Ordered(valkey, f"plain-{shards}-{delay}", shards, politeness=PolitenessSettings(delay))
    web.seed(MANY[:12])
    leased, resting = dict[str, str](), set[str]()
    for step in range(36):
        deed = draw.random()
        if deed < 0.45:
            url = draw.choice(MANY)
            web.read(url, draw.sample(MANY, draw.randint(0, 6)))
            leased.pop(url, None)
        elif deed < 0.5 and leased:
            url = draw.choice(sorted(leased))
            web.read(url, [], 500)  # By the clock of the log that was weeks ago: it waits no longer.
            leased.pop(url)
        elif deed < 0.55 and leased:
            url = draw.choice(sorted(leased))
            assert web.frontier.release([leased.pop(url)]).released == 1
        else:
            mode, n = draw.choice(["discover", "discover", "refresh"]), draw.randint(1, 5)
            keys = web.keys(mode)
            cash = web.cash(sorted(keys))
            keys = {url: keys[url] for url in keys if cash[url] and url not in leased and host_of(url) not in resting}
            live = sum(not page.has(Flag.GONE) for page in web.crawl.pages())
            cut = mode == "discover" and 10 * (n + len(leased)) > live
            answer = web.next(n, mode=mode)
            assert answer.order == "exact"
            least = max(keys.values(), default=0.0) / 2 if cut else 0.0
            for page in answer.pages:
                url = page.url
                assert keys[url] >= (1 - NEAR) * max(keys.values()), (step, mode)
                assert keys[url] >= (1 - NEAR) * least
                leased[url] = page.lease
                if delay:
                    resting.add(host_of(url))
                keys = {other: key for other, key in keys.items() if other != url and host_of(other) not in resting}
            assert len(answer.pages) == n or max(keys.values(), default=0.0) <= (1 + NEAR) * least


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_pages_that_change_more_often_are_read_again_first_also_after_a_restart(valkey: Server, shards: int) -> None:
    """One page shows other links at each read, others never do; all were read at the same times."""
    web = Ordered(valkey, f"changes-{shards}", shards)
    for nth in range(4):
        for page in MANY[:12]:
            web.read(page, MANY[20 + nth : 23 + nth] if page == MANY[7] else MANY[20:23])
    assert web.first_again(web.frontier) == MANY[7]
    for shard in web.crawl.shards:
        ShardWriter(shard, journal_bytes=1).checkpoint()  # It trims the journal.
    pages = Crawl.open(valkey.client(), web.name)
    again = Frontier(pages, AT_ONCE, worth=FetchOrder(PageFlows(KeptLinks(pages)), bound=2e-9))
    assert web.first_again(again) == MANY[7]
    found = [replica.columns.values_of("changes", np.arange(len(replica))).sum() for replica in pages.follow()]
    assert sum(found) == 3


@pytest.mark.parametrize("trust", [None, 2.0])
def test_seed_share_of_the_teleport_is_on_the_seeds_or_the_trusted_pages(valkey: Server, trust: float | None) -> None:
    """One page is linked from many, another from the seed."""
    first = []
    for share in (0.0, 0.2, 1.0):
        web = Ordered(valkey, f"share-{share}-{trust}", seed_share=share)
        web.seed(PAGES[:1], 0 if trust is None else None, trust)
        web.read(PAGES[0], [PAGES[1]])
        for page in PAGES[4:12]:
            web.read(page, [PAGES[2]])
        first.append(web.urls(1, mode="discover"))
    assert first == [[PAGES[2]], [PAGES[2]], [PAGES[1]]]


def test_mode_any_gives_half_unread_pages_by_default(valkey: Server) -> None:
    for share, expected in ((None, [False, False, True, True]), (0.75, [False, False, False, True])):
        web = Ordered(valkey, f"half-{share}", share=share)
        for page in MANY[:30]:
            web.read(page, draw_links(page))
        pages = web.next(4).pages
        assert [page.fetched_before for page in pages] == expected
    web = Ordered(valkey, "one-by-one")
    for page in MANY[:30]:
        web.read(page, draw_links(page))
    assert sorted(web.next(1).pages[0].fetched_before for _ in range(4)) == [False, False, True, True]


def draw_links(page: str) -> list[str]:
    return random.Random(page).sample(MANY, 5)


def test_pages_of_one_kind_fill_the_answer_where_the_other_has_run_out(valkey: Server) -> None:
    web = Ordered(valkey, "fill")
    web.seed(MANY[:50])
    assert len(web.urls(4)) == 4  # No page was read.
    web = Ordered(valkey, "fill-read")
    for page in PAGES * 2:
        web.read(page, [other for other in PAGES if other != page][:3])
    cash = {url for url, cash in web.cash(PAGES).items() if cash}
    assert set(web.urls(14)) == cash  # All were.


def test_domain_and_depth_are_respected(valkey: Server) -> None:
    web = Ordered(valkey, "within")
    web.seed(MANY[:6])
    for page in MANY[:6]:
        web.read(page, MANY[6:30])
    within = web.urls(30, domain="h3.org", mode="discover")
    assert within
    assert {host_of(url) for url in within} == {"h3.org"}
    web.seed(MANY[40:42])
    assert set(web.urls(30, max_depth=0, mode="discover")) == set(MANY[40:42])


def test_pages_come_by_cash_until_the_order_is_known_then_new_pages_come_last(valkey: Server) -> None:
    """A thread computes the order; it is stopped here, so that the order stays as it was."""
    web = Ordered(valkey, "beside")
    for page in MANY[:10]:
        web.read(page, MANY[10:30])
    exact = Exact(web.flows)
    exact.start(web.order)
    answer = web.next(1, mode="discover")
    web.frontier.release([page.lease for page in answer.pages])
    assert answer.order == "cash"
    assert answer.pages

    def by_importance() -> bool:
        found = web.next(1, mode="discover")
        web.frontier.release([page.lease for page in found.pages])
        return bool(found.order == "exact")

    until(by_importance)
    exact.close()
    web.read(MANY[0], MANY[10:40])  # Ten pages become known, and the reads of this page and the next are the latest.
    web.read(MANY[12], [])
    found = list[str]()
    while (answer := web.next(10, mode="discover")).pages:
        assert answer.order == "exact"
        found += [page.url for page in answer.pages]
    assert set(found[:19]) == set(MANY[10:30]) - {MANY[12]}
    assert set(found[19:]) == set(MANY[30:40])
    again = web.urls(30, mode="refresh")
    assert again
    assert not {MANY[0], MANY[12]} & set(again)  # They come with the next order.


@pytest.mark.parametrize("some", [MANY[5:6], MANY[4:10]], ids=["one", "all that were never read"])
@pytest.mark.parametrize("used", [True, False], ids=["an order in use", "an order not used yet"])
def test_pages_that_come_back_are_suggested_before_the_next_order(
    valkey: Server, some: list[str], *, used: bool
) -> None:
    """Those forgotten, and those gone, when the order was computed, which a thread does; it is stopped here."""
    web = Ordered(valkey, f"back-{len(some)}-{used}")
    for page in MANY[:4]:
        web.read(page, MANY[4:10])
    web.read(MANY[1], [], 404)
    web.forget(MANY[0], *some)
    exact = Exact(web.flows)
    exact.start(web.order)
    until(lambda: web.frontier.peek(1).order == "exact")
    exact.close()
    came_back = {MANY[0], MANY[1], *some}
    web.seed(sorted(came_back))
    if not used:
        web.frontier.peek(1)  # With the order that is in use.
        web.order.listeners[-1](web.order._view)
    found = web.urls(20, mode="discover")
    assert set(found) == {*MANY[4:10], *came_back}
    assert set(found[-len(came_back) :]) == came_back


def test_frontier_of_a_crawl_without_links_is_ordered_by_cash_without_a_note(valkey: Server) -> None:
    plain = Web(valkey, "no-links", keep_links=False)
    for page in PAGES[:6]:
        plain.read(page, PAGES[6:9])
    crawl = Crawl.open(valkey.client(), plain.name)
    frontier = Frontier(crawl, AT_ONCE, worth=FetchOrder(PageFlows(KeptLinks(crawl))))
    by_cash = Frontier(plain.crawl, AT_ONCE).peek(14)
    assert frontier.peek(14).pages == by_cash.pages
    assert frontier.next(3).order is None


def test_pages_read_before_links_were_kept_leave_the_order_to_cash(valkey: Server) -> None:
    web = Ordered(valkey, "before")
    web.writer = type(web.writer)(Crawl.open(valkey.client(), web.name))
    web.writer.crawl.shards[0].keep_links = False
    for page in PAGES[:8]:
        web.read(page, [PAGES[9]])
    web.writer = type(web.writer)(web.opened(keep_links=True))
    web.read(PAGES[8], [PAGES[9]])
    assert web.next(1).order == "cash"


def test_explain_gives_the_rank_among_pages_of_the_same_kind(valkey: Server) -> None:
    web = Ordered(valkey, "place")
    web.read(PAGES[0], [PAGES[1], PAGES[2]])
    web.read(PAGES[3], [PAGES[2]])
    places = {}
    for url in PAGES[1:3]:
        found = web.frontier.explain(url)
        assert found is not None
        places[url] = found.place
    assert places == {PAGES[2]: 1, PAGES[1]: 2}
    assert web.urls(2, mode="discover")[0] == PAGES[2]


def test_former_orders_leave_no_memory_behind(valkey: Server) -> None:
    """An order has two entries for each page, and an index some more: soon gigabytes, of a large crawl."""
    web, views = Ordered(valkey, "former"), list[FetchView | None]()
    exact = Exact(web.flows)
    exact.start(web.order)
    gc.disable()  # It would find the circle of an index and its pages some time, but not soon.
    try:
        before = _indexes()
        for number in range(4):
            web.read(PAGES[number], [PAGES[number + 1]])

            def is_new() -> bool:
                web.pages.follow()
                view = web.order.recent()
                return view is not None and all(view is not other for other in views)

            until(is_new)
            for _ in range(2):
                assert web.next(1).order == "exact"
                assert web.frontier.explain(PAGES[0]) is not None
            views.append(web.order.recent())
        assert len(_indexes() - before) == 1
        web.frontier.set_host_politeness({})
        assert web.next(1).order == "exact"
        assert len(_indexes() - before) == 1
    finally:
        gc.enable()
        exact.close()


def _indexes() -> set[KeyBlocks]:
    return {one for one in gc.get_objects() if isinstance(one, KeyBlocks)}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, "greedy"])
def test_service_suggests_by_importance_where_it_keeps_links(tmp_path: Path, strategy: str | None) -> None:
    settings = Settings.load(data=tmp_path / "data", keep_links=True, strategy=strategy, host_delay_seconds=0.0)
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=30) as http,
    ):
        events = [{"url": page, "links": MANY[20:40]} for page in MANY[:20]]
        assert http.post("/v1/events", json=events).status_code == 202
        wait_until(lambda: http.get("/v1/stats").json()["read_pages"] == 20, WAIT_SECONDS)

        def ordered_by() -> Any:
            return http.post("/v1/next", json={"n": 1, "mode": "discover"}).json().get("order")

        if strategy == "greedy":
            assert ordered_by() is None
        else:
            wait_until(lambda: ordered_by() == "exact", WAIT_SECONDS)
