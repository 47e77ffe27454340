"""Crawlers of a service: they lease pages, report them in time, late or never, release them, and repeat old calls.

They note each lease and each call of /v1/next, and know each event that was confirmed.
"""

import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from processes import wait_until

from opic.model.events import CrawlEvent, encode_crawl_event

FETCHERS = 3
PAGES = 3_000
HOSTS = 60
READS_A_PAGE_MAX = 60  # Of the 64 measures that are kept: the inspector wants them all.
LINKS_MAX = 12
LEASE_SECONDS = (0.5, 1.0, 3.0, 10.0, 30.0)
ANSWER_SECONDS_MAX = 30.0
IDLE_SECONDS_MAX = 120.0
OLD_CALLS = 2_000
REPEATED_SHARE = 0.1
REFUSED_SECONDS_MAX = 1.0


def url_of(number: int) -> str:
    """A page of the crawlers; nobody else reports it."""
    return f"http://w{number % HOSTS}.e{number % 17}.net/{number // HOSTS}"


def is_ours(url: str) -> bool:
    return ".net/" in url or ".example/" in url


@dataclass
class LeaseNote:
    """A lease as its holder knows it; times by the machine's clock."""

    url: str
    holder: str
    token: str
    begun: float
    until: float
    ended: float | None = None  # When the holder set out to end it, or the store forgot it.

    def end(self, at: float) -> None:
        """Note that it ended at a time, unless it had ended before: its holder may wait while the store forgets it."""
        if self.ended is None:
            self.ended = at


@dataclass(frozen=True)
class CallNote:
    """A call of /v1/next."""

    begun: float
    ended: float
    status: int  # 0: no answer.
    said: str


@dataclass
class KeyedEvents:
    """A call of /v1/events."""

    key: str
    events: list[CrawlEvent]

    @property
    def body(self) -> list[dict[str, Any]]:
        names = ("url", "links", "status", "fetched_at", "meta")
        return [{name: value for name in names if (value := getattr(e, name))} for e in self.events]


@dataclass
class Notes:
    """What all crawlers know together."""

    leases: list[LeaseNote] = field(default_factory=list)
    calls: list[CallNote] = field(default_factory=list)
    confirmed: list[bytes] = field(default_factory=list)  # Events, encoded, in the order in which they were confirmed.
    confirmed_reads: set[tuple[str, int]] = field(default_factory=set)  # URL, time in microseconds.
    odd: list[str] = field(default_factory=list)  # Answers that nobody should get.
    old: deque[KeyedEvents] = field(default_factory=lambda: deque(maxlen=OLD_CALLS))
    holders: dict[str, LeaseNote] = field(default_factory=dict)  # URL -> its last lease.
    reads: Counter[str] = field(default_factory=Counter)
    times: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1_710_000_000))
    repeated: int = 0
    over_rate: int = 0  # Calls that were refused because there were too many.
    forgotten_at: float = 0.0  # Leases that began before are over.

    def forget_leases(self) -> None:
        """All leases end now: the store was told, or made, to forget them. So do those whose answers come later."""
        self.forgotten_at = time.time()
        for lease in self.leases:
            lease.end(0.0)

    def confirm(self, events: Sequence[CrawlEvent]) -> None:
        """Note events that were confirmed."""
        self.confirmed += [encode_crawl_event(event) for event in events]
        self.confirmed_reads |= {(e.url, round((e.fetched_at or 0) * 1e6)) for e in events if e.status == 200}

    def read(self, url: str, links: Sequence[str]) -> CrawlEvent:
        """A read of a page, at a time of its own."""
        self.reads[url] += 1
        return CrawlEvent(url, list(links), fetched_at=float(next(self.times)), meta={"page": url})


class Fetcher(threading.Thread):
    """One crawler. Its calls go to any of the endpoints."""

    def __init__(
        self, name: str, seed: str, notes: Notes, endpoints: Callable[[], Sequence[str]], shown: dict[str, str]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.rng, self.notes, self._endpoints = random.Random(f"{seed}/{name}"), notes, endpoints
        self._shown = shown  # Headers that show who it is.
        self.running, self.idle, self.done = threading.Event(), threading.Event(), threading.Event()
        self.asks_only = False  # Asks for pages, which it keeps until their leases end, and reports nothing.
        self.late_share = 0.0
        self.offers: dict[str, str] = {}  # Headers of each call.
        self._keys = itertools.count()
        self._pending: deque[KeyedEvents] = deque()
        self._late: list[tuple[LeaseNote, CrawlEvent]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with httpx.Client(timeout=ANSWER_SECONDS_MAX) as self._client:
                while not self.done.is_set():
                    self._turn()
        except BaseException as error:
            self.failure = error
            raise

    def _turn(self) -> None:
        if not self.running.is_set():
            self._send_pending()
            if not self._pending:
                self.idle.set()
            self.running.wait(0.05)
            return
        self.idle.clear()
        for page in self._next():
            self._fetch(page)
        self._report_late()
        if not self.asks_only and self.notes.old and self.rng.random() < REPEATED_SHARE:
            self._repeat(self.rng.choice(list(self.notes.old)))
        self._send_pending()

    def _post(self, path: str, body: object, **headers: str) -> httpx.Response | None:
        """Send a call to one of the endpoints; None: no answer, or one too many, which had no effect."""
        url = f"{self.rng.choice(self._endpoints())}{path}"
        try:
            answer = self._client.post(url, json=body, headers=headers | self.offers | self._shown)
        except httpx.TransportError:
            time.sleep(0.05)
            return None
        if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            return answer
        self.notes.over_rate += 1
        self.done.wait(min(int(answer.headers["Retry-After"]), REFUSED_SECONDS_MAX))
        return None

    def _next(self) -> list[LeaseNote]:
        seconds = self.rng.choice(LEASE_SECONDS)
        body = {
            "n": self.rng.choice((20, 100) if self.asks_only else (1, 5, 20)),
            "lease_seconds": seconds,
            "crawler": self.name,
        }
        begun = time.monotonic()
        answer = self._post("/v1/next", body)
        said = "" if answer is None or answer.status_code < 400 else answer.text
        self.notes.calls.append(CallNote(begun, time.monotonic(), answer.status_code if answer else 0, said))
        if answer is None or answer.status_code != 200:
            if answer is not None and answer.status_code < 500:
                self.notes.odd.append(f"next was answered {answer.status_code}: {said[:300]}")
            time.sleep(0.02)
            return []
        found = []
        for page in answer.json()["pages"]:
            until = page["lease_until"]
            lease = LeaseNote(page["url"], self.name, page["lease"], until - seconds, until)
            self.notes.leases.append(lease)
            if lease.begun < self.notes.forgotten_at:
                lease.end(0.0)
            self.notes.holders[lease.url] = lease
            found.append(lease)
        if not found:
            time.sleep(0.05)
        return found

    def _fetch(self, lease: LeaseNote) -> None:
        """Report a page in time, keep its event until its lease is another's, release it, or leave it."""
        chance = self.rng.random()
        if self.asks_only:
            return
        if not is_ours(lease.url) or self.notes.reads[lease.url] >= READS_A_PAGE_MAX or chance < 0.1:
            if chance < 0.5:
                lease.end(time.time())
                self._post("/v1/release", {"leases": [lease.token]})
            return
        if chance > 1 - self.late_share:
            event = CrawlEvent(lease.url, [], status=503, fetched_at=float(next(self.notes.times)))
            self._late.append((lease, event))
            return
        lease.end(time.time())
        self._pending.append(self._call(self._event(lease.url)))

    def _event(self, url: str) -> CrawlEvent:
        if self.rng.random() < 0.1:
            return CrawlEvent(url, [], status=self.rng.choice((404, 503)), fetched_at=float(next(self.notes.times)))
        links = [url_of(self.rng.randrange(PAGES)) for _ in range(self.rng.randrange(LINKS_MAX))]
        return self.notes.read(url, links)

    def _call(self, *events: CrawlEvent) -> KeyedEvents:
        return KeyedEvents(f"{self.name}-{next(self._keys)}-{self.rng.random()}", list(events))

    def _report_late(self) -> None:
        """Report pages whose leases are over, once somebody else holds them; drop those that nobody leased again."""
        now = time.time()
        for lease, event in list(self._late):
            holder = self.notes.holders.get(lease.url, lease)
            if lease.ended is not None:  # A restore ended all leases, and nobody remembers this one.
                self._late.remove((lease, event))
            elif now > lease.until and holder.until - now > 0.3 and holder.ended is None and holder is not lease:
                self._late.remove((lease, event))
                self._pending.append(self._call(event))
            elif now > lease.until + 15:
                self._late.remove((lease, event))

    def put(self, *events: CrawlEvent) -> None:
        """Have events reported by a call of their own."""
        self._pending.append(self._call(*events))

    def _send_pending(self) -> None:
        for _ in range(len(self._pending)):
            call = self._pending.popleft()
            answer = self._post("/v1/events", call.body, **{"Idempotency-Key": call.key})
            if answer is not None and answer.status_code == 202 and answer.json()["accepted"] == len(call.events):
                self.notes.confirm(call.events)
                self.notes.old.append(call)
                continue
            if answer is not None and answer.status_code < 500:
                self.notes.odd.append(f"{call.key} was answered {answer.status_code}: {answer.text[:300]}")
                continue
            self._pending.append(call)
            return

    def _repeat(self, call: KeyedEvents) -> None:
        """Send a call again that was confirmed before: it must be confirmed again, and take no effect."""
        answer = self._post("/v1/events", call.body, **{"Idempotency-Key": call.key})
        if answer is not None and answer.status_code == 202:
            self.notes.repeated += 1
        elif answer is not None and answer.status_code < 500:
            self.notes.odd.append(f"the repeat of {call.key} was answered {answer.status_code}: {answer.text[:300]}")


class Fetchers:
    """Some crawlers."""

    def __init__(self, seed: str, endpoints: Callable[[], Sequence[str]], shown: dict[str, str]) -> None:
        """Start them; they get no page before `resume`.

        Args:
            seed: of what they do.
            endpoints: returns the URLs of the service.
            shown: headers of each call that show who they are.
        """
        self.notes = Notes()
        self.all = [Fetcher(f"crawler-{n}", seed, self.notes, endpoints, shown) for n in range(FETCHERS)]
        for one in self.all:
            one.start()

    def resume(self) -> None:
        for one in self.all:
            one.idle.clear()
            one.running.set()

    def pause(self) -> None:
        """Ask for nothing more, and wait until all that was reported is confirmed."""
        for one in self.all:
            one.running.clear()
        wait_until(self._still, IDLE_SECONDS_MAX)

    @contextmanager
    def only_asking(self) -> Iterator[None]:
        """Meanwhile they ask for pages, quickly one after the other, so that those further down get their turn."""
        for one in self.all:
            one.asks_only = True
        try:
            yield
        finally:
            for one in self.all:
                one.asks_only = False

    @contextmanager
    def offering(self, headers: dict[str, str]) -> Iterator[None]:
        """Send these headers with each call during the block."""
        for one in self.all:
            one.offers = headers
        try:
            yield
        finally:
            for one in self.all:
                one.offers = {}

    def _still(self) -> bool:
        for one in self.all:
            if one.failure is not None:
                raise one.failure
        return all(one.idle.is_set() for one in self.all)

    def end(self) -> None:
        for one in self.all:
            one.done.set()
        for one in self.all:
            one.join(ANSWER_SECONDS_MAX + 5)
