"""The last ranked lists of local-domain estimators, kept for `GET /v1/local/{domain}`.

A hash of shard 0: domain -> list, MessagePack in zstd. An estimator replaces its list as a whole; nothing else in the
store depends on it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgpack
import zstandard

from opic.errors import Refused
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys

LISTS_MAX: Final = 1_000
UNPACKED_BYTES_MAX: Final = 64 << 20  # Far above what a body of OPIC_MAX_BODY_BYTES gives.
LEVEL: Final = 3


def put_list(client: Client, keys: Keys, domain: str, ranking: Mapping[str, Any]) -> None:
    """Replace the list of a domain.

    Raises:
        Refused: there are LISTS_MAX lists of other domains.
    """
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(msgpack.packb(ranking))
    with store_errors():
        if client.hlen(keys.local_lists) >= LISTS_MAX and not client.hexists(keys.local_lists, domain):
            raise Refused(f"the store keeps the lists of {LISTS_MAX:,} domains already, which is the limit")
        client.hset(keys.local_lists, domain, packed)


def read_list(client: Client, keys: Keys, domain: str) -> dict[str, Any] | None:
    """Return the list of a domain, or None."""
    with store_errors():
        packed = client.hget(keys.local_lists, domain)
    if packed is None:
        return None
    unpacked = zstandard.ZstdDecompressor().decompress(packed, max_output_size=UNPACKED_BYTES_MAX)
    ranking: dict[str, Any] = msgpack.unpackb(unpacked)
    return ranking
