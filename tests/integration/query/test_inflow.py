"""What comes to a domain from outside is what the model counted, page after page."""

import random

import pytest
from logs import PARTITION, record
from servers import Server

from opic.errors import BadInput, NotKept
from opic.ingest import Writer
from opic.model.cash import Flag
from opic.model.events import Record
from opic.model.ledger import Ledger
from opic.query.inflow import inflow
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.urls.canonical import host_of, registered_domain

pytestmark = pytest.mark.slow

DOMAINS = ("a.example", "b.example", "www.a.example", "a.example.net", "shop.co.uk", "x.shop.co.uk", "nota.example")
PAGES = [f"http://{host}/{i}" for i in range(6) for host in DOMAINS]


def wide_log(count: int) -> list[Record]:
    """Reads of pages of some domains at random; some have no links, some go away."""
    rng, log = random.Random(7), []
    for offset in range(count):
        links = rng.sample(PAGES, rng.choice([0, 3, 6]))
        log.append(record(offset, rng.choice(PAGES[:30]), links, status=rng.choice([200] * 9 + [404])))
    return log


def opened(server: Server, log: list[Record], shards: int = 1, *, kept: bool = True) -> Query:
    crawl = Crawl.open(server.client(), "default", {"inflow": kept, "shards": shards})
    writer = Writer(crawl)
    writer.apply(PARTITION, log)
    while writer.deliver():
        pass
    return Query(crawl, Snapshots(crawl))


def test_inflow_and_masses_equal_those_of_the_model(servers: Server) -> None:
    log = wide_log(150)
    query, ledger = opened(servers, log), Ledger()
    ledger.apply(PARTITION, log)
    total = ledger.books.importance_total(ledger.rules.minted)
    live = [page for page in ledger.pages.values() if not page.has(Flag.GONE)]
    assert len(live) < len(ledger.pages)
    seen = 0.0
    for domain in ("a.example", "b.example", "shop.co.uk", "example.net"):
        inside = [page for page in live if registered_domain(host_of(page.url)) == domain]
        outside = [page for page in live if page not in inside]
        found = inflow(query, domain)
        assert found["pages"] == [{"url": page.url, "inflow": page.inflow / total} for page in inside]
        assert "next" not in found
        assert found["known_pages"] == ledger.books.live
        unread = [page for page in outside if not page.has(Flag.OPEN)]
        dangling = [page for page in outside if page.has(Flag.OPEN) and not page.digest]
        assert unread
        assert dangling
        for name, pages in (("outside_mass", outside), ("unread_mass", unread), ("dangling_mass", dangling)):
            assert found[name] == sum(page.spent + ledger.cash(page) for page in pages) / total
        seen += sum(page.inflow for page in inside)
    assert seen > 0


@pytest.mark.parametrize("shards", [1, 3])
def test_pages_come_in_parts_each_once_while_more_become_known(valkey: Server, shards: int) -> None:
    query = opened(valkey, wide_log(100), shards)
    whole = [page["url"] for page in inflow(query, "a.example")["pages"]]  # type: ignore[attr-defined]
    writer, parts, after = Writer(query.crawl), [], None
    while True:
        found = inflow(query, "a.example", after, 2)
        parts += [page["url"] for page in found["pages"]]  # type: ignore[attr-defined]
        if (after := found.get("next")) is None:  # type: ignore[assignment]
            break
        offset = query.crawl.totals().reads + 100
        writer.apply(PARTITION, [record(offset, f"http://new{offset}.b.example/", [f"http://new{offset}.net/"])])
    assert parts == whole
    assert len(whole) > 5


def test_a_part_of_a_domain_or_a_page_elsewhere_is_refused(valkey: Server) -> None:
    query = opened(valkey, wide_log(50))
    for domain in ("www.a.example", "x.shop.co.uk"):
        with pytest.raises(BadInput, match="per registered domain: ask for"):
            inflow(query, domain)
    for after in ("http://b.example/0", "http://never.a.example/"):
        with pytest.raises(BadInput, match="after is not a page of this domain"):
            inflow(query, "a.example", after)
    assert inflow(query, "unknown.example")["pages"] == []


def test_in_flow_of_a_host_is_bounded_and_exact_while_its_domain_has_sent_nothing(valkey: Server) -> None:
    a, www, b = "http://a.example/", "http://www.a.example/", "http://b.example/"
    query = opened(valkey, [record(0, b, [a, www, f"{a}1"]), record(1, a, [f"{a}1", b])])
    pages = {page["url"]: page for page in inflow(query, host="A.example")["pages"]}  # type: ignore[attr-defined]
    assert list(pages) == [a, f"{a}1"]
    assert all(page["inflow"] == page["inflow_max"] > 0 for page in pages.values())
    (found,) = inflow(query, host="www.a.example")["pages"]  # type: ignore[misc]
    assert found["inflow"] == found["inflow_max"] == pages[a]["inflow"]  # All that it received came from b.
    Writer(query.crawl).apply(PARTITION, [record(2, www, [a])])
    after = {page["url"]: page for page in inflow(query, host="a.example")["pages"]}  # type: ignore[attr-defined]
    for url, gained in ((a, True), (f"{a}1", True)):
        assert (after[url]["inflow"] < after[url]["inflow_max"]) == gained
    assert inflow(query, host="none.example")["pages"] == []


@pytest.mark.parametrize("shards", [1, 3])
def test_bounds_of_a_host_contain_a_count_by_host(valkey: Server, shards: int) -> None:
    log = wide_log(150)
    query, ledger = opened(valkey, log, shards), Ledger()
    ledger.apply(PARTITION, log)
    for host in DOMAINS:
        found = inflow(query, host=host)["pages"]
        assert {page["url"] for page in found} == {  # type: ignore[attr-defined]
            url for url, page in ledger.pages.items() if host_of(url) == host and not page.has(Flag.GONE)
        }
        for page in found:  # type: ignore[attr-defined]
            assert 0 <= page["inflow"] <= page["inflow_max"] <= 1


def test_stated_error_falls_as_the_crawl_goes_on(valkey: Server) -> None:
    web = [(f"http://{name}.example/", f"http://{other}.example/") for name, other in ("ab", "bc", "ca")]
    query = opened(valkey, [record(at, *one) for at, one in enumerate((page, [link]) for page, link in web)])
    writer, errors = Writer(query.crawl), []
    for offset in range(3, 90):
        page, link = web[offset % 3]
        writer.apply(PARTITION, [record(offset, page, [link])])
        errors.append(inflow(query, "a.example").get("error_bound"))
    assert errors[-1] is not None
    assert 0 < errors[-1] < 0.2


def test_window_and_other_sets_of_pages_are_refused(valkey: Server) -> None:
    query = opened(valkey, wide_log(5))
    assert inflow(query, "a.example", policy="static")["policy"] == "static"
    for asked in ({"policy": "interpolation"}, {"window": "8"}, {"policy": "static", "window": "8"}):
        with pytest.raises(BadInput, match="in-flow has no window"):
            inflow(query, "a.example", **asked)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"with host=www\.a\.example; where links are kept \(not OPIC_KEEP_LINKS=off\)"):
        inflow(query, "www.a.example")
    for both in ({}, {"domain": "a.example", "host": "a.example"}):
        with pytest.raises(BadInput, match="give one of domain, host and prefix"):
            inflow(query, **both)


def test_store_without_the_column_says_so(valkey: Server) -> None:
    with pytest.raises(NotKept, match="OPIC_INFLOW=off"):
        inflow(opened(valkey, wide_log(5), kept=False), "a.example")
