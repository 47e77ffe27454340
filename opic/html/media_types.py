"""Which bodies are pages: by their Content-Type, and where that says nothing, by their first bytes.

Source: https://mimesniff.spec.whatwg.org, sections 2.1, 4.4 and 7.1.
"""

import re
from dataclasses import dataclass
from typing import Final

HTML: Final = "text/html"
XML: Final = ("text/xml", "application/xml")
UNKNOWN: Final = ("", "*/*", "unknown/unknown", "application/unknown")
SPACE: Final = " \t\r\n"
HEADER_CHARS_MAX: Final = 1_024  # The rest of a longer header is not read.
_tags = (
    b"!DOCTYPE HTML", b"HTML", b"HEAD", b"SCRIPT", b"IFRAME", b"H1", b"DIV", b"FONT", b"TABLE", b"A", b"STYLE",
    b"TITLE", b"B", b"BODY", b"BR", b"P", b"!--",
)  # fmt: skip
_begins_as_html = re.compile(rb"[\t\n\f\r ]*<(?:%b)[ >]" % b"|".join(_tags), re.IGNORECASE).match
_begins_as_xml = re.compile(rb"[\t\n\f\r ]*<\?xml").match
# A parameter: its name, its value in quotes, else its value.
_parameters = re.compile(r';[ \t\r\n]*([^;=]*)(?:=(?:"((?:[^"\\]|\\.)*)"?[^;]*|([^;]*)))?').finditer
_commas = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')


@dataclass(frozen=True, slots=True)
class MediaType:
    """A Content-Type."""

    essence: str = ""  # In lower case, without parameters; "" for none.
    charset: str | None = None

    @classmethod
    def of(cls, content_type: str | None) -> "MediaType":
        """Parse a header; of several types in it, the last counts.

        >>> MediaType.of('Text/HTML;Charset="ISO-8859-2"; charset=utf-8')
        MediaType(essence='text/html', charset='ISO-8859-2')
        """
        media_type = cls()
        for part in _commas.split((content_type or "")[:HEADER_CHARS_MAX]):
            essence = re.split(r"[ \t;(]", part.strip(SPACE), maxsplit=1)[0].lower()
            if "/" not in essence or essence == "*/*":
                continue
            given = [_value(*match.groups()) for match in _parameters(part) if match[1].lower() == "charset"]
            charset = next((value for value in given if value), None)
            media_type = cls(essence, charset or (media_type.charset if essence == media_type.essence else None))
        return media_type

    @property
    def unknown(self) -> bool:
        """Whether the first bytes of the body tell what it is."""
        return self.essence in UNKNOWN

    @property
    def xml(self) -> bool:
        """Whether it is read as XML: XHTML, SVG, feeds."""
        return self.essence in XML or self.essence.endswith("+xml")

    @property
    def may_have_links(self) -> bool:
        """Whether a body of this type may be a page."""
        return self.essence == HTML or self.xml or self.unknown

    def sniffed(self, body: bytes) -> "MediaType":
        """Return this type, or if it is unknown, that of a body."""
        if not self.unknown:
            return self
        if _begins_as_html(body):
            return MediaType(HTML, self.charset)
        return MediaType(XML[0] if _begins_as_xml(body) else UNKNOWN[0], self.charset)


def _value(_: str, quoted: str | None, plain: str | None) -> str:
    return (plain or "").strip(SPACE) if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
