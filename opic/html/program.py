"""The program of `opic.html.process`: answers pages with their links and their text."""

import json
import resource
import signal
import struct
import sys
from typing import Final

from selectolax.lexbor import LexborHTMLParser

from opic.html.links import links_of
from opic.html.page_text import page_text

UNREAD: Final = ["script", "style", "noscript", "template"]  # Elements without text for readers.
TEXT_FLAG: Final = "--text"  # Of the program: answer with texts, which cost a second parse.
DROP_FLAG: Final = "--drop-nofollow"  # See `html_links`.
FRAME: Final = struct.Struct(">III")  # The sizes of URL, Content-Type and page; of an answer: its size, and twice 0.
CPU_SECONDS_MAX: Final = 2.0  # For a page. Deeply nested elements take a parser quadratic time,
CPU_BYTES: Final = 1 << 20  # (a second more for so many bytes of a page)
MEMORY_BYTES_MAX: Final = 1 << 30  # and some sequences of tags a multiple of their size in memory.


def html_text(html: str) -> str:
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
    with_text, drop = TEXT_FLAG in sys.argv, DROP_FLAG in sys.argv
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    while head := stdin.read(FRAME.size):
        url, content_type, body = (stdin.read(size) for size in FRAME.unpack(head))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX + len(body) / CPU_BYTES)
        try:
            page = page_text(body, content_type.decode())
            links = [] if page is None else links_of(url.decode(), page, drop_nofollow=drop)
            text = "" if page is None or not with_text else html_text(page.text)
            answer = json.dumps([links, text]).encode()
        except MemoryError:
            sys.exit(1)
        signal.setitimer(signal.ITIMER_PROF, 0)
        stdout.write(FRAME.pack(len(answer), 0, 0) + answer)
        stdout.flush()


if __name__ == "__main__":
    main()
