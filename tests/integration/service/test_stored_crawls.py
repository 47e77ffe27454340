"""`opic crawls`: lists the crawls of a store, and removes one without touching the others."""

import json
from contextlib import closing
from typing import Any

import pytest
from logs import PARTITION, record
from servers import Server
from typer.testing import CliRunner

from opic.cli.main import app
from opic.errors import BadInput, Refused, StoreLost, StoreMismatch
from opic.ingest import Writer
from opic.ingest.step_counts import StepCounts
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.service.stored_crawls import CrawlSize, crawls_of, delete_crawl
from opic.settings import Settings


def fed(server: Server, name: str, shards: int = 1) -> Crawl:
    crawl = Crawl.open(server.client(), name, {"shards": shards})
    writer = Writer(crawl)
    writer.apply(PARTITION, [record(0, "http://a.org/", ["http://b.org/", "http://c.org/"])])
    writer.drain()
    return crawl


def test_deleted_crawl_leaves_no_key_and_the_others_alone(servers: Server) -> None:
    kept, gone = fed(servers, "default", 3), fed(servers, "rehearsal", 2)
    assert crawls_of(gone.client) == [CrawlSize("default", 3, 3, 1), CrawlSize("rehearsal", 2, 3, 1)]
    assert delete_crawl(gone.client, "rehearsal") > 0
    assert not list(gone.client.scan_iter("opic:{rehearsal:*"))
    assert [one.name for one in crawls_of(gone.client)] == ["default"]
    assert kept.audit()[0].conserved
    with pytest.raises(StoreLost):
        Writer(gone).apply(PARTITION, [record(1, "http://a.org/")])
    assert Writer(fed(servers, "rehearsal")).resume(PARTITION) == 1  # The name is free again.


def test_missing_crawl_or_one_with_a_live_worker_is_not_deleted(valkey: Server) -> None:
    crawl = fed(valkey, "busy")
    with pytest.raises(BadInput, match="no crawl named 'none'"):
        delete_crawl(crawl.client, "none")
    counts = StepCounts(crawl.shards[0])
    counts.tell()
    with pytest.raises(Refused, match="a worker of crawl 'busy' was there"):
        delete_crawl(crawl.client, "busy")
    assert crawl.audit()[0].conserved
    counts.end()
    assert delete_crawl(crawl.client, "busy")
    fed(valkey, "busy")
    counts.tell()
    assert delete_crawl(crawl.client, "busy", force=True)


def test_new_crawl_has_one_shard_and_each_keeps_its_number(valkey: Server) -> None:
    """One that was made with more opens without the setting; another number is refused, with the ways out."""

    def opened(crawl: str, **given: int) -> int:
        with closing(Backend(Settings.load(store=valkey.url, crawl=crawl, **given), valkey.url)) as backend:
            return len(backend.crawl)

    fed(valkey, "large", 16)
    assert [opened("large"), opened("large", shards=16), opened("new"), opened("new", shards=1)] == [16, 16, 1, 1]
    for crawl, shards, made in (("large", 1, 16), ("large", 4, 16), ("new", 16, 1)):
        with pytest.raises(
            StoreMismatch, match=f"OPIC_SHARDS is {shards}, but this store was made with {made}"
        ) as found:
            opened(crawl, shards=shards)
        assert "leave the setting out" in str(found.value)
        assert "change it with `opic migrate NAME --shards N`" in str(found.value)


@pytest.mark.parametrize(
    ("rule", "way"),
    [
        ({"damping": 0.7}, "change it with `opic migrate NAME --damping D`"),
        ({"regrant": 0.5}, "change it with `opic migrate NAME --regrant SHARE`"),
        ({"history_measures": 9}, "change it with `opic migrate NAME --history-measures N`"),
        ({"inflow": False}, "change it with `opic migrate NAME --no-inflow`"),
        ({"virtual": "continuous"}, "start a new store"),
    ],
)
def test_other_rule_is_refused_with_the_way_to_change_it(valkey: Server, rule: dict[str, Any], way: str) -> None:
    fed(valkey, "made")
    with pytest.raises(StoreMismatch, match=f"leave the setting out, or {way}"):
        Backend(Settings.load(store=valkey.url, crawl="made", **rule), valkey.url)


def test_command_lists_and_deletes(valkey: Server) -> None:
    fed(valkey, "rehearsal")

    def run(*words: str) -> tuple[int, Any]:
        found = CliRunner().invoke(app, ["crawls", "--store", valkey.url, "--json", *words])
        return found.exit_code, json.loads(found.stdout) if found.exit_code == 0 else str(found.exception)

    sizes = {"name": "rehearsal", "shards": 1, "known_pages": 3, "read_pages": 1, "moved_to": ""}
    assert run() == (0, {"crawls": [sizes]})
    assert run("--delete", "rehearsal", "--yes")[1]["deleted"] == "rehearsal"
    assert run() == (0, {"crawls": []})
    assert run("--create", "rehearsal") == (0, {"name": "rehearsal", "made": True})
    assert run("--create", "rehearsal") == (0, {"name": "rehearsal", "made": False})
    assert "a crawl's name is" in run("--create", "..")[1]
    assert run("--delete", "rehearsal", "--yes")[1]["deleted"] == "rehearsal"
    status, said = run("--delete", "rehearsal", "--yes")
    assert status != 0
    assert "no crawl named 'rehearsal'" in said
