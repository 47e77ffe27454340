"""The kept links of a shard as the store has them: segments, and the journal behind them.

The hash `linkseg` has the fields of each segment (see `opic.replica.link_segment`) and

    v         how often it was written; each write names the one before it. A new segment has this number
    lsn       the links of all reads up to this record are in segments
    live      the numbers of the segments that are there, ascending
    bytes     of these segments
    merges    how often segments were merged

The links of a page are those of its last read in the journal behind `lsn`, else those in the highest segment that has
the page, and none if the page is gone or was not read since it came back: so what becomes of a page needs no entry.
Where the keeping was ended and has begun again, what was kept before the record that began it does not count.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Uint8s
from opic.errors import StoreDamaged, StoreUnavailable
from opic.model.cash import Flag
from opic.model.page_links import PageLinks
from opic.replica.effect import Effect
from opic.replica.link_segment import unpack_segment
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys

LIST_FIELDS: Final = ("v", "lsn", "live", "bytes", "merges")
SEGMENTS_A_READ: Final = 2  # About a megabyte and a half.
ENTRIES_A_READ: Final = 64
TRIES_MAX: Final = 1_000
Fields = dict[int, tuple[bytes, bytes]]  # By segment: its fields p and l.


class LinkList(NamedTuple):
    """Which segments there are."""

    version: int = 0
    lsn: int = 0
    live: tuple[int, ...] = ()
    size: int = 0  # Bytes.
    merges: int = 0

    @classmethod
    def of(cls, fields: Sequence[bytes | None]) -> "LinkList":
        version, lsn, live, size, merges = fields
        numbers: list[int] = np.frombuffer(live or b"", "<u4").tolist()
        return cls(int(version or 0), int(lsn or 0), tuple(numbers), int(size or 0), int(merges or 0))

    def counting(self, since: int) -> "LinkList":
        """Return what counts where links are kept since a record: segments of an earlier keeping do not."""
        return self if self.lsn >= since - 1 else self._replace(lsn=since - 1, live=(), size=0)

    def fields(self) -> dict[str, Any]:
        live = np.array(self.live, "<u4").tobytes()
        return dict(zip(LIST_FIELDS, (self.version, self.lsn, live, self.size, self.merges), strict=True))


def read_list(client: Client, keys: Keys) -> LinkList:
    with store_errors():
        return LinkList.of(client.hmget(keys.link_segments, LIST_FIELDS))


def read_segments(client: Client, keys: Keys) -> tuple[LinkList, Fields]:
    """Read all segments, also while a worker writes and merges them.

    Raises:
        StoreUnavailable: the store is unavailable.
        StoreDamaged: a segment is missing.
    """
    segments: Fields = {}
    steps = each_segment(client, keys)
    while True:
        try:
            segments |= next(steps)
        except StopIteration as end:
            now: LinkList = end.value
            return now, {number: segments[number] for number in now.live}


def each_segment(client: Client, keys: Keys) -> Generator[Fields, None, LinkList]:
    """Yield segments until all that are there were yielded, and return which these are. Some may be gone by then.

    Raises:
        StoreUnavailable: the store is unavailable.
        StoreDamaged: a segment is missing.
    """
    seen: set[int] = set()
    for _ in range(TRIES_MAX):
        now = read_list(client, keys)
        wanted = [number for number in now.live if number not in seen]
        for start in range(0, len(wanted), SEGMENTS_A_READ):
            some = wanted[start : start + SEGMENTS_A_READ]
            with store_errors():
                read = client.hmget(keys.link_segments, [f"{kind}{number}" for number in some for kind in "pl"])
            segments = {
                number: (pages, links)
                for number, pages, links in zip(some, read[::2], read[1::2], strict=True)
                if pages is not None and links is not None
            }
            seen |= segments.keys()
            yield segments
        if seen.issuperset(now.live):
            return now
        if read_list(client, keys).version == now.version:
            raise missing(keys)
    raise StoreUnavailable(f"shard {keys.shard}: segments of kept links were merged during every read: try again")


def read_links(client: Client, keys: Keys, lsn: int, state: Uint8s, since: int = 0) -> Iterator[PageLinks]:
    """Read the links of a shard, each page once.

    What records after `lsn` changed may or may not be contained: apply them after this.

    Args:
        client: a client of the store.
        keys: of the shard.
        lsn: a record that the journal had not long ago.
        state: the states of the shard's pages as of this record.
        since: the record that began the keeping of links, see `opic.replica.replica.Keeping`.

    Raises:
        StoreUnavailable: the store is unavailable.
        StoreDamaged: a segment or a record can't be read.
    """
    seen = np.zeros(len(state), np.bool_)
    for links in _newest_first(client, keys, lsn, since):
        keep = live_rows(state, links.pages)
        keep[keep] = ~seen[links.pages[keep]]
        rows = links.last_of_each()
        newest = links.select_rows(rows[keep[rows]])
        seen[newest.pages] = True
        yield newest


def _newest_first(client: Client, keys: Keys, lsn: int, since: int) -> Iterator[PageLinks]:
    """Yield the links of a shard as of record `lsn` or later; of a page that comes several times, the first count."""
    while True:
        before, segments = read_segments(client, keys)
        counting = before.counting(since)
        journal = _journal_links(client, keys, counting.lsn, lsn)
        if read_list(client, keys).version == before.version:  # Else records may have been trimmed in the meantime.
            break
    yield journal
    for number in sorted(counting.live, reverse=True):
        yield unpack_segment(*segments.pop(number))


def missing(keys: Keys) -> StoreDamaged:
    """Return the error of a segment that is not there."""
    return StoreDamaged(f"shard {keys.shard}: a segment of kept links is missing: restore a backup")


def live_rows(state: Uint8s, pages: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which of these pages may have links: those read since they became known or came back."""
    live = np.zeros(len(pages), np.bool_)
    known = pages < len(state)
    live[known] = (state[pages[known]] & (Flag.OPEN | Flag.GONE)) == Flag.OPEN
    return live


def _journal_links(client: Client, keys: Keys, after: int, until: int) -> PageLinks:
    """Return the links that the reads after a record show, up to record `until`, by time."""
    parts: list[PageLinks] = []
    while after < until:
        with store_errors():
            entries = client.xrange(keys.journal, f"({after}-0", f"{until}-0", count=ENTRIES_A_READ)
        parts += [Effect.unpack(fields[b"r"]).kept() for _, fields in entries]
        if len(entries) < ENTRIES_A_READ:
            break
        after = int(entries[-1][0].partition(b"-")[0])
    return PageLinks.joined(parts)
