"""The links of an HTML page: the one extractor for all that reads pages.

It imports nothing but a parser of HTML and one of URLs (`opic[html]`), so that a crawler may use it by itself.
"""

import codecs
import re
from collections.abc import Iterator
from typing import Final

import ada_url
from selectolax.lexbor import LexborHTMLParser, LexborNode

LINKS: Final = "a[href], area[href]"
SPACE: Final = " \t\r\n\f"
PRESCAN_BYTES: Final = 4_096  # Where a page may name its encoding; browsers look at the first 1,024 bytes.
COMMENT: Final = re.compile(rb"<!--.*?(?:-->|$)", re.DOTALL)
META_CHARSET: Final = re.compile(rb"<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Encodings of pages, by Python's names for them, and what browsers decode instead. Others that Python has, as punycode,
# are none of pages, and some of them take minutes.
ENCODINGS: Final = {
    "utf-8": "utf-8", "utf-16": "utf-16-le", "utf-16-le": "utf-16-le", "utf-16-be": "utf-16-be",
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs", "big5hkscs": "big5hkscs",
    "shift_jis": "cp932", "cp932": "cp932", "euc_jp": "euc_jp", "iso2022_jp": "iso2022_jp",
    "euc_kr": "cp949", "cp949": "cp949", "koi8-r": "koi8-r", "koi8-u": "koi8-u", "mac-roman": "mac-roman",
    "mac-cyrillic": "mac-cyrillic", "cp866": "cp866", "cp874": "cp874",
    **{f"iso8859-{n}": f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **{f"cp{n}": f"cp{n}" for n in range(1250, 1259)},
}  # fmt: skip


def html_links(url: str, html: bytes | str, *, charset: str | None = None, drop_nofollow: bool = False) -> list[str]:
    """Return where a page links to by `a` and `area`, absolute, in order and without repeats.

    Links are resolved against the first `<base href>` that is a valid http(s) URL, which may itself be relative to the
    page. Only http(s) links are returned. Fragments stay; canonical form drops them later.

    Args:
        url: of the page, absolute.
        html: the page.
        charset: its encoding according to the header of the answer, if that names one.
        drop_nofollow: leave out links with `rel=nofollow`, and all links of a page whose `<meta name=robots>` says
            nofollow. By default they count as others.

    >>> html_links("http://a.example/x/", b'<base href="/y/"><a href="1.html">1</a><a href=" //b.example">2</a>')
    ['http://a.example/y/1.html', 'http://b.example/']
    """
    tree = LexborHTMLParser(html if isinstance(html, str) else decoded(html, charset))
    if drop_nofollow and _robots_nofollow(tree):
        return []
    bases = (absolute_link(url, _attribute(node, "href")) for node in tree.css("base[href]"))
    base = next((found for found in bases if found), url)
    links = (
        absolute_link(base, _attribute(node, "href"))
        for node in tree.css(LINKS)
        if not (drop_nofollow and "nofollow" in _attribute(node, "rel").lower().split())
    )
    return list(dict.fromkeys(link for link in links if link))


def decoded(html: bytes, charset: str | None = None) -> str:
    """Return the text of a page: by its byte order mark, its header, its `<meta>`, else as UTF-8.

    A charset that there is none of counts as not given. What can't be decoded becomes U+FFFD.

    >>> decoded(b'<meta charset="iso-8859-1">caf\\xe9', None)[-4:], decoded(b"caf\\xc3\\xa9", "none-such")
    ('café', 'café')
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if html.startswith(mark):
            return html[len(mark) :].decode(encoding, "replace")
    return html.decode(next(filter(None, _named(html, charset)), "utf-8"), "replace")


def _named(html: bytes, charset: str | None) -> Iterator[str | None]:
    if charset:
        yield _encoding(charset)
    if (found := META_CHARSET.search(COMMENT.sub(b"", html[:PRESCAN_BYTES]))) is not None:
        encoding = _encoding(found[1].decode("ascii", "replace"))
        # A page whose <meta> could be read is not in UTF-16.
        yield "utf-8" if encoding is not None and encoding.startswith("utf-16") else encoding


def _encoding(label: str) -> str | None:
    label = label.strip(SPACE + "\"'").lower()
    for name in (label, label.removeprefix("x-")):
        try:
            return ENCODINGS[codecs.lookup(name).name]
        except (LookupError, ValueError, UnicodeError):
            continue
    return None


def _robots_nofollow(tree: LexborHTMLParser) -> bool:
    robots = (node for node in tree.css("meta[name][content]") if _attribute(node, "name").strip().lower() == "robots")
    told = {word for node in robots for word in re.split(r"[\s,]+", _attribute(node, "content").lower())}
    return bool(told & {"nofollow", "none"})


def _attribute(node: LexborNode, name: str) -> str:
    return node.attributes.get(name) or ""


def absolute_link(base: str, href: str) -> str | None:
    """Return a link, resolved against an absolute URL, as an absolute http(s) URL; None if it is none."""
    try:
        found: str = ada_url.join_url(base, href.strip(SPACE))
    except ValueError:
        return None
    return found if found.startswith(("http://", "https://")) else None
