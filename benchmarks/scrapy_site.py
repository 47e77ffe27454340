"""A spider that follows every link of some sites, for the benchmarks of Scrapy: SETTINGS START...

SETTINGS are Scrapy's, as JSON. Prints how many pages were parsed, and the URLs of all answers in their order, as JSON.
Needs nothing but Scrapy, so that it also runs in environments without opic.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor


class Everything(scrapy.Spider):
    name = "everything"
    links = LinkExtractor(deny_extensions=())  # `follow_all(css="a")` stops at the first mailto link.

    def parse(self, response: Response) -> Iterator[Any]:
        if isinstance(response, HtmlResponse):
            yield {"title": response.css("title::text").get()}
            yield from response.follow_all(self.links.extract_links(response))


def main() -> None:
    settings, start = json.loads(sys.argv[1]), sys.argv[2:]
    process = AsyncCrawlerProcess({"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, **settings})
    crawler = process.create_crawler(Everything)
    answers = list[str]()

    def note(response: Response, **_: Any) -> None:
        answers.append(response.url)

    crawler.signals.connect(note, signals.response_downloaded)  # Redirects too.
    process.crawl(crawler, start_urls=start, allowed_domains=[urlsplit(url).hostname for url in start])
    process.start()
    print(json.dumps({"parsed": crawler.stats.get_value("item_scraped_count"), "answers": answers}))


if __name__ == "__main__":
    main()
