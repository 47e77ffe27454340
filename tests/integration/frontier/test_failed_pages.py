"""Pages whose fetches fail are given up in the end, and wait as their events ask; others are not offered too early."""

import time
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from frontiers import Crawl, until
from msgspec.structs import asdict
from servers import Server

from opic.frontier import Frontier, PolitenessSettings
from opic.model.events import encode_seeds
from opic.replica import Crawl as Shards

A, B, HUB = (f"http://{name}.org/" for name in ("a", "b", "hub"))
AT_ONCE = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0, max_failures=3)
PATIENT = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=600.0, max_failures=3)


def told(frontier: Frontier, url: str = A) -> dict[str, Any]:
    found = frontier.explain(url)
    assert found is not None
    return found


def empty(frontier: Frontier, **terms: Any) -> tuple[dict[str, int], bool]:
    """What holds the pages back, where there is none to be had, and whether that is for good."""
    answer: Any = frontier.next(10, **terms)
    assert answer.pages == []
    return {kind: count for kind, count in asdict(answer.waiting).items() if count}, answer.exhausted


def test_page_that_fails_too_often_in_a_row_is_given_up(servers: Server) -> None:
    crawl = Crawl(servers, AT_ONCE)
    crawl.seed([A])
    for failures in (1, 2, 3):
        assert crawl.urls() == [A]
        crawl.event(A, status=500)
        assert told(crawl.frontier).failed_fetches == failures
    other = crawl.endpoint(AT_ONCE)
    for frontier in (crawl.frontier, other):
        assert empty(frontier) == ({"given_up": 1}, True)
        found = told(frontier)
        assert (found.state, found.held_back, found.next, found.place) == (
            "given_up", ["given_up"], False, None
        )  # fmt: skip
        assert "given up after failed fetches (3 in a row)" in " ".join(found.why_not)
    assert [len(ids) for _, ids in other.given_up()] == [1]
    page = crawl.pages.page(A)
    assert page is not None
    assert page.v == 0  # Under grants its cash is the grant that it had.
    crawl.event(HUB, [A])
    assert empty(crawl.frontier) == ({"given_up": 1}, True)  # A link does not bring it back.


def test_success_between_failures_resets_the_count(valkey: Server) -> None:
    crawl = Crawl(valkey, AT_ONCE)
    for status in (500, 0, 304, 503, 500, 404, 500, 403, 500, 429):
        crawl.event(A, status=status)
        assert told(crawl.frontier).state != "given_up"
    crawl.event(A, status=500)
    assert told(crawl.frontier).state == "gone"  # A failure does not bring it back.
    crawl.event(A)
    assert (told(crawl.frontier).state, told(crawl.frontier).failed_fetches) == ("read", 0)


def test_page_given_up_by_an_event_comes_back_at_once_by_a_seed_or_a_read(servers: Server) -> None:
    crawl = Crawl(servers, PATIENT)
    other = crawl.endpoint(PATIENT)
    crawl.seed([A, B])
    assert crawl.urls() == [A, B]
    crawl.event(A, status=0, give_up=True)
    crawl.event(B, status=0)
    for frontier in (crawl.frontier, other):
        assert empty(frontier) == ({"retry": 1, "given_up": 1}, False)
        assert "its crawler said so" in " ".join(told(frontier).why_not)
        assert told(frontier).failed_fetches is None
    crawl.event(A, status=500)
    assert told(other).state == "given_up"
    crawl.seed([A])
    assert empty(other, domain="b.org") == ({"retry": 1}, False)
    assert [page.url for page in other.next(10).pages] == [A]
    assert crawl.urls() == []
    assert crawl.fails() == 1
    crawl.event(A, give_up=True)  # Of a successful fetch it says nothing.
    assert told(crawl.frontier).state == "read"


def test_failures_counted_without_a_limit_apply_to_a_later_limit(valkey: Server) -> None:
    crawl = Crawl(valkey, replace(AT_ONCE, max_failures=0))
    for _ in range(20):
        crawl.event(A, status=500)
    assert crawl.urls() == [A]
    assert told(crawl.endpoint(replace(AT_ONCE, max_failures=20))).state == "given_up"
    assert told(crawl.endpoint(replace(AT_ONCE, max_failures=21))).state == "unread"


def test_failures_and_times_outlive_workers_with_and_without_a_checkpoint(valkey: Server) -> None:
    crawl, later = Crawl(valkey, AT_ONCE), time.time() + 1_000
    crawl.event(A, status=0, give_up=True)
    crawl.event(B, status=500, not_before=later)
    for _ in range(2):
        cold = {page.url: (page.failures, page.not_before_us) for page in Shards.open(valkey.client()).pages()}
        assert cold == {A: (255, 0), B: (1, round(later * 1e6))}
        crawl.store.checkpoint()
    crawl.seed([A])
    crawl.event(B, not_before=0)
    crawl.store.checkpoint()  # What was written of the pages before is overwritten.
    cold = {page.url: (page.failures, page.not_before_us) for page in Shards.open(valkey.client()).pages()}
    assert cold == {A: (0, 0), B: (0, 0)}


def test_failed_page_waits_as_long_as_its_event_asks(servers: Server) -> None:
    crawl = Crawl(servers, PATIENT)
    crawl.seed([A, B])
    assert crawl.urls() == [A, B]
    before = time.time()
    crawl.event(A, status=503, retry_after=0.3)
    crawl.event(B, status=429, retry_after=3_000)
    assert empty(crawl.frontier)[0] == {"retry": 2}
    assert until(crawl.urls) == [A]
    assert time.time() >= before + 0.3
    waits = told(crawl.frontier, B).waits_until
    assert before + 3_000 <= waits <= time.time() + 3_000
    assert told(crawl.endpoint(PATIENT), B).waits_until == waits


def test_page_is_not_offered_before_its_not_before_time(servers: Server) -> None:
    crawl = Crawl(servers, AT_ONCE)
    other, late = crawl.endpoint(AT_ONCE), time.time() + 1_000
    crawl.seed([HUB])
    crawl._apply(encode_seeds([A, B], None, not_before=late), "seeds")
    crawl.event(B, status=404, not_before=late)  # A gone page is not waited for.
    assert crawl.urls() == [HUB]
    crawl.event(HUB)
    for frontier in (crawl.frontier, other):
        assert empty(frontier) == ({"not_before": 1}, False)
        found = told(frontier)
        assert (found.held_back, found.not_before) == (["not_before"], pytest.approx(late, abs=1e-5))
    soon = time.time() + 1.5
    crawl.event(A, status=500, not_before=soon)  # The last one wins.
    answer: Any = other.next()
    assert 0 < answer.retry_after <= 1.5
    assert until(lambda: other.next().pages)
    assert time.time() >= soon


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"give_up": 1}, "Expected `bool | null`, got `int` - at `$.give_up`"),
        ({"retry_after": -1}, "retry_after -1.0 is not a number of seconds from 0 to a year"),
        ({"retry_after": float("nan")}, "retry_after nan is not"),
        ({"retry_after": "5"}, "Expected `float | null`, got `str`"),
        ({"not_before": -1}, "not_before -1.0 is not between 1970 and 2099"),
        ({"not_before": "soon"}, "not_before 'soon' is not an RFC 3339 time"),
        ({"not_before": "2030-01-01T00:00:00"}, "has no time zone"),
    ],
)
def test_event_with_an_invalid_retry_request_is_a_dead_letter(valkey: Server, value: dict[str, Any], why: str) -> None:
    crawl = Crawl(valkey)
    crawl._apply(msgpack.packb({"url": A, "status": 500, **value}), "event")
    ((_, letter),) = crawl.store.shard.client.xrange(crawl.store.shard.keys.dead)
    assert why in letter[b"opic-error"].decode()
    assert not crawl.next()
