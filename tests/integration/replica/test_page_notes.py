"""What a crawler says of pages, their depth and metadata, is kept with them and comes back with the next pages."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import curls
import msgpack
import pytest
from frontiers import Crawl, pages_of
from processes import environment, wait_until
from servers import Server
from serving import serving

from opic.client import Client
from opic.ingest.kafka.topic_log import seeds_by_shard
from opic.model.events import decode_seeds, encode_seeds
from opic.replica import Crawl as Shards
from opic.replica.effect import Effect
from opic.service.service import EmbeddedService
from opic.settings import Settings

SEED, NEAR, FAR, ALONE = (f"http://{name}.org/" for name in ("seed", "near", "far", "alone"))
WAIT_SECONDS = 10.0


def offered(crawl: Crawl, **terms: Any) -> dict[str, tuple[Any, Any]]:
    """All pages that come, with their notes; a batch of a small store ends at half of its best page's cash."""
    found: dict[str, tuple[Any, Any]] = {}
    while pages := crawl.next(**terms):
        found |= {page.url: (page.depth, page.meta) for page in pages}
    return found


def test_pages_come_with_their_depth_and_metadata(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl._apply(encode_seeds([SEED], 0, {"job": "news"}), "seeds")
    crawl.event(SEED, [NEAR])
    crawl.event(NEAR, [FAR], depth=3, meta={"etag": "\u00fc"})
    crawl.event(ALONE, meta={"etag": "a", "n": "1"})
    crawl.event(ALONE, meta={"last": "wins"})
    crawl.event("http://hub.org/", [SEED, NEAR, FAR, ALONE])  # A page that was read has no cash until it is linked to.
    assert offered(crawl) == {
        SEED: (0, {"job": "news"}),
        NEAR: (1, {"etag": "\u00fc"}),
        FAR: (4, {}),  # NEAR was seen at 1, but its event says 3.
        ALONE: (None, {"last": "wins"}),
    }


def test_depth_of_links_is_one_more_than_the_event_says_or_than_is_known(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.event(NEAR, [FAR], depth=3)
    pages = {page.url: page.nearness for page in crawl.pages.pages()}
    assert pages == {NEAR: 65_532, FAR: 65_531}
    crawl.event(SEED, [NEAR], depth=0)
    assert crawl.pages.page(NEAR).nearness == 65_534  # type: ignore[union-attr]
    assert crawl.pages.page(FAR).nearness == 65_531  # type: ignore[union-attr]
    crawl.event(NEAR, [FAR])
    assert crawl.pages.page(FAR).nearness == 65_533  # type: ignore[union-attr]


def test_empty_metadata_removes_earlier_metadata(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl._apply(encode_seeds([SEED, NEAR], None, {"job": "news"}), "seeds")
    crawl.event(SEED, [NEAR], meta={})
    crawl.event("http://hub.org/", [SEED])
    assert offered(crawl) == {SEED: (None, {}), NEAR: (None, {"job": "news"})}


def test_only_pages_up_to_the_requested_depth_come(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl.seed([ALONE, "http://www.alone.org/"])
    for depth, url in enumerate([SEED, NEAR, FAR, "http://far.org/2"]):
        crawl.event(f"http://hub{depth}.org/", [url], depth=depth)
    assert set(offered(crawl, max_depth=0)) == set()  # The hubs were read, and have no cash.
    assert set(offered(crawl, max_depth=2)) == {SEED, NEAR}
    assert set(offered(crawl, max_depth=2)) == set()
    assert set(offered(crawl, max_depth=3, domain="near.org")) == set()
    assert set(offered(crawl, max_depth=3, domain="far.org")) == {FAR}
    assert set(offered(crawl, max_depth=70_000)) == {"http://far.org/2"}
    assert set(offered(crawl)) == {ALONE, "http://www.alone.org/"}  # Their depth is not known.


@pytest.mark.slow
def test_few_pages_up_to_a_depth_are_found_among_many_without_a_full_scan(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(200, 150)
    for at in range(0, len(urls), 3_000):
        crawl.seed(urls[at : at + 3_000])
    deep = [f"http://deep{at}.org/" for at in range(5)]
    crawl._apply(encode_seeds(deep, 2), "seeds")
    for at, url in enumerate(deep):
        crawl.event(url, [f"http://child{at}.org/"])  # A page that was read has no cash left.
        crawl.event(f"http://parent{at}.org/", [url])
    assert crawl.urls(10, max_depth=2) == deep
    (order,) = crawl.frontier._scheduler.hot.orders
    before = order.looked
    assert crawl.next(10, max_depth=2) == []
    assert order.looked - before < len(urls) // 4


def test_crawl_without_depths_and_metadata_stores_none(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed([SEED])
    crawl.event(SEED, [NEAR, FAR])
    crawl.store.checkpoint()
    shard = crawl.store.shard
    assert "nearness" not in crawl.store.replica.columns.in_use()
    assert not shard.client.exists(shard.keys.page_meta)
    assert not shard.client.hexists(shard.keys.block(0), "d")
    for _, fields in shard.client.xrange(shard.keys.journal):
        effect = Effect.unpack(fields[b"r"])
        assert (effect.noted, effect.metas) == ({}, {})


def test_depths_outlive_a_worker_that_wrote_no_checkpoint_and_one_that_did(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.event(SEED, [NEAR], depth=0)
    for _ in range(2):
        cold = {page.url: page.nearness for page in Shards.open(valkey.client()).pages()}
        assert cold == {SEED: 65_535, NEAR: 65_534}
        crawl.store.checkpoint()
    shard = crawl.store.shard
    assert shard.client.xlen(shard.keys.journal) == 1
    crawl.event(NEAR, [FAR])
    cold = {page.url: page.nearness for page in Shards.open(valkey.client()).pages()}
    assert cold == {SEED: 65_535, NEAR: 65_534, FAR: 65_533}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"depth": -1}, "Expected `int` >= 0 - at `$.depth`"),
        ({"depth": 65_535}, "Expected `int` <= 65534 - at `$.depth`"),
        ({"depth": "2"}, "got `str` - at `$.depth`"),
        ({"meta": {"a": 1}}, "Expected `str`, got `int`"),
        ({"meta": ["a"]}, "got `array` - at `$.meta`"),
        (
            {"meta": {"a": "\u00fc" * 512}},
            "meta has 1,025 bytes, names and values together; a page keeps at most 1,024",
        ),
    ],
)
def test_event_with_invalid_depth_or_metadata_is_a_dead_letter(valkey: Server, value: dict[str, Any], why: str) -> None:
    crawl = Crawl(valkey)
    crawl._apply(msgpack.packb({"url": SEED, **value}), "event")
    ((_, letter),) = crawl.store.shard.client.xrange(crawl.store.shard.keys.dead)
    assert why in letter[b"opic-error"].decode()
    assert not crawl.next()


def test_metadata_of_the_size_allowed_is_kept(valkey: Server) -> None:
    crawl, meta = Crawl(valkey), {"a": "\u00fc" * 511, "b": ""}
    crawl._apply(encode_seeds([SEED], None, meta), "seeds")
    assert offered(crawl) == {SEED: (None, meta)}


def test_seeds_of_each_shard_keep_their_notes_on_a_topic() -> None:
    urls = [f"http://{name}.org/" for name in "abcdefgh"]
    parts = seeds_by_shard([encode_seeds(urls, 2, {"job": "news"}, not_before=5.0, priority=2.0)], shards=2)
    seeds = [decode_seeds(part) for part in parts]
    assert sorted(url for part in seeds for url in part.urls) == urls
    assert len(seeds) == 2
    assert {(part.depth, str(part.meta)) for part in seeds} == {(2, "{'job': 'news'}")}
    assert {(part.trust, part.not_before, part.priority) for part in seeds} == {(None, 5.0, 2.0)}


@pytest.mark.slow
def test_replay_and_command_line_pass_depth_and_metadata_on(tmp_path: Path) -> None:
    lines = [
        {"url": SEED, "links": [NEAR], "depth": 0},
        {"url": NEAR, "links": [FAR, ALONE], "meta": {"etag": "x"}},
        {"url": "http://hub.org/", "links": [NEAR]},
    ]
    file, data = tmp_path / "crawl.jsonl", str(tmp_path / "data")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {**environment(), "OPIC_REVISIT_SECONDS": "0"}

    def opic(*words: str) -> str:
        command = [sys.executable, "-m", "opic.cli", *words, "--data", data, "--json"]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=settings).stdout

    opic("replay", str(file))
    pages = {page["url"]: page for page in json.loads(opic("next", "--max-depth", "1"))["pages"]}
    assert (pages[NEAR]["depth"], pages[NEAR]["meta"]) == (1, {"etag": "x"})
    assert FAR not in pages
    assert json.loads(opic("explain", FAR))["depth"] == 2


# Over HTTP.


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings.load(data=tmp_path_factory.mktemp("notes"), host_delay_seconds=0.0, revisit_seconds=0.0)
    with EmbeddedService(settings) as service, serving(service) as at:
        yield at


def settled(client: Client) -> None:
    wait_until(lambda: client.stats().lag == 0, WAIT_SECONDS)


def test_client_sends_and_receives_depth_and_metadata(url: str) -> None:
    with Client(url) as client:
        client.seed(["http://one.example/"], meta={"job": "news"})
        client.event("http://one.example/", ["http://two.example/"], depth=0)
        event = {"url": "http://two.example/", "links": ["http://three.example/"], "meta": {"etag": "x"}, "depth": 5}
        client.events([event], form="lines")
        client.events([{"url": "http://four.example/", "links": ["http://one.example/", "http://two.example/"]}])
        settled(client)
        found = {page.url: (page.depth, page.meta) for page in client.next(10, max_depth=2).pages}
        assert found == {"http://one.example/": (0, {"job": "news"}), "http://two.example/": (1, {"etag": "x"})}
        found = {page.url: (page.depth, page.meta) for page in client.next(10).pages}
        assert found == {"http://three.example/": (6, {})}
        explained = client.explain("http://two.example/")
        assert (explained.depth, explained.meta) == (1, {"etag": "x"})
        assert client.explain("http://four.example/").depth is None


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("events", {"url": SEED, "depth": -1}, ">= 0"),
        ("events", {"url": SEED, "meta": {"a": "x" * 1_024}}, "a page keeps at most 1,024"),
        ("events", {"url": SEED, "meta": {"a": None}}, "Expected `str`"),
        ("seeds", {"urls": [SEED], "depth": -1}, "depth"),
        ("seeds", {"urls": [SEED], "depth": 1.5}, "depth"),
        ("seeds", {"urls": [SEED], "meta": {"a": "x" * 1_024}}, "a page keeps at most 1,024"),
        ("seeds", {"urls": [SEED], "meta": {"a": 1}}, "meta"),
        ("next", {"max_depth": -1}, "max_depth"),
        ("next", {"max_depth": "2"}, "max_depth"),
    ],
)
def test_invalid_depth_and_metadata_are_refused(url: str, path: str, body: dict[str, Any], why: str) -> None:
    answer = curls.post(f"{url}/v1/{path}", json=body)
    assert (answer.status_code, why in answer.text) == (422, True), answer.text
    if path == "events":
        packed = curls.post(
            f"{url}/v1/events", content=msgpack.packb(body), headers={"content-type": "application/msgpack"}
        )
        assert (packed.status_code, why in packed.text) == (422, True), packed.text
