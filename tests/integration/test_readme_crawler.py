"""The crawler of the README stays on its site, keeps to robots.txt, and ends where some pages never answer."""

import time
from pathlib import Path

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


ROBOTS = WebPage("User-agent: *\nDisallow: /private\n")


def site_page(path: str) -> WebPage | None:
    if path == "/robots.txt":
        return ROBOTS
    number = int(path.removeprefix("/") or 0)
    if not number:
        others = [f"http://localhost:1/{page}" for page in range(1, PAGES)]
        return linking(*(f"/{page}" for page in range(1, PAGES)), "/private", *others)
    if number <= EACH:
        return WebPage("x" * 100, drip_seconds=10 * ANSWER_SECONDS)
    if number <= 2 * EACH:
        return WebPage(status=500)
    if number <= 3 * EACH:
        return redirect(f"/{number + 1 if number < 3 * EACH else 2 * EACH + 1}")
    return linking("/", f"/{number % PAGES}")


@pytest.mark.slow
def test_crawler_of_the_readme_ends_where_pages_time_out_fail_and_redirect_in_circles(tmp_path: Path) -> None:
    (block,) = fences(ROOT / "README.md", "python")
    settings = Settings.load(
        data=tmp_path, host_delay_seconds=0.0, retry_seconds=0.05, max_failures=FAILURES, scope="127.0.0.1"
    )
    with website("127.0.0.1", site_page) as site, EmbeddedService(settings) as service, serving(service) as url:
        for words in (README_URL, "https://a.example/", "web.get(url)"):
            assert words in block
        crawler = block.replace(README_URL, url).replace("https://a.example/", f"{site.url}/")
        crawler = crawler.replace("web.get(url)", f"web.get(url, timeout={ANSWER_SECONDS})")
        began = time.monotonic()
        exec(compile(crawler, "README", "exec"), {})
        with Client(url) as client:
            stats, last = client.call("GET", "/v1/stats"), client.next(10, mode="discover")
            urls = [f"{site.url}/{page}" for page in range(1, 3 * EACH + 1)]
            states = [client.explain(url).state for url in urls]
            assert client.audit().conserved
            assert client.explain(f"{site.url}/private").state == "excluded"
    assert (stats["read_pages"], stats["given_up_pages"]) == (PAGES - 2 * EACH, 2 * EACH)
    assert stats["known_pages"] == 2 * PAGES  # Those of the site, /private, and pages elsewhere.
    assert stats["outside_pages"] == PAGES - 1
    assert (stats["failures"], stats["reads"]) == (2 * EACH * FAILURES, PAGES - 2 * EACH)
    assert (last.waiting.given_up, last.waiting.retry) == (2 * EACH, 0)
    assert states == ["given_up"] * (2 * EACH) + ["read"] * EACH
    assert len(site.paths()) - 1 == PAGES - 2 * EACH + 2 * EACH * FAILURES
    print(f"ended after {time.monotonic() - began:.1f} s")
