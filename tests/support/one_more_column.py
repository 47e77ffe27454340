"""A crawl whose pages have one column more, which its events give: the links over the limit, in total.

    python one_more_column.py STORE_URL DIRECTORY COLUMN

It runs on a copy of opic in which COLUMN was declared, and fails at the first place that does not have it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import redis
from logs import PARTITION, forget, record
from same_state import assert_same

from opic.ingest import ShardWriter, Writer
from opic.model.events import EventLimits, Record
from opic.model.ledger import Ledger
from opic.ops.backup import backup
from opic.ops.export import export
from opic.ops.restore import restore
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl, Replica
from opic.replica.audit import audit_replica
from opic.replica.effect import Effect

URL, LINKS = "http://a.org/p", [f"http://a.org/{name}" for name in "bcdefgh"]
LIMITS = EventLimits(links_max=3)
TOTAL = 2 * (len(LINKS) - LIMITS.links_max)
LOG: Sequence[Record] = (record(0, URL, LINKS), record(1, LINKS[0], [URL]), record(2, URL, LINKS))


def main(store: str, directory: Path, name: str) -> None:
    client = redis.Redis.from_url(store)
    crawl = Crawl.open(client)
    Writer(crawl, LIMITS).apply(PARTITION, LOG)
    shard = crawl.shards[0]
    (entry,) = client.xrange(shard.keys.journal)
    effect = Effect.unpack(entry[1][b"r"])
    pages, values = effect.noted[name]
    assert (pages.tolist(), values.tolist()) == ([0], [TOTAL])
    print("record")

    ledger = Ledger(limits=LIMITS)
    ledger.apply(PARTITION, LOG)
    assert getattr(ledger.pages[URL], name) == TOTAL
    assert_same(shard, ledger)
    print("ledger")

    replica = Replica(shard.rules)
    before = replica.apply(effect, keep=True)
    assert before is not None
    assert replica.column(name, np.array([0, 1])).tolist() == [TOTAL, 0]
    replica.undo(before)
    assert replica.column(name, np.array([0, 1])).tolist() == [0, 0]
    print("undo")

    ShardWriter(shard, journal_bytes=1).checkpoint()
    assert client.hget(shard.keys.block(0), "n")
    assert value(Crawl.open(client), name) == TOTAL
    print("checkpoint")

    backup(crawl, directory / "backup")
    restore(client, directory / "backup", "restored")
    assert value(Crawl.open(client, "restored"), name) == TOTAL
    print("backup")

    file = directory / "pages.jsonl"
    export(Query(crawl, Snapshots(crawl)), file, "jsonl")
    rows: dict[str, Any] = {row["url"]: row for row in map(json.loads, file.read_text().splitlines())}
    assert (rows[URL][name], rows[LINKS[0]][name]) == (TOTAL, 0)
    print("export")

    Writer(crawl, LIMITS).apply(PARTITION, [forget(3, URL)])
    (replica,) = crawl.follow()
    assert not audit_replica(replica, shard.minted).mismatches
    getattr(replica.columns, name)[0] = TOTAL
    assert audit_replica(replica, shard.minted).mismatches == (f"{name} has 1 values of pages that are not known",)
    print("audit")


def value(crawl: Crawl, name: str) -> Any:
    return {page.url: getattr(page, name) for page in crawl.pages()}[URL]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
