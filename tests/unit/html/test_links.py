"""The links of a page: what counts as one, against which base, in which encoding."""

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.html.links import decoded, html_links
from opic.html.process import LinkReader

PAGE = "http://a.example/x/"


@pytest.mark.parametrize(
    ("html", "links"),
    [
        ('<a href="b">1</a><a href="../c#d">2</a><area href="?q">', ["http://a.example/x/b", "http://a.example/c#d", "http://a.example/x/?q"]),
        ('<a href="/1"><a href=" /1 "><A HREF=/2>', ["http://a.example/1", "http://a.example/2"]),
        ('<a href="http://[::1/"><a name="x"><link href="/s"><img src="/i"><a href="mailto:x@a.example">', []),
        ('<a href="javascript:go()"><a href="\\\\b.example\\c"><a href="/a\nb">', ["http://b.example/c", "http://a.example/ab"]),
        ('<link rel="canonical" href="/c"><a rel="canonical" href="/d">', ["http://a.example/d"]),
        ('<!-- <a href="/no"> --><template><a href="/t"></a></template><a href="?a=1&amp;b=2&copy">', ["http://a.example/x/?a=1&b=2%C2%A9"]),
        ("\x00\xff<<a href='/z'", []),
        ("", []),
    ],
)  # fmt: skip
def test_links_come_from_a_and_area_elements(html: str, links: list[str]) -> None:
    assert html_links(PAGE, html) == links


@pytest.mark.parametrize(
    ("head", "link"),
    [
        ('<base href="https://b.example/y/"><base href="/no/">', "https://b.example/y/z"),
        ('<base href="/y/">', "http://a.example/y/z"),
        ('<base target="_top"><base href="http://[broken/"><base href="/w/">', "http://a.example/w/z"),
        ('<base href="data:text/html,x">', "http://a.example/x/z"),
        ('<base href="">', "http://a.example/x/z"),
    ],
)
def test_base_is_the_first_valid_one(head: str, link: str) -> None:
    assert html_links(PAGE, f'<head>{head}</head><a href="z">') == [link]


NOFOLLOW = '<a href="/1" rel="noopener NoFollow"><a href="/2" rel="nofollower"><area href="/3" rel=nofollow>'


def test_nofollow_counts_unless_it_is_dropped() -> None:
    assert len(html_links(PAGE, NOFOLLOW)) == 3
    assert html_links(PAGE, NOFOLLOW, drop_nofollow=True) == ["http://a.example/2"]


@pytest.mark.parametrize(("content", "links"), [("noindex, NOFOLLOW", 0), ("none", 0), ("noindex,follow", 1), ("", 1)])
def test_robots_nofollow_of_a_page_drops_all_its_links(content: str, links: int) -> None:
    html = f'<meta name="Robots" content="{content}"><a href="/1">'
    assert len(html_links(PAGE, html, drop_nofollow=True)) == links
    assert len(html_links(PAGE, html)) == 1


@pytest.mark.parametrize(
    ("html", "charset", "text"),
    [
        ("é".encode(), None, "é"),
        ("é".encode("latin-1"), "ISO-8859-1", "é"),
        (b"\x80", "latin1", "€"),  # As browsers have it.
        (b"\xe9", "x-none-such", "\ufffd"),
        (b"\xe9", "punycode", "\ufffd"),
        (b"\xe9", "hex", "\ufffd"),
        (b"\xe9", "a\x00b", "\ufffd"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        (b'<meta http-equiv=x content="text/html; charset=windows-1251">\xc6', None, "Ж"),
        (b'<meta charset="utf-16"><p>\xc3\xa9', None, "é"),
        (b"<!-- <meta charset=latin1> -->\xc3\xa9", None, "é"),
        (b"<meta charset=latin1>\xc3\xa9", "utf-8", "é"),
        (b"<meta charset=koi8-r>\xc1", "none-such", "а"),
        ("\ufeffé".encode("utf-16-le"), "latin1", "é"),
    ],
)
def test_text_is_decoded_by_mark_header_meta_or_as_utf_8(html: bytes, charset: str | None, text: str) -> None:
    assert decoded(html, charset).endswith(text)


@given(st.binary(max_size=300), st.text(max_size=20))
def test_any_bytes_have_absolute_links(html: bytes, charset: str) -> None:
    links = html_links(PAGE, b'<a href="/1">' + html, charset=charset)
    assert all(link.startswith(("http://", "https://")) for link in links)


@pytest.mark.slow
def test_page_that_takes_too_long_has_no_links_and_the_next_one_has() -> None:
    with closing(LinkReader(drop_nofollow=True)) as reader:
        assert reader.read(PAGE, b'<a href="/1">\xe9<a href="/2" rel="nofollow">', "latin1") == ["http://a.example/1"]
        assert reader.read(PAGE, b"<div>" * 300_000) is None
        assert reader.read(PAGE, b'<a href="/3">') == ["http://a.example/3"]
