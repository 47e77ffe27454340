"""Reads sitemaps and feeds, from files and over HTTP, with all sitemaps that an index names, within limits.

What is fetched is named by files that anybody may write: only public addresses are connected to, unless told otherwise.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from opic import __version__
from opic.addresses import PublicTransport
from opic.compressed import GZIP_MAGIC, decodable
from opic.errors import BadUrl
from opic.sitemaps.entries import SCHEMES, BadSitemap
from opic.sitemaps.parser import SitemapParser
from opic.urls.canonical import canonical_url

AGENT: Final = f"opic-seed/{__version__}"
REDIRECTS_MAX: Final = 5
CODINGS: Final = ("identity", "gzip", "x-gzip")  # The body shows whether it is gzip.
LAYERS_MAX: Final = 2  # Of gzip: some servers pack a file again that is packed already.


@dataclass(frozen=True, slots=True)
class SitemapLimits:
    """Limits of reading. Attributes:

    bytes_max      of a file, as fetched and decompressed; the protocol allows 50 MB
    urls_max       pages that all files together name
    files_max      files that are read
    depth_max      an index may name indexes, so many below each other
    file_seconds   time for a file, its redirects included
    allow_private  also fetch from addresses that are not public, and through a proxy of the environment
    """

    bytes_max: int = 50 << 20
    urls_max: int = 1_000_000
    files_max: int = 1_000
    depth_max: int = 3
    file_seconds: float = 60.0
    allow_private: bool = False


class SitemapPage(NamedTuple):
    """A page that a sitemap names; `where` is the file with the line."""

    url: str
    where: str


class SitemapReader(AbstractContextManager["SitemapReader"]):
    """Reads sitemaps one after the other. Use it as a context manager, in one thread.

    `problems` says what could not be read, each as "file: reason" or "file:line: reason".
    """

    def __init__(self, limits: SitemapLimits = SitemapLimits()) -> None:
        self.problems: list[str] = []
        self._limits = limits
        self._urls_left, self._files_left = limits.urls_max, limits.files_max
        self._seen: set[str] = set()
        self._runner = asyncio.Runner()
        self._web = httpx.AsyncClient(
            headers={"user-agent": AGENT, "accept-encoding": "identity"},  # A file that is compressed shows that.
            timeout=limits.file_seconds,
            follow_redirects=True,
            max_redirects=REDIRECTS_MAX,
            transport=None if limits.allow_private else PublicTransport(),
        )

    def __exit__(self, *raised: object) -> None:
        self._runner.run(self._web.aclose())
        self._runner.close()

    def pages(self, source: str) -> Iterator[SitemapPage]:
        """Yield the pages of a sitemap or a feed, and of all sitemaps below an index.

        Args:
            source: an http(s) URL or the path of a file.
        """
        waiting = [(source, source, 0)]  # Where each is named, and how many indexes are above it.
        while waiting:
            target, named_at, depth = waiting.pop(0)
            if target in self._seen:
                continue
            self._seen.add(target)
            if not self._files_left or not self._urls_left:
                limits = f"{self._limits.files_max:,} files or {self._limits.urls_max:,} pages"
                self.problems.append(f"{named_at}: {target} is left out, the limit is reached: {limits}")
                return
            self._files_left -= 1
            try:
                file = self._load(target)
                sitemap = SitemapParser(file.base, self._urls_left)
                sitemap.read(file.body, file.charset)
            except BadSitemap as error:
                self.problems.append(f"{target}: {error}")
                continue
            self.problems += [f"{target}: {problem}" for problem in sitemap.problems]
            if not sitemap.is_index:
                self._urls_left -= len(sitemap.entries)
                yield from (SitemapPage(entry.url, f"{target}:{entry.line}") for entry in sitemap.entries)
                continue
            if depth == self._limits.depth_max:
                self.problems.append(f"{target}: an index {depth} levels below the first one: it is left out")
                continue
            for entry in sitemap.entries:
                where = f"{target}:{entry.line}"
                try:
                    waiting.append((canonical_url(entry.url), where, depth + 1))
                except BadUrl as error:
                    self.problems.append(f"{where}: {error}")

    def _load(self, target: str) -> "_RetrievedFile":
        """Return a file, decompressed.

        Raises:
            BadSitemap: it can't be read, or is too large.
        """
        most = self._limits.bytes_max
        if target.startswith(SCHEMES):
            file = self._runner.run(self._fetch(target))
        else:
            try:
                with Path(target).open("rb") as opened:
                    file = _RetrievedFile(opened.read(most + 1))
            except OSError as error:
                raise BadSitemap(f"can't be read: {error.strerror or error}") from None
        body, problem = decompressed(file.body, most)
        if len(body) > most:
            raise BadSitemap(f"is over {most:,} bytes, the limit")
        if problem:
            self.problems.append(f"{target}: {problem}")
        return file._replace(body=body)

    async def _fetch(self, url: str) -> "_RetrievedFile":
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.file_seconds), self._web.stream("GET", url) as answer:
                if not answer.is_success:
                    raise BadSitemap(f"can't be fetched: status {answer.status_code}")
                coding = answer.headers.get("content-encoding", "identity").strip().lower()
                if coding not in CODINGS:
                    raise BadSitemap(f"can't be fetched: content-encoding {coding[:40]} was not asked for")
                async for part in answer.aiter_raw():
                    body += part
                    if len(body) > self._limits.bytes_max:
                        break
                return _RetrievedFile(bytes(body), str(answer.url), answer.charset_encoding)
        except TimeoutError:
            raise BadSitemap(f"can't be fetched within {self._limits.file_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise BadSitemap(f"can't be fetched: {error or type(error).__name__}") from None


class _RetrievedFile(NamedTuple):
    """What was retrieved: from which URL, "" for a file; and the `charset` of an HTTP answer's Content-Type."""

    body: bytes
    base: str = ""
    charset: str | None = None


def decompressed(body: bytes, bytes_max: int) -> tuple[bytes, str]:
    """Unpack a body if it is gzip.

    Returns:
        The body, as far as it can be unpacked, of one that is longer `bytes_max` + 1 bytes; and what is wrong with it.

    Raises:
        BadSitemap: it begins like gzip, and nothing of it can be unpacked.
    """
    problem = ""
    for _ in range(LAYERS_MAX):
        if not body.startswith(GZIP_MAGIC):
            break
        body, whole = decodable(body, "gzip", bytes_max + 1)
        if not whole and len(body) <= bytes_max:
            problem = "is gzip that is damaged or cut off"
            if not body:
                raise BadSitemap(problem)
            problem += ": what follows is left out"
    return body, problem
