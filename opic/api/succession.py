"""An endpoint whose crawl is moved to another one: it holds calls for that moment, then answers from that one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send

from opic.api.app import create_app
from opic.api.application import QUIET_PATHS
from opic.api.calls import Service
from opic.api.metrics import Metrics
from opic.background import repeated
from opic.errors import CrawlMoved, StoreError
from opic.ingest.outage import Outage
from opic.service.moves import LOOK_SECONDS_STOPPED, Closing, hold_while
from opic.service.open_crawls import OpenCrawls
from opic.service.tokens import Tokens
from opic.store.shard import check_known

log = logging.getLogger("opic.api")

LOOK_SECONDS: Final = 0.25


class MovableService(Service, Protocol):
    """A service that can go on with another crawl, and open more."""

    crawls: OpenCrawls

    def succeed(self) -> None:
        """Go on with the crawl that took the place of this one."""


class Succession:
    """An ASGI application that answers by the application of the present crawl."""

    def __init__(
        self,
        service: MovableService,
        *,
        allow_open: bool,
        metrics: Metrics,
        tokens: Tokens,
        instance: str | None = None,
    ) -> None:
        """Answer for an open service; the arguments are those of `create_app`."""
        self._service, self._metrics, self._holds, self._closing = service, metrics, False, Closing()
        self._outage = Outage(log)
        self._make = partial(
            create_app, service, allow_open=allow_open, metrics=metrics, tokens=tokens, crawls=service.crawls
        )
        self.current = self._make(instance=instance)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; while the crawl is stopped, wait for the other one."""
        if self._holds and scope["path"] not in QUIET_PATHS:
            await hold_while(lambda: self._holds)
        await self.current(scope, receive, send)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look during the block whether the crawl is moved."""
        try:
            with repeated(self._look, LOOK_SECONDS, "opic-moves"):
                yield
        finally:
            self._closing.close()

    def _look(self) -> float:
        crawl = self._service.backend.crawl
        self._holds = crawl.stopped
        if not self._holds:
            self._outage.ended()
            return LOOK_SECONDS
        try:
            crawl.follow()  # The stop may be over.
            check_known(crawl.shards)
        except CrawlMoved as moved:
            self._go_on(moved)
        except StoreError as error:
            self._outage.began(error)
        else:
            self._outage.ended()
        return LOOK_SECONDS_STOPPED

    def _go_on(self, moved: CrawlMoved) -> None:
        former = self._service.backend
        try:
            self._service.succeed()
            self._metrics.show(self._service.backend)
            self.current = self._make(instance=self.current.instance)  # Commands know it by that.
            self._holds = False  # Events need no replicas, which are read first by the next question.
        except StoreError as error:  # As for the moment until the new crawl is opened.
            self._outage.began(error)
            return
        self._outage.ended()
        log.info("answering from crawl %s", moved.to)
        former.rest()
        self._closing.add(former.close)
