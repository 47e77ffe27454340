"""Following a crawl that was moved to another one of the same store: its name goes on, until it is deleted."""

import logging

from opic.errors import CrawlMoved
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
    asked = settings.crawl
    while (moved := move_of(client, Keys(settings.crawl, 0))) is not None:
        if moved.store:
            raise moved
        settings = settings.with_crawl(moved.to)
    if settings.crawl != asked:
        log.warning("%s; going on with that one", CrawlMoved(asked, settings.crawl))
    return settings
