"""The parts of `opic.scrapy` that need neither a site nor a service: settings, pages of requests, kept requests."""

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider, Rule

from opic.errors import SettingsError
from opic.scrapy import Addon, FailureEvents, PageEvents, RedirectEvents, RobotsTxt, Scheduler
from opic.scrapy.in_flight import MARK, Fetch, page_of
from opic.scrapy.kept_requests import KeptRequests, request_without_record
from opic.scrapy.middlewares import HostPauses
from opic.scrapy.options import CrawlOptions

URL = {"OPIC_URL": "http://127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "OPIC_URL is not set"),
        ({**URL, "OPIC_CLOSE_AFTER": 1}, "no setting OPIC_CLOSE_AFTER: did you mean OPIC_CLOSE_AFTER_IDLE"),
        ({**URL, "OPIC_MODE": "all"}, "OPIC_MODE='all' is not one of any, discover"),
        ({**URL, "OPIC_NOFOLLOW": "yes"}, "OPIC_NOFOLLOW='yes' is neither count nor drop"),
        ({**URL, "OPIC_LEASE_SECONDS": "long"}, "OPIC_LEASE_SECONDS='long' is no number of seconds"),
        ({**URL, "OPIC_CLOSE_AFTER_IDLE": -1}, "OPIC_CLOSE_AFTER_IDLE=-1 is no number of seconds"),
        ({**URL, "SCHEDULER": "scrapy.core.scheduler.Scheduler"}, "contradicts the add-on"),
    ],
)
def test_bad_setting_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Addon().update_settings(Settings(given))


def test_settings_given_as_text_are_parsed() -> None:
    options = CrawlOptions.of(Settings({**URL, "OPIC_CLOSE_AFTER_IDLE": "0", "OPIC_LEASE_SECONDS": "60"}))
    assert (options.close_after_idle, options.lease_seconds, options.mode) == (0, 60, "discover")
    assert options.crawler.startswith("scrapybot-")


def test_addon_enables_its_parts_and_replaces_the_middleware_of_robots_txt() -> None:
    settings = Settings(URL)
    Addon().update_settings(settings)
    downloader = settings.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES")
    assert settings["SCHEDULER"] is Scheduler
    assert settings.getdict("SPIDER_MIDDLEWARES") == {PageEvents: 10}
    assert (downloader[RedirectEvents], downloader[FailureEvents], downloader[RobotsTxt]) == (610, 50, 100)
    assert downloader[HostPauses] == max(place for place in downloader.values() if place is not None)
    assert RobotsTxtMiddleware not in downloader


@pytest.mark.parametrize("place", [None, 90])
def test_addon_keeps_the_robots_txt_setting_of_the_project(place: int | None) -> None:
    path = "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware"
    settings = Settings({**URL, "DOWNLOADER_MIDDLEWARES": {path: place}})
    Addon().update_settings(settings)
    downloader = settings.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES")
    assert downloader.get(RobotsTxt) == place


def test_page_of_a_request_is_the_leased_one() -> None:
    leased = scrapy.Request("http://a.example/[1]", meta={MARK: {"page": "p", "requested": "http://a.example/%5B1%5D"}})
    assert page_of(leased) == page_of(leased.copy()) == "p"
    assert page_of(leased.replace(url="http://a.example/x")) == "http://a.example/x"
    assert page_of(scrapy.Request("http://a.example/x#part")) == "http://a.example/x"
    assert page_of(scrapy.Request("http://a.example/", meta={MARK: "the spider's own"})) == "http://a.example/"


@pytest.mark.parametrize(
    "request_",
    [
        scrapy.Request("http://a.example/", method="HEAD"),
        scrapy.FormRequest("http://a.example/", formdata={"a": "b"}),
        scrapy.Request("http://a.example/", body="b"),
        scrapy.Request("file:///etc/hosts"),
        scrapy.Request("http://a.example/" + "x" * 3_000),
    ],
    ids=str,
)
def test_request_that_fetches_no_page_has_no_page(request_: scrapy.Request) -> None:
    assert page_of(request_) is None


def html(status: int = 200, body: bytes = b"<a href=x>", **headers: str) -> Response:
    return HtmlResponse("http://a.example/", status=status, headers=headers, body=body)


@pytest.mark.parametrize(
    ("response", "event"),
    [
        (html(), {"status": 200}),
        (html(404), {"status": 404}),
        (html(302, Location="/b"), {"status": 302, "redirect": "http://a.example/b"}),
        (html(302), {"status": 302}),
        (html(302, Location="javascript:x()"), {"status": 302}),
        (html(503, **{"Retry-After": "999999999"}), {"status": 503, "retry_after": 86_400}),
        (html(503, **{"Retry-After": "soon"}), {"status": 503}),
        (html(500, **{"Retry-After": " 60 "}), {"status": 500, "retry_after": 60}),
        (html(503, **{"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}), {"status": 503, "retry_after": 0}),
        (html(200, **{"Retry-After": "60"}), {"status": 200}),
        (html(302, Location=b"/caf\xe9"), {"status": 302, "redirect": "http://a.example/caf%E9"}),
    ],
)
def test_event_reports_the_response(response: Response, event: dict[str, Any]) -> None:
    fetch = Fetch("http://a.example/")
    fetch.answered(scrapy.Request("http://a.example/"), response)
    assert fetch.event is not None
    assert {name: value for name, value in fetch.event.items() if name != "fetched_at"} == event
    assert bool(fetch.body) == (200 <= response.status < 300)


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_event_reports_the_address_of_the_host_and_not_that_of_a_proxy(address: str) -> None:
    response = HtmlResponse("http://a.example/", ip_address=ip_address(address))
    for meta, addresses in (({}, [address]), ({"proxy": "http://proxy.example:3128"}, None)):
        fetch = Fetch("http://a.example/")
        fetch.answered(scrapy.Request("http://a.example/", meta=meta), response)
        assert fetch.event is not None
        assert fetch.event.get("addresses") == addresses


class Sample(scrapy.Spider):
    name = "sample"

    def parse_more(self, response: Response) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize("in_file", [False, True])
def test_kept_request_is_restored_completely(tmp_path: Path, in_file: bool) -> None:
    spider = Sample()
    request = scrapy.Request(
        "http://a.example/", spider.parse_more, meta={"a": [1], MARK: "old"}, cb_kwargs={"b": 2}, cookies={"c": "d"}
    )
    kept = KeptRequests(spider, str(tmp_path) if in_file else None)
    assert kept.add("http://a.example/", request)
    assert not kept.add("http://a.example/", scrapy.Request("http://a.example/"))
    kept.commit()
    if in_file:
        kept = KeptRequests(spider, str(tmp_path))  # As after a kill.
    found, again = kept.get("http://a.example/"), kept.get("http://a.example/")
    assert found is not None
    assert found is not again
    assert (found.callback, found.meta, found.cb_kwargs) == (spider.parse_more, {"a": [1]}, {"b": 2})
    assert found.cookies == {"c": "d"}
    assert kept.get("http://b.example/") is None
    kept.close()


def test_request_that_cannot_be_stored_is_kept_in_memory(tmp_path: Path) -> None:
    kept = KeptRequests(Sample(), str(tmp_path))
    assert kept.add("http://a.example/", scrapy.Request("http://a.example/", meta={"open": lambda: None}))
    assert kept.get("http://a.example/") is not None
    kept.close()


def test_kept_request_without_its_callback_is_dropped(tmp_path: Path) -> None:
    spider = Sample()
    kept = KeptRequests(spider, str(tmp_path))
    assert kept.add("http://a.example/", scrapy.Request("http://a.example/", spider.parse_more))
    kept.close()
    kept = KeptRequests(scrapy.Spider("other"), str(tmp_path))
    assert kept.get("http://a.example/") is None
    kept.close()


class WithRules(CrawlSpider):
    name = "with-rules"
    rules = (Rule(LinkExtractor(allow="/b/")), Rule(LinkExtractor(allow="/a/"), callback="parse_a"))

    def parse_a(self, response: Response) -> Iterator[Any]:
        yield from ()


def test_page_without_a_spider_request_goes_to_its_rule_or_to_parse() -> None:
    spider = WithRules()
    taken, other = (request_without_record(spider, f"http://a.example/{path}") for path in ("a/1", "c"))
    assert taken is not None
    assert other is not None
    assert (taken.meta["rule"], taken.callback) == (1, spider._callback)
    assert other.callback is None
