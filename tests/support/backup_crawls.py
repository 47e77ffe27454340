"""Crawls to make backups of, and workers that go on meanwhile."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from logs import NOW_US, PARTITION, pep_history

from opic.errors import DeliveryPaused
from opic.ingest import ShardWriter, Writer
from opic.model.events import CrawlEvent, Record, decode_crawl_event, encode_crawl_event
from opic.model.ledger import Ledger
from opic.model.ledger_page import LedgerPage
from opic.ops.backup import ShardCopy, backup
from opic.replica import Crawl


def _noted(record: Record) -> Record:
    """The same with metadata now and then, which the next of the page may take away, a few depths and priorities."""
    event, at = decode_crawl_event(record.value), record.offset
    event.depth = at % 7 if at % 5 == 0 else None
    event.meta = {"at": str(at)} if at % 3 == 0 else {} if at % 4 == 0 else None
    event.not_before, event.priority = at if at % 11 == 0 else None, 2.0 if at % 13 == 0 else None
    return replace(record, value=encode_crawl_event(event))


LOG = tuple(map(_noted, pep_history()[:2_000]))
HALF = 1_000
SHARDS = 16
WAIT_SECONDS_MAX = 60.0


def ledger_of(count: int = len(LOG)) -> Ledger:
    ledger = Ledger()
    ledger.apply(PARTITION, LOG[:count])
    return ledger


def filled(server: Any, count: int = HALF, **options: Any) -> Crawl:
    crawl = Crawl.open(server.client(), **options)
    Writer(crawl).apply(PARTITION, LOG[:count])
    return crawl


@cache
def crossing_log() -> tuple[Record, ...]:
    """Reads of pages of 60 hosts, nearly all of whose links go to other shards."""
    rng = random.Random(7)
    urls = [f"http://h{host}.org/{page}" for host in range(60) for page in range(50)]
    records = []
    for offset in range(6_000):
        event = CrawlEvent(url=rng.choice(urls), links=rng.sample(urls, 12))
        records.append(Record(offset, NOW_US + offset * 1_000, encode_crawl_event(event)))
    return tuple(records)


def around(monkeypatch: pytest.MonkeyPatch, live: Callable[[], None], *names: str) -> None:
    """Let something happen before and after each of these steps of a copy."""
    for name in names:
        step = getattr(ShardCopy, name)

        def watched(self: ShardCopy, *args: Any, step: Any = step) -> Any:
            live()
            found = step(self, *args)
            live()
            return found

        monkeypatch.setattr(ShardCopy, name, watched)


class Living:
    """A worker with a connection of its own, which takes a log until it is told to stop."""

    def __init__(self, server: Any, log: tuple[Record, ...], crawl: str = "default") -> None:
        self.writer = Writer(Crawl.open(server.client(), crawl))
        self.done, self.stop, self.longest = 0, threading.Event(), 0.0
        self.paused = 0
        self._log = log
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Living":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()
        if self.errors:
            raise self.errors[0]

    def _run(self) -> None:
        try:
            last = time.monotonic()
            while not self.stop.is_set() and self.done < len(self._log):
                self.writer.apply(PARTITION, self._log[self.done : self.done + 10])
                self.done += 10
                now = time.monotonic()
                self.longest, last = max(self.longest, now - last), now
                try:
                    self.writer.deliver()
                except DeliveryPaused:
                    self.paused += 1
        except BaseException as error:  # noqa: BLE001 - for the test to see
            self.errors.append(error)

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not until() and not self.errors:
            assert time.monotonic() < deadline, "the worker does not go on"
            time.sleep(0.001)


def assert_same_reads(crawl: Crawl, other: Crawl) -> None:
    """Shards deliver in an order that differs from run to run; what was read of which page does not."""

    def shape(page: LedgerPage) -> tuple[object, ...]:
        return page.state, page.reads, [measure.fetched_at_us for measure in page.measures]

    pages, others = ({page.url: shape(page) for page in one.pages()} for one in (crawl, other))
    assert pages == others
    totals, other_totals = (asdict(one.totals()) for one in (crawl, other))
    for name in ("live", "gone", "open", "time_us"):
        assert totals[name] == other_totals[name]


def backup_of_four(server: Any, directory: Path) -> Path:
    """Make a backup of four shards, some checkpointed, with cash on its way between them."""
    crawl = Crawl.open(server.client(), shards=4)
    writer = Writer(crawl)
    for first in range(0, HALF, 250):
        writer.apply(PARTITION, crossing_log()[first : first + 250])
    for shard in crawl.shards[:3]:
        ShardWriter(shard, journal_bytes=1).checkpoint()  # Which trims.
    assert crawl.waiting() > 0
    backup(crawl, directory)
    return directory


def bytes_of(value: Any) -> bytes:
    """All bytes in a value, unpacked."""
    if isinstance(value, dict):
        return b"".join(bytes_of(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return b"".join(map(bytes_of, value))
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        return b""
    for at in range(len(value)):
        if value[at : at + 4] == b"\x28\xb5\x2f\xfd":  # A zstd frame.
            value += zstandard.ZstdDecompressor().decompressobj().decompress(value[at:])
    return value


def bytes_in_backup(directory: Path) -> bytes:
    found = b""
    for path in directory.iterdir():
        if path.suffix != ".json":
            with zstandard.ZstdDecompressor().stream_reader(path.read_bytes()) as stream:
                found += b"".join(map(bytes_of, msgpack.Unpacker(stream, raw=True, strict_map_key=False)))
    return found
