"""A page that was read is not offered again before its revisit time, and an empty answer says what holds pages back."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from frontiers import AT_ONCE, Crawl, until
from msgspec.structs import asdict
from servers import Server

from opic.admission import Admission, check_policy
from opic.errors import BadInput
from opic.frontier import Frontier, HostPoliteness, PolitenessSettings
from opic.frontier.page_counts import WORDS
from opic.model.classes import check_classes, encode_classes

A, B, C = "http://a.org/", "http://b.org/", "http://c.org/"
PAGES_READ = 300
NEVER = dict.fromkeys(WORDS, 0)


def waits(seconds: float = 3_600.0, **more: float) -> PolitenessSettings:
    return PolitenessSettings(**{"host_delay_seconds": 0.0, "revisit_seconds": seconds, **more})  # type: ignore[arg-type]


def crawling(server: Server, politeness: PolitenessSettings | None = None) -> Crawl:
    """With further grants, so that no page is without cash for long."""
    return Crawl(server, politeness or waits(), regrant_ppm=10_000)


def peeked(frontier: Frontier, **more: Any) -> list[str]:
    answer: Any = frontier.peek(100, **more)
    return sorted(page.url for page in answer.pages)


def asked(crawl: Crawl, **more: Any) -> Mapping[str, Any]:
    answer: Any = crawl.frontier.next(**more)
    return answer  # type: ignore[no-any-return]


def waiting(crawl: Crawl, **more: Any) -> tuple[dict[str, int], bool]:
    """What is held back where nothing is offered, and whether the frontier is exhausted."""
    answer = asked(crawl, **more)
    assert answer.pages == []
    return {kind: count for kind, count in asdict(answer.waiting).items() if count}, answer.exhausted


def read(crawl: Crawl, *urls: str, **more: Any) -> None:
    """Report pages that link to the others."""
    for url in urls:
        crawl.event(url, [other for other in (A, B, C) if other != url], **more)


def test_read_page_is_offered_again_after_its_revisit_time(servers: Server) -> None:
    crawl = crawling(servers, waits(0.5))
    crawl.seed([A, B])
    assert sorted(crawl.urls()) == [A, B]
    began = time.time()
    read(crawl, A, B)
    assert crawl.urls() == [C]
    assert until(crawl.urls)
    assert time.time() - began >= 0.5
    assert crawl.endpoint(waits(0.5)).next().pages == []  # The other one is leased or has not waited long enough.


@pytest.mark.parametrize("mode", ["any", "refresh", "discover"])
def test_endpoint_that_starts_later_waits_as_well(servers: Server, mode: str) -> None:
    crawl = crawling(servers)
    crawl.seed([A, B, C])
    read(crawl, A, B)
    crawl.event("http://hub.org/", [A, B, C])
    late = crawl.endpoint(waits())
    assert peeked(late, mode=mode) == ([C] if mode != "refresh" else [])
    assert peeked(crawl.endpoint(waits(0.0)), mode="refresh") == [A, B]


def test_a_redirect_counts_as_a_read_and_a_failure_does_not(valkey: Server) -> None:
    crawl = crawling(valkey, waits(retry_seconds=0.0))
    crawl.seed([A, B])
    crawl.event(A, status=301, redirect=C)
    crawl.event(B, status=500)
    assert sorted(crawl.urls()) == [B, C]


def test_page_fetched_long_ago_is_due_at_once(valkey: Server) -> None:
    """As from a replayed crawl: its reads are as old as its events say."""
    crawl = crawling(valkey)
    crawl.seed([A, B])
    read(crawl, A, fetched_at=time.time() - 3_601)
    read(crawl, B, fetched_at=time.time() - 3_500)
    assert peeked(crawl.frontier) == [A, C]
    read(crawl, A)  # It was read just now; what is known later of an earlier read does not change that.
    read(crawl, A, fetched_at=time.time() - 7_200)
    assert peeked(crawl.frontier) == peeked(crawl.endpoint(waits())) == [C]


def test_failed_page_waits_for_the_later_of_two_times(valkey: Server) -> None:
    crawl = crawling(valkey, waits(0.8, retry_seconds=0.05))
    crawl.seed([A])
    began = time.time()
    read(crawl, A)
    crawl.event(A, status=500)
    assert until(lambda: [url for url in crawl.urls() if url == A])
    assert time.time() - began >= 0.8


def test_most_specific_time_applies(valkey: Server) -> None:
    crawl = crawling(valkey)
    admission = Admission(crawl.pages)
    frontier = Frontier(crawl.pages, waits(), admission=admission)
    quick = {"name": "quick", "weight": 1, "hosts": ["classed.org", "hosted.org"]}
    crawl._apply(encode_classes(check_classes([quick])), "classes")
    urls = [f"http://{host}.org/{path}" for host in ("plain", "classed", "hosted") for path in ("x", "news")]
    crawl.seed(urls)
    for url in urls:
        crawl.event(url)
    crawl.event("http://hub.org/", urls)  # So each has cash.

    def offered() -> list[str]:
        return [url.removeprefix("http://") for url in peeked(frontier)]

    def explained(url: str) -> tuple[float, bool]:
        answer: Any = frontier.explain(url)
        return answer.revisit_seconds, answer.next

    assert offered() == []
    classes = check_classes(
        [{"name": "quick", "weight": 1, "hosts": ["classed.org", "hosted.org"], "revisit_seconds": 0}]
    )
    crawl._apply(encode_classes(classes), "classes")
    until(lambda: offered() == ["classed.org/news", "classed.org/x", "hosted.org/news", "hosted.org/x"])
    frontier.set_host_politeness(
        {"hosted.org": HostPoliteness(revisit_seconds=7_200.0), "later.org": HostPoliteness(revisit_seconds=0.0)}
    )
    assert frontier.host_politeness()["hosted.org"] == HostPoliteness(None, None, 7_200.0)
    assert offered() == ["classed.org/news", "classed.org/x"]
    rules = [{"effect": "allow", "path": "/news", "revisit_seconds": 0}, {"effect": "allow", "path": "/x"}]
    admission.put(check_policy({"rules": rules}))
    until(lambda: offered() == ["classed.org/news", "classed.org/x", "hosted.org/news", "plain.org/news"])
    assert explained("http://hosted.org/x") == (7_200.0, False)
    assert explained("http://classed.org/x") == (0.0, True)
    assert explained("http://plain.org/x") == (3_600.0, False)
    assert explained("http://plain.org/news") == (0.0, True)
    crawl.event("http://plain.org/x", ["http://later.org/"])  # A host that becomes known after its time was set.
    crawl.event("http://later.org/", ["http://plain.org/x"])
    crawl.event("http://plain.org/x", ["http://later.org/"])
    assert "later.org/" in offered()
    admission.put(check_policy({"rules": [{"effect": "allow", "path": "/", "revisit_seconds": 3_600}]}))
    until(lambda: offered() == [])


def test_page_without_a_revisit_time_is_offered_though_its_crawlers_clock_is_ahead(valkey: Server) -> None:
    crawl = crawling(valkey)
    crawl.frontier.set_host_politeness({"a.org": HostPoliteness(revisit_seconds=0.0)})
    for url in (A, B):
        read(crawl, url, fetched_at=time.time() + 3_600)
    assert peeked(crawl.frontier) == [A, C]
    told = crawl.frontier.explain(A)
    assert told is not None
    assert (told.next, told.revisit_at) == (True, None)


@pytest.mark.parametrize("seconds", [-1, float("nan"), "60", True, 1e9])
def test_impossible_times_are_refused(seconds: Any) -> None:
    with pytest.raises(BadInput, match="revisit_seconds"):
        check_policy({"rules": [{"effect": "allow", "revisit_seconds": seconds}]})
    with pytest.raises(BadInput, match="revisit_seconds"):
        check_classes([{"name": "a", "weight": 1, "hosts": ["a.org"], "revisit_seconds": seconds}])


def test_denied_pages_have_no_revisit_time() -> None:
    with pytest.raises(BadInput, match="is for allow rules"):
        check_policy({"rules": [{"effect": "deny", "revisit_seconds": 60}]})


def test_explanation_says_when_a_read_page_is_due(valkey: Server) -> None:
    crawl = crawling(valkey)
    crawl.seed([A, B])
    read(crawl, A)
    told: Any = crawl.frontier.explain(A)
    assert (told.next, told.revisit_seconds) == (False, 3_600.0)
    assert told.revisit_at == pytest.approx(time.time() + 3_600, abs=60)
    assert any("it is offered again 3600 s after a read, in 3" in reason for reason in told.why_not)


def test_page_read_between_choice_and_lease_is_not_suggested(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a large store, an event may take effect between the choice and the lease."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    crawl = crawling(valkey)
    crawl.seed([A, B])
    scheduler = crawl.frontier._scheduler
    choose, first = scheduler._choose, [True]

    def chosen(*arguments: Any, **more: Any) -> Any:
        found = choose(*arguments, **more)
        if first.pop() if first else False:
            read(crawl, A)
        return found

    monkeypatch.setattr(scheduler, "_choose", chosen)
    assert sorted(crawl.urls()) == [B, C]
    assert crawl.store.shard.client.zcard(crawl.store.shard.keys.leases) == 2


# What an empty answer means.


def test_an_empty_crawl_is_exhausted(servers: Server) -> None:
    assert waiting(Crawl(servers)) == ({}, True)


def test_leased_pages_are_waited_for(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl.seed([A, B])
    first = asked(crawl, n=1)
    assert (first.waiting.leased, first.exhausted) == (1, False)
    assert len(crawl.next()) == 1
    for mode in ("any", "discover", "refresh"):  # Their events may bring new pages, of which some are read later.
        assert waiting(crawl, mode=mode) == ({"leased": 2}, False)
    other: Any = crawl.endpoint().next()
    assert (other.pages, other.waiting.leased, other.exhausted) == ([], 2, False)


def test_once_all_are_read_discovery_is_exhausted(servers: Server) -> None:
    crawl = crawling(servers)
    crawl.seed([A, B])
    while pages := crawl.urls(mode="discover"):
        read(crawl, *pages)
    assert waiting(crawl, mode="discover") == ({}, True)
    assert waiting(crawl) == waiting(crawl, mode="refresh") == ({"revisit": 3}, False)
    assert asked(crawl).retry_after == 60.0


def test_delayed_hosts_are_waited_for(servers: Server) -> None:
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=30.0))
    crawl.seed([A, A + "1", A + "2", B])
    first = asked(crawl)
    assert len(first.pages) == 2
    assert asdict(first.waiting) == {**NEVER, "leased": 2, "host_delay": 2}
    assert waiting(crawl) == ({"leased": 2, "host_delay": 2}, False)
    assert waiting(crawl, domain="b.org") == ({"leased": 1}, False)
    assert waiting(crawl, domain="d.org") == ({}, True)
    crawl.frontier.release([page.lease for page in first.pages])
    assert waiting(crawl, mode="discover", domain="a.org") == ({"host_delay": 3}, False)


def test_failed_pages_are_waited_for(servers: Server) -> None:
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=600.0))
    crawl.seed([A, B])
    crawl.event(A, status=500)
    assert crawl.next(lease_seconds=0.05)
    assert until(lambda: waiting(crawl) == ({"retry": 2}, False))  # One failed; the lease of the other expired.


def test_denied_pages_are_not_waited_for(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed([A, B, C, "http://gone.org/"])
    crawl.event(A, status=403)
    crawl.event(B, excluded=True)
    crawl.event("http://gone.org/", status=404)
    admission = Admission(crawl.pages)
    crawl.frontier = Frontier(crawl.pages, AT_ONCE, admission=admission)
    admission.put(check_policy({"rules": [{"effect": "deny", "host": "c.org"}]}))
    assert waiting(crawl) == ({"denied": 3}, True)
    assert waiting(crawl, domain="c.org") == ({"denied": 1}, True)


def test_accepted_events_are_waited_for(valkey: Server) -> None:
    crawl, lag = Crawl(valkey), [1]
    crawl.frontier = crawl.endpoint(pending=lambda: bool(lag[0]))
    assert waiting(crawl) == ({}, False)
    lag[0] = 0
    assert waiting(crawl) == ({}, True)


def test_large_store_notices_leases_of_other_endpoints(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    crawl = crawling(valkey)
    crawl.seed([A, B])
    read(crawl, A)
    assert sorted(crawl.urls(mode="discover")) == [B, C]
    assert waiting(crawl, mode="discover", domain="b.org") == ({"leased": 1}, False)
    crawl.frontier = crawl.endpoint(waits())
    assert waiting(crawl, mode="refresh", domain="b.org") == ({"leased": 1}, False)
    assert waiting(crawl, mode="refresh") == ({"leased": 2, "revisit": 1}, False)


# Several domains.


def test_requests_may_name_several_domains(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl.seed([A, "http://www.b.org/", B, C, "http://xa.org/"])
    assert sorted(crawl.urls(domain="a.org", domains=["b.org", "www.b.org"])) == [A, B, "http://www.b.org/"]
    assert waiting(crawl, domains=["a.org", "B.org"]) == ({"leased": 3}, False)
    crawl.seed(["http://new.b.org/"])
    assert crawl.urls(domains=["B.org", "a.org"]) == ["http://new.b.org/"]


def test_number_of_domains_has_a_limit(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.frontier.next(domains=[f"{i}.org" for i in range(100)])
    with pytest.raises(BadInput, match="domains: 101 is over the limit of 100"):
        crawl.frontier.next(domains=[f"{i}.org" for i in range(101)])


def test_explanation_of_a_page_that_is_read_meanwhile_is_of_one_moment(valkey: Server) -> None:
    crawl, urls = crawling(valkey, waits(host_delay_seconds=0.0)), [f"http://a.org/{i}" for i in range(PAGES_READ)]
    crawl.seed(urls)

    def read_all() -> None:
        for url in urls:
            read(crawl, url)
            crawl.pages.follow()

    frontier = Frontier(crawl.pages, waits())
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(read_all)
        at = 0
        while not reading.done() and at < len(urls):
            told = frontier.explain(urls[at])
            assert told is not None
            was_read = told.revisit_at is not None
            assert told.held_back == ["revisit"] * was_read
            assert told.state == ("read" if was_read else "unread")
            at += was_read
        reading.result()
