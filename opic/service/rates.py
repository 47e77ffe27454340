"""Rates: how many calls, events and bytes a second a token may have, and how many calls at once; of this process alone.

Each rate is a token bucket that holds BURST_SECONDS of it. A call is taken if anything is left, and may leave a debt
that later calls wait for. So a refused call is refused before its body is read, none is too large for ever, and the
mean rate holds. Many refusals are answered late, which holds back a client that does not wait as it is told.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

BURST_SECONDS: Final = 5
PROMPT_REFUSALS: Final = 20.0  # A second; further ones are late, or a client that never waits would take the CPU.
LATE_SECONDS: Final = 0.25
ROUNDING: Final = 1e-6  # Who waited as long as was told is let through.
Limit = Literal["calls", "events", "bytes", "concurrent"]
UNITS: Final = {"calls": "requests", "events": "events", "bytes": "content-bytes", "concurrent": "concurrent-requests"}


@dataclass(frozen=True, slots=True)
class Rates:
    """What a token may have: calls, events and bytes a second, and calls at once. 0 means no limit."""

    calls: float = 0.0
    events: float = 0.0
    bytes: float = 0.0
    concurrent: int = 0


@dataclass(frozen=True, slots=True)
class OverRate:
    """Why a call is refused: the limit, what it allows, and after how many seconds the call may come again."""

    limit: Limit
    allowed: float
    seconds: int

    def __str__(self) -> str:
        again = f"send it again in {self.seconds} s"
        if self.limit == "concurrent":
            return f"{self.allowed:,.0f} calls at once are allowed, and so many are being answered: {again}"
        return f"{self.allowed:,g} {self.limit} a second are allowed, and these are used up: {again}"


class _Bucket:
    """A token bucket, full at first. Not safe for threads."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate, self.capacity = rate, max(rate * BURST_SECONDS, 1.0)
        self._level, self._at = self.capacity, now

    def level(self, now: float) -> float:
        """Return what is in the bucket; below 0 is a debt."""
        return min(self.capacity, self._level + (now - self._at) * self.rate)

    def wait(self, now: float) -> float:
        """Return after how many seconds there is something in it."""
        missing = 1.0 - self.level(now)
        return missing / self.rate if missing > ROUNDING else 0.0

    def take_amount(self, amount: float, now: float) -> None:
        """Take an amount, even more than there is."""
        self._level, self._at = self.level(now) - amount, now


class Limiter:
    """Keeps a token within its rates. Safe for threads."""

    def __init__(self, rates: Rates, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with full buckets; `clock` returns seconds."""
        self.rates, self.refused, self._clock = rates, dict.fromkeys(UNITS, 0), clock
        now = clock()
        given = {"calls": rates.calls, "events": rates.events, "bytes": rates.bytes}
        self._buckets = {limit: _Bucket(rate, now) for limit, rate in given.items() if rate}
        self._prompt = _Bucket(PROMPT_REFUSALS, now)
        self._running, self._lock = 0, threading.Lock()
        policies = [
            f'"{limit}";q={bucket.capacity:.0f};qu="{UNITS[limit]}";w={BURST_SECONDS}'
            for limit, bucket in self._buckets.items()
        ]
        if rates.concurrent:
            policies.append(f'"concurrent";q={rates.concurrent};qu="{UNITS["concurrent"]}"')
        self._policy = ", ".join(policies).encode()

    def begin(self, content_bytes: int = 0, *, brings_events: bool = False) -> OverRate | None:
        """Begin a call with so many bytes of content, which then has to `end`; or return why it may not begin."""
        limits: tuple[Limit, ...] = ("calls", "bytes", "events") if brings_events else ("calls", "bytes")
        with self._lock:
            if 0 < self.rates.concurrent <= self._running:
                return self._refuse(OverRate("concurrent", self.rates.concurrent, 1))
            if (over := self._over(*limits)) is None:
                self._running += 1
                self._take(1, "calls")
                self._take(content_bytes, "bytes")
            return over

    def end(self, content_bytes: int = 0) -> None:
        """End a call that was begun, and count further bytes that it had, as of its answer."""
        with self._lock:
            self._running -= 1
        self.owe(0, content_bytes)

    def refusal_delay(self) -> float:
        """Return how many seconds to keep a refused call waiting: none, unless refusals are many."""
        with self._lock:
            now = self._clock()
            if self._prompt.wait(now) > 0:
                return LATE_SECONDS
            self._prompt.take_amount(1, now)
            return 0.0

    def owe(self, events: int, content_bytes: int) -> None:
        """Count events, and bytes whose number was not known at the beginning; later calls wait for them."""
        with self._lock:
            self._take(events, "events")
            self._take(content_bytes, "bytes")

    def pause(self, events: int, content_bytes: int) -> float:
        """Count a message of a stream, which is not refused; return how many seconds to wait before the next one."""
        self.owe(events, content_bytes)
        now = self._clock()
        waits = (self._buckets[limit].wait(now) for limit in ("events", "bytes") if limit in self._buckets)
        return max(waits, default=0.0)

    def _over(self, *limits: Limit) -> OverRate | None:
        now = self._clock()
        for limit in limits:
            if (bucket := self._buckets.get(limit)) is not None and (seconds := bucket.wait(now)) > 0:
                return self._refuse(OverRate(limit, bucket.rate, math.ceil(seconds)))
        return None

    def _take(self, amount: int, limit: Limit) -> None:
        if amount and (bucket := self._buckets.get(limit)) is not None:
            bucket.take_amount(amount, self._clock())

    def _refuse(self, over: OverRate) -> OverRate:
        self.refused[over.limit] += 1
        return over

    def fields(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the header fields RateLimit-Policy and RateLimit, of draft-ietf-httpapi-ratelimit-headers-10."""
        now, standing = self._clock(), []
        for limit, bucket in self._buckets.items():
            level = bucket.level(now)
            left = max(math.floor(level), 0)
            # `t`: the seconds until there is more.
            more = "" if left + 1 > bucket.capacity else f";t={math.ceil((left + 1 - level) / bucket.rate)}"
            standing.append(f'"{limit}";r={left}{more}')
        if most := self.rates.concurrent:
            standing.append(f'"concurrent";r={max(most - self._running, 0)}')
        yield b"ratelimit-policy", self._policy
        yield b"ratelimit", ", ".join(standing).encode()


def limiter_of(rates: Rates, former: Limiter | None = None) -> Limiter | None:
    """Return what keeps these rates: the former limiter if it has the same, None without any limit."""
    if rates == Rates():
        return None
    return former if former is not None and former.rates == rates else Limiter(rates)
