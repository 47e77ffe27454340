"""Sitemaps and feeds from files and over HTTP, with all that an index names, within limits."""

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from public_names import Names
from website import WebPage, redirect, website

from opic.sitemaps.reader import SitemapLimits, SitemapReader


def urlset(*urls: str) -> str:
    return "<urlset>" + "".join(f"\n<url><loc>{url}</loc></url>" for url in urls) + "</urlset>"


def index(*urls: str) -> str:
    return f"<sitemapindex>{''.join(f'<sitemap><loc>{url}</loc></sitemap>' for url in urls)}</sitemapindex>"


def read(source: object, **limits: int | float) -> tuple[list[str], Sequence[str]]:
    with SitemapReader(SitemapLimits(allow_private=True, **limits)) as reader:  # type: ignore[arg-type]
        return [page.url for page in reader.pages(str(source))], reader.problems


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_index_leads_to_its_sitemaps_plain_and_gzip(tmp_path: Path) -> None:
    pages: dict[str, WebPage] = {}
    with website("127.0.0.1", pages) as site:
        at = site.url
        pages["/index.xml"] = WebPage(index(f"{at}/1.xml", f"{at}/2.xml.gz", f"{at}/1.xml", f"{at}/moved", "/relative"))
        pages["/1.xml"] = WebPage(urlset(f"{at}/a"))
        pages["/2.xml.gz"] = WebPage(gzip.compress(urlset(f"{at}/b").encode()), headers={"content-encoding": "gzip"})
        pages["/moved"] = redirect(f"{at}/3.xml")
        pages["/3.xml"] = WebPage(urlset(f"{at}/c"))
        urls, problems = read(f"{at}/index.xml")
        assert urls == [f"{at}/{name}" for name in "abc"]
        assert problems == [
            f"{at}/index.xml:1: '/relative' is not an absolute http(s) URL, which begins with http:// or https://"
        ]
        assert site.paths() == ["/index.xml", "/1.xml", "/2.xml.gz", "/moved", "/3.xml"]
        (tmp_path / "index.xml.gz").write_bytes(gzip.compress(index(f"{at}/1.xml").encode()))
        assert read(tmp_path / "index.xml.gz") == ([f"{at}/a"], [])


def test_indexes_that_name_each_other_end() -> None:
    def page(path: str) -> WebPage:
        number = int(path.removeprefix("/"))
        return WebPage(index(f"{site.url}/{number}", f"{site.url}/{number + 1}"))

    with website("127.0.0.1", page) as site:
        urls, problems = read(f"{site.url}/0", depth_max=2)
        assert (urls, site.paths()) == ([], ["/0", "/1", "/2"])
        assert problems == [f"{site.url}/2: an index 2 levels below the first one: it is left out"]


def test_files_and_pages_over_the_limits_are_left_out() -> None:
    pages: dict[str, WebPage] = {}
    with website("127.0.0.1", pages) as site:
        sitemaps = [f"{site.url}/{n}" for n in range(5)]
        pages["/"] = WebPage(index(*sitemaps))
        pages |= {f"/{n}": WebPage(urlset(f"http://a.example/{n}", f"http://b.example/{n}")) for n in range(5)}
        urls, (problem,) = read(f"{site.url}/", files_max=3)
        assert len(urls) == 4
        assert "is left out, the limit is reached: 3 files" in problem
        urls, problems = read(f"{site.url}/", urls_max=5)
        assert len(urls) == 5
        assert ["the others are left out" in one or "is left out, the limit" in one for one in problems] == [True, True]


def test_large_file_is_refused_packed_and_plain(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"<" * 10_000_000))
    tracemalloc.start()
    try:
        assert read(tmp_path / "bomb.gz", bytes_max=1_000) == (
            [],
            [f"{tmp_path}/bomb.gz: is over 1,000 bytes, the limit"],
        )
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    with website("127.0.0.1", {"/": WebPage("<" * 2_000)}) as site:
        assert read(f"{site.url}/", bytes_max=1_000) == ([], [f"{site.url}/: is over 1,000 bytes, the limit"])


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (None, "can't be fetched: status 404"),
        (redirect("/"), "can't be fetched: Exceeded maximum allowed redirects."),
        (WebPage(b"\x1f\x8b" + zlib.compress(b"x")), "is gzip that is damaged or cut off"),
        (WebPage(gzip.compress(b"x")[:10]), "is gzip that is damaged or cut off"),
        (
            WebPage(b"<urlset/>", headers={"content-encoding": "br"}),
            "can't be fetched: content-encoding br was not asked for",
        ),
        (WebPage("<urlset>" + " " * 100, drip_seconds=0.2), "can't be fetched within 0.5 s"),
        (WebPage("<html>"), "is neither a sitemap nor a feed"),
    ],
)
def test_unreadable_sitemap_is_a_problem(page: WebPage | None, problem: str) -> None:
    with website("127.0.0.1", {"/": page} if page else {}) as site:
        urls, (found,) = read(f"{site.url}/", file_seconds=0.5)
        assert (urls, found.startswith(f"{site.url}/: {problem}")) == ([], True)


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    assert read(tmp_path / "none.xml") == ([], [f"{tmp_path}/none.xml: can't be read: No such file or directory"])


def test_private_address_is_not_fetched_by_default() -> None:
    with website("127.0.0.1", {"/": WebPage(urlset("http://a.example/"))}) as site, SitemapReader() as reader:
        assert list(reader.pages(f"{site.url}/")) == []
        assert "127.0.0.1 has no public address" in reader.problems[0]
        assert site.paths() == []


@pytest.mark.parametrize(
    "place",
    ["{private}", "http://localhost:{port}/", "http://2130706433:{port}/", "http://[::ffff:127.0.0.1]:{port}/"],
)
def test_neither_a_redirect_nor_an_index_leads_to_a_private_address(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch)
    with website("127.0.0.1", {"/": WebPage(urlset("http://a.example/"))}) as private:
        target = place.format(private=f"{private.url}/", port=urlsplit(private.url).port)
        pages = {
            "/index": WebPage(index(target)),
            "/moved": redirect(target),
            "/1": WebPage(urlset("http://b.example/")),
        }
        with website("127.0.0.2", pages) as site, SitemapReader() as reader:
            assert [page.url for page in reader.pages(f"{site.url}/1")] == ["http://b.example/"]
            for path in ("/index", "/moved"):
                assert list(reader.pages(site.url + path)) == []
        assert private.asked == []
        assert [" has no public address " in problem for problem in reader.problems] == [True, True]


@pytest.mark.parametrize(
    "scheme", ["file:///etc/hostname", "ftp://127.0.0.2/", "redis://127.0.0.2/", "data:text/xml,x"]
)
def test_redirect_to_another_scheme_is_not_followed(scheme: str, tmp_path: Path) -> None:
    with website("127.0.0.1", {"/": redirect(scheme), "/index": WebPage(index(scheme))}) as site:
        for path in ("/", "/index"):
            urls, (problem,) = read(site.url + path)
            assert urls == []
            assert "can't be fetched: " in problem or "is not an absolute http(s) URL" in problem


def test_links_of_a_feed_are_relative_to_where_redirects_led() -> None:
    feed = WebPage(
        '<feed><entry><link href="post-1"/></entry></feed>', headers={"content-type": "application/atom+xml"}
    )
    with website("127.0.0.1", {"/feed": redirect("/blog/feed/"), "/blog/feed/": feed}) as site:
        assert read(f"{site.url}/feed") == ([f"{site.url}/blog/feed/post-1"], [])


def test_charset_of_the_answer_counts() -> None:
    body = urlset("http://a.example/\u00e9").encode("latin-1")
    page = WebPage(body, headers={"content-type": "text/xml; charset=ISO-8859-1"})
    with website("127.0.0.1", {"/": page}) as site:
        assert read(f"{site.url}/") == (["http://a.example/\u00e9"], [])


def test_damaged_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = "<urlset>" + "".join(f"<url><loc>http://a.example/{n}</loc></url>\n" for n in range(10_000))
    packed = gzip.compress(text.encode())
    (tmp_path / "cut.xml.gz").write_bytes(packed[: len(packed) // 2])
    urls, problems = read(tmp_path / "cut.xml.gz")
    assert urls == [f"http://a.example/{n}" for n in range(len(urls))]
    assert 1_000 < len(urls) < 10_000
    assert "is gzip that is damaged or cut off: what follows is left out" in problems[0]


def test_gzip_that_is_packed_again_is_read(tmp_path: Path) -> None:
    (tmp_path / "twice.gz").write_bytes(gzip.compress(gzip.compress(urlset("http://a.example/").encode())))
    assert read(tmp_path / "twice.gz") == (["http://a.example/"], [])


def test_file_of_many_empty_gzip_members_ends_soon(tmp_path: Path) -> None:
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b"", mtime=0) * 200_000)
    began = time.thread_time()
    urls, (problem,) = read(tmp_path / "empty.gz")
    assert time.thread_time() - began < 10  # By the square of the number of members, minutes.
    assert (urls, "is neither a sitemap nor a feed" in problem) == ([], True)
