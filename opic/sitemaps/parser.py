"""The pages that a sitemap, a sitemap index or a feed (RSS, RDF, Atom) names.

Expat parses them, which ships with Python and builds no tree: what is read is kept only where it is the URL of a page.
Anybody may write these files, so one that declares an entity is refused before anything is expanded, and so is one that
is nested without end. Nothing outside of the file is ever read.
"""

from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

import ada_url

from opic.errors import BadInput

DEPTH_MAX: Final = 64  # Of elements. Sitemaps have 3 levels, feeds with markup in them a few more.
TEXT_MAX: Final = 65_536  # Characters of a URL: no setting allows longer ones.
# The element that a file begins with -> the elements that hold the URL of a page, or of another sitemap.
PAGES: Final = {
    "urlset": [("url", "loc")],
    "sitemapindex": [("sitemap", "loc")],
    "rss": [("item", "link")],
    "RDF": [("item", "link")],
    "feed": [("entry", "link")],
}
INDEX: Final = "sitemapindex"
ATOM: Final = "feed"


class BadSitemap(BadInput):
    """A file is neither a sitemap nor a feed, or may not be read."""


class _Enough(Exception):
    """As many URLs as wanted were read."""


@dataclass(frozen=True, slots=True)
class SitemapEntry:
    """A URL that a sitemap names, with the number of its line."""

    url: str
    line: int


class SitemapParser:
    """Reads one file. Attributes:

    entries   what it names, in order
    is_index  whether these are other sitemaps
    problem   why the rest of the file is left out, if it is
    """

    def __init__(self, base: str, urls_max: int) -> None:
        """Prepare to read.

        Args:
            base: the URL of the file, against which the links of a feed are resolved; "" if it has none.
            urls_max: how many URLs to read.
        """
        self.entries: list[SitemapEntry] = []
        self.problem = ""
        self._base, self._urls_max = base, urls_max
        self._kind = ""
        self._names: list[tuple[str, str]] = []  # Prefix and name of each element that is open.
        self._text: list[str] | None = None  # Of the URL that is being read.
        self._chars = 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._parser.EntityDeclHandler = self._refuse_entity

    @property
    def is_index(self) -> bool:
        """Whether the entries are other sitemaps."""
        return self._kind == INDEX

    def read(self, body: bytes) -> None:
        """Read a file. Of one that is broken, what comes before that counts, and `problem` says what is wrong.

        Raises:
            BadSitemap: it is none of the known kinds, declares entities, or is nested too deeply.
        """
        try:
            # As a whole: some versions of expat take quadratic time for a long token that comes in pieces.
            self._parser.Parse(body, True)
        except _Enough:
            self.problem = "names more pages than the limit leaves: the others are left out"
        except (expat.ExpatError, ValueError, LookupError) as error:  # The last two: an encoding that there is not.
            if not self._kind:
                raise BadSitemap(f"is neither a sitemap nor a feed: {error}") from None
            self.problem = f"is broken, what follows is left out: {error}"

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise BadSitemap(f"declares the entity {name[:40]!r}: no file with entities is read")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        prefix, _, name = tag.rpartition(":")
        if not self._names:
            if name not in PAGES:
                wanted = ", ".join(f"<{known}>" for known in PAGES)
                raise BadSitemap(f"is neither a sitemap nor a feed: it begins with <{name[:40]}>, not with {wanted}")
            self._kind = name
        elif (self._names[-1][1], name) in PAGES[self._kind] and self._names[-1][0] == prefix:
            if self._kind == ATOM:
                if attributes.get("rel", "alternate") == "alternate":
                    self._found(attributes.get("href", ""))
            else:
                self._text, self._chars = [], 0
        self._names.append((prefix, name))
        if len(self._names) > DEPTH_MAX:
            raise BadSitemap(f"has elements nested over {DEPTH_MAX} deep")

    def _data(self, text: str) -> None:
        if self._text is not None and self._chars <= TEXT_MAX:
            self._text.append(text)
            self._chars += len(text)

    def _end(self, _: str) -> None:
        self._names.pop()
        if self._text is not None:
            text, self._text = "".join(self._text), None
            self._found(text)

    def _found(self, url: str) -> None:
        url = url.strip()
        if not url:
            return
        if len(self.entries) >= self._urls_max:
            raise _Enough
        if self._base and self._kind not in ("urlset", INDEX):  # Only feeds have relative links.
            url = _resolved(self._base, url)
        self.entries.append(SitemapEntry(url, self._parser.CurrentLineNumber))


def _resolved(base: str, url: str) -> str:
    try:
        found: str = ada_url.join_url(base, url)
    except ValueError:  # Whoever takes the URL says what is wrong with it.
        return url
    return found
