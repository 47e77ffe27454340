"""The last ranked lists of local-domain estimators, kept for `GET /v1/local`.

A hash of shard 0 with two fields for each domain: its name -> the list, and its name after HEAD -> what is told of it
without reading it. Both are MessagePack, the list in zstd. An estimator replaces its list as a whole; nothing else in
the store depends on it. A list expires KEPT_SECONDS after its last update; the next write removes it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgpack
import zstandard

from opic.errors import Refused
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import check_not_stopped
from opic.store.server_clock import server_now_us

LISTS_MAX: Final = 1_000
BYTES_MAX: Final = 256 << 20  # Of all lists together, compressed: the store keeps them in memory.
KEPT_SECONDS: Final = 30 * 86_400
UNPACKED_BYTES_MAX: Final = 64 << 20  # Far above what a body of OPIC_MAX_BODY_BYTES gives.
LEVEL: Final = 3
HEAD: Final = "="  # No domain begins so.


class ListHead(NamedTuple):
    """What is told of a list: domain, when it came (Unix seconds), its bytes, its fields; of the pages, how many."""

    domain: str
    sent_at: float
    packed_bytes: int
    fields: Mapping[str, Any]

    @property
    def expires_at(self) -> float:
        """When the list is dropped unless another one comes, in Unix seconds."""
        return self.sent_at + KEPT_SECONDS


def put_list(client: Client, keys: Keys, domain: str, ranking: Mapping[str, Any]) -> ListHead:
    """Replace the list of a domain, and drop those that have expired.

    Raises:
        Refused: there are LISTS_MAX lists of other domains, or lists of BYTES_MAX in all.
    """
    check_not_stopped(client, keys)
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(msgpack.packb(ranking))
    fields = {name: value for name, value in ranking.items() if name != "pages"} | {"pages": len(ranking["pages"])}
    head, others = ListHead(domain, _now(client, keys), len(packed), fields), list[ListHead]()
    with store_errors():
        for other in _heads(client, keys):
            if other.expires_at <= head.sent_at:
                client.hdel(keys.local_lists, other.domain, HEAD + other.domain)
            elif other.domain != domain:
                others.append(other)
        if len(others) >= LISTS_MAX:
            raise Refused(
                f"the store already keeps the lists of {LISTS_MAX:,} domains, its limit: wait until one expires"
            )
        if sum(other.packed_bytes for other in others) + len(packed) > BYTES_MAX:
            raise Refused(
                f"with this list, the lists of all domains would exceed {BYTES_MAX:,} bytes: send fewer pages"
            )
        told = msgpack.packb([head.sent_at, head.packed_bytes, dict(fields)])
        client.hset(keys.local_lists, mapping={domain: packed, HEAD + domain: told})
    return head


def read_list(client: Client, keys: Keys, domain: str) -> dict[str, Any] | None:
    """Return the list of a domain with "expires_at", or None where there is none or it has expired."""
    with store_errors():
        packed, told = client.hmget(keys.local_lists, [domain, HEAD + domain])
    if packed is None or told is None:
        return None
    head = _unpacked(domain, told)
    if head.expires_at <= _now(client, keys):
        return None
    unpacked = zstandard.ZstdDecompressor().decompress(packed, max_output_size=UNPACKED_BYTES_MAX)
    return {**msgpack.unpackb(unpacked), "expires_at": head.expires_at}


def read_heads(client: Client, keys: Keys) -> list[ListHead]:
    """Return what is told of all lists that have not expired, the newest first."""
    now = _now(client, keys)
    with store_errors():
        heads = [head for head in _heads(client, keys) if head.expires_at > now]
    return sorted(heads, key=lambda head: (-head.sent_at, head.domain))


def lists_without(fields: Mapping[bytes, bytes], domains: Collection[str]) -> dict[bytes, bytes]:
    """Return the fields of the hash of lists without those of some domains."""
    return {field: value for field, value in fields.items() if field.decode().removeprefix(HEAD) not in domains}


def drop_lists(client: Client, keys: Keys, domains: Iterable[str]) -> None:
    """Drop the lists of domains, if there are any."""
    if fields := [field for domain in domains for field in (domain, HEAD + domain)]:
        with store_errors():
            client.hdel(keys.local_lists, *fields)


def _heads(client: Client, keys: Keys) -> Iterable[ListHead]:
    names = [name for name in map(bytes.decode, client.hkeys(keys.local_lists)) if name.startswith(HEAD)]
    values = client.hmget(keys.local_lists, names) if names else []
    return [_unpacked(name.removeprefix(HEAD), told) for name, told in zip(names, values, strict=True) if told]


def _now(client: Client, keys: Keys) -> float:
    return server_now_us(client, keys.local_lists) / 1e6


def _unpacked(domain: str, told: bytes) -> ListHead:
    return ListHead(domain, *msgpack.unpackb(told))
