"""URLs of the newest pages, which the checkpoint may lack: kept in memory, compressed.

A record's URLs come in one frame. The first read of one of them packs them in pieces: many are written to the
checkpoint without ever being read here.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from opic.replica.packed_lines import LINES_A_PIECE, lines_around, pack_lines

_first_of = attrgetter("first")


@dataclass(frozen=True, slots=True)
class _Chunk:
    first: int
    count: int
    packed: bytes

    @property
    def end(self) -> int:
        return self.first + self.count


class UrlTail:
    """URLs by page id, of all pages from `first` on."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self.first = self.end = 0

    def start(self, first: int) -> None:
        """Discard all URLs; the next page to be added is `first`."""
        self._chunks.clear()
        self.first = self.end = first

    def append(self, count: int, packed: bytes) -> None:
        if count:
            self._chunks.append(_Chunk(self.end, count, packed))
            self.end += count

    def preceded(self, first: int, packed: bytes) -> "UrlTail":
        """Return a copy that starts at page `first`; `packed` has the URLs from there to the start of this one."""
        tail = UrlTail()
        tail.start(first)
        tail.append(self.first - first, packed)
        tail._chunks.extend(self._chunks)
        tail.end = self.end
        return tail

    def truncate(self, end: int) -> None:
        """Drop the chunks that were added since the tail ended at page `end`."""
        while self.end > end:
            self.end = self._chunks.pop().first

    def drop(self, before: int) -> None:
        """Drop whole chunks of pages below `before`."""
        count = 0
        while count < len(self._chunks) and self._chunks[count].end <= before:
            self.first = self._chunks[count].end
            count += 1
        del self._chunks[:count]

    def get(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the URLs of the given pages that are in the tail."""
        urls: dict[int, str] = {}
        first, lines = 0, list[str]()
        for page in sorted(i for i in ids if self.first <= i < self.end):
            if page >= first + len(lines):
                first, lines = self._lines_around(page)
            urls[page] = lines[page - first]
        return urls

    def run(self, first: int, end: int) -> list[str]:
        """Return the URLs of pages `first` to before `end`.

        Raises:
            KeyError: some of them are not in the tail.
        """
        if not self.first <= first <= end <= self.end:
            raise KeyError(f"pages {first} to {end} are not within {self.first} to {self.end}")
        return list(self.get(range(first, end)).values())

    def _lines_around(self, page: int) -> tuple[int, list[str]]:
        """Return the first page of the piece that a page is in, and the piece's lines."""
        index = bisect_right(self._chunks, page, key=_first_of) - 1
        chunk = self._chunks[index]
        first, lines = lines_around(chunk.packed, page - chunk.first)
        if len(lines) > LINES_A_PIECE:  # A frame; the next read need not unpack all of it.
            self._chunks[index] = _Chunk(chunk.first, chunk.count, pack_lines(lines))
        return chunk.first + first, lines
