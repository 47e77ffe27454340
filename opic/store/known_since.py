"""When pages became known: entries that the step appends, for each shard, at most one a minute.

Pages are numbered in the order in which they become known. So an entry tells the time from which pages with that number
or a higher one became known. A page that was forgotten and is known again has an entry of its own.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from opic.arrays import Int64s

INTERVAL_SECONDS: Final = 60
ENTRY: Final = np.dtype([("seconds", "<u4"), ("page", "<u4"), ("alone", "u1")])


class KnownSinceNotes:
    """What the writer of a shard notes of its steps."""

    def __init__(self) -> None:
        self._next = self._sent = 0

    def entries(self, seconds: int, first_page: int | None, again: Collection[int]) -> bytes:
        """Return the entries of a step, packed; mostly none.

        Args:
            seconds: the time of the step, in Unix seconds.
            first_page: the first page that it makes known, if any.
            again: pages that were forgotten, which it makes known again.
        """
        rows, self._sent = [(seconds, page, 1) for page in again], self._next
        if first_page is not None and seconds >= self._next:
            self._sent = seconds + INTERVAL_SECONDS
            rows.append((seconds, first_page, 0))
        return np.array(rows, ENTRY).tobytes()

    def confirm(self) -> None:
        """Note that the last step took effect."""
        self._next = self._sent


class KnownSince:
    """When the pages of a shard became known."""

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        entries = np.frombuffer(b"".join(fields[number] for number in sorted(fields, key=int)), ENTRY)
        starts = entries[entries["alone"] == 0]
        page = starts["page"].astype(np.int64)
        # If the store lost pages, later entries have smaller numbers, and count.
        valid = page <= np.minimum.accumulate(page[::-1])[::-1]
        self._page, self._seconds = page[valid], starts["seconds"][valid].astype(np.int64)
        alone = entries[entries["alone"] == 1]
        self._alone = dict(zip(alone["page"].tolist(), alone["seconds"].tolist(), strict=True))

    def seconds_of(self, ids: Sequence[int] | Int64s) -> Int64s:
        """Return when pages became known, in Unix seconds, up to a minute early; 0 if before the first entry."""
        pages = np.asarray(ids, np.int64)
        seconds = np.append(0, self._seconds)[np.searchsorted(self._page, pages, side="right")]
        if self._alone:
            later = [self._alone.get(page, 0) for page in pages.tolist()]
            seconds = np.maximum(seconds, np.array(later, np.int64))
        return seconds

    def before(self, seconds: float, pages: int) -> Int64s:
        """Return those of the first `pages` pages that became known before a time, as far as this can be told."""
        if not len(self._seconds):
            return np.empty(0, np.int64)
        since = self.seconds_of(np.arange(pages))
        earlier = int(self._seconds[0]) - 1  # At the latest, where there is no entry.
        return np.flatnonzero(np.where(since == 0, earlier, since) < seconds)
