"""Following a crawl that was moved to another one of the same store: its name goes on, until it is deleted."""

import logging

from opic.settings import Settings
from opic.store.connection import Client
from opic.store.keys import Keys
from opic.store.recognition import move_of

log = logging.getLogger("opic.service")


def after_moves(client: Client, settings: Settings) -> Settings:
    """Return the settings with the crawl that is in the place of theirs now; without rules given for the former.

    Raises:
        CrawlMoved: that crawl is in another store.
    """
    while (moved := move_of(client, Keys(settings.crawl, 0))) is not None:
        if moved.store:
            raise moved
        log.warning("%s; going on with that one", moved)
        settings = settings.with_crawl(moved.to)
    return settings
