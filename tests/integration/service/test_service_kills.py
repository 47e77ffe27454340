"""The whole service, killed over and over while crawlers talk to it: no accepted event is lost or applied twice."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import curls
import httpx
import pytest
from processes import START_SECONDS_MAX, Service, running

SEED = 20030524
KILLS = 8
DRAIN_SECONDS_MAX = 60.0
HOSTS = 7


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path / "data", tmp_path / "serve.log") as found:
        yield found


@pytest.mark.slow
def test_killing_every_process_loses_and_repeats_no_accepted_event(service: Service) -> None:
    """Events go in batches of one to five; between two of them any of the three processes, or all, are killed.

    Each event is of a page of its own, so a page's reads say how often its event took effect: once if it was accepted,
    at most once if the call got no answer.
    """
    rng = random.Random(SEED)
    accepted: list[str] = []
    unanswered: list[str] = []
    number = 0
    for kill in range(KILLS):
        victims = ["endpoint", "worker", "store"] if kill % 2 == 0 else rng.sample(["endpoint", "worker", "store"], 1)
        calls, fatal = rng.randint(20, 60), rng.randint(0, 19)
        pids = service.pids()
        for call in range(calls):
            urls = [f"http://h{(number + i) % HOSTS}.example/{number + i}" for i in range(rng.randint(1, 5))]
            number += len(urls)
            links = [f"http://h{rng.randrange(HOSTS)}.example/{rng.randrange(number)}" for _ in range(6)]
            if call == fatal:
                rng.shuffle(victims)
                for victim in victims:
                    if pids[victim]:
                        os.kill(pids[victim], signal.SIGKILL)
            try:
                answer = curls.post(
                    f"{service.url}/v1/events", json=[{"url": u, "links": links} for u in urls], timeout=30
                )
            except httpx.TransportError:
                unanswered += urls
                break
            if answer.status_code == 202:
                assert answer.json()["accepted"] == len(urls)
                accepted += urls
            else:
                assert answer.status_code == 503, answer.text
                unanswered += urls
        assert service.process is not None
        if "endpoint" in victims:
            service.process.wait(10)
            service.start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not service.ready() or not service.pids()["worker"]:
            assert time.monotonic() < deadline, "did not come back"
            time.sleep(0.02)

    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while curls.get(f"{service.url}/v1/stats").json()["lag"]:
        assert time.monotonic() < deadline, "the worker does not drain"
        time.sleep(0.05)
    audit = curls.get(f"{service.url}/v1/audit").json()
    assert audit["conserved"], audit
    pages = curls.post(f"{service.url}/v1/importance", json={"urls": accepted}).json()["pages"]
    assert len(accepted) > 200
    assert [page["reads"] for page in pages] == [1] * len(accepted)
    if unanswered:
        pages = curls.post(f"{service.url}/v1/importance", json={"urls": unanswered}).json()["pages"]
        assert all(page.get("reads", 0) <= 1 for page in pages)
