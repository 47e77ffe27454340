"""Following a crawl that was moved to another one of the same store: its name goes on, until it is deleted."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from opic.errors import CrawlMoved
from opic.memory import collect_garbage
from opic.settings import Settings
from opic.store.connection import Client
from opic.store.keys import Keys
from opic.store.recognition import move_of

log = logging.getLogger("opic.service")

LOOK_SECONDS_STOPPED: Final = 0.02
HELD_SECONDS: Final = 10.0  # How long a call waits for the other crawl at most.
CLOSE_SECONDS: Final = 15.0  # After which no call is answered from the former crawl any more.


class Closing:
    """Closes what answers no new call, CLOSE_SECONDS later, and gives its memory back."""

    def __init__(self) -> None:
        self._timers = dict[Callable[[], None], threading.Timer]()

    def add(self, end: Callable[[], None]) -> None:
        """Call `end`, a method of what is to be closed, later; calls that it answers may end until then."""
        last_reference = [end]

        def close() -> None:
            if self._timers.pop(last_reference[0], None) is not None:
                last_reference.pop()()
                collect_garbage()

        timer = self._timers[end] = threading.Timer(CLOSE_SECONDS, close)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        for end in list(self._timers):
            if (timer := self._timers.pop(end, None)) is not None:
                timer.cancel()
                end()


async def hold_while(stopped: Callable[[], bool]) -> None:
    """Hold a call while its crawl is stopped, for the other crawl to take its place; HELD_SECONDS at most."""
    until = time.monotonic() + HELD_SECONDS
    while stopped() and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS_STOPPED)


def present_crawl(client: Client, crawl: str) -> str:
    """Return the name of the crawl that is in the place of one now.

    Raises:
        CrawlMoved: that crawl is in another store.
    """
    while (moved := move_of(client, Keys(crawl, 0))) is not None:
        if moved.store:
            raise moved
        crawl = moved.to
    return crawl


def after_moves(client: Client, settings: Settings) -> Settings:
    """Return the settings with the crawl that is in the place of theirs now; without rules given for the former.

    Raises:
        CrawlMoved: as of `present_crawl`.
    """
    present = present_crawl(client, settings.crawl)
    if present == settings.crawl:
        return settings
    log.warning("%s; going on with that one", CrawlMoved(settings.crawl, present))
    return settings.with_crawl(present)
