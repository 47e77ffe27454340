"""When a crawler may ask each host again."""

import email.utils
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.client import Event, calls
from opic.client.answers import Accepted, HostPoliteness, Politeness, Rejected
from opic.client.host_pace import HOSTS_MAX, RETRY_AFTER_SECONDS_MAX, HostPace, host_of, retry_after_seconds
from opic.errors import BadUrl
from opic.urls.canonical import canonical_url
from opic.urls.canonical import host_of as canonical_host_of

A, B = "a.example", "b.example"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7\t", 7.0),
        ("007", 7.0),
        ("9" * 400, RETRY_AFTER_SECONDS_MAX),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_SECONDS_MAX),
        *(
            (bad, None)
            for bad in (None, "", "-1", "+5", "1.5", "1e3", "٣", "soon", "120 s", "2030-01-01", "Mon, 32 Jan", "\x00")
        ),
    ],
)
def test_header_that_is_no_whole_number_or_date_asks_for_nothing(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header) == seconds


@pytest.mark.parametrize("format_", ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Los_Angeles"])
def test_all_three_formats_of_dates_are_in_utc(format_: str, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        later = datetime.now(UTC) + timedelta(seconds=1_800)
        assert retry_after_seconds(later.strftime(format_)) == pytest.approx(1_800, abs=5)
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.text(max_size=40) | st.datetimes().map(email.utils.format_datetime))
def test_any_header_gives_a_time_within_the_limit_or_none(header: str) -> None:
    seconds = retry_after_seconds(header)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_SECONDS_MAX


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/", "HTTP://A.Example:81/x", "http://user:pw@a.example/", "http://a.example\\x", "http://[::1]:8/",
        "http://exampl%65.org/", "http://bücher.example/", "http://a.example./", "  http://a.example/",
        "http://a.example ", "\x00http://1\t \x1f",
    ],
)  # fmt: skip
def test_host_that_the_service_accepts_can_be_named_as_busy(url: str) -> None:
    host = host_of(url)
    assert host is not None
    assert canonical_host_of(canonical_url(f"http://{host}/")) == canonical_host_of(canonical_url(url))


@given(st.text("ahtp:/\\@.[]%?#x1 é\t\x00", max_size=30).map("http:/".__add__))
def test_any_url_that_the_service_accepts_has_a_host_that_it_accepts_or_none(url: str) -> None:
    try:
        page = canonical_url(url)
    except BadUrl:
        return
    if (host := host_of(url)) is not None:
        assert canonical_host_of(canonical_url(f"http://{host}/")) == canonical_host_of(page)


@pytest.mark.parametrize(
    ("status", "retry_after", "rests"),
    [(429, 60, True), (503, 60.0, True), (503, None, False), (429, 0, False), (500, 60, False), (200, 60, False)],
)
def test_host_rests_after_429_or_503_with_a_wait(status: int, retry_after: float | None, rests: bool) -> None:
    pace = HostPace()
    pace.note(f"http://{A}/page", status, retry_after)
    assert pace.rests(A) is rests
    assert not pace.rests(B)
    assert pace.resting() == [A] * rests
    assert pace.wait(A) == (pytest.approx(60, abs=1) if rests else 0)


def test_later_end_of_a_rest_counts() -> None:
    pace = HostPace()
    pace.rest(A, 100)
    pace.rest(A, 10)
    assert pace.wait(A) == pytest.approx(100, abs=1)


def test_requests_to_a_host_are_as_far_apart_as_its_delay() -> None:
    pace = HostPace()
    pace.use(Politeness(5.0, None, 0.0, {B: HostPoliteness(delay_seconds=0.0), "c.example": HostPoliteness(9.0)}, 0.0))
    assert pace.wait(A) == 0
    for host in (A, B, "c.example"):
        pace.start(host)
    assert [pace.wait(host) for host in (A, B, "c.example")] == pytest.approx([5, 0, 9], abs=1)


def test_memory_of_hosts_is_bounded() -> None:
    pace = HostPace()
    for number in range(HOSTS_MAX + 10):
        pace.start(f"{number}.example")
        pace.rest(f"{number}.example", -1)
    assert len(pace._started) <= HOSTS_MAX
    assert len(pace._rests) <= HOSTS_MAX
    for number in range(1_500):
        pace.rest(f"{number}.example", number)
    assert len(pace.resting()) == 1_000
    assert "1499.example" in pace.resting()


def test_accepted_events_let_their_hosts_rest() -> None:
    pace = HostPace()
    sent = [
        Event(url=f"http://{A}/", status=503, retry_after=60),
        {"url": f"http://{B}/", "status": 429, "retry_after": 60},
        {"url": "/refused", "status": 429, "retry_after": 60},
        Event(url="http://c.example/", status=500, retry_after=60),
    ]
    call = calls.events(sent, once=True, raise_rejected=False, pace=pace)
    assert call.then is not None
    assert pace.resting() == []
    call.then(Accepted(3, [Rejected(2, "bad")]))
    assert sorted(pace.resting()) == [A, B]
