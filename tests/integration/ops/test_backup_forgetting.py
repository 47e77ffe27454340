"""Backups beside forgetting: they end, and nothing in them names a page that is forgotten at their end."""

import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from backup_crawls import around, bytes_in_backup
from linked_web import PAGES, Web
from logs import NOW_US
from same_state import assert_same, small_blocks
from servers import Server

from opic.errors import DeliveryPaused
from opic.ingest import ShardWriter, Writer, checkpointer
from opic.ingest.event_log import EventLog
from opic.ingest.worker import LogSource, work
from opic.model.cash import Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_forgotten, encode_seeds
from opic.model.ledger import Ledger
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.service.forgetting import PageSelection, forget
from opic.settings import Settings
from opic.store import Keys, Shard
from opic.store.local_lists import put_list
from opic.urls.canonical import host_of, shard_of

# Not `read_end`: what some of the heads lack of the log names pages that a later record of it may forget.
STEPS = ("turn", "read_settings", "read_resume", "read_outboxes", "read_rest")
URLS = [f"http://h{page % 11}.org/{page}/" for page in range(60)]


class Forgetful:
    """A log of random reads with metadata, and of forgotten pages; a worker applies it, and writes checkpoints."""

    def __init__(self, server: Server, shards: int) -> None:
        self.crawl = Crawl.open(server.client(), shards=shards, keep_links=True)
        self.log = EventLog(server.client(), self.crawl.shards[0].keys)
        self.writer = Writer(Crawl.open(server.client(), keep_links=True))
        self.applied: list[Record] = []
        self._rng, self._lock = random.Random(7), threading.Lock()

    def append(self, count: int) -> None:
        for _ in range(count):
            if self._rng.random() < 0.3:
                self.log.append([encode_forgotten(self._rng.sample(URLS, 4))], NOW_US, "forget")
            else:
                url = self._rng.choice(URLS)
                event = CrawlEvent(url, self._rng.sample(URLS, 4), meta={"of": url})
                self.log.append([encode_crawl_event(event)], NOW_US)

    def apply(self) -> None:
        records = self.log.read(self.writer.resume("log/0"), 1_000)
        self.writer.apply("log/0", records)
        self.applied += records
        with suppress(DeliveryPaused):  # By the backup, at its end.
            self.writer.deliver()

    def live(self) -> None:
        with self._lock:
            self.append(4)
            self.apply()
            if self._rng.random() < 0.2:
                for store in self.writer.stores:
                    store.checkpoint()


def test_backup_omits_forgotten_pages_and_restores_those_known_again(valkey: Server, tmp_path: Path) -> None:
    web, ledger = Web(valkey, "copied"), Ledger()
    ledger.trust = {}
    with small_blocks():
        for page in range(8):
            web.read(PAGES[page], PAGES[page + 1 : page + 4])
            ledger.apply("log/0", web.last)
        ShardWriter(web.crawl.shards[0]).checkpoint()
        web.read("http://late.org/", [PAGES[2]])
        ledger.apply("log/0", web.last)
        web.forget("http://late.org/", PAGES[1], PAGES[2], PAGES[5])
        ledger.apply("log/0", web.last)
        backup(web.crawl, tmp_path / "forgotten")
        for step in range(2):  # At once, and after a checkpoint.
            web.read(PAGES[4], [PAGES[2]])
            ledger.apply("log/0", web.last)
            assert_same(web.crawl.shards[0], ledger)
            backup(web.crawl, tmp_path / f"again-{step}")
            restore(valkey.client(), tmp_path / f"again-{step}", f"other-{step}")
            assert_same(Shard.open(valkey.client(), f"other-{step}"), ledger)
            ShardWriter(web.crawl.shards[0]).checkpoint()
    stored = bytes_in_backup(tmp_path / "forgotten")
    assert PAGES[4].encode() in stored
    for url in ("http://late.org/", PAGES[1], PAGES[2] + "\n", PAGES[5]):
        assert url.encode() not in stored
    assert PAGES[2].encode() in bytes_in_backup(tmp_path / "again-1")


@pytest.mark.parametrize("shards", [1, 4])
def test_backup_while_pages_are_forgotten_names_known_pages_alone(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    with small_blocks():
        web = Forgetful(valkey, shards)
        web.append(60)
        web.apply()
        around(monkeypatch, web.live, *STEPS)
        made = backup(web.crawl, tmp_path / "copy")
        monkeypatch.undo()
        stored = bytes_in_backup(tmp_path / "copy")
        restore(valkey.client(), tmp_path / "copy", "other")
        if shards == 1:
            ledger = Ledger()
            ledger.trust = {}
            ledger.apply("log/0", [r for r in web.applied if r.offset < made["offsets"][0]["log/0"]])
            assert_same(Shard.open(valkey.client(), "other"), ledger)
        other = Crawl.open(valkey.client(), "other")
        log, writer = EventLog(valkey.client(), other.shards[0].keys), Writer(other)
        work(writer, LogSource(log, writer.resume, until_offset=log.end()))
        writer.drain()
        known = {page.url for page in other.pages() if page.has(Flag.KNOWN)}
        assert other.audit()[0].conserved
    named = {url for url in URLS if url.encode() in stored}
    assert known < set(URLS)
    assert named
    assert named <= known


def test_event_that_took_effect_in_its_shard_alone_names_no_forgotten_page(valkey: Server, tmp_path: Path) -> None:
    """The backup ends between two shards of a batch, so that its log has the whole batch."""
    crawl = Crawl.open(valkey.client(), shards=4)
    log, writer = EventLog(valkey.client(), crawl.shards[0].keys), Writer(crawl)
    by_shard = {shard_of(host_of(url), 4): url for url in URLS}
    first, second, other = by_shard[0], f"{by_shard[0]}2/", by_shard[3]
    young = [f"http://young.org/{page}" for page in range(8)]
    log.append([encode_crawl_event(CrawlEvent(url, [])) for url in young], NOW_US)
    work(writer, LogSource(log, writer.resume, until_offset=8))  # A young crawl takes less at once.
    log.append([encode_crawl_event(CrawlEvent(url, [])) for url in (first, other)], NOW_US)
    log.append([encode_seeds([second], trust=1.0), encode_seeds([second, f"{other}2/"], trust=1.0)], NOW_US, "seeds")
    log.append([encode_forgotten([first, second, f"{other}3/"])], NOW_US, "forget")
    taken, took = list[int](), writer._take

    def take(shard: int, *more: Any) -> None:
        took(shard, *more)
        taken.append(shard)
        if len(taken) == 1:
            backup(Crawl.open(valkey.client()), tmp_path / "copy")

    with patch.object(writer, "_take", take):
        work(writer, LogSource(log, writer.resume, until_offset=13))
    assert taken == [0, 1, 2, 3]
    stored = bytes_in_backup(tmp_path / "copy")
    assert first.encode() not in stored
    assert stored.count(other.encode()) == 3
    restore(valkey.client(), tmp_path / "copy", "other")
    again = Crawl.open(valkey.client(), "other")
    log, writer = EventLog(valkey.client(), again.shards[0].keys), Writer(again)
    work(writer, LogSource(log, writer.resume, until_offset=log.end()))
    writer.drain()
    assert {page.url for page in again.pages() if page.has(Flag.KNOWN)} == {*young, other, f"{other}2/"}
    assert all(replica.trust is not None for replica in again.follow())
    assert not valkey.client().exists(*[Keys("other", shard).dead for shard in range(4)])
    assert again.audit()[0].conserved


def test_list_of_a_local_domain_goes_with_its_forgotten_pages(valkey: Server, tmp_path: Path) -> None:
    """Also if the process that forgets them dies before it has dropped the list, or another one puts it back."""
    backend = Backend(Settings.load(store=valkey.url), valkey.url)
    backend.works_here = True
    keys, client = backend.shard.keys, backend.crawl.client
    ranking = {"pages": [{"url": PAGES[0]}]}
    backend.seed([PAGES[0], "http://spared.net/"])
    for domain in ("h0.org", "spared.net"):
        put_list(client, keys, domain, ranking)
    chosen = PageSelection.of({"host": "h0.org"})
    with patch.object(Backend, "settle", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        forget(backend, chosen)
    assert set(client.hkeys(keys.local_lists)) == {b"spared.net", b"=spared.net"}
    writer = Writer(backend.crawl)
    log = EventLog(valkey.client(), keys)
    work(writer, LogSource(log, writer.resume, until_offset=log.end()))
    backend.seed([PAGES[0]])
    put_list(client, keys, "h0.org", ranking)
    with patch.object(checkpointer.Checkpointer, "purge_due", return_value=False):
        backend.settle(backend.accept([encode_forgotten([PAGES[0]])], "forget"))
        backup(backend.crawl, tmp_path / "copy")
    restore(client, tmp_path / "copy", "other")
    assert set(client.hkeys(Keys("other", 0).local_lists)) == {b"spared.net", b"=spared.net"}
    backend.close()


def test_trim_that_a_backup_holds_keeps_the_mark_of_forgotten_pages(valkey: Server) -> None:
    """A purge then tries again, until the backup has copied the records with their URLs."""
    web = Web(valkey, "held")
    keys, client, store = web.crawl.shards[0].keys, valkey.client(), web.writer.stores[0]
    web.read(PAGES[0], PAGES[1:4])
    client.set(keys.copied, 1)
    web.read(PAGES[1], PAGES[2:6])
    web.forget(PAGES[0])
    for copied, left, marked in ((1, [2, 3], True), (2, [3], False)):
        client.set(keys.copied, copied)
        store.purge(0.0)
        assert [int(name.partition(b"-")[0]) for name, _ in client.xrange(keys.journal)] == left
        assert client.hexists(keys.head, "forgot") is marked
        assert store.checkpointer.purge_due(0.0) is marked
