"""Spiders for the tests, and the program that runs one: `NAME '{"settings": {..}, "arguments": {..}}'`.

Its stats go to the file of the setting STATS_FILE when the spider has closed.
"""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import scrapy
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class Following(scrapy.Spider):
    """Follows the links of class "go"; others are only reported."""

    name = "following"

    def parse(self, response: Response, **more: Any) -> Iterator[Any]:
        yield {"url": response.url, "importance": response.meta["opic"]["importance"], **more}
        for link in response.css("a.go"):
            yield response.follow(link, meta={"from": response.url}, cb_kwargs={"text": link.css("::text").get()})


class Ruled(CrawlSpider):
    """A CrawlSpider, whose callback says which rule and link led to a page."""

    name = "ruled"
    rules = (
        Rule(LinkExtractor(allow=r"/item/"), callback="parse_item", cb_kwargs={"kind": "item"}),
        Rule(LinkExtractor(allow=r"/list/"), follow=True),
    )

    def parse_item(self, response: Response, kind: str) -> Iterator[Any]:
        yield {"url": response.url, "kind": kind, "text": response.meta["link_text"], "rule": response.meta["rule"]}


class Mixed(scrapy.Spider):
    """Makes requests that are no plain ones, has a callback that fails, and asks for what no page links to."""

    name = "mixed"

    def opic_request(self, url: str) -> scrapy.Request | None:
        return None if "unwanted" in url else scrapy.Request(url, self.parse_unknown)

    def parse(self, response: Response) -> Iterator[Any]:
        yield scrapy.FormRequest(response.urljoin("/form"), self.parse_own, formdata={"a": "1"})
        yield scrapy.Request(response.urljoin("/lambda"), lambda answer: [{"own": answer.url}])
        yield scrapy.Request(response.urljoin("/again"), self.parse_own, dont_filter=True)
        yield scrapy.Request(response.urljoin("/unlinked"), self.parse_asked, meta=response.meta)
        yield scrapy.Request(response.urljoin("/fails"), self.parse_failing)

    def parse_own(self, response: Response) -> Iterator[Any]:
        yield {"own": response.url}

    def parse_asked(self, response: Response) -> Iterator[Any]:
        yield {"asked": response.url, "depth": response.meta["depth"]}

    def parse_unknown(self, response: Response) -> Iterator[Any]:
        yield {"unknown": response.url}

    def parse_failing(self, response: Response) -> Iterator[Any]:
        raise RuntimeError("a callback that fails")


class Media(scrapy.Spider):
    """Downloads a picture by itself, as the media pipelines do."""

    name = "media"

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        picture = await self.crawler.engine.download_async(scrapy.Request(response.urljoin("/picture")))
        yield {"picture": picture.status}


class Everything(scrapy.Spider):
    """Follows all links, posts once from the first page, and says what it saw; works with Scrapy alone too."""

    name = "everything"
    custom_settings: ClassVar[dict[str, Any]] = {"HTTPERROR_ALLOW_ALL": True}

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url, "status": response.status, "method": response.request.method}
        if isinstance(response, scrapy.http.HtmlResponse):
            for link in LinkExtractor(unique=False).extract_links(response):
                yield scrapy.Request(link.url, self.parse, dont_filter=link.url.endswith("/again"))
        if response.url == self.start_urls[0] and response.request.method == "GET":
            for number in range(2):
                yield scrapy.FormRequest(response.urljoin("/form"), self.parse, formdata={"n": str(number)})


class Written:
    """Writes each item to the file of the setting ITEMS_FILE at once, so that a kill loses none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Written":
        return cls(crawler.settings["ITEMS_FILE"])

    def process_item(self, item: Any) -> Any:
        with self._path.open("a") as file:
            file.write(json.dumps(item) + "\n")
        return item


SPIDERS = {spider.name: spider for spider in (Following, Ruled, Mixed, Media, Everything)}


def main() -> None:
    """Run a spider."""
    given = json.loads(sys.argv[2])
    process = AsyncCrawlerProcess(given["settings"])
    crawler = process.create_crawler(SPIDERS[sys.argv[1]])
    process.crawl(crawler, **given["arguments"])
    process.start()
    stats = {name: str(value) for name, value in crawler.stats.get_stats().items()}
    Path(given["settings"]["STATS_FILE"]).write_text(json.dumps(stats))


if __name__ == "__main__":
    main()
