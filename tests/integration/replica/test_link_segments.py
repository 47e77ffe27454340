"""Kept links in segments: written behind the journal, merged when half empty, shared by workers, read meanwhile."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import redis
from link_pools import links_of
from linked_web import PAGES, Web
from same_state import small_blocks, stored_links
from servers import Server

from opic.errors import StoreDamaged, StoreUnavailable
from opic.ingest import Writer, link_keeper
from opic.ingest.checkpointer import Checkpointer
from opic.query.kept_links import KeptLinks
from opic.replica.fingerprints import Fingerprints
from opic.replica.stored_links import read_list, read_segments
from opic.store.connection import Line

JOURNAL_BYTES = 8_000


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_blocks(64, 8):
        yield


def read_some(web: Web, draw: random.Random, count: int = 1) -> None:
    for _ in range(count):
        url, links = draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 7))
        web.read(url, links, status=404 if draw.random() < 0.15 else 200)


def plain(web: Web) -> dict[str, set[str]]:
    """What each page showed last, of those that were read since they became known or came back."""
    return {url: set(links) for url, links in web.links.items()}


def kept(web: Web) -> dict[str, set[str]]:
    """What the store keeps, by a crawl opened now."""
    crawl = web.opened(len(web.crawl))
    crawl.follow()
    urls = [page.url for page in crawl.pages()]
    places = dict(zip(crawl.ids_of(urls), urls, strict=True))
    prints = dict(zip(Fingerprints(crawl.shards[0].secret).hash_strings(urls).tolist(), urls, strict=True))
    found: dict[str, set[str]] = {}
    for number, (shard, replica) in enumerate(zip(crawl.shards, crawl.replicas, strict=True)):
        for page, (near, far, _) in stored_links(shard, replica).items():
            linked = {places[number, to] for to in near.tolist()} | {prints[to] for to in far.tolist()}
            found[places[number, page]] = linked
    return found


@contextmanager
def amid_reads(at: int, run: Callable[[], object]) -> Iterator[None]:
    """Run something once, before the `at`-th HMGET."""
    calls, hmget = 0, redis.Redis.hmget

    def counting(client: redis.Redis, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at:
            run()
        return hmget(client, *arguments)  # type: ignore[arg-type]

    with patch.object(redis.Redis, "hmget", counting):
        yield
    assert calls >= at


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_workers_in_turns_keep_the_same_links_as_a_dict(valkey: Server, shards: int) -> None:
    """Three take turns: each finds segments that it did not write, and reads others that the journal still has."""
    web, draw = Web(valkey, f"turns-{shards}", shards), random.Random(shards)
    writers = [Writer(web.opened(shards, keep_links=True), journal_bytes=JOURNAL_BYTES) for _ in range(3)]
    for turn in range(80):
        web.writer = draw.choice(writers)
        read_some(web, draw, draw.randint(1, 12))
        if turn % 8 == 7:
            for store in web.writer.stores if turn % 16 == 7 else ():
                store.checkpoint()
            web.writer.drain()
            assert kept(web) == plain(web)
    lists = [read_list(shard.client, shard.keys) for shard in web.crawl.shards]
    assert sum(one.merges for one in lists) > 5
    for shard, one in zip(web.crawl.shards, lists, strict=True):
        fields = shard.client.hgetall(shard.keys.link_segments)
        assert one.size == sum(len(value) for name, value in fields.items() if name[1:].isdigit())
        assert len(one.live) < 12


def test_refused_worker_does_not_count_unseen_links_as_dead(valkey: Server) -> None:
    """Looking at segments, a worker that is behind finds pages that it does not know as read; later it merges them."""
    web, draw = Web(valkey, "behind"), random.Random(3)
    ahead, behind = (Writer(web.opened(keep_links=True)) for _ in range(2))
    with patch.object(Checkpointer, "due", return_value=True), patch.object(link_keeper, "WAIT_SHARE", 0.0):
        for writer, pages in ((behind, PAGES[:4]), (ahead, PAGES[4:12]), (behind, PAGES[:2] * 4)):
            web.writer = writer
            for url in pages:
                web.read(url, draw.sample(PAGES, 3))
                if url == PAGES[4]:  # That there is another worker, it knows by then; the rest is news.
                    behind.stores[0].follower.catch_up()
    assert read_list(web.crawl.shards[0].client, web.crawl.shards[0].keys).merges
    assert kept(web) == plain(web)


def test_segments_are_merged_and_links_of_gone_pages_go(valkey: Server) -> None:
    web, draw = Web(valkey, "merged"), random.Random(7)
    web.writer = Writer(web.opened(keep_links=True), journal_bytes=JOURNAL_BYTES)
    read_some(web, draw, 150)
    shard = web.crawl.shards[0]
    before = read_list(shard.client, shard.keys)
    assert before.merges
    for url in PAGES:
        web.read(url, [], status=410)
    web.read(PAGES[0], PAGES[1:3])
    for _ in range(before.version):
        web.read(PAGES[0], draw.sample(PAGES[1:], 3))
        web.writer.stores[0].checkpoint()
    assert kept(web) == plain(web) == {PAGES[0]: set(web.links[PAGES[0]])}
    _, segments = read_segments(shard.client, shard.keys)
    assert len(segments) <= link_keeper.SEGMENTS_MIN + 1


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_segments_merged_during_a_read_are_read_again(valkey: Server, at: int) -> None:
    web, draw = Web(valkey, f"amid-{at}"), random.Random(at)
    web.writer = Writer(web.opened(keep_links=True), journal_bytes=JOURNAL_BYTES)
    read_some(web, draw, 60)
    reader = KeptLinks(web.opened())
    reader.crawl.follow()

    def write() -> None:
        shard = web.crawl.shards[0]
        merges = read_list(shard.client, shard.keys).merges
        while read_list(shard.client, shard.keys).merges == merges:
            read_some(web, draw, 5)

    with amid_reads(at, write):
        reader.catch_up(reader.check, lambda _: None)
    fresh = KeptLinks(web.opened())
    fresh.catch_up(fresh.check, lambda _: None)
    live = set(plain(web))
    ids = {page.url: page.id for page in reader.crawl.pages()}
    for url in live:
        links = [links_of(one.pool, one.numbers.number_of(0, ids[url])) for one in (reader, fresh)]
        expected = sorted(reader.numbers.number_of(0, ids[to]) for to in set(web.links[url]))
        assert [sorted(some.tolist()) for some in links if some is not None] == [expected, expected]


@contextmanager
def refusing(function: str, after: int) -> Iterator[None]:
    """Lose the connection when a function is called, once it was called some times."""
    send, left = Line.send, after

    def sending(line: Line, *commands: object) -> None:
        nonlocal left
        for command in commands:
            if list(command)[:2] == ["FCALL", function]:  # type: ignore[call-overload]
                left -= 1
                if left < 0:
                    raise StoreUnavailable("cut off")
        send(line, *commands)  # type: ignore[arg-type]

    with patch.object(Line, "send", sending):
        yield


def test_damaged_or_missing_segment_is_reported(valkey: Server) -> None:
    web, draw = Web(valkey, "damaged"), random.Random(1)
    read_some(web, draw, 20)
    web.writer.stores[0].checkpoint()
    shard = web.crawl.shards[0]
    number = read_list(shard.client, shard.keys).live[-1]
    field = shard.client.hget(shard.keys.link_segments, f"l{number}")
    assert field is not None
    for value in (field[:-1], field[:9] + b"?" + field[10:], None):
        shard.client.hdel(shard.keys.link_segments, f"l{number}")
        if value is not None:
            shard.client.hset(shard.keys.link_segments, f"l{number}", value)
        reader = KeptLinks(web.opened())
        with pytest.raises(StoreDamaged, match=r"a segment of kept links is (damaged|missing)"):
            reader.catch_up(reader.check, lambda _: None)
