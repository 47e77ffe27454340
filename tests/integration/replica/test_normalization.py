"""A crawl with normalization rules: every process knows a page by the same URL, and no other rules are taken later."""

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import httpx
import pytest
from logs import PARTITION, record
from processes import wait_until
from repository import ROOT
from servers import Server
from serving import serving_embedded
from website import linking, redirect, website
from written import written

from opic.client import Client
from opic.errors import StoreMismatch
from opic.ingest import Writer
from opic.model.classes import check_classes
from opic.ops.backup import backup
from opic.ops.doctor import run_checks
from opic.ops.replay import Plan, replay
from opic.ops.restore import restore
from opic.replica import Crawl
from opic.service.service import EmbeddedService, feeding
from opic.settings import Settings
from opic.store import Shard

RULES = "index,https,www,tracking"
PAGE, LINKED = "https://a.example/", "https://b.example/x"
WRITTEN = "http://www.a.example/index.html?utm_source=mail"
SECRET = "pa55w0rd-of-a-url"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Client]]:
    directory = tmp_path_factory.mktemp("normalized")
    with serving_embedded(directory, normalize=RULES, host_delay_seconds=0) as clients:
        clients[1].seed([WRITTEN], meta={"job": "news"})
        clients[1].event(
            "HTTP://www.A.example/", links=["http://www.b.example/x?gclid=1", "http://b.example/x", WRITTEN]
        )
        while clients[1].stats().lag:
            pass
        yield clients


def test_page_has_one_url_wherever_it_is_named(service: tuple[httpx.Client, Client]) -> None:
    http, client = service
    assert {page["url"] for page in http.get("/v1/top").json()["pages"]} == {PAGE, LINKED}
    for url in (PAGE, WRITTEN, "http://a.example/"):
        assert (client.importance(url).url, client.importance(url).reads) == (PAGE, 1)
        assert client.history(url).url == client.explain(url).url == PAGE
    assert [page.url for page in client.importances([WRITTEN, "http://www.c.example/"]).pages] == [
        PAGE,
        "https://c.example/",
    ]
    assert client.inlinks("http://www.b.example/x").inlinks == [PAGE]
    (page,) = client.next(5, domain="b.example").pages
    assert page.url == LINKED
    assert client.audit().conserved


def test_classes_apply_to_normalized_urls(service: tuple[httpx.Client, Client]) -> None:
    http, client = service
    body = {"classes": [{"name": "home", "weight": 2.0, "urls": [WRITTEN]}]}
    assert http.put("/v1/classes", json=body).json()["classes"][0]["known_pages"] == 1
    client.define_classes([])


def test_prefix_of_urls_is_not_normalized_at_its_end(service: tuple[httpx.Client, Client]) -> None:
    _, client = service
    client.seed(["http://www.p.example/index.htmlx", "http://p.example/other"])
    assert client.forget(prefix="http://www.p.example/index.html").forgotten == 1
    assert client.forget(url="http://www.p.example/other?utm_x=1").forgotten == 1


def test_form_of_a_url_is_shown(service: tuple[httpx.Client, Client]) -> None:
    http, client = service
    found = client.canonical(WRITTEN + "#top")
    assert (found.url, found.plain) == (PAGE, WRITTEN)
    assert (found.rules, found.applied) == (["www", "https", "tracking", "index"],) * 2
    assert client.canonical("https://c.example/?a").applied == []
    assert http.get("/v1/canonical", params={"url": "/about"}).status_code == 422


def test_other_rules_are_refused_and_unset_rules_are_those_of_the_store(tmp_path: Path) -> None:
    with EmbeddedService(Settings.load(data=tmp_path, normalize="www")) as made:
        made.backend.seed(["http://www.a.example/"])
    for other in ("none", "www,index"):
        with pytest.raises(StoreMismatch, match=f"OPIC_NORMALIZE is {other}, but this store was made with www"):
            EmbeddedService(Settings.load(data=tmp_path, normalize=other)).__enter__()
    for same in (None, "WWW, www"):
        with EmbeddedService(Settings.load(data=tmp_path, normalize=same)) as opened:
            assert written(opened.backend.seed(["http://www.a.example/"])) == {"known": 1, "new": 0}


def test_crawl_without_rules_refuses_rules(valkey: Server) -> None:
    Shard.open(valkey.client(), "plain", {"normalize": ""})
    with pytest.raises(StoreMismatch, match="OPIC_NORMALIZE is www, but this store was made with none"):
        Shard.open(valkey.client(), "plain", {"normalize": "www"})


def test_rules_of_a_crawl_are_kept(valkey: Server) -> None:
    Shard.open(valkey.client(), "ruled", {"normalize": "www"})
    assert Shard.open(valkey.client(), "ruled").rules.normalize == "www"


def test_page_is_in_the_shard_of_its_own_host_on_many_shards(valkey: Server) -> None:
    crawl = Crawl.open(valkey.client(), "sharded", {"normalize": "www,https,tracking,index", "shards": 4})
    writer = Writer(crawl)
    links = [f"http://www.h{n}.example/index.html" for n in range(12)]
    log = [record(0, "http://www.a.example/", links), record(1, "https://h3.example/", [WRITTEN, *links[:2]])]
    writer.apply(PARTITION, log)
    writer.drain()
    crawl.follow()
    pages = [PAGE, *(f"https://h{n}.example/" for n in range(12))]
    assert all(place is not None for place in crawl.ids_of(pages))
    assert crawl.ids_of(links[:2]) == [None, None]
    assert sum(books.live for books in crawl.books()) == len(pages)


def test_backup_has_the_rules(tmp_path: Path, valkey: Server) -> None:
    with EmbeddedService(Settings.load(data=tmp_path / "a", normalize=RULES)) as made:
        made.backend.seed([WRITTEN])
        backup(made.backend.crawl, tmp_path / "copy")
    restore(valkey.client(), tmp_path / "copy", "restored")
    shard = Shard.open(valkey.client(), "restored")
    assert shard.rules.normalize == "www,https,tracking,index"


def test_graph_is_replayed_by_the_rules_of_the_crawl(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text(f"{WRITTEN} http://www.b.example/\nhttps://a.example/ https://c.example/\n")
    with feeding(Settings.load(data=tmp_path / "data", normalize=RULES)) as backend:
        plan = Plan("edges", strategy="greedy", seed_urls=("http://a.example/",))
        replay(backend, [tmp_path / "edges.txt"], plan)
        known = {page["url"] for page in backend.query.top(9)}
        assert known == {PAGE, "https://b.example/", "https://c.example/"}
        assert all(
            finding.verdict == "ok" for finding in run_checks(lambda: backend.settings) if finding.check == "format"
        )


def offered(client: Client, domain: str = "a.example", **asked: Any) -> str | None:
    """What is handed out of a domain, and given back."""
    wait_until(lambda: client.stats().lag == 0)
    pages = client.next(1, domain=domain, mode="any", **asked).pages
    client.release([page.lease for page in pages])
    return pages[0].url if pages else None


def test_name_that_answered_last_is_handed_out(tmp_path: Path) -> None:
    settings = {"normalize": "www,https", "host_delay_seconds": 0, "revisit_seconds": 0, "retry_seconds": 0}
    with serving_embedded(tmp_path, **settings) as (_, client):
        client.seed(["http://www.a.example/"], meta={"job": "news"})
        assert offered(client) == PAGE
        client.event(PAGE, status=301, redirect="https://www.a.example/#x")
        assert offered(client) == "https://www.a.example/"
        assert (client.explain(PAGE).state, client.importance(PAGE).reads) == ("unread", 0)
        client.event("https://www.a.example/", links=["http://c.example/"])
        client.event("http://www.a.example/", status=301, redirect="https://www.a.example/")
        client.event("http://c.example/", links=[PAGE])
        wait_until(lambda: offered(client) == "https://www.a.example/")
        assert client.inlinks("http://www.c.example/").inlinks == [PAGE]
        client.event("https://www.a.example/", status=503)
        assert offered(client) == "https://www.a.example/"
        assert client.next(1, domain="a.example", mode="any").pages[0].meta == {"job": "news"}
        client.event("http://a.example/")
        client.event("http://c.example/", links=[PAGE])
        wait_until(lambda: offered(client) == "http://a.example/")
        client.event(PAGE)
        client.event("http://c.example/", links=[PAGE])
        wait_until(lambda: offered(client) == PAGE)
        client.event("https://www.a.example/")
        client.forget(url=PAGE)
        client.seed([PAGE])
        wait_until(lambda: offered(client) == PAGE)
        assert client.audit().conserved


def test_hosts_may_be_named_as_in_the_urls_that_were_handed_out(tmp_path: Path) -> None:
    with serving_embedded(tmp_path, normalize="www", host_delay_seconds=0) as (_, client):
        client.event("http://www.a.example/", links=["http://a.example/1"])
        assert offered(client, "www.a.example") == "http://a.example/1"
        assert offered(client, busy_hosts=["www.a.example"]) is None
        assert offered(client, crawl_delays={"www.a.example": 60.0}) == "http://a.example/1"
        assert offered(client) is None
        assert client.forget(host="www.a.example").forgotten == 2


def test_names_that_redirect_to_each_other_are_given_up(tmp_path: Path) -> None:
    settings = {"normalize": "www", "host_delay_seconds": 0, "retry_seconds": 0, "max_failures": 4}
    names = ["http://a.example/", "http://www.a.example/"]
    with serving_embedded(tmp_path, **settings) as (_, client):
        client.seed(names)
        handed = list[str]()
        while pages := client.next(1, mode="discover").pages:
            handed.append(pages[0].url)
            client.event(handed[-1], status=302, redirect=names[handed[-1] == names[0]])
            wait_until(lambda: client.stats().lag == 0)
        assert handed == names * 2
        assert client.next(1, mode="discover").exhausted
        assert client.inlinks(names[0]).inlinks == []


def test_site_whose_pages_redirect_to_other_names_is_crawled(tmp_path: Path) -> None:
    pages = {
        "/": redirect("/index.html"),
        "/index.html": linking("/b/"),
        "/b/": redirect("index.php"),
        "/b/index.php": linking("/"),
    }
    spec = spec_from_file_location("example_crawler", ROOT / "examples/crawler.py")
    assert spec is not None
    assert spec.loader is not None
    crawler = module_from_spec(spec)
    spec.loader.exec_module(crawler)
    with (
        website("127.0.0.1", pages) as site,
        serving_embedded(tmp_path, normalize="index", host_delay_seconds=0) as (_, client),
    ):
        crawler.crawl(client, f"{site.url}/", pages_max=9)
        assert client.importance(f"{site.url}/").reads == client.importance(f"{site.url}/b/").reads == 1
        assert client.inlinks(f"{site.url}/").inlinks == [f"{site.url}/b/"]
        assert client.inlinks(f"{site.url}/b/").inlinks == [f"{site.url}/"]
        assert [path for path in site.paths() if path != "/robots.txt"] == list(pages)


def test_names_are_backed_up_and_restored(tmp_path: Path, valkey: Server) -> None:
    crawl = Crawl.open(valkey.client(), "named", {"normalize": "www", "shards": 2})
    writer = Writer(crawl)
    log = [record(at, f"http://www.h{at}.example/") for at in range(6)]
    writer.apply(PARTITION, [*log, record(6, "http://h3.example/")])
    writer.drain()
    names = {page.url: page.name for page in crawl.pages()}
    assert names == {f"http://h{at}.example/": "" if at == 3 else f"http://www.h{at}.example/" for at in range(6)}
    backup(crawl, tmp_path / "copy")
    restore(valkey.client(), tmp_path / "copy", "named-again")
    again = Crawl.open(valkey.client(), "named-again")
    assert {page.url: page.name for page in again.pages()} == names


def test_class_of_a_url_is_checked_by_the_rules() -> None:
    (found,) = check_classes([{"name": "a", "weight": 1.0, "urls": ["http://a.example/"]}])
    assert found.urls == ("http://a.example/",)


def test_password_of_a_url_is_stored_nowhere(tmp_path: Path) -> None:
    with serving_embedded(tmp_path) as (http, client):
        urls = [f"http://u:{SECRET}@a.example/{n}" for n in range(4)]
        client.seed([urls[0]])
        client.events([
            {"url": urls[1], "links": [urls[2], f"http://u:{SECRET}@exa mple/", f"//{SECRET}@b.example"]},
            {"url": "http://c.example/", "status": 301, "redirect": urls[3]},
        ])  # fmt: skip
        while client.stats().lag:
            pass
        known = {page["url"] for page in http.get("/v1/top").json()["pages"]}
        assert {f"http://u@a.example/{n}" for n in range(4)} < known
        assert client.importance(urls[1]).reads == 1
        refused = http.post("/v1/seeds", json={"urls": [f"http://u:{SECRET}@exa mple/"]})
        assert (refused.status_code, SECRET in refused.text) == (422, False)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
