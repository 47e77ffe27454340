"""Dead letters and metadata stay within their bytes in the store, and what is dropped is counted."""

import json
from pathlib import Path

import pytest
from conftest import ONE_SERVER
from kafka_crawl import opic
from servers import Server

from opic.ingest import Writer
from opic.ingest.dead_letters import LETTERS_A_CALL, Dropped, remove, stored
from opic.ingest.step_counts import Tallied
from opic.model.events import CrawlEvent, KeptLimits, Record, encode_crawl_event
from opic.replica import Crawl
from opic.settings import Settings
from opic.store.connection import Client

NOW_US = 1_790_000_000_000_000
LIMIT = 100_000
SLACK = 1.6  # How much more the server takes for a letter or a page depends on sizes and on its version.


class Fed:
    """A crawl that keeps little, and how it is fed."""

    def __init__(self, client: Client, shards: int = 1, **limits: int) -> None:
        self.client = client
        self.crawl = Crawl.open(client, "default", {"shards": shards})
        self.shard, self.keys = self.crawl.shards[0], self.crawl.shards[0].keys
        self.writer = Writer(self.crawl, kept=KeptLimits(**limits))
        self.offset = 0

    def feed(self, *values: bytes) -> None:
        for at in range(0, len(values), 50):
            part = [Record(self.offset + n, NOW_US, value) for n, value in enumerate(values[at : at + 50])]
            self.writer.apply("log/0", part)
            self.offset += len(part)

    def bad(self, count: int, size: int) -> None:
        self.feed(*(b"%09d" % (self.offset + n) + b"x" * (size - 9) for n in range(count)))

    def meta(self, page: int, size: int) -> None:
        notes = {"k": "x" * size} if size else {}
        self.feed(encode_crawl_event(CrawlEvent(f"http://a.example/{page}", meta=notes)))

    def tallied(self) -> Tallied:
        return Tallied.of(self.crawl.ask(Tallied.commands(self.crawl)))

    def bytes_of(self, key: str) -> int:
        return self.client.memory_usage(key, samples=0) or 0


def test_dead_letters_stay_within_their_limit_and_the_newest_are_kept(servers: Server) -> None:
    fed = Fed(servers.client(), letter_bytes_max=LIMIT)
    for size in (2_000, 100, 20_000, 500):
        fed.bad(600, size)
        kept = fed.client.xrange(fed.keys.dead)
        assert fed.bytes_of(fed.keys.dead) < SLACK * LIMIT
        assert sum(len(fields[b"value"]) for _, fields in kept) > LIMIT / 3
        assert [int(fields[b"opic-offset"]) for _, fields in kept] == list(range(fed.offset - len(kept), fed.offset))
        dropped = Dropped.of(fed.crawl)
        assert dropped.letters == fed.tallied().letters_dropped == fed.offset - len(kept)
    assert dropped.value_bytes > 600 * 20_000
    assert fed.shard.books().dead_letters == fed.offset


def test_newest_dead_letter_is_kept_at_any_size(servers: Server) -> None:
    fed = Fed(servers.client(), letter_bytes_max=LIMIT)
    fed.bad(1, 2 * LIMIT)
    assert fed.client.xlen(fed.keys.dead) == 1
    fed.bad(2, 100)
    assert [len(fields[b"value"]) for _, fields in fed.client.xrange(fed.keys.dead)] == [100, 100]


def test_forwarded_dead_letters_make_room(servers: Server) -> None:
    fed = Fed(servers.client(), letter_bytes_max=LIMIT)
    for _ in range(20):
        fed.bad(LETTERS_A_CALL, 500)
        letters = stored(fed.shard)
        assert len(letters) == LETTERS_A_CALL
        remove(fed.shard, letters)
    assert Dropped.of(fed.crawl) == (0, 0)


def test_metadata_stays_within_its_limit_and_the_events_are_accepted(servers: Server) -> None:
    fed = Fed(servers.client(), meta_bytes_max=LIMIT)
    for page in range(300):
        fed.meta(page, 900)
    kept = fed.client.hlen(fed.keys.page_meta)
    assert 80 < kept < 120
    assert fed.bytes_of(fed.keys.page_meta) < SLACK * LIMIT
    found = fed.tallied()
    assert (found.metas_dropped, fed.shard.books().reads) == (300 - kept, 300)
    assert LIMIT - 1_000 < found.meta_bytes <= LIMIT


@ONE_SERVER
def test_replaced_or_removed_metadata_makes_room(servers: Server) -> None:
    fed = Fed(servers.client(), meta_bytes_max=LIMIT)
    for page in range(150):
        fed.meta(page, 900)
    dropped = fed.tallied().metas_dropped
    for page in range(150):
        fed.meta(page, 0)
    assert (fed.tallied().meta_bytes, fed.client.hlen(fed.keys.page_meta)) == (0, 0)
    for page in range(150):
        fed.meta(page, 100)
        fed.meta(page, 200)
    assert (fed.tallied().metas_dropped, fed.client.hlen(fed.keys.page_meta)) == (dropped, 150)


def test_metadata_that_does_not_fit_removes_older_metadata(servers: Server) -> None:
    fed = Fed(servers.client(), meta_bytes_max=500)
    fed.meta(0, 100)
    fed.meta(1, 100)
    fed.meta(0, 900)
    assert fed.client.hlen(fed.keys.page_meta) == 1
    assert fed.tallied().metas_dropped == 1


def test_each_shard_has_its_part_of_the_limit(valkey: Server) -> None:
    fed = Fed(valkey.client(), shards=4, letter_bytes_max=4 * LIMIT)
    fed.bad(600, 1_000)
    used = [fed.bytes_of(shard.keys.dead) for shard in fed.crawl.shards]
    assert max(used) < SLACK * LIMIT


@pytest.mark.slow
def test_command_reports_what_was_dropped(valkey: Server, tmp_path: Path) -> None:
    settings = Settings.load(store=valkey.url, shards=1)
    file = tmp_path / "crawl.jsonl"
    file.write_text("".join(f"nonsense {n} {'x' * 900}\n" for n in range(200)))
    limit = {"OPIC_MAX_DEAD_LETTER_BYTES": "50000"}
    assert opic(settings, "replay", file, **limit).returncode == 1  # All of them were refused.
    listed = opic(settings, "dead-letters", "list", **limit)
    dropped = json.loads(opic(settings, "dead-letters", "list", "--json").stdout)["dropped"]
    assert 140 < dropped["letters"] < 180
    assert f"opic: {dropped['letters']:,} older ones" in listed.stderr
    assert "OPIC_MAX_DEAD_LETTER_BYTES=50,000" in listed.stderr
