"""The spider's requests, by page, until the service hands the page out; and again whenever it does."""

import logging
import pickle
import sqlite3
from pathlib import Path

from scrapy import Request, Spider
from scrapy.link import Link
from scrapy.spiders import CrawlSpider
from scrapy.utils.request import request_from_dict

from opic.scrapy.in_flight import MARK

log = logging.getLogger("opic.scrapy")


class KeptRequests:
    """Callback, meta and all else of the first request for each page: in memory, or in a file of JOBDIR.

    What can't be pickled stays in memory, as Scrapy does it.
    """

    def __init__(self, spider: Spider, jobdir: str | None) -> None:
        """Open the file, if there is a JOBDIR."""
        self._spider, self._memory = spider, dict[str, Request]()
        self._file: sqlite3.Connection | None = None
        if jobdir:
            self._file = sqlite3.connect(Path(jobdir) / "opic-requests.sqlite")
            # Nothing is lost with the process; with the machine's power, the last seconds may be.
            self._file.executescript(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                "CREATE TABLE IF NOT EXISTS requests (page TEXT PRIMARY KEY, request BLOB) WITHOUT ROWID;"
            )

    def add(self, page: str, request: Request) -> bool:
        """Keep a request, unless there is one for its page."""
        if page in self._memory or self._stored(page) is not None:
            return False
        request.meta.pop(MARK, None)  # Of another page, if the spider copied the meta of an answer.
        if self._file is not None:
            try:
                packed = pickle.dumps(request.to_dict(spider=self._spider), protocol=4)
            except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
                log.info("%s is kept in memory only, since it can't be stored: %s", request, error)
            else:
                self._file.execute("INSERT INTO requests VALUES (?, ?)", (page, packed))
                return True
        self._memory[page] = request
        return True

    def get(self, page: str) -> Request | None:
        """Return a copy of the request for a page; None if there was none."""
        if page in self._memory:
            return self._memory[page].copy()
        if (packed := self._stored(page)) is None:
            return None
        try:
            # JOBDIR is as trusted as the spider: Scrapy's own queues are pickled there too.
            return request_from_dict(pickle.loads(packed), spider=self._spider)  # noqa: S301
        except ValueError as error:  # A callback that the spider no longer has.
            log.warning("the request kept for %s can't be used: %s", page, error)
            return None

    def _stored(self, page: str) -> bytes | None:
        if self._file is None:
            return None
        row = self._file.execute("SELECT request FROM requests WHERE page = ?", (page,)).fetchone()
        return None if row is None else bytes(row[0])

    def commit(self) -> None:
        """Make what was added survive a kill of the process."""
        if self._file is not None:
            self._file.commit()

    def close(self) -> None:
        """Commit, and close the file."""
        if self._file is not None:
            self._file.commit()
            self._file.close()


def request_without_record(spider: Spider, url: str) -> Request | None:
    """Return the request for a page that this spider never asked for: linked to, or asked for by another process.

    `spider.opic_request(url)` decides, and may return None: not this page. Else it is the callback of the first rule of
    a CrawlSpider whose link extractor takes the URL; else `parse`.
    """
    own = getattr(spider, "opic_request", None)
    if own is not None:
        made: Request | None = own(url)
        return made
    if isinstance(spider, CrawlSpider):
        for number, rule in enumerate(spider._rules):
            if rule.link_extractor.matches(url):
                return spider._build_request(number, Link(url))
    return Request(url)
