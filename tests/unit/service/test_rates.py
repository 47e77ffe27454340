"""Token buckets and limits of concurrent calls, by a clock of the test's own."""

import random

import pytest

from opic.service.rates import BURST_SECONDS, LATE_SECONDS, PROMPT_REFUSALS, Limiter, OverRate, Rates, limiter_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_burst_of_some_seconds_is_taken_then_one_call_as_often_as_the_rate_says(clock: Clock) -> None:
    limiter = Limiter(Rates(calls=2), clock)
    assert [limiter.begin() for _ in range(2 * BURST_SECONDS)] == [None] * 2 * BURST_SECONDS
    assert limiter.begin() == OverRate("calls", 2, 1)
    clock.now += 0.5
    assert limiter.begin() is None
    assert limiter.begin() is not None
    clock.now += 1000  # Unused time gives no more than a burst.
    assert sum(limiter.begin() is None for _ in range(100)) == 2 * BURST_SECONDS
    assert limiter.refused == {"calls": 2 + 90, "events": 0, "bytes": 0, "concurrent": 0}


def test_call_is_taken_if_anything_is_left_however_large_it_is(clock: Clock) -> None:
    limiter = Limiter(Rates(events=10), clock)
    limiter.owe(49, 0)
    assert limiter.begin(brings_events=True) is None
    limiter.owe(1_000, 0)
    assert limiter.begin(brings_events=True) == OverRate("events", 10, 100)  # 999 below zero, and one more.
    clock.now += 99
    assert limiter.begin(brings_events=True) == OverRate("events", 10, 1)
    clock.now += 1
    assert limiter.begin(brings_events=True) is None


def test_refused_call_takes_nothing_of_any_rate(clock: Clock) -> None:
    limiter = Limiter(Rates(calls=1, bytes=100), clock)
    assert limiter.begin(510) is None
    for _ in range(20):
        refused = limiter.begin(100)
        assert refused is not None
        assert refused.limit == "bytes"
    clock.now += 1
    assert [limiter.begin(1) for _ in range(4)] == [None] * 4  # Of five calls in the burst, one was taken before.


def test_call_refused_for_its_events_takes_no_call_and_no_bytes(clock: Clock) -> None:
    limiter = Limiter(Rates(calls=1, events=1, bytes=100, concurrent=1), clock)
    limiter.owe(1_000, 0)
    for _ in range(20):
        refused = limiter.begin(600, brings_events=True)
        assert refused is not None
        assert refused.limit == "events"
    assert limiter.begin(1) is None  # A call without events, of which there are none left.


def test_calls_at_once_are_counted_until_they_end(clock: Clock) -> None:
    limiter = Limiter(Rates(concurrent=2), clock)
    assert limiter.begin() is limiter.begin() is None
    assert limiter.begin() == OverRate("concurrent", 2, 1)
    limiter.end()
    assert limiter.begin() is None


def test_bytes_of_answers_delay_later_calls(clock: Clock) -> None:
    limiter = Limiter(Rates(bytes=1_000), clock)
    assert limiter.begin(10) is None
    limiter.end(15_000)
    assert limiter.begin(0) == OverRate("bytes", 1_000, 11)
    clock.now += 11
    assert limiter.begin(0) is None


@pytest.mark.parametrize("seed", range(5))
def test_mean_rate_holds_and_waiting_as_told_is_enough(clock: Clock, seed: int) -> None:
    rng, limiter, taken, began = random.Random(seed), Limiter(Rates(events=50), clock), 0, clock.now
    for _ in range(2_000):
        while (over := limiter.begin(brings_events=True)) is not None:
            clock.now += over.seconds
        count = rng.choice((1, 5, 40, 400))
        limiter.owe(count, 0)
        taken += count
        assert taken <= 50 * (clock.now - began + BURST_SECONDS) + 400
    assert taken >= 50 * (clock.now - began) * 0.8


def test_refusals_are_prompt_until_they_are_many(clock: Clock) -> None:
    limiter = Limiter(Rates(calls=1), clock)
    prompt = int(PROMPT_REFUSALS * BURST_SECONDS)
    assert [limiter.refusal_delay() for _ in range(prompt + 2)] == [0.0] * prompt + [LATE_SECONDS] * 2
    clock.now += 1 / PROMPT_REFUSALS
    assert [limiter.refusal_delay() for _ in range(2)] == [0.0, LATE_SECONDS]


def test_message_of_a_stream_is_paced_not_refused(clock: Clock) -> None:
    limiter = Limiter(Rates(events=10), clock)
    assert [limiter.pause(1, 0) for _ in range(49)] == [0.0] * 49
    assert limiter.pause(1, 0) == pytest.approx(0.1)


def test_fields_tell_what_is_left_and_when_more_comes(clock: Clock) -> None:
    limiter = Limiter(Rates(calls=2, bytes=1e6, concurrent=4), clock)
    for _ in range(10):
        assert limiter.begin() is None
        limiter.end()
    policy, left = dict(limiter.fields())[b"ratelimit-policy"], dict(limiter.fields())[b"ratelimit"]
    assert policy.split(b", ") == [
        b'"calls";q=10;qu="requests";w=5',
        b'"bytes";q=5000000;qu="content-bytes";w=5',
        b'"concurrent";q=4;qu="concurrent-requests"',
    ]
    assert left == b'"calls";r=0;t=1, "bytes";r=5000000, "concurrent";r=4'


def test_limiter_goes_on_while_the_rates_are_the_same() -> None:
    limiter = limiter_of(Rates(calls=2))
    assert limiter_of(Rates(calls=2), limiter) is limiter
    assert limiter_of(Rates(calls=3), limiter) is not limiter
    assert limiter_of(Rates(), limiter) is None
