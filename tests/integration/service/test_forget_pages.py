"""Pages are forgotten by calls that can be repeated."""

from contextlib import closing

import numpy as np
from servers import Server

from opic.arrays import Int64s
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.service.forgetting import forget_pages
from opic.settings import Settings


def test_crawl_that_is_reloaded_before_the_first_page_is_forgotten_is_to_be_asked_again(valkey: Server) -> None:
    backend = Backend(Settings.load(store=valkey.url), valkey.url)
    with closing(backend):
        backend.crawl.follow()

        def find(crawl: Crawl) -> list[Int64s]:
            crawl._load_anew(0, crawl.loads[0])
            return [np.arange(3)]

        assert forget_pages(backend, find) == {"forgotten": 0, "more": True}
