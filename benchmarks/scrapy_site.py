"""A spider that follows every link of a site, with a service or without, for `bench_scrapy.py`: START [SERVICE]."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response


class Everything(scrapy.Spider):
    name = "everything"

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"title": response.css("title::text").get()}
        yield from response.follow_all(css="a")


def main() -> None:
    start, service = sys.argv[1], sys.argv[2:]
    settings: dict[str, Any] = {"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False}
    if service:
        settings |= {"ADDONS": {"opic.scrapy.Addon": 500}, "OPIC_URL": service[0], "OPIC_CLOSE_AFTER_IDLE": 1}
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(Everything)
    process.crawl(crawler, start_urls=[start], allowed_domains=["127.0.0.1"])
    process.start()
    print(json.dumps(crawler.stats.get_value("item_scraped_count")))


if __name__ == "__main__":
    main()
