"""The links of an HTML page, and its text. A program of `opic.local.link_process`: so it imports nothing of opic."""

import json
import resource
import signal
import struct
import sys
from typing import Final
from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser

LINKS: Final = "a[href], area[href]"
UNREAD: Final = ["script", "style", "noscript", "template"]  # Elements without text for readers.
TEXT_FLAG: Final = "--text"  # Of the program: answer with texts, which cost a second parse.
FRAME: Final = struct.Struct(">II")  # The sizes of URL and page; of an answer: its size, and 0.
CPU_SECONDS_MAX: Final = 2.0  # For a page. Deeply nested elements take a parser quadratic time,
MEMORY_BYTES_MAX: Final = 1 << 30  # and some sequences of tags a multiple of their size in memory.


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


def html_text(html: bytes | str) -> str:
    """Return the title and the text of a page as a reader sees them, white space collapsed.

    >>> html_text("<title>Bikes</title><script>x()</script><p>Two <b>wheels</b>")
    'Bikes Two wheels'
    """
    tree = LexborHTMLParser(html)
    tree.strip_tags(UNREAD)
    parts = [node.text(separator=" ") for node in (tree.css_first("title"), tree.body) if node is not None]
    return " ".join(" ".join(parts).split())


def main() -> None:
    """Answer pages from stdin with links and texts on stdout; too much time or memory for one ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C is for the estimator, which ends us.
    with_text = TEXT_FLAG in sys.argv
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    while head := stdin.read(FRAME.size):
        url_bytes, html_bytes = FRAME.unpack(head)
        url, html = stdin.read(url_bytes).decode(), stdin.read(html_bytes)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX)
        try:
            answer = json.dumps([html_links(url, html), html_text(html) if with_text else ""]).encode()
        except MemoryError:
            sys.exit(1)
        signal.setitimer(signal.ITIMER_PROF, 0)
        stdout.write(FRAME.pack(len(answer), 0) + answer)
        stdout.flush()


if __name__ == "__main__":
    main()
