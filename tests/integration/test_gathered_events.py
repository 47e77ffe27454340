"""Events that come one by one share steps of the worker."""

import threading
import time

from servers import Server

from opic.ingest import Writer
from opic.ingest.event_log import EventLog
from opic.ingest.step import Step
from opic.ingest.worker import GATHER_SECONDS, LogSource, WorkerWatch, work
from opic.model.events import encode_seeds
from opic.replica import Crawl

NOW_US = 1_790_000_000_000_000
EVENTS = 150
BETWEEN_SECONDS = 0.001


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
