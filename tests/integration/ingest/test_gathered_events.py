"""Events that come one by one share steps of the worker, and deliveries between shards leave it time for events."""

import threading
import time
from collections.abc import Collection
from itertools import pairwise

import pytest
from servers import Server

from opic.ingest import Writer
from opic.ingest.event_log import EventLog
from opic.ingest.step import Step
from opic.ingest.worker import DELIVER_SECONDS_MAX, DELIVER_SHARE, GATHER_SECONDS, LogSource, WorkerWatch, work
from opic.model.events import CrawlEvent, encode_crawl_event, encode_seeds
from opic.replica import Crawl

NOW_US = 1_790_000_000_000_000
EVENTS = 150
BETWEEN_SECONDS = 0.001
LINKED_EVENTS = 1_000
SLOW_SECONDS = 0.03  # Longer than a delivery between four shards takes here.
TIMER_SECONDS = 0.002


class Counted(WorkerWatch):
    """Counts the steps and notes when the first one was done."""

    def __init__(self) -> None:
        self.steps, self.first = 0, 0.0

    def stepped(self, step: Step) -> None:
        self.first = self.first or time.monotonic()
        self.steps += 1


def test_events_that_come_one_by_one_share_steps_of_the_worker(valkey: Server) -> None:
    crawl = Crawl.open(valkey.client(), "gathered")
    log = EventLog(valkey.client(), crawl.shards[0].keys)
    writer, watch = Writer(crawl), Counted()
    source = LogSource(log, writer.resume, until_offset=EVENTS)
    thread = threading.Thread(target=work, args=(writer, source), kwargs={"watch": watch})
    thread.start()
    for number in range(EVENTS):
        log.append([encode_seeds([f"http://a.example/{number}"])], NOW_US, "seeds")
        time.sleep(BETWEEN_SECONDS)
    thread.join(30)
    took = time.monotonic() - watch.first
    assert not thread.is_alive()
    assert crawl.follow()[0].pages == EVENTS
    assert watch.steps <= 2 + took / GATHER_SECONDS


def test_slow_deliveries_leave_most_of_the_time_for_events(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    crawl = Crawl.open(valkey.client(), "slowly", shards=4)
    log, writer, spans = EventLog(valkey.client(), crawl.shards[0].keys), Writer(crawl), list[tuple[float, float]]()
    deliver = writer.deliver

    def slowly(shards: Collection[int] | None = None) -> int:
        began = time.monotonic()
        entries = deliver(shards)
        time.sleep(SLOW_SECONDS)
        if shards is not None:  # Those of all shards are between the first portions of a young crawl.
            spans.append((began, time.monotonic()))
        return entries

    monkeypatch.setattr(writer, "deliver", slowly)
    source = LogSource(log, writer.resume, until_offset=LINKED_EVENTS)
    thread = threading.Thread(target=work, args=(writer, source))
    thread.start()
    for number in range(LINKED_EVENTS):
        url, *links = (f"http://host-{(number + to) % 50}.example/" for to in range(6))
        log.append([encode_crawl_event(CrawlEvent(url, links=links))], NOW_US, "event")
        time.sleep(BETWEEN_SECONDS)
    thread.join(30)
    assert not thread.is_alive()
    assert len(spans) >= 4
    for (began, ended), (next_began, _) in pairwise(spans):
        pause = min((ended - began) * (1 / DELIVER_SHARE - 1), DELIVER_SECONDS_MAX)
        assert next_began - ended >= pause - TIMER_SECONDS
    writer.drain()
    assert not crawl.undelivered()
