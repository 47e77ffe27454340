"""URLs of the pages that became known last, which no checkpoint may have yet: packed as they came in the journal."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from opic.replica.effect import unpack_urls


@dataclass(frozen=True, slots=True)
class _Chunk:
    first: int
    count: int
    packed: bytes


class UrlTail:
    """URLs by page id, of all pages from `first` on."""

    def __init__(self) -> None:
        """Start with page 0."""
        self._chunks: deque[_Chunk] = deque()
        self.first = self.end = 0
        self._unpacked: tuple[_Chunk, list[str]] | None = None  # The last that was looked at.

    def start(self, first: int) -> None:
        """Forget all, and go on with page `first`."""
        self._chunks.clear()
        self._unpacked = None
        self.first = self.end = first

    def append(self, count: int, packed: bytes) -> None:
        """Add the URLs of the next pages."""
        if count:
            self._chunks.append(_Chunk(self.end, count, packed))
            self.end += count

    def preceded(self, first: int, packed: bytes) -> "UrlTail":
        """Return the same with the URLs of pages from `first` on before it."""
        found = UrlTail()
        found.start(first)
        found.append(self.first - first, packed)
        found._chunks.extend(self._chunks)
        found.end = self.end
        return found

    def truncate(self, end: int) -> None:
        """Drop the chunks that were added since it ended with page `end`."""
        while self.end > end:
            self.end = self._chunks.pop().first
        self._unpacked = None

    def drop(self, before: int) -> None:
        """Let go of whole chunks of pages before `before`."""
        while self._chunks and self._chunks[0].first + self._chunks[0].count <= before:
            chunk = self._chunks.popleft()
            self.first = chunk.first + chunk.count
            self._unpacked = None

    def get(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the URLs of those of these pages that are in it."""
        found: dict[int, str] = {}
        wanted = sorted(i for i in ids if self.first <= i < self.end)
        at = 0
        for chunk in self._chunks if wanted else ():
            if at == len(wanted):
                break
            if chunk.first + chunk.count <= wanted[at]:
                continue
            urls = self._urls(chunk)
            while at < len(wanted) and wanted[at] < chunk.first + chunk.count:
                found[wanted[at]] = urls[wanted[at] - chunk.first]
                at += 1
        return found

    def run(self, first: int, end: int) -> list[str]:
        """Return the URLs of pages that follow each other, all of which have to be in it."""
        found = self.get(range(first, end))
        return [found[i] for i in range(first, end)]

    def _urls(self, chunk: _Chunk) -> list[str]:
        if self._unpacked is None or self._unpacked[0] is not chunk:
            self._unpacked = chunk, unpack_urls(chunk.packed)
        return self._unpacked[1]
