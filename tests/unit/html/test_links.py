"""The links of a page: what counts as one, against which base, in which encoding."""

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.html.links import html_links
from opic.html.page_text import page_text
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
        ('<base target="_top"><base href="/w/">', "http://a.example/w/z"),
        ('<base href="http://[broken/"><base href="/w/">', "http://a.example/x/z"),
        ('<base href="data:text/html,x">', "http://a.example/x/z"),
        ('<base href="javascript:void(0)"><base href="/w/">', "http://a.example/x/z"),
        ('<base href="">', "http://a.example/x/z"),
        ('<template><base href="/no/"></template><base href="/w/">', "http://a.example/w/z"),
        ('<svg><base href="/no/"></base></svg><base href="/w/">', "http://a.example/w/z"),
    ],
)
def test_first_base_counts_even_if_it_is_of_no_use(head: str, link: str) -> None:
    assert html_links(PAGE, f'<head>{head}</head><a href="z">') == [link]


@pytest.mark.parametrize(
    "base", ["ftp://b.example/", "file:///x/", "mailto:x@b.example", "about:blank", "blob:x", "x:/"]
)
def test_base_of_another_scheme_leaves_absolute_links(base: str) -> None:
    html = f'<base href="{base}"><a href="z"><a href="/z"><a href="http://c.example/">'
    assert html_links(PAGE, html) == ["http://c.example/"]


@pytest.mark.parametrize(
    ("html", "links"),
    [
        ('<svg><a xlink:href="1"/><a href="2" xlink:href="no"/><a xlink:href="no" href="3"/>', "123"),
        ('<svg><g><text><a xlink:href="1">', "1"),
        ('<svg><foreignObject><a xlink:href="no"></a><p><a href="1">', "1"),
        ('<svg><foreignObject><svg><a xlink:href="1">', "1"),
        ('<svg><title><a href="1" xlink:href="no"></title><desc><a xlink:href="no">', "1"),
        ('<svg><area href="no"></area></svg><a xlink:href="no">', ""),
        ('<math><a href="no"></a><mi href="no"><a href="1"></a></mi></math>', "1"),
        ('<math><annotation-xml encoding="Text/HTML"><a href="1"></annotation-xml>', "1"),
        ('<math><annotation-xml><a href="no"></annotation-xml>', ""),
        ('<math><svg><a href="no" xlink:href="no"></svg></math><svg><math><a xlink:href="1"></math></svg>', "1"),
        ('<math><annotation-xml><svg><a xlink:href="1"></svg></annotation-xml>', "1"),
        ('<math><annotation-xml encoding="text/xml"><a href="no"></annotation-xml>', ""),
    ],
)
def test_links_of_svg_may_be_of_xlink(html: str, links: str) -> None:
    assert html_links(PAGE, html) == [f"{PAGE}{link}" for link in links]


@pytest.mark.parametrize(
    ("content", "link"),
    [
        ("0; url=/r", "/r"), ("5;URL='/r'", "/r"), ('0,"/r"', "/r"), ("0 /r", "/r"), (".5; /r", "/r"),
        (" 0;\turl = /r", "/r"),
        ("0;url='/r'x", "/r"), ("0;url=\"/r", "/r"), ("0; url", "url"), ("0", None), ("0;", None), ("0; url=", None),
        ("url=/r", None), ("", None), ("0x/r", None), ("0; url=javascript:x", None),
    ],
)  # fmt: skip
def test_refresh_is_a_link(content: str, link: str | None) -> None:
    html = f"<meta http-equiv=Refresh content='{content.replace(chr(39), '&#39;')}'><a href=/z>"
    found = ["http://a.example" + link] if link == "/r" else [PAGE + link] if link else []
    assert html_links(PAGE, html) == [*found, "http://a.example/z"]


NOFOLLOW = '<a href="/1" rel="noopener NoFollow"><a href="/2" rel="nofollower"><area href="/3" rel=nofollow>'


def test_nofollow_counts_unless_it_is_dropped() -> None:
    assert len(html_links(PAGE, NOFOLLOW)) == 3
    assert html_links(PAGE, NOFOLLOW, drop_nofollow=True) == ["http://a.example/2"]


@pytest.mark.parametrize(("content", "links"), [("noindex, NOFOLLOW", 0), ("none", 0), ("noindex,follow", 1), ("", 1)])
def test_robots_nofollow_of_a_page_drops_all_its_links(content: str, links: int) -> None:
    html = f'<meta name="Robots" content="{content}"><a href="/1">'
    assert len(html_links(PAGE, html, drop_nofollow=True)) == links
    assert len(html_links(PAGE, html)) == 1


LATIN = "é".encode("latin-1")
UTF = "é".encode()
SCRIPT = b"<script>" + b"x" * 5_000 + b"</script>"


@pytest.mark.parametrize(
    ("html", "charset", "text", "encoding"),
    [
        (LATIN, "ISO-8859-1", "é", "windows-1252"),
        (b"\x80", "latin1", "€", "windows-1252"),
        (b"\x81", "latin1", "\x81", "windows-1252"),
        (b"\xa1", " Windows-874\t", "ก", "windows-874"),
        ("日本".encode("shift_jis"), "x-sjis", "日本", "shift_jis"),
        ("한".encode("cp949"), "ks_c_5601-1987", "한", "euc-kr"),
        ("中".encode("gbk"), "chinese", "中", "gbk"),
        (LATIN, "l2", "é", "iso-8859-2"),
        ("é".encode("utf-16-le"), "unicode", "é", "utf-16le"),
        (b"<a href=/>", "iso-2022-kr", "\ufffd", "replacement"),
        # A label that there is none of, also one of Python alone, counts as not given.
        (LATIN, "x-none-such", "é", "windows-1252"),
        (LATIN, "punycode", "é", "windows-1252"),
        (LATIN, "hex", "é", "windows-1252"),
        (LATIN, "cp037", "é", "windows-1252"),
        (LATIN, "a\x00b", "é", "windows-1252"),
        (UTF, "x-none-such", "é", "utf-8"),
        # What the page says.
        (b"<meta http-equiv=content-type content='text/html; charset=windows-1251'>\xc6", None, "Ж", "windows-1251"),
        (b"<meta content='x;charset = \"koi8-r\"' http-equiv=Content-Type>\xc1", None, "а", "koi8-r"),
        (b"<meta name=x content='text/html; charset=windows-1251'>\xc3\xa9", None, "é", "utf-8"),
        (b"<meta charset=none-such><meta charset=koi8-r>\xc1", None, "а", "koi8-r"),
        (b'<meta charset="utf-16"><p>' + UTF, None, "é", "utf-8"),
        (b'<meta charset="x-user-defined"><p>\x80', None, "€", "windows-1252"),
        (b"<!-- <meta charset=latin2> -->" + UTF, None, "é", "utf-8"),
        (b"<script>'<meta charset=latin2>'</script>" + UTF, None, "é", "utf-8"),
        (SCRIPT + b"<meta charset=latin2>" + LATIN, None, "é", "iso-8859-2"),
        (b"<p>" + b"x" * 5_000 + b"<meta charset=latin2>" + UTF, None, "é", "utf-8"),
        (b"<?xml version='1.0' encoding='iso-8859-2'?>" + LATIN, None, "é", "iso-8859-2"),
        (b"<?xml version='1.0' encoding='koi8-r'?><meta charset=latin2>" + LATIN, None, "é", "iso-8859-2"),
        ("<?xml version='1.0'?>é".encode("utf-16-be"), None, "é", "utf-16be"),
        (b"<meta charset=latin1>" + UTF, "utf-8", "é", "utf-8"),
        (b"<meta charset=koi8-r>\xc1", "none-such", "а", "koi8-r"),
        ("\ufeffé".encode("utf-16-le"), "latin1", "é", "utf-16le"),
        ("\ufeffé".encode(), "latin1", "é", "utf-8"),
        # Nothing says it.
        (UTF, None, "é", "utf-8"),
        (UTF + UTF[:1], None, "\ufffd", "utf-8"),  # Cut off.
        (LATIN, None, "é", "windows-1252"),
        (UTF + LATIN + b" " + LATIN, None, "é", "windows-1252"),
        (b"ascii", None, "ascii", "windows-1252"),
    ],
)
def test_text_is_decoded_as_browsers_do(html: bytes, charset: str | None, text: str, encoding: str) -> None:
    named = [f"text/html; charset={charset}", f'TEXT/HTML;x=y;Charset="{charset}";charset=koi8-r']
    for content_type in ["text/html"] if charset is None else named:
        page = page_text(html, content_type)
        assert page is not None
        assert (page.text.endswith(text), page.encoding, page.xml) == (True, encoding, False)


@pytest.mark.parametrize(
    ("charset", "link"),
    [
        ("utf-8", "/%C3%A9?q=%C3%A9#%C3%A9"),
        ("utf-16le", "/%C3%A9?q=%C3%A9#%C3%A9"),
        ("iso-8859-1", "/%C3%A9?q=%E9#%C3%A9"),
        ("iso-8859-5", "/%C3%A9?q=%26%23233%3B#%C3%A9"),
        ("gb18030", "/%C3%A9?q=%A8%A6#%C3%A9"),
    ],
)
def test_query_is_encoded_as_its_page_is(charset: str, link: str) -> None:
    html = "<a href='/&eacute;?q=&eacute;#&eacute;'>".encode("utf-16-le" if charset == "utf-16le" else "ascii")
    assert html_links(PAGE, html, charset=charset) == [f"http://a.example{link}"]


@pytest.mark.parametrize(
    ("text", "charset", "query"),
    [
        ("日本", "shift_jis", "%93%FA%96{"), ("髙", "shift_jis", "%FB%FC"), ("日本", "euc-jp", "%C6%FC%CB%DC"),
        ("①～", "euc-jp", "%AD%A1%A1%C1"), ("ｱ", "euc-jp", "%8E%B1"), ("日", "iso-2022-jp", "%1B$BF|%1B(B"),
        ("中", "gbk", "%D6%D0"), ("€", "gbk", "%80"), ("😀", "gbk", "%26%23128512%3B"), ("😀", "gb18030", "%949%FC6"),
        ("中", "big5", "%A4%A4"), ("한", "euc-kr", "%C7%D1"), ("ў", "koi8-u", "%AE"), ("ก", "windows-874", "%A1"),
        ("€", "windows-1252", "%80"), ("a'b\"<>{}|^`", "latin1", "a%27b%22%3C%3E{}|^`"),
        ("é'#é", "latin1", "%E9%27#%C3%A9"),
    ],
)  # fmt: skip
def test_queries_are_encoded_as_in_chromium(text: str, charset: str, query: str) -> None:
    html = f'<a href="?{"".join(f"&#{ord(character)};" for character in text)}">'.encode()
    assert html_links(PAGE, html, charset=charset) == [f"{PAGE}?{query}"]


XHTML_10 = (
    '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-strict.dtd">'
)


@pytest.mark.parametrize(
    "content_type", ["application/xhtml+xml", "TEXT/XML; x", "application/xml", "application/a+xml"]
)
@pytest.mark.parametrize(
    ("body", "links"),
    [
        ('<body><a href="1"/><p><a href="2">x</p><a href="no"/></body>', "1 2"),
        ('<A href="no"/><a HREF="no"/><script><a href="1"/></script><!-- <a href="no"/> -->', "1"),
        ('<x:a xmlns:x="http://www.w3.org/1999/xhtml" href="1"/><a xmlns="" href="no"/>', "1"),
        ('<base href="/b/"/><base href="/c/"/><area href="1"/>', "/b/1"),
        (
            '<s:a xmlns:s="http://www.w3.org/2000/svg" xmlns:l="http://www.w3.org/1999/xlink" l:href="1"/>',
            "1",
        ),
        ('<a href="1"/>&nbsp;<a href="no"/>', "1"),
        ('<a href="1"/><a a:b="c" href="no"/>', "1"),
        ('<o:p><a href="1"/></o:p><o:a href="no"/><a href="2"/>', "1 2"),
        ('<p xmlns:h="x"><h:a href="no"/></p><h:a href="no"/><a href="1"/>', "1"),
        ('<template><a href="no"/><template/><a href="no"/></template><a href="1"/>', "1"),
        ('<a href="?a=1&amp;b=2"/><a href="?a&b"/>', "?a=1&b=2"),
        ('<meta http-equiv="refresh" content="0;url=1"/>', "1"),
    ],
)
def test_xhtml_is_read_as_xml_up_to_its_first_error(content_type: str, body: str, links: str) -> None:
    html = f'<html xmlns="http://www.w3.org/1999/xhtml">{body}</html>'.encode()
    wanted = ["http://a.example" + link if link[0] == "/" else PAGE + link for link in links.split()]
    assert html_links(PAGE, html, content_type=content_type) == wanted


def test_xhtml_may_have_the_entities_of_html() -> None:
    page = '<html xmlns="http://www.w3.org/1999/xhtml">&nbsp;<a href="caf&eacute;&lt;&amp;"/></html>'
    read = {"content_type": "application/xhtml+xml"}
    assert html_links(PAGE, XHTML_10 + page, **read) == [f"{PAGE}caf%C3%A9%3C&"]
    assert html_links(PAGE, XHTML_10.replace("XHTML", "LaTeX") + page, **read) == [f"{PAGE}caf%3C&"]
    assert html_links(PAGE, page, **read) == []


@pytest.mark.parametrize(
    "declaration", ["version='1.1'", "version='1.0' encoding=''", "encoding='x y'", "version='1.0'"]
)
def test_declaration_of_xml_is_not_checked(declaration: str) -> None:
    xml = f'<?xml {declaration}?><a xmlns="http://www.w3.org/1999/xhtml" href="1"/>'
    assert html_links(PAGE, xml, content_type="text/xml") == [f"{PAGE}1"]
    assert html_links(PAGE, xml.encode("utf-16-le").removeprefix(b"<\0?\0"), content_type="text/xml") == []


def test_xml_ends_where_it_is_not_in_its_encoding() -> None:
    xml = b'<html xmlns="http://www.w3.org/1999/xhtml"><a href="1"/>\xe9<a href="2"/></html>'
    assert html_links(PAGE, xml, content_type="text/xml") == [f"{PAGE}1"]
    declared = b'<?xml version="1.0" encoding="latin1"?>' + xml
    assert html_links(PAGE, declared, content_type="text/xml") == [f"{PAGE}1", f"{PAGE}2"]
    assert html_links(PAGE, declared, content_type="text/xml; charset=utf-8") == [f"{PAGE}1"]


@pytest.mark.parametrize(
    ("content_type", "body", "links"),
    [
        *[(kind, "<a href=1>", 1) for kind in ("text/html", "Text/HTML ;x", "text/html(x)", "text/plain, text/html")],
        *[(kind, "<a href=1>", 0) for kind in ("text/plain", "application/json", "image/svg", "text/html, text/plain")],
        *[
            (kind, body, links)
            for kind in (None, "", "html", "*/*", "unknown/unknown", "application/unknown")
            for body, links in [
                ("<!DOCTYPE html><a href=1>", 1), ("\n\t <HTML lang=en><a href=1>", 1), ("<a href=1>", 1),
                ("<br><a href=1>", 1),
                ("<!-- x --><a href=1>", 1), ("<abbr><a href=1>", 0), ("x<a href=1>", 0), ("<span><a href=1>", 0),
                ('<?xml version="1.0"?><a xmlns="http://www.w3.org/1999/xhtml" href="1"/>', 1),
                ('<?xml version="1.0"?><a href="1"/>', 0), ("%PDF-<a href=1>", 0), ("", 0),
            ]
        ],
    ],
)  # fmt: skip
def test_media_type_decides_what_is_a_page(content_type: str | None, body: str, links: int) -> None:
    assert len(html_links(PAGE, body, content_type=content_type)) == links
    assert len(html_links(PAGE, body.encode(), content_type=content_type)) == links


@given(st.binary(max_size=300), st.text(max_size=20))
def test_any_bytes_have_absolute_links(html: bytes, charset: str) -> None:
    links = html_links(PAGE, b'<a href="/1">' + html, charset=charset)
    links += html_links(PAGE, html, content_type=f"text/xml; charset={charset}")
    assert all(link.startswith(("http://", "https://")) for link in links)


@pytest.mark.slow
def test_page_that_takes_too_long_has_no_links_and_the_next_one_has() -> None:
    with closing(LinkReader(drop_nofollow=True)) as reader:
        html = b'<a href="/1?\xe9"><a href="/2" rel="nofollow">'
        assert reader.read(PAGE, html, "text/html; charset=latin1") == ["http://a.example/1?%E9"]
        assert reader.read(PAGE, b"<div>" * 300_000, "text/html") is None
        assert reader.read(PAGE, b'<a href="/3">', None) == ["http://a.example/3"]
        assert reader.read(PAGE, b'<a href="/3">', "image/png") == []
