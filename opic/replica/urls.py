"""Reads URLs of pages by id: from the replica's tail in memory, else from the blocks of the checkpoint."""

from collections.abc import Iterable, Sequence

from opic.errors import UrlMissing
from opic.replica.checkpoint import URLS_A_FIELD, url_field
from opic.replica.effect import text_of, unpack_lines
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
    wanted: list[tuple[int, int]] = []  # Position in `asked`; number of the field, counted over all blocks.
    for at, (_, replica, ids) in enumerate(asked):
        with replica.lock:
            found.append(replica.urls_of_tail(ids))
        fields = sorted({i // URLS_A_FIELD for i in ids if i not in found[at]})
        wanted += [(at, field) for field in fields]
    if wanted:
        fields_of = [(asked[at][0], *url_field(number * URLS_A_FIELD)) for at, number in wanted]
        packed = ask(client, [["HGET", keys.block(block), name] for keys, block, name, _ in fields_of])
        lines = {place: unpack_lines(value or b"") for place, value in zip(wanted, packed, strict=True)}
        for at, (keys, _, ids) in enumerate(asked):
            for i in ids:
                if i not in found[at]:
                    field = lines[at, i // URLS_A_FIELD]
                    if i % URLS_A_FIELD >= len(field):
                        raise UrlMissing(keys.shard, i)
                    found[at][i] = text_of(field[i % URLS_A_FIELD])
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
