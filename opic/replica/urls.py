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
    (found,) = read_urls_of_many(client, [(keys, replica, list(ids))])
    return found


def read_urls_of_many(client: Client, asked: Sequence[tuple[Keys, Replica, Sequence[int]]]) -> list[dict[int, str]]:
    """Return the URLs of known pages of several shards, in one round trip; "" for a page forgotten a moment ago.

    Raises:
        UrlMissing: one is missing.
    """
    found: list[dict[int, str]] = []
    wanted: dict[tuple[int, int], dict[str, list[tuple[int, int]]]] = {}  # By position in `asked`, block, and field.
    for at, (_, replica, ids) in enumerate(asked):
        with replica.lock:
            found.append(replica.urls_of_tail(ids))
        for page in ids:
            if page not in found[at]:
                block, field, line = url_field(page)
                wanted.setdefault((at, block), {}).setdefault(field, []).append((page, line))
    if wanted:
        commands = [["HMGET", asked[at][0].block(block), *fields] for (at, block), fields in wanted.items()]
        for ((at, _), fields), packed in zip(wanted.items(), ask(client, commands), strict=True):
            for pages, value in zip(fields.values(), packed, strict=True):
                first, lines = 0, list[bytes]()
                for page, line in pages:
                    if not first <= line < first + len(lines):
                        first, lines = lines_around(value or b"", line)
                    if line - first >= len(lines):
                        raise UrlMissing(asked[at][0].shard, page)
                    found[at][page] = text_of(lines[line - first])
    _find_known_again(client, asked, found)
    return found


def _find_known_again(
    client: Client, asked: Sequence[tuple[Keys, Replica, Sequence[int]]], found: Sequence[dict[int, str]]
) -> None:
    """Find the URLs of pages that were forgotten, and are known again: their lines may be empty."""
    for (keys, _, _), urls in zip(asked, found, strict=True):
        if empty := [page for page, url in urls.items() if not url]:
            with store_errors():
                again = client.hmget(keys.urls, empty)
            urls |= {page: text_of(url or b"") for page, url in zip(empty, again, strict=True)}
