"""Sitemaps and feeds: the pages that they name, from files and over HTTP; hostile ones are refused within limits."""

import gzip
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from website import WebPage, redirect, website

from opic.sitemaps.parser import DEPTH_MAX, BadSitemap, SitemapParser
from opic.sitemaps.reader import SitemapLimits, SitemapReader, decompressed

XMLNS = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
BOMB = '<!DOCTYPE b [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
PIECES = st.sampled_from([
    *("<urlset>", "</urlset>", "<url>", "</url>", "<loc>", "</loc>", "<sitemapindex>", "<sitemap>", "<rss>", "<item>"),
    *("<link>", "</link>", '<link href="/a"/>', "<feed>", "<entry>", "</entry>", "http://a.example/", "&amp;", "&x;"),
    *('<?xml version="1.0" encoding="latin-1"?>', '<?xml version="1.0" encoding="utf-7"?>', BOMB, "<![CDATA[", "]]>"),
    *("<!--", "-->", "\0", "é", "\ufeff", "<?php ?>", " ", "\n", "<a:b>", "<a:b:c>"),
])  # fmt: skip


def urlset(*urls: str) -> str:
    return f"<urlset {XMLNS}>" + "".join(f"\n<url><loc>{url}</loc></url>" for url in urls) + "</urlset>"


def index(*urls: str) -> str:
    named = (f"<sitemap><loc>{url}</loc></sitemap>" for url in urls)
    return f"<sitemapindex {XMLNS}>{''.join(named)}</sitemapindex>"


def parsed(text: str, base: str = "", urls_max: int = 1_000) -> SitemapParser:
    parser = SitemapParser(base, urls_max)
    parser.read(text.encode())
    return parser


def urls_of(text: str, base: str = "") -> list[str]:
    return [entry.url for entry in parsed(text, base).entries]


def read(source: object, **limits: int | float) -> tuple[list[str], Sequence[str]]:
    with SitemapReader(SitemapLimits(allow_private=True, **limits)) as reader:  # type: ignore[arg-type]
        return [page.url for page in reader.pages(str(source))], reader.problems


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


# Parsing.


PREFIXED = '<s:urlset xmlns:s="x"><s:url><s:loc>http://a.example/</s:loc><s:lastmod>2020</s:lastmod></s:url></s:urlset>'
IMAGES = f"""<urlset {XMLNS} xmlns:image="i"><url><loc>http://a.example/</loc>
<image:image><image:loc>http://a.example/i.png</image:loc></image:image>
<image:loc>http://a.example/j.png</image:loc></url></urlset>"""
RSS = """<rss version="2.0"><channel><link>http://a.example/</link>
<item><title>x</title><link>/1</link><atom:link href="/2"/></item></channel></rss>"""
OLD_RSS = """<!DOCTYPE rss PUBLIC "-//Netscape//DTD RSS 0.91//EN" "http://127.0.0.1:1/none.dtd">
<rss><channel><item><link>http://a.example/</link></item></channel></rss>"""
RDF = """<rdf:RDF xmlns:rdf="r"><channel><link>http://a.example/</link></channel>
<item><link>http://a.example/1</link></item></rdf:RDF>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><link href="/self" rel="self"/>
<entry><link href="1"/><link rel="alternate" href="2"/><link rel="edit" href="3"/></entry></feed>"""


@pytest.mark.parametrize(
    ("text", "base", "urls"),
    [
        (
            urlset("http://a.example/1", " http://a.example/?a&amp;b\n"),
            "",
            ["http://a.example/1", "http://a.example/?a&b"],
        ),
        (urlset("<![CDATA[http://a.example/?a&b]]>", ""), "", ["http://a.example/?a&b"]),
        (PREFIXED, "", ["http://a.example/"]),
        (IMAGES, "", ["http://a.example/"]),
        (RSS, "http://a.example/feed", ["http://a.example/1"]),
        (OLD_RSS, "", ["http://a.example/"]),
        (RDF, "", ["http://a.example/1"]),
        (ATOM, "http://a.example/x/feed", ["http://a.example/x/1", "http://a.example/x/2"]),
        (urlset(), "", []),
    ],
)
def test_pages_come_from_url_item_and_entry_elements(text: str, base: str, urls: list[str]) -> None:
    assert urls_of(text, base) == urls


def test_line_numbers_are_those_of_the_file() -> None:
    found = parsed(urlset("http://a.example/1", "http://a.example/2"))
    assert [(entry.url, entry.line) for entry in found.entries] == [
        ("http://a.example/1", 2),
        ("http://a.example/2", 3),
    ]
    assert not found.is_index
    assert parsed(index("http://a.example/s.xml")).is_index


@pytest.mark.parametrize(
    "declared", ['<!ENTITY x "y">', '<!ENTITY x SYSTEM "file:///etc/passwd">', '<!ENTITY % x "y">']
)
def test_declared_entity_is_refused_before_it_is_expanded(declared: str) -> None:
    with pytest.raises(BadSitemap, match="declares the entity 'x'"):
        parsed(f"<!DOCTYPE urlset [{declared}]>{urlset('http://a.example/&x;')}")


def test_entity_bomb_takes_no_memory() -> None:
    levels = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    tracemalloc.start()
    try:
        with pytest.raises(BadSitemap, match="entity 'e0'"):
            parsed(f'<!DOCTYPE urlset [<!ENTITY e0 "http://a.example/">{levels}]>{urlset("&e11;")}')
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text", ["", "http://a.example/\n", "{}", "<html><body>", '<?xml version="1.0" encoding="none-such"?><urlset/>']
)
def test_file_that_is_not_a_sitemap_is_refused(text: str) -> None:
    with pytest.raises(BadSitemap, match="is neither a sitemap nor a feed"):
        parsed(text)


def test_deeply_nested_file_is_refused() -> None:
    with pytest.raises(BadSitemap, match=f"nested over {DEPTH_MAX} deep"):
        parsed("<urlset>" + "<a>" * 100_000)


def test_broken_file_gives_the_pages_before_the_damage_and_its_line() -> None:
    found = parsed(urlset("http://a.example/1", "http://a.example/2").replace("/2<", "/2&nbsp;<"))
    assert [entry.url for entry in found.entries] == ["http://a.example/1"]
    assert "is broken, what follows is left out: undefined entity: line 3" in found.problem


def test_urls_over_the_limit_are_left_out() -> None:
    found = parsed(urlset("http://a.example/1", "http://a.example/2", "http://a.example/3"), urls_max=2)
    assert [entry.url[-1] for entry in found.entries] == ["1", "2"]
    assert "the others are left out" in found.problem


@given(st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode())))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    parser = SitemapParser("http://a.example/", 5)
    try:
        parser.read(body)
    except BadSitemap:
        return
    assert len(parser.entries) <= 5


@given(st.lists(st.sampled_from([b"", b"a", b"<x>" * 100]), max_size=4), st.integers(0, 50))
def test_gzip_members_are_unpacked_up_to_the_limit(members: list[bytes], most: int) -> None:
    body = b"".join(map(gzip.compress, members))
    assert decompressed(body, most) == b"".join(members)[: most + 1]


# Files and HTTP.


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
        (WebPage(b"\x1f\x8b" + zlib.compress(b"x")), "is damaged gzip: "),
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
