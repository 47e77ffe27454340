"""The crawls that URLFrontier's calls name: OPIC_CRAWL, and others that are opened when a call first names them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from opic.errors import BadInput
from opic.service.backend import Backend
from opic.store.keys import CRAWL_NAME
from opic.urlfrontier.one_crawl import UrlFrontierCrawl
from opic.urls.canonical import shown

DEFAULT_NAMES: Final = ("", "DEFAULT")


class Crawls:
    """The open crawls, by name. Used in one event loop."""

    def __init__(
        self,
        backend: Backend,
        other: Callable[[str], Backend] | None = None,
        others: Callable[[], Sequence[str]] = list,
    ) -> None:
        """Begin with the crawl of `backend`.

        Args:
            backend: the store, open for OPIC_CRAWL.
            other: opens another crawl, and makes it if there is none yet; None if there may be no others.
            others: the names of crawls that the store has.
        """
        settings = backend.settings
        self._first, self._most = settings.crawl, settings.urlfrontier_crawls
        self._open = {self._first: UrlFrontierCrawl(backend)}
        self._other, self._others, self._opening = other, others, asyncio.Lock()

    async def of(self, name: str, *, make: bool = False) -> UrlFrontierCrawl:
        """Return a crawl; with `make`, one that does not exist yet is made.

        Raises:
            BadInput: there is no such crawl, or there may be no more.
            StoreError: it can't be opened.
        """
        name = self._first if name in DEFAULT_NAMES else name
        if name not in self._open:
            async with self._opening:
                if name not in self._open:
                    self._open[name] = UrlFrontierCrawl(await asyncio.to_thread(self._opened, name, make))
        return self._open[name]

    def _opened(self, name: str, make: bool) -> Backend:
        if self._other is None or len(self._open) >= self._most:
            raise BadInput(
                f"crawl {shown(name)}: this service has {', '.join(self._open)}, and may have {self._most} in total: "
                "see OPIC_URLFRONTIER_CRAWLS"
            )
        if not CRAWL_NAME.fullmatch(name):
            raise BadInput(f"crawl {shown(name)}: a crawl's name is 1 to 64 letters, digits, '_', '.' or '-'")
        if not make and name not in self._others():
            raise BadInput(f"there is no crawl {shown(name)}")
        return self._other(name)

    def names(self) -> list[str]:
        """Return the names of all crawls, OPIC_CRAWL first. Blocks."""
        others = {*self._open, *(self._others() if self._other else ())} - {self._first}
        return [self._first, *sorted(others)]

    def close(self) -> None:
        """Stop the threads."""
        for crawl in self._open.values():
            crawl.close()
