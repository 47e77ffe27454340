"""Scrapy crawls what the service says: real spiders on a site and a service of our own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from processes import Service, running, wait_until
from repository import ROOT
from scrapy_crawls import crawled, spider_running
from serving import serving_client
from website import WebPage, Website, linking, redirect, website

from opic.client import Client
from opic.html.links import html_links

pytestmark = pytest.mark.slow

LEASE_SECONDS = 3  # Where a lease has to end; on a busy machine others would end too, if they were as short.
SERVICE = {"host_delay_seconds": 0, "retry_seconds": 0.2}
SHORT_LEASES = {**SERVICE, "lease_seconds": LEASE_SECONDS}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Client]:
    with serving_client(tmp_path / "service", **SERVICE) as client:
        yield client


def tree(pages: int) -> dict[str, WebPage]:
    """Pages that each link to two others and home, one of them by a link that spiders do not follow."""
    found = {}
    for page in range(pages):
        below = [at for at in (2 * page + 1, 2 * page + 2) if at < pages]
        links = "".join(f'<a class=go href="/p/{at}">page {at}</a>' for at in below)
        found[f"/p/{page}"] = WebPage(f'{links}<a href="/p/0">home</a><area href="http://elsewhere.example/{page}">')
    return found


def signal_all(service: Service, number: signal.Signals) -> None:
    for pid in filter(None, service.pids().values()):
        os.kill(pid, number)


def calls(service: Client) -> int:
    """How often pages were asked for."""
    rows = re.findall(
        r'^opic_http_request_duration_seconds_count{.*"/v1/next".*} (\d+)', service.metrics(), re.MULTILINE
    )
    return sum(map(int, rows))


def check_all(client: Client, site: Website, pages: dict[str, WebPage], reads_max: int = 1) -> None:
    """Each page was read, once if not told otherwise, its links are those of a plain parse, and the books are right."""
    wait_until(lambda: client.stats().lag == 0)
    reads = {page.url: page.reads or 0 for page in client.importances([site.url + path for path in pages]).pages}
    assert {url: count for url, count in reads.items() if not 1 <= count <= reads_max} == {}
    expected = {
        (site.url + path, link) for path, page in pages.items() for link in html_links(site.url + path, page.body)
    }
    targets = {link for _, link in expected}
    found = {(page, target) for target in targets for page in client.inlinks(target, 1_000).inlinks}
    assert found == {(source, target) for source, target in expected if source != target}
    assert client.audit().conserved


def test_each_page_is_fetched_once_and_every_link_counts(service: Client, tmp_path: Path) -> None:
    with website("127.0.0.1", tree(40)) as site:
        run = crawled(tmp_path / "run", "following", [f"{site.url}/p/0"], service.address)
        check_all(service, site, tree(40))
    assert Counter(site.paths()) == Counter(dict.fromkeys(tree(40), 1))
    assert run.stats["finish_reason"] == "finished"
    assert (run.stats["opic/pages"], run.stats["opic/events"]) == ("40", "40")
    assert service.politeness(host="127.0.0.1").host_group.address == "127.0.0.1"
    texts = {item["url"].rpartition("/")[2]: item.get("text") for item in run.items}
    assert texts == {str(page): f"page {page}" if page else None for page in range(40)}
    assert all(0 <= item["importance"] <= 1 for item in run.items)  # 0: newer than what was settled last.
    assert any(item["importance"] for item in run.items)


def test_crawl_spider_keeps_rules_and_meta(service: Client, tmp_path: Path) -> None:
    pages = {
        "/list/1": WebPage('<a href="/item/1">one</a><a href="/item/a[1]|b">two</a><a href="/list/2">more</a>'),
        "/list/2": WebPage('<a href="/item/3">three</a><a href="/other">other</a>'),
        **{path: linking() for path in ("/item/1", "/item/a[1]|b", "/item/a%5B1%5D%7Cb", "/item/3", "/other")},
    }
    with website("127.0.0.1", pages) as site:
        run = crawled(tmp_path / "run", "ruled", [f"{site.url}/list/1"], service.address)
    items = {item["text"]: (item["kind"], item["rule"]) for item in run.items}
    assert items == dict.fromkeys(("one", "two", "three"), ("item", 0))
    assert service.importance(f"{site.url}/item/a[1]|b").reads == 1


def test_outcome_of_each_fetch_is_reported(service: Client, tmp_path: Path) -> None:
    ways = ("moved", "loop", "gone", "busy", "private", "cut", "refresh", "away", "gzip")
    pages = {
        "/": WebPage("".join(f'<a class=go href="/{way}">{way}</a>' for way in ways)),
        "/robots.txt": WebPage("User-agent: *\nDisallow: /private\n", headers={"content-type": "text/plain"}),
        "/moved": redirect("/moved-again"),
        "/moved-again": redirect("/new"),
        "/new": WebPage('<a href="/">home</a>'),
        "/loop": redirect("/pool"),
        "/pool": redirect("/loop"),
        "/busy": WebPage(status=503),
        "/private": linking("/"),
        "/cut": WebPage("<p>", headers={"transfer-encoding": "chunked"}),
        "/refresh": WebPage('<meta http-equiv="refresh" content="0; url=/fresh">'),
        "/fresh": linking("/"),
        "/away": redirect("http://127.0.0.9:1/nobody"),
        "/gzip": WebPage(b"no gzip", headers={"content-encoding": "gzip"}),
    }
    with website("127.0.0.1", pages) as site:
        run = crawled(
            tmp_path / "run", "following", [f"{site.url}/"], service.address,
            ROBOTSTXT_OBEY=True, allowed_domains=[], METAREFRESH_IGNORE_TAGS=[], DOWNLOAD_TIMEOUT=5,
        )  # fmt: skip
        wait_until(lambda: service.stats().lag == 0)
        reads = {path: service.importance(site.url + path).reads for path in pages if path != "/robots.txt"}
        new = service.inlinks(f"{site.url}/new").inlinks
        gone = service.importance(f"{site.url}/gone")
        why = {way: service.explain(f"{site.url}/{way}") for way in ("private", "busy", "cut")}
    asked = Counter(site.paths())
    read = {"/", "/moved", "/moved-again", "/new", "/loop", "/pool", "/refresh", "/fresh", "/away"}
    assert {path for path, count in reads.items() if count} - {"/gzip"} == read, run.log
    assert {asked[path] for path in read} == {1}
    assert new == [f"{site.url}/moved-again"]
    assert (gone.gone, gone.reads) == (True, 0)
    assert not asked["/private"]
    assert asked["/robots.txt"] == 1
    assert asked["/busy"] % 2 == 0  # Each fetch of it was tried twice.
    assert service.importance("http://127.0.0.9:1/nobody").reads == 0
    assert why["private"] != why["busy"]
    assert [item["text"] for item in run.items if item["url"].endswith("/new")] == ["moved"]


def test_requests_other_than_plain_gets_stay_with_scrapy(service: Client, tmp_path: Path) -> None:
    home = linking("/again", "/fails", "/unknown", "/unwanted")
    paths = ("/form", "/lambda", "/again", "/unlinked", "/fails", "/unknown", "/unwanted")
    pages = {"/": home, **{path: linking("/") for path in paths}}
    with website("127.0.0.1", pages) as site:
        run = crawled(tmp_path / "run", "mixed", [f"{site.url}/"], service.address)
        wait_until(lambda: service.stats().lag == 0)
        known = {path: service.importances([site.url + path]).pages[0] for path in paths}
        links = service.inlinks(f"{site.url}/unlinked").inlinks
    found = {(kind, item[kind].removeprefix(site.url)) for item in run.items for kind in item if kind != "depth"}
    assert ("own", "/lambda") in found
    assert ("own", "/again") in found
    assert ("asked", "/unlinked") in found
    assert ("unknown", "/unknown") in found
    assert known["/form"].importance is None  # A POST is no fetch of a page.
    assert [known[path].reads for path in ("/lambda", "/unlinked", "/fails", "/unknown")] == [1] * 4
    assert known["/again"].reads == site.paths().count("/again")
    assert links == []  # It is known, but no page links to it.
    assert [item["depth"] for item in run.items if "asked" in item] == [1]
    assert "/unwanted" not in site.paths()


def test_media_and_robots_txt_give_no_events(service: Client, tmp_path: Path) -> None:
    pages = {"/": linking(), "/picture": WebPage(b"\x89PNG", headers={"content-type": "image/png"})}
    with website("127.0.0.1", pages) as site:
        run = crawled(tmp_path / "run", "media", [f"{site.url}/"], service.address, ROBOTSTXT_OBEY=True)
        assert run.items == [{"picture": 200}]
        assert set(site.paths()) == {"/robots.txt", "/", "/picture"}
    assert service.stats().known_pages == 1


def test_two_processes_share_a_crawl_and_fetch_each_page_once(service: Client, tmp_path: Path) -> None:
    with website("127.0.0.1", tree(60)) as site:
        given = "following", [f"{site.url}/p/0"], service.address
        with spider_running(tmp_path / "a", *given) as a, spider_running(tmp_path / "b", *given) as b:
            runs = a.end(), b.end()
        check_all(service, site, tree(60))
    assert Counter(site.paths()) == Counter(dict.fromkeys(tree(60), 1))
    assert sorted(item["url"] for run in runs for item in run.items) == sorted(site.url + path for path in tree(60))


def test_killed_spider_loses_nothing(service: Client, tmp_path: Path) -> None:
    slow = {path: WebPage(page.body, drip_seconds=0.002) for path, page in tree(60).items()}
    with website("127.0.0.1", slow) as site:
        given = tmp_path / "run", "following", [f"{site.url}/p/0"], service.address
        jobdir = str(tmp_path / "job")
        with spider_running(*given, JOBDIR=jobdir, OPIC_LEASE_SECONDS=LEASE_SECONDS) as run:
            wait_until(lambda: len(site.paths()) > 15)
            run.kill()
        run = crawled(*given, JOBDIR=jobdir, OPIC_CLOSE_AFTER_IDLE=LEASE_SECONDS + 2)
        check_all(service, site, tree(60))
    texts = {item["url"].rpartition("/")[2]: item.get("text") for item in run.items}
    assert texts == {str(page): f"page {page}" if page else None for page in range(60)}


def test_killed_service_loses_nothing(tmp_path: Path) -> None:
    slow = {path: WebPage(page.body, drip_seconds=0.002) for path, page in tree(60).items()}
    idle = {
        "OPIC_CLOSE_AFTER_IDLE": LEASE_SECONDS + 2
    }  # Pages of an answer that was lost come back after their leases.
    serving = running(tmp_path / "service", tmp_path / "said", **SHORT_LEASES)
    with serving as service, website("127.0.0.1", slow) as site:
        with spider_running(tmp_path / "run", "following", [f"{site.url}/p/0"], service.url, **idle) as run:
            wait_until(lambda: len(site.paths()) > 15)
            killed = service.process
            assert killed is not None
            signal_all(service, signal.SIGKILL)
            killed.wait()
            service.start()
            run.end()
        with Client(service.url) as client:
            # A page whose lease ends while the service is down may be handed out before its event takes effect.
            check_all(client, site, tree(60), reads_max=2)


def test_events_unsent_at_close_are_sent_by_the_next_run(tmp_path: Path) -> None:
    with website("127.0.0.1", tree(30)) as site:
        jobdir = str(tmp_path / "job")
        given = tmp_path / "run", "following", [f"{site.url}/p/0"]
        with running(tmp_path / "service", tmp_path / "said", **SHORT_LEASES) as service:
            with spider_running(*given, service.url, JOBDIR=jobdir, CONCURRENT_REQUESTS=4) as run:
                wait_until(site.paths)
                signal_all(service, signal.SIGSTOP)
                run.close()
                signal_all(service, signal.SIGCONT)
                unsent = int(run.stats["opic/events_unsent"])
            run = crawled(*given, service.url, JOBDIR=jobdir, OPIC_CLOSE_AFTER_IDLE=LEASE_SECONDS + 2)
            with Client(service.url) as client:
                check_all(client, site, tree(30))
    assert (tmp_path / "job" / "opic-unsent-events").exists() is False
    assert unsent > 0


def test_spider_without_a_service_closes_and_says_why(tmp_path: Path) -> None:
    with website("127.0.0.1", {"/": linking()}) as site:
        nobody = crawled(tmp_path / "nobody", "following", [f"{site.url}/"], "http://127.0.0.1:1")
        other = crawled(tmp_path / "other", "following", [f"{site.url}/"], site.url)
    assert nobody.stats["finish_reason"] == other.stats["finish_reason"] == "opic_unreachable"
    assert "nothing answers at http://127.0.0.1:1" in nobody.log
    assert "another program listens there" in other.log


def test_crawl_delay_of_robots_txt_is_respected(service: Client, tmp_path: Path) -> None:
    robots = WebPage("User-agent: *\nCrawl-delay: 0.4\n", headers={"content-type": "text/plain"})
    with website("127.0.0.1", {**tree(7), "/robots.txt": robots}) as site:
        crawled(tmp_path / "run", "following", [f"{site.url}/p/0"], service.address, ROBOTSTXT_OBEY=True)
    times = [at for path, at in site.asked if path != "/robots.txt"]
    assert len(times) == 7
    assert min(after - before for before, after in pairwise(times[2:])) > 0.2


def test_spider_that_never_closes_is_closed_by_its_user(service: Client, tmp_path: Path) -> None:
    with website("127.0.0.1", {"/": linking()}) as site:
        given = tmp_path / "run", "following", [f"{site.url}/"], service.address
        with spider_running(*given, OPIC_CLOSE_AFTER_IDLE=0) as run:
            wait_until(lambda: calls(service) > 10)
            assert run.process.poll() is None
            run.close()
    assert run.stats["finish_reason"] == "shutdown"


def test_example_prints_the_titles_of_a_site(service: Client) -> None:
    pages = {f"/p/{page}": WebPage(f"<title>page {page}</title>{tree(5)[f'/p/{page}'].body}") for page in range(5)}
    with website("127.0.0.1", pages) as site:
        command = [sys.executable, str(ROOT / "examples/scrapy_spider.py"), f"{site.url}/p/0"]
        options = ["--service", service.address, "--idle-seconds", "0.5"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    titles = [json.loads(line)["title"] for line in done.stdout.splitlines()]
    assert sorted(titles) == [f"page {page}" for page in range(5)]


def test_redirect_to_a_page_leased_by_another_crawler_is_left_to_it(service: Client, tmp_path: Path) -> None:
    pages = {"/": WebPage('<a class=go href="/moved">x</a>'), "/moved": redirect("/target"), "/target": linking()}
    with website("127.0.0.1", pages) as site:
        service.seed([f"{site.url}/target"])
        (leased,) = service.next(1, lease_seconds=600).pages
        crawled(tmp_path / "run", "following", [f"{site.url}/"], service.address)
        assert sorted(site.paths()) == ["/", "/moved"]
        assert service.inlinks(leased.url).inlinks == [f"{site.url}/moved"]


def test_hostile_pages_do_not_delay_the_crawl(service: Client, tmp_path: Path) -> None:
    many = "".join(f'<a href="/{number}/{"x" * 100}">x</a>' for number in range(100_000))
    pages = {
        "/": linking("/many", "/deep", "/base", "/charset"),
        "/many": WebPage(many),
        "/deep": WebPage("<div>" * 200_000 + '<a href="/">x</a>'),
        "/base": WebPage('<base href="http://[broken"><a href="/">x</a>'),
        "/charset": WebPage(b'<a href="/\xff">x</a>', headers={"content-type": "text/html; charset=none-such"}),
    }
    links_max = 10_000  # OPIC_MAX_LINKS.
    with website("127.0.0.1", pages) as site:
        run = crawled(
            tmp_path / "run",
            "mixed",
            [f"{site.url}/"],
            service.address,
            DEPTH_LIMIT=1,
            METAREFRESH_ENABLED=False,
            OPIC_LEASE_SECONDS=60,
        )
        wait_until(lambda: service.stats().lag == 0)
        reads = {path: service.importance(site.url + path).reads for path in pages}
    assert reads == dict.fromkeys(pages, 1)
    assert links_max < service.stats().known_pages < links_max + 100
    assert "opic/events_rejected" not in run.stats
    assert service.audit().conserved
