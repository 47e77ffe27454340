"""Accepting the loss of a crawl: `opic begin-anew`.

A store that has lost a crawl is refused, so that it is not taken for a new one. This removes what is left of the crawl
and makes it anew, empty, with a mark by which processes that knew the earlier one take this one.
"""

import time
from collections.abc import Mapping

from opic.ops.crawls import remove_keys
from opic.replica import Crawl
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import ANEW, lost_part
from opic.store.scan import key_names


def begin_anew(client: Client, crawl: str, given: Mapping[str, int | bool | str], shards: int) -> int:
    """Make a crawl anew where it was lost; a crawl that is whole is kept, and from now on taken by all processes.

    Args:
        client: of a user that may remove keys.
        crawl: the name of the crawl.
        given: rules that the user set explicitly.
        shards: number of shards, unless `given` sets it.

    Returns:
        How many keys were removed.

    Raises:
        StoreError: the server can't be used, or a restore is under way.
    """
    with store_errors():
        meta = client.hgetall(Keys(crawl, 0).meta)
    removed = 0
    if b"format" not in meta or lost_part(client, crawl, meta, shards) is not None:
        left = set[bytes]() if b"restoring" in meta else key_names(client, f"opic:{{{crawl}:*")
        remove_keys(client, left)
        removed = len(left)
    made = Crawl.open(client, crawl, given, shards=shards)
    made.ask([["HSET", shard.keys.meta, ANEW, f"{time.time():.0f}"] for shard in made.shards])
    return removed
