"""The links of an HTML page."""

from typing import Final
from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser

LINKS: Final = "a[href], area[href]"


def html_links(url: str, html: bytes | str) -> list[str]:
    """Return where a page links to, absolute, in order and without repeats.

    Links are resolved against the first `<base href>`, which may itself be relative to the page. What can't be
    resolved is left out. Fragments stay: whoever canonicalizes the links drops them.

    >>> html_links("http://a.example/x/", b'<base href="/y/"><a href="1.html">1</a><a href=" //b.example">2</a>')
    ['http://a.example/y/1.html', 'http://b.example']
    """
    tree = LexborHTMLParser(html)
    base = url
    first = tree.css_first("base[href]")
    if first is not None:
        base = _joined(url, first.attributes.get("href")) or url
    found = (_joined(base, node.attributes.get("href")) for node in tree.css(LINKS))
    return list(dict.fromkeys(link for link in found if link))


def _joined(base: str, href: str | None) -> str | None:
    try:
        return urljoin(base, (href or "").strip())
    except ValueError:  # A host like [::1 without its bracket.
        return None
