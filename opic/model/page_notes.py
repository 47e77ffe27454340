"""Depth and metadata of pages: what a crawler says of a page beside its links.

The depth of a page is its number of links from a seed, as crawlers count it; the least one seen is kept. Ledger and
arrays hold it as nearness, 65,535 - depth, where 0 means that no depth is known: the least depth is the largest
nearness, and zeros take no memory. Metadata is a small map of strings, kept as packed and never looked into.
"""

from collections.abc import Mapping
from typing import Final

import msgpack

from opic.errors import BadInput

DEPTH_MAX: Final = 65_534  # Fits 2 bytes a page. Links of a page so deep are not counted any deeper.
NEAREST: Final = DEPTH_MAX + 1  # Depth 0.
META_BYTES_MAX: Final = 1_024  # Of names and values together, in UTF-8.


def nearness_of(depth: int | None) -> int:
    """Return the nearness of a depth; None, an unknown depth, is 0.

    >>> nearness_of(0), nearness_of(2), nearness_of(None)
    (65535, 65533, 0)
    """
    return 0 if depth is None else NEAREST - depth


def depth_of(nearness: int) -> int | None:
    """Return the depth of a nearness, None if it is unknown."""
    return NEAREST - nearness if nearness else None


def one_deeper(nearness: int) -> int:
    """Return the nearness of pages that are one link deeper.

    >>> depth_of(one_deeper(nearness_of(2))), depth_of(one_deeper(nearness_of(DEPTH_MAX))), one_deeper(0)
    (3, 65534, 0)
    """
    return nearness - (nearness > 1)


def pack_meta(meta: Mapping[str, str]) -> bytes:
    """Serialise the metadata of a page; b"" if there is none.

    Raises:
        BadInput: it is over META_BYTES_MAX, or not text.
    """
    try:
        size = sum(len(text.encode()) for pair in meta.items() for text in pair)
    except UnicodeEncodeError as error:
        raise BadInput(f"meta is not text: {error}") from None
    if size > META_BYTES_MAX:
        raise BadInput(
            f"meta has {size:,} bytes, names and values together; a page keeps at most {META_BYTES_MAX:,}: send an id, "
            "and keep the rest elsewhere"
        )
    packed: bytes = msgpack.packb(dict(meta)) if meta else b""
    return packed


def unpack_meta(packed: bytes) -> dict[str, str]:
    """Deserialise metadata packed by `pack_meta`."""
    meta: dict[str, str] = msgpack.unpackb(packed) if packed else {}
    return meta
