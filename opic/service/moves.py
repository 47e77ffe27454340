"""Following a crawl that was moved to another one of the same store: its name goes on, until it is deleted."""

import logging

from opic.errors import CrawlMoved
from opic.settings import Settings
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import MOVED, check_not_moved

log = logging.getLogger("opic.service")


def after_moves(client: Client, settings: Settings) -> Settings:
    """Return the settings with the crawl that is in the place of theirs now; without rules given for the former.

    Raises:
        CrawlMoved: that crawl is in another store.
    """
    while True:
        keys = Keys(settings.crawl, 0)
        with store_errors():
            moved = client.hget(keys.meta, MOVED)
        if moved is None:
            return settings
        try:
            check_not_moved(keys, {MOVED: moved})
        except CrawlMoved as error:
            if error.store:
                raise
            log.warning("%s; going on with that one", error)
            settings = settings.with_crawl(error.to)
