"""The crawler of the README stays on its site, keeps to robots.txt, and ends where some pages never answer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from documents import README_URL, fences
from ports import free_port
from repository import ROOT
from serving import serving
from webservers import nginx
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


def crawl_as_the_readme(service: str, site: str, get: str = "web.get(url)") -> None:
    """Run the crawler of the README for another service and site, and with another way to fetch."""
    (block,) = fences(ROOT / "README.md", "python")
    for words, others in ((README_URL, service), ("https://a.example/", site), ("web.get(url)", get)):
        assert words in block
        block = block.replace(words, others)
    exec(compile(block, "README", "exec"), {})


@pytest.mark.slow
def test_crawler_of_the_readme_ends_where_pages_time_out_fail_and_redirect_in_circles(tmp_path: Path) -> None:
    settings = Settings.load(
        data=tmp_path, host_delay_seconds=0.0, retry_seconds=0.05, max_failures=FAILURES, scope="127.0.0.1"
    )
    with website("127.0.0.1", site_page) as site, EmbeddedService(settings) as service, serving(service) as url:
        began = time.monotonic()
        crawl_as_the_readme(url, f"{site.url}/", f"web.get(url, timeout={ANSWER_SECONDS})")
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


@pytest.mark.parametrize("status", [503, 500, 429, None])
def test_crawler_of_the_readme_fetches_nothing_while_the_rules_of_its_site_are_unknown(status: int | None) -> None:
    """And ends with a sentence. Without an answer it is a site that is down."""
    with website("127.0.0.1", lambda _: WebPage("User-agent: *", status=status or 200)) as site:
        url = f"{site.url}/" if status else f"http://127.0.0.1:{free_port()}/"
        with pytest.raises(SystemExit, match=f"no robots.txt of {url} for now: "):
            crawl_as_the_readme("http://127.0.0.1:1", url)
        assert site.paths() == ["/robots.txt"][: bool(status)]


NGINX_PAGES = 40
NGINX = """\
user root; daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ }}
http {{
  log_format asked "$host $msec $status $request_uri";
  access_log access.log asked;
  types {{ text/html html; text/plain txt; application/pdf pdf; }}
  server {{
    listen 127.0.0.1:{port};
    root site;
    location /secret/ {{ return 403; }}
    location /old/ {{ return 301 /1.html; }}
    location /out/ {{ return 302 http://localhost:{other}/out; }}
  }}
}}
"""


@contextmanager
def nginx_site(folder: Path, other: int) -> Iterator[str]:
    """A site of files behind nginx. Each page links to others, to one that is missing, and to other hosts."""
    root, port = folder / "site", free_port()
    root.mkdir()
    (root / "robots.txt").write_text("User-agent: *\nDisallow: /private/\n")
    (root / "private").mkdir()
    (root / "private" / "1.html").write_text("<a href='/2.html'>x</a>")
    (root / "paper.pdf").write_bytes(b"%PDF-1.7")
    for number in range(NGINX_PAGES):
        names = [f"/{(number * step + 1) % NGINX_PAGES}.html" for step in (2, 3)]
        names += ["/missing.html", "/secret/1", "/old/1", "/out/1", "/private/1.html", "/paper.pdf"]
        names += [f"http://localhost:{other}/{number}", f"http://localhost:1/{number}", f"http://dead{number}.example/"]
        links = "".join(f"<a href='{name}'>x</a>" for name in names)
        (root / ("index.html" if not number else f"{number}.html")).write_text(links)
    (root / "0.html").write_text("<a href='/'>x</a>")
    with nginx(folder, NGINX.format(port=port, other=other), port):
        yield f"http://127.0.0.1:{port}/"


@pytest.mark.slow
def test_crawler_of_the_readme_crawls_a_site_behind_nginx_and_ends(tmp_path: Path) -> None:
    folder = tmp_path / "nginx"
    folder.mkdir()
    data = tmp_path / "d"
    with website("localhost", lambda _: linking("/")) as other:
        settings = Settings.load(data=data, host_delay_seconds=0.0, scope="127.0.0.1")  # All else as it is by default.
        with (
            nginx_site(folder, int(other.url.rpartition(":")[2])) as site,
            EmbeddedService(settings) as service,
            serving(service) as url,
        ):
            crawl_as_the_readme(url, site)
            ended = time.time()
            with Client(url) as client:
                stats, audit = client.call("GET", "/v1/stats"), client.audit()
                outside = client.explain(f"{other.url}/1").frontier
                last = client.next(10)
                importance = client.importance(f"{other.url}/1").importance
    asked = [line.split(" ") for line in (folder / "access.log").read_text().splitlines()]
    print(f"first {ended - float(asked[0][1]):.1f} s, last {ended - float(asked[-1][1]):.1f} s before the end")
    paths = sorted(path for _, _, _, path in asked)
    pages = [f"/{number}.html" for number in range(NGINX_PAGES)]
    assert paths == sorted(["/", *pages, "/robots.txt", "/missing.html", "/secret/1", "/old/1", "/out/1", "/paper.pdf"])
    assert other.paths() == [], "it left its site"
    assert ended - max(float(seconds) for _, seconds, _, _ in asked) < 60
    assert stats["outside_pages"] == 3 * NGINX_PAGES + 1  # And the target of /out/1.
    assert outside.why_not == ["it is outside the crawl's scope"]
    assert importance > 0
    assert (last.pages, audit.conserved) == ([], True)
