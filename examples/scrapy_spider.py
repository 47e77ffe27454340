"""A Scrapy project in one file: crawls the most important pages of a site first, and prints what they are about.

    python examples/scrapy_spider.py https://a.example/ --pages 100

It needs `pip install '.[scrapy]'` and a running service. Several may share a site.
"""

import argparse
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response


class SiteSpider(scrapy.Spider):
    """Takes the title of each page. It follows no links: the service knows them from the events, and offers them."""

    name = "site"

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        """Return the title of a page."""
        yield {"importance": response.meta["opic"]["importance"], "title": response.css("title::text").get()}


def main() -> None:
    """Crawl as the command line says."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("url", help="where to begin")
    options.add_argument("--pages", type=int, default=100, help="close after so many")
    options.add_argument("--service", default="http://127.0.0.1:8080", help="where opic answers")
    options.add_argument("--idle-seconds", type=float, default=30.0, help="close when no page came for so long")
    given = options.parse_args()
    process = AsyncCrawlerProcess(
        {
            "ADDONS": {"opic.scrapy.Addon": 500},
            "OPIC_URL": given.service,
            "OPIC_CLOSE_AFTER_IDLE": given.idle_seconds,
            "BOT_NAME": "opic-example",
            "USER_AGENT": "opic-example/1",
            "ROBOTSTXT_OBEY": True,
            "CLOSESPIDER_PAGECOUNT": given.pages,
            "FEEDS": {"stdout:": {"format": "jsonlines"}},
            "LOG_LEVEL": "WARNING",
        }
    )
    process.crawl(SiteSpider, start_urls=[given.url], allowed_domains=[urlsplit(given.url).hostname])
    process.start()


if __name__ == "__main__":
    main()
