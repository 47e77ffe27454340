"""The links of a page: the one extractor for all that reads pages.

It reads a page as browsers do, which the tests compare with Chromium. It imports no more of opic than this folder, so
that a crawler may use it by itself (`opic[html]`).
"""

import re
from typing import Final

import ada_url

from opic.html.elements import Element, html_elements, xml_elements
from opic.html.encodings import UTF_8, encode_query
from opic.html.media_types import HTML
from opic.html.page_text import PageText, page_text

SPACE: Final = " \t\r\n\f"
NO_BASES: Final = ("data:", "javascript:")
REFRESH: Final = re.compile(
    rf"[{SPACE}]*(?:\d+|(?=\.))[\d.]*(?=[;,{SPACE}])[{SPACE}]*[;,]?[{SPACE}]*(?:url[{SPACE}]*=[{SPACE}]*)?"
    r"(?:\"([^\"]*)|'([^']*)|(.*))",
    re.IGNORECASE | re.DOTALL,
)


def html_links(
    url: str,
    html: bytes | str,
    *,
    content_type: str | None = HTML,
    charset: str | None = None,
    drop_nofollow: bool = False,
) -> list[str]:
    """Return where a page links to, absolute, in order and without repeats.

    Links are those of `a` and `area`, of `a` in SVG, and where `<meta http-equiv=refresh>` leads to. They are resolved
    against the first `<base href>`, their queries in the encoding of the page. Only http(s) links are returned.
    Fragments stay; canonical form drops them later.

    Args:
        url: of the page, absolute.
        html: the page; text counts as UTF-8.
        content_type: the header of the answer, None if it had none. What is neither HTML nor XML has no links.
        charset: the encoding, instead of that which `content_type` names.
        drop_nofollow: leave out links with `rel=nofollow`, and all links of a page whose `<meta name=robots>` says
            nofollow. By default they count as others.

    >>> html_links("http://a.example/x/", b'<base href="/y/"><a href="1.html">1</a><a href=" //b.example">2</a>')
    ['http://a.example/y/1.html', 'http://b.example/']
    """
    page = page_text(html, content_type, charset)
    return [] if page is None else links_of(url, page, drop_nofollow=drop_nofollow)


def links_of(url: str, page: PageText, *, drop_nofollow: bool = False) -> list[str]:
    """Return where a page links to; see `html_links`."""
    elements = xml_elements(page.text) if page.xml else html_elements(page.text)
    if drop_nofollow and any(_robots_nofollow(element) for element in elements):
        return []
    bases = (
        element.attributes["href"] for element in elements if element.name == "base" and "href" in element.attributes
    )
    base = _base(url, next(bases, None))
    links, before = dict[str | None, None](), url  # A refresh is relative to a `<base>` only if that stands before it.
    for element in elements:
        before = base if element.name == "base" else before
        href = _href(element, drop_nofollow=drop_nofollow)
        if href is not None:
            links[absolute_link(before if element.name == "meta" else base, href, page.encoding)] = None
    return [link for link in links if link is not None]


def absolute_link(base: str, href: str, encoding: str = UTF_8) -> str | None:
    """Return a link, resolved against an absolute URL, as an absolute http(s) URL; None if it is none.

    >>> absolute_link("http://a.example/x", "?q=é#é", "windows-1252")
    'http://a.example/x?q=%E9#%C3%A9'
    """
    link = _joined(base, href, encoding)
    return link if link is not None and link.startswith(("http://", "https://")) else None


def redirect_target(url: str, location: bytes) -> str | None:
    """Return the target of a Location header as an absolute http(s) URL; None if it is none.

    Bytes above ASCII are percent-encoded one by one, as browsers do, whatever encoding the server meant.

    Args:
        url: what the answer is of.
        location: the value of the header.

    >>> redirect_target("http://a.example/x", b"/caf\\xe9")
    'http://a.example/caf%E9'
    """
    return absolute_link(url, "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in location))


def _joined(base: str, href: str, encoding: str) -> str | None:
    if not href.isascii():
        before, hash_mark, fragment = href.partition("#")
        path, mark, query = before.partition("?")
        href = path + mark + encode_query(query, encoding) + hash_mark + fragment
    try:
        joined: str = ada_url.join_url(base, href.strip(SPACE))
    except ValueError:
        return None
    return joined


def _base(url: str, href: str | None) -> str:
    """Return what the links of a page are relative to: only its first `<base>` counts, even if it is of no use."""
    resolved = None if href is None else _joined(url, href, UTF_8)
    return url if resolved is None or resolved.startswith(NO_BASES) else resolved


def _href(element: Element, *, drop_nofollow: bool) -> str | None:
    """Return where an element leads to, as it stands there."""
    given = element.attributes
    if element.name == "meta":
        refresh = REFRESH.match(given["content"]) if given.get("http-equiv", "").lower() == "refresh" else None
        return next(filter(None, refresh.groups()), None) if refresh is not None else None
    if element.name == "base" or (drop_nofollow and "nofollow" in given.get("rel", "").lower().split()):
        return None
    return given.get("href")


def _robots_nofollow(element: Element) -> bool:
    if element.name != "meta" or element.attributes.get("name", "").strip().lower() != "robots":
        return False
    return bool({"nofollow", "none"} & set(re.split(r"[\s,]+", element.attributes["content"].lower())))
