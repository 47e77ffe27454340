"""The pages that a sitemap, a sitemap index, a feed (RSS, RDF, Atom) or a list of URLs names.

Expat parses XML; it ships with Python and builds no tree: what is read is kept only where it is the URL of a page.
Where a file is damaged, the entry there is left out and reading goes on at the next one: a URL is taken as it is
written, or not at all. (Recovery in libxml2 drops what it can't read from the middle of a URL, so that another page is
named.) Anybody may write these files, so one that declares an entity is refused before anything is expanded, and so is
one that is nested without end. Nothing outside of the file is ever read.
"""

import io
import re
from typing import Final
from xml.parsers import expat
from xml.parsers.expat import errors

from opic.sitemaps.decoding import decoded, mended
from opic.sitemaps.entries import INDEX, KINDS, SCHEMES, BadSitemap, EnoughEntries, EntryReader, OtherRoot, SitemapEntry

DAMAGES_MAX: Final = 1_000  # Places where a file is damaged, after which the rest is left out.
PREFIX: Final = rb"<(?:[^\s<>/:!?]{1,64}:)?"
ROOT: Final = re.compile(PREFIX + rb"(?:%s)(?=[\s/>])" % "|".join(KINDS).encode())
ENTRIES: Final = {kind: re.compile(PREFIX + rb"%s(?=[\s/>])" % entry.encode()) for kind, (entry, _) in KINDS.items()}
CUT_OFF: Final = frozenset(
    errors.codes[reason]
    for reason in (
        errors.XML_ERROR_UNCLOSED_TOKEN,
        errors.XML_ERROR_NO_ELEMENTS,
        errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    )
)


class SitemapParser:
    """Reads one file. Attributes:

    problems  what is left out of it, and why
    """

    def __init__(self, base: str, urls_max: int) -> None:
        """Prepare to read.

        Args:
            base: the URL that the file was retrieved from, against which the links of a feed are resolved; "" if none.
            urls_max: how many URLs to read.
        """
        self.problems: list[str] = []
        self._reader = EntryReader(base, urls_max)
        self._damages: list[str] = []

    @property
    def entries(self) -> list[SitemapEntry]:
        """What the file names, in order."""
        return self._reader.entries

    @property
    def is_index(self) -> bool:
        """Whether the entries are other sitemaps."""
        return self._reader.kind == INDEX

    def read(self, body: bytes, charset: str | None = None) -> None:
        """Read a file. Of one that is damaged, all entries that are whole count.

        Args:
            body: of the file.
            charset: of the HTTP answer's Content-Type, if it has one.

        Raises:
            BadSitemap: it is none of the known kinds, declares entities, or is nested too deeply.
        """
        text, problem = decoded(body, charset)
        if problem:
            self.problems.append(problem)
        try:
            if text.lstrip().startswith(b"<") or ROOT.search(text):
                self._read_xml(mended(text))
            else:
                self._read_lines(text)
        except EnoughEntries:
            self.problems.append("names more pages than the limit leaves: the others are left out")
        if damages := len(self._damages):
            where = self._damages[0] if damages == 1 else f"{damages:,} places, the first is {self._damages[0]}"
            self.problems.append(f"is damaged, what can't be read is left out: {where}")
        if lines := self._reader.damaged:
            why = "they hold markup, or bytes that are not of its encoding"
            self.problems.append(f"{len(lines):,} URLs are left out, {why}: the first in line {lines[0]}")

    def _read_lines(self, text: bytes) -> None:
        """Read a list of URLs, one a line."""
        others: list[int] = []
        for number, line in enumerate(io.BytesIO(text), 1):
            url = line.decode().strip()
            if url[:8].lower().startswith(SCHEMES):
                self._reader.add(url, number)
            elif url and len(others) <= DAMAGES_MAX:
                others.append(number)
        if not self.entries and not self._reader.damaged:
            raise BadSitemap("is neither a sitemap nor a feed, nor does a line begin with http:// or https://")
        self._damages += [f"line {number} is no http(s) URL" for number in others]

    def _read_xml(self, text: bytes) -> None:
        """Read an XML document; where it is damaged, go on at the next entry."""
        reader, line, counted = self._reader, 0, 0
        begin = len(text) - len(text.lstrip())
        while True:
            line, counted = line + text.count(b"\n", counted, begin), begin
            parser, inside = _parser(reader.root)
            reader.listen(parser, line)
            try:
                parser.Parse(memoryview(text)[begin:], True)
                return
            except OtherRoot as root:
                read, cut_off, cause = parser.CurrentByteIndex, False, f"it begins with <{root}>"
            except expat.ExpatError as error:
                read, cut_off = parser.ErrorByteIndex - inside, error.code in CUT_OFF
                cause = f"{expat.ErrorString(error.code)}: line {line + error.lineno}"
            reader.end_item()
            wanted = ENTRIES[reader.kind] if reader.kind else ROOT
            following = None if cut_off else wanted.search(text, max(begin + read, begin + 1))
            if not reader.kind and following is None:
                raise BadSitemap(f"is neither a sitemap nor a feed: {cause}")
            self._damages.append(cause)
            if following is None or len(self._damages) > DAMAGES_MAX:
                return
            begin = following.start()


def _parser(element: str) -> tuple[expat.XMLParserType, int]:
    """Return a parser that stands in an element, and how many bytes it has read; outside of all where that is ""."""
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    before = f"<{element}>".encode() if element else b""
    parser.Parse(before, False)
    return parser, len(before)
