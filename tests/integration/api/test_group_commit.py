"""Events of calls that come at the same time are written together; each call has an answer of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from logs import values_in
from processes import wait_until
from servers import Server
from serving import serving

from opic.api.coalescing import Coalescer
from opic.errors import StoreUnavailable
from opic.model.events import CrawlEvent, decode_crawl_event, encode_crawl_event
from opic.service.backend import Backend
from opic.settings import Settings

pytestmark = pytest.mark.slow

WAIT_SECONDS = 20.0
CALLS = 24


@pytest.fixture
def backend(valkey: Server) -> Any:
    """A backend without a worker, so that what was accepted stays in the log."""
    with valkey.client():
        found = Backend(Settings(store=valkey.url, max_lag=40), valkey.url)
    found.start()
    yield found
    found.close()


def event(number: int) -> bytes:
    return encode_crawl_event(CrawlEvent(f"http://a.example/{number}"))


def in_log(backend: Backend) -> list[str]:
    """The URLs of the events in the log, in order."""
    found = backend.log.read(0, 1_000)  # type: ignore[attr-defined]
    return [decode_crawl_event(value).url for record in found for value in values_in(record)]


def test_calls_that_wait_for_the_disk_share_the_next_append(backend: Backend) -> None:
    append, gate, appends, asked = backend.log.append, threading.Event(), list[int](), list[object]()
    ask = Coalescer.ask

    async def counted(together: Any, event: Any) -> Any:
        asked.append(event)
        return await ask(together, event)

    def slow(values: Any, *more: Any) -> Any:
        appends.append(len(values))
        assert gate.wait(WAIT_SECONDS)
        return append(values, *more)

    service = SimpleNamespace(backend=backend, not_ready=lambda: None)
    with (
        patch.object(backend.log, "append", slow),
        patch.object(Coalescer, "ask", counted),
        serving(service) as url,
        httpx.Client(base_url=url, timeout=30) as http,
        ThreadPoolExecutor(CALLS) as pool,
    ):
        bodies = [{"url": f"http://a.example/{n}", **({"links": "none"} if n == 5 else {})} for n in range(CALLS)]
        sent = [pool.submit(http.post, "/v1/events", json=body) for body in bodies]
        wait_until(lambda: len(asked) >= CALLS - 1 and len(appends) == 2, WAIT_SECONDS)
        wait_until(lambda: sum(one.done() for one in sent) == 1, WAIT_SECONDS)
        gate.set()
        answers = [one.result() for one in sent]
    assert [answer.status_code for answer in answers] == [422 if n == 5 else 202 for n in range(CALLS)]
    assert sum(appends) == CALLS - 1
    assert len(appends) <= 4
    assert sorted(in_log(backend)) == sorted(f"http://a.example/{n}" for n in range(CALLS) if n != 5)


def test_call_over_the_limit_of_the_backlog_is_refused_and_the_others_are_not(backend: Backend) -> None:
    calls = [[event(10 * call + n) for n in range(size)] for call, size in enumerate((30, 11, 9, 2, 1))]
    ends = {"log/0": 40}  # The end of the whole append.
    first, second, third, fourth, fifth = backend.accept_together(calls)
    assert (first, third, fifth) == (ends, ends, ends)
    assert all("OPIC_MAX_LAG" in str(error) and isinstance(error, StoreUnavailable) for error in (second, fourth))
    assert in_log(backend) == [f"http://a.example/{n}" for n in (*range(30), *range(20, 29), 40)]
    (full,) = backend.accept_together([[event(99)]])
    assert isinstance(full, StoreUnavailable)


def test_failed_append_is_reported_to_all_its_calls(backend: Backend) -> None:
    with (
        patch.object(backend.log, "append", side_effect=StoreUnavailable("the store is away")),
        pytest.raises(StoreUnavailable, match="away"),
    ):
        backend.accept_together([[event(1)], [event(2)]])
    assert in_log(backend) == []
