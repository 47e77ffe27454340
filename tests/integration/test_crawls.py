"""`opic crawls`: lists the crawls of a store, and removes one without touching the others."""

import json
from typing import Any

import pytest
from logs import PARTITION, record
from servers import Server
from typer.testing import CliRunner

from opic.cli.main import app
from opic.errors import BadInput, Refused, StoreLost
from opic.ingest import Writer
from opic.ingest.step_counts import StepCounts
from opic.ops.crawls import CrawlSize, crawls_of, delete_crawl
from opic.replica import Crawl


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


def test_command_lists_and_deletes(valkey: Server) -> None:
    fed(valkey, "rehearsal")

    def run(*words: str) -> tuple[int, Any]:
        found = CliRunner().invoke(app, ["crawls", "--store", valkey.url, "--json", *words])
        return found.exit_code, json.loads(found.stdout) if found.exit_code == 0 else str(found.exception)

    sizes = {"name": "rehearsal", "shards": 1, "known_pages": 3, "read_pages": 1}
    assert run() == (0, {"crawls": [sizes]})
    assert run("--delete", "rehearsal", "--yes")[1]["deleted"] == "rehearsal"
    assert run() == (0, {"crawls": []})
    status, said = run("--delete", "rehearsal", "--yes")
    assert status != 0
    assert "no crawl named 'rehearsal'" in said
