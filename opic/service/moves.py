"""Following a crawl that was moved to another one of the same store: its name goes on, until it is deleted."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from opic.errors import CrawlMoved
from opic.settings import Settings
from opic.store.connection import Client
from opic.store.keys import Keys
from opic.store.recognition import move_of

log = logging.getLogger("opic.service")

LOOK_SECONDS_STOPPED: Final = 0.02
HELD_SECONDS: Final = 10.0  # How long a call waits for the other crawl at most.
CLOSE_SECONDS: Final = 15.0  # After which no call is answered from the former crawl any more.


async def hold_while(stopped: Callable[[], bool]) -> None:
    """Hold a call while its crawl is stopped, for the other crawl to take its place; HELD_SECONDS at most."""
    until = time.monotonic() + HELD_SECONDS
    while stopped() and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS_STOPPED)


def after_moves(client: Client, settings: Settings) -> Settings:
    """Return the settings with the crawl that is in the place of theirs now; without rules given for the former.

    Raises:
        CrawlMoved: that crawl is in another store.
    """
    asked = settings.crawl
    while (moved := move_of(client, Keys(settings.crawl, 0))) is not None:
        if moved.store:
            raise moved
        settings = settings.with_crawl(moved.to)
    if settings.crawl != asked:
        log.warning("%s; going on with that one", CrawlMoved(asked, settings.crawl))
    return settings
