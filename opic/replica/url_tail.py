"""URLs of the newest pages, which the checkpoint may lack: kept in memory, compressed as in the journal."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from opic.replica.effect import pack_lines, unpack_urls

PIECE_URLS: Final = 255  # URLs in a compressed piece. To read one URL takes 20 us, since its whole piece is unpacked.
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
        """Start with page 0."""
        self._chunks: list[_Chunk] = []
        self.first = self.end = 0
        self._unpacked: tuple[_Chunk, list[str]] | None = None  # The chunk that was read last.

    def start(self, first: int) -> None:
        """Discard all URLs; the next page to be added is `first`."""
        self._chunks.clear()
        self._unpacked = None
        self.first = self.end = first

    def append(self, count: int, packed: bytes) -> None:
        """Add the URLs of the next pages."""
        if count:
            self._chunks.append(_Chunk(self.end, count, packed))
            self.end += count

    def preceded(self, first: int, packed: bytes) -> "UrlTail":
        """Return a copy that starts at page `first`; `packed` has the URLs from there to the start of this one."""
        found = UrlTail()
        found.start(first)
        found.append(self.first - first, packed)
        found._chunks.extend(self._chunks)
        found.end = self.end
        return found

    def truncate(self, end: int) -> None:
        """Drop the chunks that were added since the tail ended at page `end`."""
        while self.end > end:
            self.end = self._chunks.pop().first
        self._unpacked = None

    def drop(self, before: int) -> None:
        """Drop whole chunks of pages below `before`."""
        count = 0
        while count < len(self._chunks) and self._chunks[count].end <= before:
            self.first = self._chunks[count].end
            count += 1
        del self._chunks[:count]
        self._unpacked = None

    def get(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the URLs of the given pages that are in the tail."""
        found: dict[int, str] = {}
        for page in sorted(i for i in ids if self.first <= i < self.end):
            chunk, urls = self._chunk_of(page)
            found[page] = urls[page - chunk.first]
        return found

    def run(self, first: int, end: int) -> list[str]:
        """Return the URLs of pages `first` to before `end`.

        Raises:
            KeyError: some of them are not in the tail.
        """
        if not self.first <= first <= end <= self.end:
            raise KeyError(f"pages {first} to {end} are not within {self.first} to {self.end}")
        found: list[str] = []
        while first + len(found) < end:
            chunk, urls = self._chunk_of(first + len(found))
            found += urls[first + len(found) - chunk.first : end - chunk.first]
        return found

    def _chunk_of(self, page: int) -> tuple[_Chunk, list[str]]:
        """Return the chunk that a page is in, and its URLs."""
        if self._unpacked is None or not self._unpacked[0].first <= page < self._unpacked[0].end:
            at = bisect_right(self._chunks, page, key=_first_of) - 1
            chunk = self._chunks[at]
            urls = unpack_urls(chunk.packed)
            if chunk.count > PIECE_URLS:  # Split it, so that the next read need not unpack all of it.
                pieces = [
                    _Chunk(chunk.first + begin, len(some), pack_lines(some))
                    for begin in range(0, chunk.count, PIECE_URLS)
                    if (some := urls[begin : begin + PIECE_URLS])
                ]
                self._chunks[at : at + 1] = pieces
            self._unpacked = chunk, urls
        return self._unpacked
