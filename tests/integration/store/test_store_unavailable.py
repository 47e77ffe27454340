"""The store's server killed, or paused, while crawlers talk to the service: they meet answers and 503s only."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from processes import Service, running, wait_until

pytestmark = pytest.mark.slow

SEED = 20030524
KILLS = 5
PAUSES = 2
ENOUGH = 150  # Events accepted, pages leased.
SEEDS = 3_000  # Pages to lease. No event ever names them, so no lease ends before its time.
LEASE_SECONDS = 3_600
ANSWER_SECONDS_MAX = 45.0  # An answer from a store that stands still takes ten, on a machine with nothing else to do.

ANSWERED = {"/v1/events": 202, "/v1/next": 200, "/v1/importance": 200}


@dataclass
class Seen:
    """What crawlers met, all of them together."""

    accepted: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0


class Crawlers:
    """Threads that send events, ask for pages and for importance, over and over, each of them as fast as it may."""

    def __init__(self, service: Service) -> None:
        self.seen = Seen()
        self._service, self._done, self._lock = service, threading.Event(), threading.Lock()
        jobs = [self._report, self._report_by_name, *6 * [self._ask_for_pages], *6 * [self._ask_for_importance]]
        self._threads = [threading.Thread(target=self._run, args=(job, number)) for number, job in enumerate(jobs)]

    def __enter__(self) -> "Crawlers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def more(self, kind: str, status: int, count: int = 1) -> None:
        """Wait for so many more answers of a kind."""
        target = self.seen.answers[kind, status] + count
        wait_until(lambda: self.seen.answers[kind, status] >= target or self.seen.wrong)

    def leave_enough(self) -> None:
        """Wait until there is enough to look through, however fast the machine was at breaking things."""
        wait_until(lambda: min(len(self.seen.accepted), len(self.seen.leased)) >= ENOUGH or self.seen.wrong)

    def _run(self, job: Callable[[httpx.Client, random.Random, int], None], number: int) -> None:
        rng = random.Random(SEED + number)
        try:
            with httpx.Client(base_url=self._service.url, timeout=ANSWER_SECONDS_MAX) as client:
                while not self._done.is_set():
                    job(client, rng, number)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test has to hear of it
            self.seen.wrong.append(f"{job.__name__}: {error!r}")

    def _send(
        self, client: httpx.Client, path: str, body: object, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        began = time.monotonic()
        answer = client.post(path, json=body, headers=headers)
        with self._lock:
            self.seen.slowest = max(self.seen.slowest, time.monotonic() - began)
            self.seen.answers[path, answer.status_code] += 1
            if answer.status_code not in (200, 202, 503):
                self.seen.wrong.append(f"{path}: {answer.status_code} {answer.text}")
            if answer.status_code == 503 and not int(answer.headers["retry-after"]) > 0:
                self.seen.wrong.append(f"{path}: no Retry-After")
        return answer

    def _events(self, rng: random.Random, number: int) -> list[dict[str, object]]:
        first = len(self.seen.accepted) + len(self.seen.unanswered)
        name = f"http://h{rng.randrange(9)}.example/{number}/{first}/{rng.randrange(1 << 60)}"
        links = [f"http://seed.example/{rng.randrange(SEEDS)}" for _ in range(5)]
        return [{"url": f"{name}/{i}", "links": links} for i in range(rng.randint(1, 5))]

    def _report(self, client: httpx.Client, rng: random.Random, number: int) -> None:
        """Send events once."""
        events = self._events(rng, number)
        answer = self._send(client, "/v1/events", events)
        (self.seen.accepted if answer.status_code == 202 else self.seen.unanswered).extend(
            str(e["url"]) for e in events
        )

    def _report_by_name(self, client: httpx.Client, rng: random.Random, number: int) -> None:
        """Send events until they are accepted."""
        events, key = self._events(rng, number), {"idempotency-key": str(rng.randrange(1 << 60))}
        while self._send(client, "/v1/events", events, key).status_code != 202:
            if self._done.wait(0.01):
                self.seen.unanswered.extend(str(e["url"]) for e in events)
                return
        self.seen.accepted.extend(str(e["url"]) for e in events)

    def _ask_for_pages(self, client: httpx.Client, rng: random.Random, number: int) -> None:
        asked = {"n": 3, "crawler": f"crawler-{number}", "lease_seconds": LEASE_SECONDS, "domain": "seed.example"}
        answer = self._send(client, "/v1/next", asked)
        if answer.status_code == 200:
            self.seen.leased.extend(page["url"] for page in answer.json()["pages"])

    def _ask_for_importance(self, client: httpx.Client, rng: random.Random, number: int) -> None:
        urls = rng.sample(self.seen.accepted, min(20, len(self.seen.accepted)))
        answer = self._send(client, "/v1/importance", {"urls": [*urls, "http://seed.example/1"]})
        if answer.status_code != 200:
            return
        pages = answer.json()["pages"]
        if [page["url"] for page in pages] != [*urls, "http://seed.example/1"]:
            self.seen.wrong.append("importance of other pages than those asked for")
        for page in pages:
            # It may be shown as it was a second ago, with importance 0 if the event that made it known came later.
            if page["importance"] is not None and not (0 <= page["importance"] < 1 and page["reads"] <= 1):
                self.seen.wrong.append(f"not true of any moment: {page}")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0) as found:
        urls = [f"http://seed.example/{i}" for i in range(SEEDS)]
        assert found.post("/v1/seeds", {"urls": urls}).status_code == 200
        yield found


def all_is_well(service: Service, seen: Seen) -> None:
    assert not seen.wrong, seen.wrong[:5]
    wait_until(service.ready)
    service.settle()
    assert service.get("/v1/audit").json()["conserved"]
    assert len(seen.accepted) >= ENOUGH
    assert len(set(seen.accepted)) == len(seen.accepted)
    assert service.reads(seen.accepted) == [1] * len(seen.accepted)
    assert not seen.unanswered or max(service.reads(seen.unanswered)) <= 1
    assert len(seen.leased) >= ENOUGH
    assert max(Counter(seen.leased).values()) == 1, "a page was handed out twice"


def test_killed_server_causes_503s_and_loses_nothing_confirmed(service: Service) -> None:
    with Crawlers(service) as crawlers:
        for _ in range(KILLS):
            for path, status in ANSWERED.items():
                crawlers.more(path, status, 10)
            killed = service.store_pid()
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda killed=killed: service.store_pid() != killed)
        crawlers.leave_enough()
    assert crawlers.seen.answers["/v1/events", 503], "the kills were not felt"
    all_is_well(service, crawlers.seen)


def test_paused_server_causes_503s_and_no_call_hangs(service: Service) -> None:
    with Crawlers(service) as crawlers:
        for _ in range(PAUSES):
            for path, status in ANSWERED.items():
                crawlers.more(path, status, 10)
            paused = service.store_pid()
            os.kill(paused, signal.SIGSTOP)
            try:
                for path in ("/v1/events", "/v1/next", "/v1/importance"):
                    crawlers.more(path, 503)
                assert service.alive()
                assert not service.ready()
            finally:
                os.kill(paused, signal.SIGCONT)
        crawlers.leave_enough()
        assert service.store_pid() == paused, "a paused server is not a dead one"
    all_is_well(service, crawlers.seen)
