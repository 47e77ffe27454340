"""A crawl that keeps links, and beside it the links that each page showed last."""

from collections.abc import Sequence

from logs import NOW_US
from servers import Server

from opic.ingest import Writer
from opic.model.cash import DAY_US, Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_forgotten, encode_seeds
from opic.replica import Crawl

PAGES = [f"http://h{page % 5}.org/{page}" for page in range(14)]


class Web:
    """The crawl; `links` has by page what its last read showed."""

    def __init__(self, server: Server, name: str, shards: int = 1, *, keep_links: bool | None = True) -> None:
        self.server, self.name = server, name
        self.crawl = self.opened(shards, keep_links=keep_links)
        self.writer = Writer(self.crawl)
        self.offset, self.at_us = 0, NOW_US
        self.links: dict[str, list[str]] = {}
        self.last: list[Record] = []

    def opened(self, shards: int = 1, *, keep_links: bool | None = None) -> Crawl:
        return Crawl.open(self.server.client(), self.name, {"shards": shards}, keep_links=keep_links)

    def apply(self, *events: CrawlEvent) -> None:
        """Apply events as one batch."""
        records = []
        for event in events:
            records.append(Record(self.offset, self.at_us, encode_crawl_event(event), "event"))
            self.offset, self.at_us = self.offset + 1, self.at_us + DAY_US
            if event.status < 400:
                self.links[event.url] = [link for link in dict.fromkeys(event.links) if link != event.url]
            elif event.status in {404, 410}:
                self.links.pop(event.url, None)
        self.last = records
        self.again()

    def trust(self, url: str, weight: float = 1.0) -> None:
        self.last = [Record(self.offset, self.at_us, encode_seeds([url], trust=weight), "seeds")]
        self.offset += 1
        self.again()

    def forget(self, *urls: str) -> None:
        self.last = [Record(self.offset, self.at_us, encode_forgotten(list(urls)), "forget")]
        self.offset += 1
        for url in urls:
            self.links.pop(url, None)
        self.again()

    def again(self) -> None:
        """Apply the last batch, again if need be."""
        self.writer.apply("log/0", self.last)

    def read(self, url: str, links: Sequence[str], status: int = 200) -> None:
        redirect = links[0] if links and 300 <= status < 400 else None
        self.apply(CrawlEvent(url, list(links), status=status, redirect=redirect))

    def sources(self) -> dict[str, set[str]]:
        """By page: the pages that link to it."""
        live = {page.url for page in self.crawl.pages() if page.has(Flag.OPEN) and not page.has(Flag.GONE)}
        return {url: {page for page, links in self.links.items() if url in links and page in live} for url in PAGES}
