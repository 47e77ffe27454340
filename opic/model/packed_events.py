"""Arrays of crawl events as the value of one record: packing them, and what can be told of them without decoding.

A record costs a publisher, Kafka and a worker several times as much as an event in it. So producers of this project
pack the events of one partition that they send together.
"""

import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

# Of one record that producers of this project pack: some of them fill a step, and Kafka compresses them well.
EVENTS_A_PACK: Final = 100
LINKS_A_PACK: Final = 4_000
BYTES_A_PACK: Final = 1 << 18

JSON_ARRAY: Final = re.compile(rb"[ \t\r\n]*\[")
MSGPACK: Final = 0x80  # Maps and arrays in MessagePack begin with no lower byte, those in JSON with ASCII.
ARRAY_16: Final = 0xDC
ARRAY_32: Final = 0xDD
FIXARRAY_MAX: Final = 15
HEADER_BYTES: Final = 5  # Of an array at most.
MAP_16: Final = 0xDE
MAP_32: Final = 0xDF


class _Size(msgspec.Struct):
    """The fields of an encoded event that say how large its effect may be, and whose event it is."""

    url: str
    links: msgspec.Raw = msgspec.Raw(b"\x90")


_size_of = msgspec.msgpack.Decoder(_Size).decode


def is_array(value: bytes) -> bool:
    """Return whether a value is an array, in MessagePack or JSON, by its first byte; nothing is decoded."""
    if not value:
        return False
    first = value[0]
    if first >= MSGPACK:
        return first & 0xF0 == 0x90 or first in (ARRAY_16, ARRAY_32)
    return JSON_ARRAY.match(value) is not None


def is_map(value: bytes) -> bool:
    """Return whether a value is a map in MessagePack, by its first byte."""
    return bool(value) and (value[0] & 0xF0 == 0x80 or value[0] in (MAP_16, MAP_32))


def array_length(value: bytes) -> int:
    """Return how many elements an array has, as its beginning says; for an array of events in JSON, an estimate.

    >>> array_length(b"\\x92\\x80\\x80"), array_length(b'[{"url": "http://a/"}, {"url": "http://b/"}]')
    (2, 2)
    """
    first = value[0]
    if first & 0xF0 == 0x90:
        return first & 0x0F
    if first in (ARRAY_16, ARRAY_32):
        return int.from_bytes(value[1 : 3 if first == ARRAY_16 else 5], "big")
    return max(value.count(b'"url"'), 1)


def url_and_links(value: bytes) -> tuple[str, int]:
    """Return the URL and the number of links of an event in MessagePack.

    Raises:
        ValueError: it is not decodable.
    """
    try:
        sizes = _size_of(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a decodable event: {error}") from None
    return sizes.url, array_length(bytes(memoryview(sizes.links)[:HEADER_BYTES]))


def pack(values: Sequence[bytes]) -> bytes:
    """Return the value of a record that has these events, each in MessagePack; of one event, the event itself.

    >>> pack([b"\\x81\\xa1a\\x01", b"\\x81\\xa1b\\x02"])
    b'\\x92\\x81\\xa1a\\x01\\x81\\xa1b\\x02'
    """
    count = len(values)
    if count == 1:
        return values[0]
    if count <= FIXARRAY_MAX:
        return b"".join((bytes((0x90 | count,)), *values))
    return b"".join((bytes((ARRAY_16,)) + count.to_bytes(2, "big"), *values))


class Pack:
    """The events of a record while it is filled: their values, and the numbers that the caller gave them."""

    __slots__ = ("host", "links", "numbers", "partition", "since", "size", "values")

    def __init__(self, partition: int | None, host: bytes) -> None:
        """Begin with none, for a partition. `host` is that of the first event, the record's key."""
        self.partition, self.host, self.since = partition, host, time.monotonic()
        self.values, self.numbers = list[bytes](), list[int]()
        self.links = self.size = 0

    def fits(self, value: bytes, links: int) -> bool:
        """Return whether the record has room for an event; an empty one has, whatever its size."""
        return not self.values or (
            len(self.values) < EVENTS_A_PACK
            and self.links + links <= LINKS_A_PACK
            and self.size + len(value) <= BYTES_A_PACK
        )


class Packs:
    """The records that are filled, by partition."""

    def __init__(self) -> None:
        self._filling: dict[int | None, Pack] = {}

    def add(self, partition: int | None, host: bytes, value: bytes, links: int, number: int = 0) -> Pack | None:
        """Add an event; return the record of its partition that has no room for it, and is to be sent before."""
        filling, full = self._filling.get(partition), None
        if filling is None or not filling.fits(value, links):
            full, filling = filling, Pack(partition, host)
            self._filling[partition] = filling
        filling.values.append(value)
        filling.numbers.append(number)
        filling.links += links
        filling.size += len(value)
        return full

    def pop_packs(self, until: float = math.inf) -> Iterator[Pack]:
        """Remove and yield the records that were begun up to a monotonic time."""
        for partition in [begun for begun, filling in self._filling.items() if filling.since <= until]:
            yield self._filling.pop(partition)

    def __bool__(self) -> bool:
        return bool(self._filling)


def packs(values: Sequence[bytes]) -> Iterator[bytes]:
    """Pack events of one partition into as few records as their limits allow, in order.

    What is no event in MessagePack, such as a dead letter that is sent again, remains a record of its own.
    """
    filling = Packs()
    for value in values:
        links = links_of(value)
        if links is None:
            yield from (pack(full.values) for full in filling.pop_packs())
            yield value
        elif (full := filling.add(None, b"", value, links)) is not None:
            yield pack(full.values)
    yield from (pack(full.values) for full in filling.pop_packs())


def links_of(value: bytes) -> int | None:
    """Return the number of links of an event; None if it is no event in MessagePack."""
    if not is_map(value):
        return None
    try:
        return url_and_links(value)[1]
    except ValueError:
        return None
