"""A shard that has one key more, of pages: the attribute `remarks`.

    python one_more_key.py STORE_URL DIRECTORY

It runs on a copy of opic in which the key was declared, and fails at the first place that does not know of it.
"""

import sys
from pathlib import Path
from typing import Any

import redis
from logs import PARTITION, forget, seeds

from opic.ingest import Writer
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.replica import Crawl
from opic.service.stored_crawls import delete_crawl
from opic.store.keys import Keys
from opic.store.library import load_functions

URLS = ["http://a.org/p", "http://a.org/q"]


def main(store: str, directory: Path) -> None:
    client = redis.Redis.from_url(store)
    load_functions(client)
    crawl = Crawl.open(client)
    keys: Any = crawl.shards[0].keys
    writer = Writer(crawl)
    writer.apply(PARTITION, [seeds(0, *URLS)])
    client.hset(keys.remarks, mapping={"0": "one", "1": "other"})
    print(keys.remarks)

    backup(crawl, directory / "backup")
    restore(client, directory / "backup", "restored")
    restored: Any = Keys("restored", 0)
    assert client.hgetall(restored.remarks) == {b"0": b"one", b"1": b"other"}
    print("backup")

    writer.apply(PARTITION, [forget(1, URLS[0])])
    assert client.hgetall(keys.remarks) == {b"1": b"other"}
    print("forgotten page")

    delete_crawl(client, "default", force=True)
    assert not client.exists(keys.remarks)
    print("removal")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
