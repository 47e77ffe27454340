"""A backup has all that the store had, though servers restart, fail over or give a slot away while it scans."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from interrupted_scans import amid_scans
from logs import NOW_US
from redis_cluster import Cluster
from same_state import stored_links
from servers import Server

from opic.errors import SettingsError, StoreUnavailable
from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.ops import shard_copy
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.replica import Crawl
from opic.replica.stored_links import live_rows
from opic.store import Keys
from opic.store.scan import scan_hash

PAGES = 4_000


def noted(number: int) -> Record:
    """A read of a page with metadata, links and the name of a call."""
    event = CrawlEvent(f"http://h{number % 50}.org/{number}", ["http://hub.org/"], meta={"k": str(number)})
    return Record(number, NOW_US + number, encode_crawl_event(event), "event", call=b"%d" % number)


def filled(crawl: Crawl) -> Writer:
    writer = Writer(crawl, journal_bytes=1)
    for first in range(0, PAGES, 1_000):
        writer.apply("log/0", [noted(number) for number in range(first, first + 1_000)])
    writer.stores[0].checkpoint()
    assert (
        crawl.client.xlen(crawl.shards[0].keys.journal) == 1
    )  # Only the checkpoint and the scanned keys have links and metadata.
    return writer


def scanned(client: object, crawl: str) -> tuple[object, ...]:
    keys = Keys(crawl, 0)
    ask = client  # type: ignore[assignment]
    return (
        ask.hgetall(keys.link_segments),  # type: ignore[attr-defined]
        ask.hgetall(keys.page_meta),  # type: ignore[attr-defined]
        ask.zrange(keys.seen, 0, -1, withscores=True),  # type: ignore[attr-defined]
    )


def assert_whole(manifest: dict[str, object]) -> None:
    (counts,) = manifest["counts"]  # type: ignore[misc]
    assert counts == {"pagemeta": PAGES, "seen": PAGES, "seen_from": NOW_US}  # type: ignore[has-type]


@pytest.mark.slow
def test_backup_over_restarts_has_everything(servers: Server, tmp_path: Path) -> None:
    client = servers.client()
    filled(Crawl.open(client, "c", {"shards": 1}, keep_links=True))
    before = scanned(client, "c")

    def restart() -> None:
        servers.kill()
        servers.start()

    with amid_scans([2, 6, 11], restart) as scans:
        assert_whole(backup(Crawl.open(client, "c", create=False), tmp_path / "copy"))
    assert scans.calls > 11
    restore(client, tmp_path / "copy", "again")
    assert scanned(client, "again") == before
    again = Crawl.open(client, "again", create=False)
    repeated = noted(7)
    Writer(again).apply("log/0", [Record(PAGES, NOW_US + PAGES, repeated.value, "event", call=repeated.call)])
    assert again.page("http://h7.org/7").reads == 1  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["failover", "move"])
def test_backup_during_a_failover_or_a_slot_migration_has_everything(
    cluster_of_six: Cluster, tmp_path: Path, what: str
) -> None:
    cluster = cluster_of_six
    filled(Crawl.open(cluster.client(), "c", {"shards": 1}, keep_links=True))
    with amid_scans([3], lambda: cluster.hand_over("{c:0}", what)):
        assert_whole(backup(Crawl.open(cluster.client(), "c", create=False), tmp_path / "copy"))


@pytest.mark.slow
def test_backup_of_a_server_that_restarts_each_time_says_so(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(Crawl.open(valkey.client(), "c", {"shards": 1}, keep_links=True))
    monkeypatch.setattr(shard_copy, "TRIES_MAX", 3)

    def restart() -> None:
        valkey.kill()
        valkey.start()

    with amid_scans(range(2, 1_000, 2), restart), pytest.raises(StoreUnavailable, match="or restarted"):
        backup(Crawl.open(valkey.client(), "c", create=False), tmp_path / "copy")
    assert not (tmp_path / "copy" / "manifest.json").exists()


def test_backup_that_lacks_some_scanned_entries_fails(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it came to lack it: its counts are compared with the store's."""
    filled(Crawl.open(valkey.client(), "c", {"shards": 1}, keep_links=True))

    def lossy(*args: object, **options: object) -> object:
        for part in scan_hash(*args, **options):  # type: ignore[arg-type]
            yield dict(list(part.items())[1:])

    monkeypatch.setattr(shard_copy, "scan_hash", lossy)
    with pytest.raises(SettingsError, match="elements of 'pagemeta', but the store had 4,000"):
        backup(Crawl.open(valkey.client(), "c", create=False), tmp_path / "copy")
    assert not (tmp_path / "copy" / "manifest.json").exists()


def test_counts_are_exact_while_events_change_the_scanned_keys(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata comes and goes, old calls are forgotten, and links are added at every step of the copy."""
    filled(Crawl.open(valkey.client(), "c", {"shards": 1}, keep_links=True))
    writer = Writer(Crawl.open(valkey.client(), "c", create=False))
    offset, later_us = PAGES, 0

    def live() -> None:
        nonlocal offset, later_us
        later_us += 40_000_000_000  # So that calls are forgotten after two days.
        records = []
        for number in (offset, offset % 97, offset % 89 + 1_000):
            meta: dict[str, str] = {} if number % 3 else {"new": str(offset)}
            event = CrawlEvent(f"http://h{number % 50}.org/{number}", ["http://a.org/"], meta=meta)
            at_us = NOW_US + later_us + offset
            records.append(Record(offset, at_us, encode_crawl_event(event), "event", call=b"%d" % offset))
            offset += 1
        writer.apply("log/0", records)

    for name in ("turn", "read_settings", "read_end", "read_rest"):
        step = getattr(shard_copy.ShardCopy, name)

        def watched(self: object, *args: object, step: Callable[..., object] = step) -> object:
            live()
            found = step(self, *args)
            live()
            return found

        monkeypatch.setattr(shard_copy.ShardCopy, name, watched)
    made = backup(Crawl.open(valkey.client(), "c", create=False), tmp_path / "copy")
    (counts,), keys = made["counts"], Keys("again", 0)
    client = valkey.client()
    restore(client, tmp_path / "copy", "again")
    (replica,) = Crawl.open(client, "again", create=False).follow()
    links = stored_links(Crawl.open(client, "again").shards[0], replica)
    assert len(links) == live_rows(replica.state, np.arange(replica.pages)).sum() > PAGES
    assert client.hlen(keys.page_meta) == counts["pagemeta"] != PAGES
    assert client.zcount(keys.seen, counts["seen_from"], "+inf") == counts["seen"]
