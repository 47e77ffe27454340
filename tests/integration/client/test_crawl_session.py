"""A session of a crawl with a service of our own: what it queues arrives once, and what it leases stays its own."""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port
from processes import wait_until
from serving import serving_client

from opic.client import AsyncClient, Client, ClientError, CrawlSession, LeasedPage, crawl_session

LEASE_SECONDS = 1.0
SITE = "http://a.example/"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = {"host_delay_seconds": 0, "retry_seconds": 60, "lease_seconds": LEASE_SECONDS, "max_url_bytes": 200}
    with serving_client(tmp_path_factory.mktemp("service"), **settings) as client:
        yield client


class Outage(httpx.AsyncBaseTransport):
    """Loses the requests to some paths, or their answers."""

    def __init__(self) -> None:
        self.inner, self.lost, self.answers_lost = httpx.AsyncHTTPTransport(), set[str](), set[str]()
        self.sent = list[str]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.sent.append(path)
        if path in self.lost:
            raise httpx.ConnectError("the service is away")
        response = await self.inner.handle_async_request(request)
        if path in self.answers_lost:
            await response.aread()
            raise httpx.ReadError("the answer is lost")
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


def session_of(service: Client, outage: Outage | None = None, **options: Any) -> CrawlSession:
    address = service.address  # type: ignore[attr-defined]
    client = AsyncClient(address, crawler="tested", retry_seconds=0, transport=outage)
    return CrawlSession(client, **options)


async def lease(session: CrawlSession, domain: str, n: int = 10) -> list[LeasedPage]:
    def ask() -> Mapping[str, Any]:
        return {"n": n, "domain": domain}

    deadline = time.monotonic() + 20
    while not (leased := await session.turn(ask)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return leased


def reads(service: Client, url: str) -> int:
    wait_until(lambda: service.stats().lag == 0)
    return service.importance(url).reads


def test_what_is_queued_arrives_once_however_many_turns_are_taken_at_once(service: Client) -> None:
    async def crawl() -> None:
        async with session_of(service) as session:
            session.seed("http://once.example/")
            for number in range(1_000):
                session.add_event(f"http://once.example/{number}")
            assert session.waiting
            await asyncio.gather(*(session.turn(lambda: None) for _ in range(4)))
            assert not session.waiting

    asyncio.run(crawl())
    assert {reads(service, f"http://once.example/{number}") for number in (0, 500, 999)} == {1}
    assert service.importance("http://once.example/").reads == 0


def test_a_seed_that_is_refused_alone_holds_up_nothing(service: Client, caplog: pytest.LogCaptureFixture) -> None:
    async def crawl() -> None:
        async with session_of(service) as session:
            session.seed("http://long.example/" + "x" * 300)
            session.add_event("http://long.example/next")
            await session.turn(lambda: None)
            assert not session.waiting

    with caplog.at_level(logging.ERROR, "opic.client"):
        asyncio.run(crawl())
    assert "can't be made known" in caplog.text
    assert "OPIC_MAX_URL_BYTES" in caplog.text
    assert reads(service, "http://long.example/next") == 1


def test_a_page_in_work_stays_leased_and_an_event_ends_that(service: Client) -> None:
    async def crawl() -> None:
        async with session_of(service, lease_seconds=LEASE_SECONDS) as session:
            session.seed("http://slow.example/")
            (leased,) = await lease(session, "slow.example")
            for _ in range(15):
                await asyncio.sleep(LEASE_SECONDS / 5)
                assert session.holds(leased)
                assert not service.next(domain="slow.example").pages
            session.add_event(leased.page.url, status=500)
            assert not session.holds(leased)

    asyncio.run(crawl())
    assert reads(service, "http://slow.example/") == 0


def test_a_page_that_was_lost_and_is_leased_again_goes_on_without_being_handed_out_twice(service: Client) -> None:
    async def crawl() -> None:
        async with session_of(service) as session:
            session.seed("http://again.example/")
            (leased,) = await lease(session, "again.example")
            name = leased.page.lease
            service.release([name])  # The session does not hear of this.
            deadline = time.monotonic() + 20
            while leased.page.lease == name:
                assert time.monotonic() < deadline
                session.poll_at = 0.0
                assert await session.turn(lambda: {"domain": "again.example"}) == []
            assert session.holds(leased)
            assert service.renew([leased.page.lease]).lost == []

    asyncio.run(crawl())


def test_leases_of_unfetched_pages_are_released_at_the_end(service: Client) -> None:
    async def crawl() -> None:
        async with session_of(service, lease_seconds=3_600) as session:
            for number in range(5):
                session.seed(f"http://rest.example/{number}")
            first, *_ = await lease(session, "rest.example")
            session.add_event(first.page.url)

    asyncio.run(crawl())
    wait_until(lambda: service.stats().lag == 0)
    assert len(service.next(mode="discover", domain="rest.example").pages) == 4


def test_events_are_kept_while_the_service_is_away_and_sent_by_the_next_session(
    service: Client, tmp_path: Path
) -> None:
    outage = Outage()

    async def crawl() -> None:
        async with session_of(service, outage, directory=str(tmp_path)) as session:
            await session.turn(lambda: {"n": 1, "domain": "kept.example"})
            outage.answers_lost.add("/v1/events")
            session.add_event("http://kept.example/")

    async def crawl_on() -> None:
        async with session_of(service, directory=str(tmp_path)) as session:
            assert len(session.unsent) == 1
            await session.turn(lambda: None)

    asyncio.run(crawl())
    asyncio.run(crawl_on())
    assert reads(service, "http://kept.example/") == 1  # By the same Idempotency-Key.
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_goes_away_is_waited_for_and_one_that_never_was_is_an_error(
    service: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_session, "AGAIN_SECONDS", 0.1)
    outage, counts = Outage(), dict[str, int]()

    def count(name: str, number: int) -> None:
        counts[name] = counts.get(name, 0) + number

    async def crawl() -> None:
        async with session_of(service, outage, count=count) as session:
            session.seed("http://away.example/")
            (leased,) = await lease(session, "away.example")
            outage.lost.add("/v1/events")
            session.add_event(leased.page.url, links=["http://away.example/a"])
            assert await session.turn(lambda: {"domain": "away.example"}) == []
            assert (session.idle_since, session.waiting, counts["service_errors"]) == (math.inf, True, 1)
            session.wake()
            assert session.idle_since == math.inf  # Whether there is more to do is still unknown.
            outage.lost.clear()
            (second,) = await lease(session, "away.example")
            assert second.page.url == "http://away.example/a"
            assert session.idle_since < time.monotonic()

    async def without_service() -> None:
        url = f"http://127.0.0.1:{free_port()}"
        async with CrawlSession(AsyncClient(url, retry_seconds=0)) as session:
            session.seed(SITE)
            with pytest.raises(ClientError, match="nothing answers at"):
                await session.turn(lambda: None)

    asyncio.run(crawl())
    assert counts["events"] == 1
    asyncio.run(without_service())


def test_crawl_delays_are_sent_with_the_next_call_that_succeeds(
    service: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_session, "AGAIN_SECONDS", 0.1)
    outage = Outage()

    async def crawl() -> None:
        async with session_of(service, outage) as session:
            session.seed("http://delays.example/")
            await lease(session, "delays.example")
            session.crawl_delays["delays.example"] = 7.0
            outage.lost.add("/v1/next")
            session.poll_at = 0.0
            await session.turn(lambda: {"n": 1, "domain": "delays.example"})
            outage.lost.clear()
            session.crawl_delays["other.example"] = 8.0
            session.poll_at = 0.0
            await session.turn(lambda: {"n": 1, "domain": "delays.example"})
            assert session.crawl_delays == {}

    asyncio.run(crawl())
    assert service.explain("http://delays.example/").frontier.host_delay_seconds == 7.0


def test_an_answer_that_asks_for_a_pause_lets_its_host_rest_from_the_fetch_on(service: Client) -> None:
    async def crawl() -> None:
        async with session_of(service) as session:
            now = time.time()
            session.add_event("http://pause.example/", status=503, retry_after=60, fetched_at=now - 50)
            session.add_event("http://past.example/", status=503, retry_after=60, fetched_at=now - 61)
            session.add_event("http://gone.example/", status=404, retry_after=60)
            assert session.client.pace.resting() == ["pause.example"]
            assert 8 < session.client.pace.wait("pause.example") <= 10

    asyncio.run(crawl())
