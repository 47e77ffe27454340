"""Publishers: events of all kinds, made up from a seed, put on a topic for as long as they are let."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka_crawl import Topic
from processes import wait_until

from chaos.worlds import World
from opic.ingest.kafka.connection import headers_of
from opic.model.events import CrawlEvent, encode_crawl_event, encode_seeds
from opic.model.packed_events import pack
from opic.urls.canonical import shard_of

EVENTS_A_SECOND = 250
READS_A_PAGE = 25  # On average, of the 64 measures that are kept: the inspector wants them all.
READS_A_PAGE_MAX = 60
PAGES_MIN = 1_500
HOSTS = 60
IDLE_SECONDS_MAX = 180.0


class Sent(NamedTuple):
    """A record, and what it reads: the URL, and the time in microseconds."""

    value: bytes
    kind: str
    host: str
    key: bytes  # Of a call.
    read: tuple[str, int] | None = None


class Events:
    """Events of all kinds, made up from a seed. Each has a time of its own, in seconds after `at`."""

    def __init__(self, seed: str, seconds: float, reads_max: int, at: int) -> None:
        self.rng = random.Random(seed)
        self.pages = max(PAGES_MIN, round(seconds * EVENTS_A_SECOND / READS_A_PAGE))
        self._reads: Counter[int] = Counter()
        self._reads_max, self._at = reads_max, at

    def url(self, number: int) -> str:
        return f"http://h{number % HOSTS}.d{number % 17}.org/{number // HOSTS}"

    def some(self, count: int) -> Iterator[Sent]:
        rng = self.rng
        for _ in range(count):
            page, kind = rng.randrange(self.pages), rng.random()
            url, host = self.url(page), f"h{page % HOSTS}.d{page % 17}.org"
            self._at += 1
            event, read = CrawlEvent(url=url, fetched_at=float(self._at), meta={"page": str(page)}), None
            if kind < 0.88 and self._reads[page] < self._reads_max:
                self._reads[page] += 1
                read = url, self._at * 1_000_000
                near = [page + HOSTS * 17 * rng.randrange(1, 9) for _ in range(rng.randrange(6))]
                far = [rng.randrange(self.pages) for _ in range(rng.randrange(9))]
                event.links = [self.url(n % self.pages) for n in (*near, *far)] + ["mailto:x@y"] * rng.randrange(2)
            elif kind < 0.92:
                event.status = 404
            elif kind < 0.96:
                event.status = 503
            elif kind < 0.98:
                yield Sent(b"\xff not an event", "event", host, b"")
                continue
            else:
                yield Sent(encode_seeds([url]), "seeds", host, b"")
                continue
            value = encode_crawl_event(event)
            if rng.random() < 0.05:  # A client that tried again: the same event twice, by one call.
                key = rng.randbytes(16)
                yield Sent(value, "event", host, key, read)
                yield Sent(value, "event", host, key, read)
            else:
                yield Sent(value, "event", host, b"", read)


def some_packed(events: Events, count: int, partitions: int) -> Iterator[Sent]:
    """Half of the reads come with others of their partition in a record, as this project's publishers send them."""
    packs: dict[int, list[Sent]] = {}
    for one in events.some(count):
        if one.read is None or one.key or events.rng.random() < 0.5:
            yield one
        else:
            packs.setdefault(shard_of(one.host, partitions), []).append(one)
    for pack_of in packs.values():
        yield Sent(pack([one.value for one in pack_of]), "event", pack_of[0].host, b"")


def put(
    producer: KafkaProducer, topic: Topic, world: World, rng: random.Random, one: Sent, *more: tuple[str, bytes]
) -> Any:
    """Send a record, with more headers; return its future."""
    place = rng.randrange(world.partitions) if world.scatter else None
    headers = [*headers_of(one.kind, one.key), *more]
    return producer.send(topic.name, one.value, one.host.encode(), headers, partition=place)


class Publishers(threading.Thread):
    """Publish to a topic, until they are done."""

    def __init__(self, topic: Topic, world: World, seed: int, seconds: float) -> None:
        super().__init__(name="publishers", daemon=True)
        self.topic, self.world = topic, world
        self._events = Events(f"{seed}/publishers", seconds, READS_A_PAGE_MAX, 1_700_000_000)
        self.sent = 0
        self.refused = 0
        self.running, self.idle, self.done = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.topic.kafka.bootstrap, acks="all", enable_idempotence=True, linger_ms=5
        )
        futures = []
        while not self.done.is_set():
            if not self.running.wait(0.05):
                futures = self.counted(futures)
                if not futures:
                    self.idle.set()
                continue
            self.idle.clear()
            for one in some_packed(self._events, EVENTS_A_SECOND // 10, self.world.partitions):
                futures.append(put(producer, self.topic, self.world, self._events.rng, one))
            time.sleep(0.1)
            futures = self.counted(futures)
        producer.close()

    def counted(self, futures: list[Any]) -> list[Any]:
        """Count those that are through; return the others."""
        done = [one for one in futures if one.is_done]
        self.refused += sum(one.failed() for one in done)
        self.sent += sum(not one.failed() for one in done)
        return [one for one in futures if not one.is_done]

    def resume(self) -> None:
        """Publish again."""
        self.idle.clear()
        self.running.set()

    def pause(self) -> None:
        """Publish no more, and wait until all that was published is through: Kafka may have been away."""
        self.running.clear()
        wait_until(self.idle.is_set, IDLE_SECONDS_MAX)

    def end(self) -> None:
        self.done.set()
        self.join(30)
