"""Notes on pages: what a crawler says of a page beside its links: depth, metadata, failures, when to offer it.

The depth of a page is its number of links from a seed, as crawlers count it; the least one seen is kept. Ledger and
arrays hold it as nearness, 65,535 - depth, where 0 means that no depth is known: the least depth is the largest
nearness, and zeros take no memory. Metadata is a small map of strings, kept as packed and never looked into.

Failures are the fetches in a row that failed, or led to another name of the page. OPIC_MAX_FAILURES of them, or an
event that gives the page up, keep the page from being offered, until anything but a failure is reported of it, or it is
seeded. `not_before` is the time before which the page is not offered, and `priority` a factor on its key in the order
of suggestions. The name of a page is the URL under which it answered last, if normalization rules make another of it.
"""

from collections.abc import Mapping
from typing import Final

import msgpack

from opic.errors import BadEvent
from opic.messages.terms import DEPTH_MAX, META_BYTES_MAX

OK: Final = 200
NEAREST: Final = DEPTH_MAX + 1  # Depth 0.
PRIORITY_MIN, PRIORITY_MAX = 1e-9, 1e9  # Products with cash stay far inside the range of floats.
FAILURES_MAX: Final = 254  # The count of failures stops here; one byte a page.
GIVEN_UP: Final = 255  # In place of the count: an event has given the page up.


def check_priority(priority: float | None) -> float | None:
    """Return a priority that can be taken.

    Raises:
        BadEvent: it is not a number from PRIORITY_MIN to PRIORITY_MAX.
    """
    if priority is not None and not PRIORITY_MIN <= priority <= PRIORITY_MAX:  # NaN fails every comparison.
        raise BadEvent(
            f"priority {priority} must be over 0: from {PRIORITY_MIN:g} to {PRIORITY_MAX:g}; 1 is the default"
        )
    return priority


def failures_after(failures: int, said: int) -> int:
    """Return a page's failures in a row after an event; `said`: 1 for a failure, GIVEN_UP, or 0 for anything else.

    >>> failures_after(3, 1), failures_after(3, 0), failures_after(3, GIVEN_UP), failures_after(GIVEN_UP, 1)
    (4, 0, 255, 255)
    """
    if not said:
        return 0
    return GIVEN_UP if GIVEN_UP in (said, failures) else min(failures + 1, FAILURES_MAX)


def failures_of_given_up(max_failures: int) -> int:
    """Return from how many failures on a page is given up, given OPIC_MAX_FAILURES; 0 is never, but by an event.

    >>> failures_of_given_up(8), failures_of_given_up(0)
    (8, 255)
    """
    return max_failures or GIVEN_UP


def nearness_of(depth: int | None) -> int:
    """Return the nearness of a depth; None, an unknown depth, is 0.

    >>> nearness_of(0), nearness_of(2), nearness_of(None)
    (65535, 65533, 0)
    """
    return 0 if depth is None else NEAREST - depth


def depth_of(nearness: int, _reads: int = 0) -> int | None:
    """Return the depth of a nearness, None if it is unknown."""
    return NEAREST - nearness if nearness else None


def noted_status(status: int, *, read: bool) -> int:
    """Return what is kept of the status of an event: 0 for a read with 200, which most are, else 1 more than it."""
    return 0 if read and status == OK else status + 1


def status_of(noted: int, reads: int) -> int | None:
    """Return the status of a page's last event, None if there was none; 0 is no answer.

    >>> status_of(noted_status(503, read=False), 2), status_of(noted_status(200, read=True), 2), status_of(0, 0)
    (503, 200, None)
    """
    return noted - 1 if noted else OK if reads else None


def one_deeper(nearness: int) -> int:
    """Return the nearness of pages that are one link deeper.

    >>> depth_of(one_deeper(nearness_of(2))), depth_of(one_deeper(nearness_of(DEPTH_MAX))), one_deeper(0)
    (3, 65534, 0)
    """
    return nearness - (nearness > 1)


def pack_meta(meta: Mapping[str, str]) -> bytes:
    """Serialise the metadata of a page; b"" if there is none.

    Raises:
        BadEvent: it is over META_BYTES_MAX, or not text.
    """
    try:
        size = sum(len(text.encode()) for pair in meta.items() for text in pair)
    except UnicodeEncodeError as error:
        raise BadEvent(f"meta is not text: {error}") from None
    if size > META_BYTES_MAX:
        raise BadEvent(
            f"meta has {size:,} bytes, names and values together; a page keeps at most {META_BYTES_MAX:,}: send an id, "
            "and keep the rest elsewhere"
        )
    packed: bytes = msgpack.packb(dict(meta)) if meta else b""
    return packed


def unpack_meta(packed: bytes) -> dict[str, str]:
    """Deserialise metadata packed by `pack_meta`."""
    meta: dict[str, str] = msgpack.unpackb(packed) if packed else {}
    return meta
