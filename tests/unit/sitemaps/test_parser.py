"""The pages that sitemaps, feeds and lists of URLs name, whole or damaged, in any encoding."""

import tracemalloc
from xml.sax.saxutils import escape

import feedparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.sitemaps.entries import DEPTH_MAX, BadSitemap
from opic.sitemaps.parser import SitemapParser
from opic.urls.canonical import canonical_url

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
    "text",
    ["", " \n", "{}", "a.example/\n", "<html><body>", "<html></html>", "<!-- <urlset> ", "\ufeff", "<", "<?xml ?>"],
)
def test_file_that_is_not_a_sitemap_is_refused(text: str) -> None:
    with pytest.raises(BadSitemap, match="is neither a sitemap nor a feed"):
        parsed(text)


def test_deeply_nested_file_is_refused() -> None:
    with pytest.raises(BadSitemap, match=f"nested over {DEPTH_MAX} deep"):
        parsed("<urlset>" + "<a>" * 100_000)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        ("<url><loc>http://a.example/<b</loc></url>", "not well-formed (invalid token): line 3"),
        ("<url><loc>http://a.example/x</url>", "mismatched tag: line 3"),
        ("<url><loc a=b>http://a.example/x</loc></url>", "not well-formed (invalid token): line 3"),
        ("<url></loc>http://a.example/x</url>", "mismatched tag: line 3"),
        ("<url><loc>http://a.example/&#0;</loc></url>", "reference to invalid character number: line 3"),
        ("</urlset><urlset>", "junk after document element: line 3"),
        ("</urlset><?xml version='1.0'?><urlset>", "junk after document element: line 3"),
    ],
)
def test_damaged_entry_is_left_out_and_the_others_are_read(damage: str, line: str) -> None:
    url = "\n<url><loc>http://a.example/{}</loc></url>"
    text = f"<urlset>{url.format(1)}\n{damage}{url.format(2)}{url.format(3)}</urlset>"
    found = parsed(text)
    assert [(entry.url[-1], entry.line) for entry in found.entries] == [("1", 2), ("2", 4), ("3", 5)]
    assert line in found.problems[0]
    assert found.problems[0].startswith("is damaged, what can't be read is left out: ")


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("<urlset><url><loc>http://a.example/1</loc></url><url><loc>http://a.example/2", ["http://a.example/1"]),
        ("<urlset><url><loc>http://a.example/1</lo", []),
        ("<rss><item><link>http://a.example/1</link><title>x", ["http://a.example/1"]),
        ("<rss><item><link>http://a.example/1</link><item><link>http://a.example/2</link></item></rss>",
         ["http://a.example/1", "http://a.example/2"]),
        ("<rss><item><title>a < b</title><link>http://a.example/1</link></item>"
         "<item><link>http://a.example/2</link></item></rss>", ["http://a.example/2"]),
        ("<br><b>Warning</b>: x in y\n<?xml version='1.0'?><s:urlset><s:url><s:loc>http://a.example/1</s:loc></s:url>"
         "</s:urlset>", ["http://a.example/1"]),
        ("Warning: x\n<urlset><url><loc>http://a.example/1</loc></url></urlset>", ["http://a.example/1"]),
        ("<urlset><url><loc>http://a.example/<b>x</b></loc></url></urlset>", []),
        ("<urlset><url><loc>http://a.example/\ufffd</loc></url></urlset>", []),
        ("<urlset><url><loc>http://a.example/1\0</loc></url></urlset>", []),
        ("<urlset>" + "<url><loc></url>" * 2_000 + "<url><loc>http://a.example/1</loc></url></urlset>", []),
    ],
)  # fmt: skip
def test_no_part_of_a_damaged_url_is_taken(text: str, urls: list[str]) -> None:
    found = parsed(text)
    assert [entry.url for entry in found.entries] == urls
    assert found.problems


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("?a=1&b=2", "?a=1&b=2"), ("?a&", "?a&"), ("?a&amp;b&c", "?a&b&c"), ("?a&#38;b&c", "?a&b&c"),
        ("?a&b;=2", "?a&b;=2"), ("?a&ampb", "?a&ampb"), ("caf&eacute;", "caf\u00e9"), ("?a&nbsp;", "?a"),
        ("<![CDATA[?a=1&amp;b&c]]>", "?a=1&amp;b&c"), ("?&&&amp;&#x26;", "?&&&&"),
    ],
)  # fmt: skip
def test_bare_ampersand_and_html_entity_are_read_as_in_html(written: str, url: str) -> None:
    assert urls_of(urlset(f"http://a.example/{written}")) == [f"http://a.example/{url}"]
    if "CDATA" not in written:
        assert urls_of(f"<feed><entry><link href='http://a.example/{written}'/></entry></feed>") == [
            f"http://a.example/{url}"
        ]


@pytest.mark.parametrize("before", ["\n", "\r\n \t", "\ufeff", "\ufeff\ufeff", "\ufeff\n"])
def test_white_space_and_marks_may_come_first(before: str) -> None:
    found = parsed(f'{before}<?xml version="1.0" encoding="UTF-8"?>{urlset("http://a.example/1")}')
    assert [entry.url for entry in found.entries] == ["http://a.example/1"]
    assert not found.problems


def test_sitemap_without_loc_elements_is_read() -> None:
    first = "<sitemap>\u00a0http://a.example/1 <lastmod>2020</lastmod></sitemap>"
    assert urls_of(f"<sitemapindex>{first}<sitemap>x</sitemap></sitemapindex>") == ["http://a.example/1"]


def test_list_of_urls_is_read_a_line_each() -> None:
    found = parsed("\ufeffhttp://a.example/1?a&amp;b\r\n\r\n HTTPS://a.example/2 \rwww.a.example\nhttp://a.example/3")
    assert [(entry.url, entry.line) for entry in found.entries] == [
        ("http://a.example/1?a&amp;b", 1),
        ("HTTPS://a.example/2", 3),
        ("http://a.example/3", 5),
    ]
    assert found.problems == ["is damaged, what can't be read is left out: line 4 is no http(s) URL"]
    assert not found.is_index


# Encodings.


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        *((name, "日本") for name in ("Shift_JIS", "x-sjis", "windows-31J", "EUC-JP", "ISO-2022-JP")),
        *((name, "日本") for name in ("utf-8", "UTF-16", "UTF-32")),
        *((name, "中文") for name in ("GB2312", "gb_2312-80", "GBK", "GB18030", "Big5", "big5-hkscs")),
        *((name, "한국") for name in ("EUC-KR", "ks_c_5601-1987", "windows-949")),
        *((name, "я") for name in ("windows-1251", "KOI8-R", "ISO-8859-5", "IBM866", "x-mac-cyrillic")),
        *((name, "é") for name in ("ISO-8859-1", "latin1", "ISO-8859-15", "windows-1252", "macintosh", "us-ascii")),
    ],
)  # fmt: skip
def test_declared_encoding_is_read(encoding: str, text: str) -> None:
    codec = {
        "x-sjis": "cp932",
        "windows-31J": "cp932",
        "gb_2312-80": "gbk",
        "windows-949": "cp949",
        "us-ascii": "cp1252",
    }
    codec |= {"x-mac-cyrillic": "mac-cyrillic"}
    body = f'<?xml version="1.0" encoding="{encoding}"?>\n{urlset(f"http://a.example/{text}")}'
    parser = SitemapParser("", 10)
    parser.read(body.encode(codec.get(encoding, encoding)))
    assert [entry.url for entry in parser.entries] == [f"http://a.example/{text}"]
    assert parser.problems == []


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_encoding_without_mark_is_told_by_its_zeros(codec: str) -> None:
    for text in (urlset("http://a.example/é"), "http://a.example/é"):
        parser = SitemapParser("", 10)
        parser.read(text.encode(codec))
        assert [entry.url for entry in parser.entries] == ["http://a.example/é"]


@pytest.mark.parametrize(
    ("declared", "charset", "codec", "url"),
    [
        ("utf-16", None, "utf-8", "http://a.example/é"),  # As .NET writes it into strings.
        ("ISO-10646-UCS-2", None, "utf-16", "http://a.example/é"),
        ("utf-8", "iso-8859-1", "latin-1", "http://a.example/é"),  # RFC 7303: the header counts, not the declaration,
        ("iso-8859-1", "utf-16", "utf-8-sig", "http://a.example/é"),  # and a mark before both.
        ("iso-8859-1", "none-such", "latin-1", "http://a.example/é"),
        ("none-such", None, "utf-8", "http://a.example/é"),
        ("none-such", None, "latin-1", None),
        ("utf-8", None, "latin-1", None),
        *(
            (name, None, "utf-8", "http://a.example/é")
            for name in ("punycode", "rot13", "zlib", "utf-7", "ISO-2022-KR")
        ),
    ],
)
def test_charset_mark_and_declaration_count_in_the_order_of_the_standard(
    declared: str, charset: str | None, codec: str, url: str | None
) -> None:
    body = f'<?xml version="1.0" encoding="{declared}"?>{urlset("http://a.example/1", "http://a.example/é")}'.encode(
        codec
    )
    parser = SitemapParser("", 10)
    parser.read(body, charset)
    assert [entry.url for entry in parser.entries] == ["http://a.example/1", *([url] if url else [])]
    unknown = declared in ("none-such", "punycode", "rot13", "zlib", "utf-7", "ISO-2022-KR")
    assert any("which is not known" in problem for problem in parser.problems) == unknown
    assert any("bytes that are not of its encoding" in problem for problem in parser.problems) == (url is None)


# Feeds.


@pytest.mark.parametrize(
    ("item", "urls"),
    [
        ("<guid>http://a.example/1</guid>", ["http://a.example/1"]),
        ('<guid isPermaLink="true">http://a.example/1</guid>', ["http://a.example/1"]),
        ('<guid isPermaLink="false">http://a.example/1</guid>', []),
        ("<guid>post-1</guid>", []),
        ("<guid>tag:a.example,2020:1</guid>", []),
        ("<guid>http://a.example/1</guid><link>/2</link>", ["http://b.example/2"]),
        ("<link> </link><guid>http://a.example/1</guid>", ["http://a.example/1"]),
        ("<link/><guid>http://a.example/1</guid>", ["http://a.example/1"]),
        ('<a10:link href="/1" rel="self"/><a10:link href="/2"/>', ["http://b.example/2"]),
        ('<atom:link href="/1"/><guid>http://a.example/2</guid><link>/3</link>', ["http://b.example/3"]),
        ("<enclosure url='http://a.example/1.mp3'/><source url='/s'>x</source><comments>/c</comments>", []),
    ],
)  # fmt: skip
def test_page_of_an_item_is_its_link_or_its_permalink(item: str, urls: list[str]) -> None:
    assert urls_of(f"<rss><channel><item>{item}</item></channel></rss>", "http://b.example/feed") == urls


ENTRY = '<entry xml:base="{}"><link xml:base="{}" href="{}"/></entry>'


@pytest.mark.parametrize(
    ("root", "entry", "link", "href", "url"),
    [
        ("", "", "", "1", "http://b.example/feeds/1"),
        ("/x/", "", "", "1", "http://b.example/x/1"),
        ("http://c.example/", "y/", "z/", "1", "http://c.example/y/z/1"),
        ("http://c.example/a", "y/", "/z/", "?q", "http://c.example/z/?q"),
        ("x/", "", "", "http://d.example/", "http://d.example/"),
        ("x/", "//e.example", "", "1", "http://e.example/1"),
        (" x/ ", "", "", "", None),
    ],
)
def test_links_are_resolved_against_the_bases_around_them(
    root: str, entry: str, link: str, href: str, url: str | None
) -> None:
    one = ENTRY.format(entry, link, href)
    text = f'<feed xml:base="{root}"><a xml:base="http://no.example/"/>{one}{one}</feed>'
    assert urls_of(text, "http://b.example/feeds/feed") == [url, url] * bool(url)
    rss = f'<rss xml:base="{root}"><item xml:base="{entry}"><link xml:base="{link}">{href}</link></item></rss>'
    assert urls_of(rss, "http://b.example/feeds/feed") == [url] * bool(url)


def test_relation_may_be_written_in_any_way() -> None:
    relations = [
        "alternate",
        "ALTERNATE",
        "http://www.iana.org/assignments/relation/alternate",
        "self",
        "enclosure",
        "",
    ]
    links = "".join(f'<link rel="{name}" href="http://a.example/{n}"/>' for n, name in enumerate(relations))
    assert urls_of(f"<feed><entry>{links}</entry></feed>") == [f"http://a.example/{n}" for n in range(3)]


HREFS = st.sampled_from(["1", "/2", "?q=3", "http://c.example/4", "//d.example/5", "http://a.example/?a=1&b=2"])
BASES = st.sampled_from(["", "x/", "/y/", "http://e.example/z/"])
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "link": HREFS,
        "guid": HREFS.filter(lambda url: url.startswith("http:")),
        "id": BASES,
        "title": st.just("日本"),
    },
)


@given(st.lists(st.tuples(ITEMS, BASES), max_size=5), BASES, st.sampled_from(["utf-8", "gb2312", "euc-jp", "utf-16"]))
def test_feeds_name_the_pages_that_feedparser_finds(
    items: list[tuple[dict[str, str], str]], base: str, encoding: str
) -> None:
    def written(item: dict[str, str], base: str) -> str:
        inner = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in item.items() if name != "id")
        return f"<item xml:base='{base}'>{inner}</item>"

    head = f'<?xml version="1.0" encoding="{encoding}"?>'
    text = f"<rss version='2.0' xml:base='{base}'><channel>{''.join(written(*item) for item in items)}</channel></rss>"
    body, headers = (head + text).encode(encoding), {"content-location": "http://b.example/feeds/feed"}
    theirs = [entry.get("link", "") for entry in feedparser.parse(body, response_headers=headers).entries]
    parser = SitemapParser("http://b.example/feeds/feed", 100)
    parser.read(body)
    assert [entry.url for entry in parser.entries] == [canonical_url(url) for url in theirs if url]


# Bounds.


@given(st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode())))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    parser = SitemapParser("http://a.example/", 5)
    try:
        parser.read(body)
    except BadSitemap:
        return
    assert len(parser.entries) <= 5
