"""Crawls by Crawlee with opic.crawlee, and what the service knows afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

from crawlee import ConcurrencySettings, Request
from crawlee.crawlers import HttpCrawlingContext, ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient
from processes import wait_until

from opic.client import Client
from opic.crawlee import OpicRequestManager, attach

Handler = Callable[[ParselCrawlingContext], Any]
OF_MANAGER = ("directory", "mode", "domains", "close_after_idle", "max_depth")


async def nothing(context: HttpCrawlingContext) -> None:
    pass


def crawl(
    url: str, start: list[str | Request], handler: Handler = nothing, *, label: Handler | None = None, **given: Any
) -> OpicRequestManager:
    """Crawl until the crawler ends by itself."""
    about = {key: given.pop(key) for key in list(given) if key in OF_MANAGER}

    async def run() -> OpicRequestManager:
        async with OpicRequestManager(url, **about) as manager:
            crawler = ParselCrawler(
                request_manager=manager,
                storage_client=MemoryStorageClient(),
                concurrency_settings=ConcurrencySettings(desired_concurrency=4, max_concurrency=4),
                configure_logging=False,
                **given,
            )
            attach(crawler)
            crawler.router.default_handler(handler)
            if label is not None:
                crawler.router.handler("labelled")(label)
            await crawler.run(start)
        return manager

    return asyncio.run(run())


def state(client: Client, url: str) -> tuple[Any, ...]:
    """The state of a page and how often it was read, once all events have taken effect."""
    wait_until(lambda: client.stats().lag == 0)
    found = client.explain(url)
    return found.state, found.reads
