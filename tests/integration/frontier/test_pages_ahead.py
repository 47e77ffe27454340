"""On a large store one choice serves the requests that follow: in its order, and only pages that may still be had."""

from typing import Any

import pytest
from frontiers import Crawl, pages_of
from servers import Server

from opic.admission import Admission
from opic.frontier import PolitenessSettings
from opic.urls.canonical import host_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any store counts as a large one, and what was chosen ahead stays of use for the whole test."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    monkeypatch.setattr("opic.frontier.pages_ahead.AHEAD_SECONDS", 3_600.0)


def choices(crawl: Crawl) -> int:
    """How often pages were chosen."""
    return crawl.frontier._scheduler.hot.orders[0].tick


def asked_often(crawl: Crawl, **more: Any) -> list[str]:
    """The pages of requests after which many are chosen ahead: each choice takes as many as were asked for before."""
    return [url for _ in range(8) for url in crawl.urls(4, **more)]


def test_one_choice_serves_several_requests_in_order(servers: Server) -> None:
    crawl, urls = Crawl(servers), pages_of(200, 2)
    crawl.seed(urls)
    found = asked_often(crawl)
    before = choices(crawl)
    while len(found) < len(urls):
        found += crawl.urls(4)
    assert found == urls
    assert choices(crawl) - before <= 10  # For 92 requests.
    assert crawl.urls(4) == []


@pytest.mark.parametrize(("times", "most"), [(1e9, 10), (0.0, 23)])
def test_choice_that_took_longer_serves_for_longer(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, times: float, most: int
) -> None:
    for name, value in {"AHEAD_SECONDS": 0.0, "AHEAD_SECONDS_MAX": 3_600.0, "AHEAD_TIMES": times}.items():
        monkeypatch.setattr(f"opic.frontier.pages_ahead.{name}", value)
    crawl, urls = Crawl(valkey), pages_of(200, 2)
    crawl.seed(urls)
    found = asked_often(crawl)
    before = choices(crawl)
    while len(found) < 124:
        found += crawl.urls(4)
    assert found == urls[:124]
    assert most - 10 < choices(crawl) - before <= most  # For 23 requests.


def test_page_that_was_read_or_leased_elsewhere_since_is_left_out(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(200, 1)
    crawl.seed(urls)
    other = crawl.endpoint()
    found, before = asked_often(crawl), choices(crawl)
    crawl.event(urls[33])
    theirs: Any = other.next(1).pages
    assert theirs[0].url == urls[32]
    assert crawl.urls(4) == urls[34:38]
    assert found == urls[:32]
    assert choices(crawl) - before <= 1


def test_page_of_a_host_with_a_running_delay_waits(valkey: Server) -> None:
    """Both modes have pages of their own chosen ahead, of the same hosts."""
    crawl, urls = Crawl(valkey, PolitenessSettings(host_delay_seconds=3_600.0)), pages_of(100, 2)
    crawl.seed(urls)
    for url in urls[:100]:
        crawl.event(url, urls)
    unread, read = asked_often(crawl, mode="discover"), asked_often(crawl, mode="refresh")
    assert (len(set(unread)), len(set(read))) == (32, 32)
    assert not {host_of(url) for url in unread} & {host_of(url) for url in read}
    assert choices(crawl) < 16


def test_released_page_comes_first_again(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(200, 1)
    crawl.seed(urls)
    pages = [page for _ in range(8) for page in crawl.next(4)]
    assert crawl.frontier.release([pages[5].lease]).released == 1
    assert crawl.urls(2) == [urls[5], urls[32]]


def test_rules_set_meanwhile_apply(valkey: Server) -> None:
    crawl, urls = Crawl(valkey, admitted=True), pages_of(200, 1)
    crawl.seed(urls)
    asked_often(crawl)
    admission: Admission = crawl.frontier.admission  # type: ignore[assignment]
    admission.replace({"rules": [{"effect": "deny", "host": host_of(urls[32])}]})
    assert crawl.urls(2) == urls[33:35]


def test_last_few_pages_are_all_suggested(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(37, 1)
    crawl.seed(urls)
    found = [url for _ in range(10) for url in crawl.urls(4)]
    assert found == urls
