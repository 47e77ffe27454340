"""When pages became known: notes of the step in the store, for each shard, and a column of the pages that came back.

Pages are numbered in the order in which they become known. So a note, at most one a minute, tells the time from which
pages with that number or a higher one became known. A page that was forgotten and is known again keeps its number: the
column `known_again` has the time of the record that did it. It is cleared when the page is forgotten again, as all
columns are, so what is kept does not grow with the number of returns.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from opic.arrays import Int64s, values_at
from opic.replica.replica import Replica

INTERVAL_SECONDS: Final = 60
# A note. Those with `alone`, of 1.0, are of one page that was known again.
ENTRY: Final = np.dtype([("seconds", "<u4"), ("page", "<u4"), ("alone", "u1")])


class KnownSinceNotes:
    """What the writer of a shard notes of its steps."""

    def __init__(self) -> None:
        self._next = self._sent = 0

    def entries(self, seconds: int, first_page: int | None) -> bytes:
        """Return the entries of a step, packed; mostly none.

        Args:
            seconds: the time of the step, in Unix seconds.
            first_page: the first page that it makes known, if any.
        """
        self._sent = self._next
        if first_page is None or seconds < self._next:
            return b""
        self._sent = seconds + INTERVAL_SECONDS
        return np.array([(seconds, first_page, 0)], ENTRY).tobytes()

    def confirm(self) -> None:
        """Note that the last step took effect."""
        self._next = self._sent


class KnownSince:
    """When the pages of a shard became known. What it says of pages that came back is as of its replica."""

    def __init__(self, fields: Mapping[bytes, bytes], replica: Replica) -> None:
        """Read the notes.

        Args:
            fields: of the key `since`.
            replica: the replica of the shard.
        """
        entries = np.frombuffer(b"".join(fields[number] for number in sorted(fields, key=int)), ENTRY)
        starts = entries[entries["alone"] == 0]
        page = starts["page"].astype(np.int64)
        # If the store lost pages, later entries have smaller numbers, and count.
        valid = page <= np.minimum.accumulate(page[::-1])[::-1]
        self._page, self._seconds = page[valid], starts["seconds"][valid].astype(np.int64)
        alone = entries[entries["alone"] == 1]
        self._alone = np.zeros(int(alone["page"].max(initial=0)) + 1, np.uint32)  # By page: the last one's.
        self._alone[alone["page"]] = alone["seconds"]
        self._replica = replica

    def seconds_of(self, ids: Sequence[int] | Int64s) -> Int64s:
        """Return when pages became known, in Unix seconds, up to a minute early; 0 if before the first entry."""
        pages = np.asarray(ids, np.int64)
        seconds = np.append(0, self._seconds)[np.searchsorted(self._page, pages, side="right")]
        for again in (self._alone, self._replica.columns.known_again):
            seconds = np.maximum(seconds, values_at(again, pages, 0))
        return seconds

    def before(self, seconds: float, pages: int) -> Int64s:
        """Return those of the first `pages` pages that became known before a time, as far as this can be told."""
        if not len(self._seconds):
            return np.empty(0, np.int64)
        since = self.seconds_of(np.arange(pages))
        earlier = int(self._seconds[0]) - 1  # At the latest, where there is no entry.
        return np.flatnonzero(np.where(since == 0, earlier, since) < seconds)
