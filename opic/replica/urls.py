"""Reads URLs of pages by id: from the replica's tail in memory, else from the blocks of the checkpoint."""

from collections.abc import Iterable, Sequence

from opic.errors import UrlMissing
from opic.replica.checkpoint import url_field
from opic.replica.packed_lines import lines_around, text_of
from opic.replica.replica import Replica
from opic.store.connection import Client, ask, store_errors
from opic.store.keys import Keys


def read_urls(client: Client, keys: Keys, replica: Replica, ids: Iterable[int]) -> dict[int, str]:
    """Return the URLs of known pages of one shard, by id.

    Raises:
        UrlMissing: one is missing.
    """
    (urls,) = read_urls_of_many(client, [(keys, replica, list(ids))])
    return urls


def read_urls_of_many(client: Client, asked: Sequence[tuple[Keys, Replica, Sequence[int]]]) -> list[dict[int, str]]:
    """Return the URLs of known pages of several shards, in one round trip; "" for a page forgotten a moment ago.

    Raises:
        UrlMissing: one is missing.
    """
    by_shard: list[dict[int, str]] = []
    wanted: dict[tuple[int, int], dict[str, list[tuple[int, int]]]] = {}  # By position in `asked`, block, and field.
    for index, (_, replica, ids) in enumerate(asked):
        with replica.lock:
            by_shard.append(replica.tail.get(ids))
        for page in ids:
            if page not in by_shard[index]:
                block, field, line = url_field(page)
                wanted.setdefault((index, block), {}).setdefault(field, []).append((page, line))
    if wanted:
        commands = [["HMGET", asked[index][0].block(block), *fields] for (index, block), fields in wanted.items()]
        for ((index, _), fields), packed in zip(wanted.items(), ask(client, commands), strict=True):
            for pages, value in zip(fields.values(), packed, strict=True):
                first, lines = 0, list[str]()
                for page, line in pages:
                    if not first <= line < first + len(lines):
                        first, lines = lines_around(value or b"", line)
                    if line - first >= len(lines):
                        raise UrlMissing(asked[index][0].shard, page)
                    by_shard[index][page] = lines[line - first]
    for (keys, _, _), urls in zip(asked, by_shard, strict=True):
        if empty := [page for page, url in urls.items() if not url]:  # Of pages forgotten, and perhaps known again.
            with store_errors():
                again = client.hmget(keys.urls, empty)
            urls |= {page: text_of(url or b"") for page, url in zip(empty, again, strict=True)}
    return by_shard
