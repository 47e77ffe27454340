"""The crawler of the README ends by itself on a site where some pages never answer as they should."""

import time
from pathlib import Path

import httpx
import pytest
from documents import README_URL, fences
from repository import ROOT
from serving import serving
from website import WebPage, linking, redirect, website

from opic.client import Client
from opic.service.service import EmbeddedService
from opic.settings import Settings

PAGES, EACH = 200, 5  # So many of them time out, so many give 500, so many redirect in a circle.
FAILURES = 3
ANSWER_SECONDS = 0.3


def site_page(path: str) -> WebPage | None:
    number = int(path.removeprefix("/") or 0)
    if not number:
        return linking(*(f"/{page}" for page in range(1, PAGES)))
    if number <= EACH:
        return WebPage("x" * 100, drip_seconds=10 * ANSWER_SECONDS)
    if number <= 2 * EACH:
        return WebPage(status=500)
    if number <= 3 * EACH:
        return redirect(f"/{number + 1 if number < 3 * EACH else 2 * EACH + 1}")
    return linking("/", f"/{number % PAGES}")


def links_of(answer: httpx.Response) -> list[str]:
    parts = answer.text.split('href="')[1:]
    return [str(answer.url.join(part.partition('"')[0])) for part in parts]


@pytest.mark.slow
def test_crawler_of_the_readme_ends_where_pages_time_out_fail_and_redirect_in_circles(tmp_path: Path) -> None:
    (block,) = fences(ROOT / "README.md", "python")
    settings = Settings.load(data=tmp_path, host_delay_seconds=0.0, retry_seconds=0.05, max_failures=FAILURES)
    with website("127.0.0.1", site_page) as site, EmbeddedService(settings) as service, serving(service) as url:
        for words in (README_URL, "https://a.example/", "httpx.get(url)"):
            assert words in block
        crawler = block.replace(README_URL, url).replace("https://a.example/", f"{site.url}/")
        crawler = crawler.replace("httpx.get(url)", f"httpx.get(url, timeout={ANSWER_SECONDS})")
        began = time.monotonic()
        exec(compile(crawler, "README", "exec"), {"links_of": links_of})
        with Client(url) as client:
            stats, last = client.call("GET", "/v1/stats"), client.next(10, mode="discover")
            urls = [f"{site.url}/{page}" for page in range(1, 3 * EACH + 1)]
            states = [client.explain(url).state for url in urls]
            assert client.audit().conserved
    assert (stats["known_pages"], stats["read_pages"], stats["given_up_pages"]) == (PAGES, PAGES - 2 * EACH, 2 * EACH)
    assert (stats["failures"], stats["reads"]) == (2 * EACH * FAILURES, PAGES - 2 * EACH)
    assert (last.pages, last.exhausted, last.waiting.given_up, last.waiting.retry) == ([], True, 2 * EACH, 0)
    assert states == ["given_up"] * (2 * EACH) + ["read"] * EACH
    assert len(site.paths()) == PAGES - 2 * EACH + 2 * EACH * FAILURES
    print(f"ended after {time.monotonic() - began:.1f} s")
