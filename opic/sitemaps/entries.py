"""Handlers of expat that pick the URLs of pages out of a sitemap, a sitemap index or a feed (RSS, RDF, Atom)."""

from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

import ada_url

from opic.errors import BadInput
from opic.sitemaps.decoding import is_damaged

DEPTH_MAX: Final = 64  # Of elements. Sitemaps have 3 levels, feeds with markup in them a few more.
TEXT_MAX: Final = 65_536  # Characters of a URL: no setting allows longer ones.
BASE_MAX: Final = 2_048  # Of a base URL: resolving against it takes time for each element.
CHARS_MAX: Final = 256 << 20  # Of all URLs of a file: a base makes them longer than the file.
# The element that a file begins with -> the element of an entry, and those in it whose text is a URL.
KINDS: Final = {
    "urlset": ("url", ("loc",)),
    "sitemapindex": ("sitemap", ("loc",)),
    "rss": ("item", ("link", "guid")),
    "RDF": ("item", ("link",)),
    "feed": ("entry", ()),
}
INDEX: Final = "sitemapindex"
ATOM: Final = "feed"
RSS: Final = ("rss", "RDF")
FEEDS: Final = (*RSS, ATOM)
SCHEMES: Final = ("http://", "https://")
RELATIONS: Final = "http://www.iana.org/assignments/relation/"  # A relation may be named by its whole URI (RFC 4287).


class BadSitemap(BadInput):
    """A file is neither a sitemap nor a feed, or may not be read."""


class EnoughEntries(Exception):
    """As many URLs as wanted were read."""


class OtherRoot(Exception):
    """The first element is not that of a sitemap or feed."""


@dataclass(frozen=True, slots=True)
class SitemapEntry:
    """A URL that a sitemap names, with the number of its line."""

    url: str
    line: int


class EntryReader:
    """Takes what expat reads in a file. Attributes:

    entries  what the file names, in order
    kind     its first element, one of KINDS; "" before that
    root     the tag of that element, with its prefix
    damaged  lines of URLs left out, because they hold markup, or bytes that are not of the file's encoding
    """

    def __init__(self, base: str, entries_max: int) -> None:
        self.entries: list[SitemapEntry] = []
        self.kind = self.root = ""
        self.damaged: list[int] = []
        self._entries_left, self._chars_left = entries_max, CHARS_MAX
        self._names: list[tuple[str, str]] = []  # Prefix and name of each element that is open.
        self._root_base = base
        self._bases = [base]  # Outside of the file, and in each element that is open.
        self._text: list[str] | None = None  # Of the element that holds a URL,
        self._text_depth = self._text_chars = 0  # and how deep that is.
        self._page: SitemapEntry | None = None  # Of an item of RSS: its own link,
        self._other_page: SitemapEntry | None = None  # and what else names its page.

    def listen(self, parser: expat.XMLParserType, line: int) -> None:
        """Take what a new parser reads, which stands in the first element if there is one, and behind `line` lines."""
        self._parser, self._line = parser, line
        self._text = None
        if self.kind:
            prefix, _, name = self.root.rpartition(":")
            self._names, self._bases = [(prefix, name)], [self._bases[0], self._root_base]
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.EntityDeclHandler = self._refuse_entity
        parser.AttlistDeclHandler = self._refuse_attributes

    def add(self, url: str, line: int) -> None:
        """Add a URL.

        Raises:
            EnoughEntries: there are as many as wanted.
        """
        if is_damaged(url):
            self.damaged.append(line)
            return
        url = url[:TEXT_MAX]
        if not self._entries_left or self._chars_left < len(url):
            raise EnoughEntries
        self._entries_left, self._chars_left = self._entries_left - 1, self._chars_left - len(url)
        self.entries.append(SitemapEntry(url, line))

    def end_item(self) -> None:
        """Add the page of the item of RSS that was read, if there is one."""
        page = self._page or self._other_page
        self._page = self._other_page = None
        if page is not None:
            self.add(page.url, page.line)

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise BadSitemap(f"declares the entity {name[:40]!r}: no file with entities is read")

    def _refuse_attributes(self, element: str, *_: object) -> None:
        # Expat gives each element the attributes that are declared for it: the time of one times that of the other.
        raise BadSitemap(f"declares attributes of {element[:40]!r}: no file with such declarations is read")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        prefix, _, name = tag.rpartition(":")
        if not self._names:
            if name not in KINDS:
                raise OtherRoot(name[:40])
            self.kind, self.root = name, tag
            self._root_base = _resolved(self._bases[0], attributes.get("xml:base", "").strip())
            self._bases.append(self._root_base)
        else:
            self._bases.append(_resolved(self._bases[-1], attributes.get("xml:base", "").strip()))
        self._names.append((prefix, name))
        if len(self._names) > DEPTH_MAX:
            raise BadSitemap(f"has elements nested over {DEPTH_MAX} deep")
        self._start_in_kind(prefix, name, attributes)

    def _start_in_kind(self, prefix: str, name: str, attributes: dict[str, str]) -> None:
        entry, holders = KINDS[self.kind]
        depth = len(self._names)
        if name == entry:
            self.end_item()  # The one before has no end.
            if self.kind not in FEEDS:  # Some files have the URL here, without <loc>.
                self._text, self._text_depth, self._text_chars = [], depth, 0
        elif depth > 1 and self._names[-2][1] == entry:
            own = self._names[-2][0] == prefix
            if name == "link" and own == (self.kind == ATOM):
                self._take_atom_link(attributes)
            elif own and name in holders and not (name == "guid" and attributes.get("isPermaLink", "") == "false"):
                self._text, self._text_depth, self._text_chars = [], depth, 0
        elif self._text is not None and depth > self._text_depth and self._names[-2][1] in holders:
            self._text = None  # A URL with markup in it: what is around that is another URL.
            self.damaged.append(self._line + self._parser.CurrentLineNumber)

    def _data(self, text: str) -> None:
        if self._text is not None and len(self._names) == self._text_depth and self._text_chars <= TEXT_MAX:
            self._text.append(text)
            self._text_chars += len(text)

    def _end(self, _: str) -> None:
        base, (_, name) = self._bases.pop(), self._names.pop()
        if self._text is not None and len(self._names) < self._text_depth:
            url, self._text = "".join(self._text).strip(), None
            if url:
                self._take_text(name, url, base)
        if name == KINDS[self.kind][0]:
            self.end_item()

    def _take_text(self, name: str, url: str, base: str) -> None:
        line = self._line + self._parser.CurrentLineNumber
        if name == "loc" or (self.kind not in FEEDS and url.startswith(SCHEMES)):
            self.add(url, line)
        elif name == "link":
            self._page = self._page or SitemapEntry(_resolved(base, url), line)
        elif name == "guid" and url.startswith(SCHEMES):  # One that is no URL, and does not say so, is not relative.
            self._other_page = self._other_page or SitemapEntry(url, line)

    def _take_atom_link(self, attributes: dict[str, str]) -> None:
        relation, url = attributes.get("rel", "alternate").strip().lower(), attributes.get("href", "").strip()
        if not url or relation.removeprefix(RELATIONS) != "alternate":
            return
        if self.kind == ATOM or (self.kind in RSS and self._other_page is None):
            page = SitemapEntry(_resolved(self._bases[-1], url), self._line + self._parser.CurrentLineNumber)
            if self.kind == ATOM:
                self.add(page.url, page.line)
            else:
                self._other_page = page


def _resolved(base: str, url: str) -> str:
    """Return a URL of a feed, resolved against its base; as it is where there is none, or one of no use."""
    if not url:
        return base
    if not base or len(base) > BASE_MAX:
        return url
    try:
        resolved: str = ada_url.join_url(base, url)
    except ValueError:  # Whoever takes the URL says what is wrong with it.
        return url
    return resolved
