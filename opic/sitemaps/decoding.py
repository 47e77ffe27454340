"""The text of a sitemap or feed in UTF-8, from any encoding, and with the most frequent mistake of XML mended.

The encoding is, in this order, that of a byte order mark, of UTF-16 or UTF-32 by their zeros, of the `charset` of the
HTTP answer (RFC 7303), of the XML declaration, or UTF-8.
"""

import codecs
import html.entities
import re
from typing import Final, NamedTuple

from opic.html.encodings import REPLACEMENT, UTF_8, decode, encoding_of

DAMAGED: Final = "\N{REPLACEMENT CHARACTER}"  # Stands for bytes that the encoding does not have.
MARKS: Final = (  # UTF-32 first: its mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF16_LE, "utf-16le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
)
# Which of the first four bytes are zero -> the encoding: XML and URLs begin with ASCII characters.
ZEROS: Final = {
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
    (False, True, False, True): "utf-16le",
    (True, False, True, False): "utf-16be",
}
DECLARED: Final = re.compile(rb"""\s*<\?xml\b[^>]{0,200}?\bencoding\s*=\s*["']([A-Za-z][\w.:-]{0,39})["']""")
DECLARATION_BYTES: Final = 1_024
# Characters that XML does not have become one that no URL has.
CONTROLS: Final = bytes(range(9)) + b"\x0b\x0c" + bytes(range(14, 32))
DELETE: Final = b"\x7f"
NO_CONTROLS: Final = bytes.maketrans(CONTROLS, DELETE * len(CONTROLS))
# An ampersand that begins none of the references that XML has without a declaration; no ampersand is special in CDATA.
AMPERSANDS: Final = re.compile(
    rb"<!\[CDATA\[(?s:.*?)(?:\]\]>|\Z)|&(?!#[0-9]{1,7};|#x[0-9A-Fa-f]{1,6};|(?:amp|lt|gt|quot|apos);)(\w{1,32};)?"
)
MENDED_MAX: Final = 1_000_000  # Bounds time and memory: a mended file has 4 bytes more for each.


class DecodedText(NamedTuple):
    """Text in UTF-8, its lines ended by a line feed; `problem` says what is wrong with its encoding, "" if nothing."""

    utf8: bytes
    problem: str


def decoded(body: bytes, charset: str | None = None) -> DecodedText:
    """Decode the body of a file.

    Args:
        body: of the file.
        charset: of the HTTP answer's Content-Type, if it has one.

    >>> decoded("caf\u00e9".encode("utf-16")).utf8.decode()
    'caf\u00e9'
    """
    name, unknown = _encoding_of(body, charset)
    text = (body.decode(name, "replace") if name.startswith("utf-32") else decode(body, name)).lstrip("\ufeff")
    utf8 = text.encode("utf-8", "replace").replace(b"\r\n", b"\n").replace(b"\r", b"\n").translate(NO_CONTROLS)
    problem = f"is read as {name}: its encoding is called {unknown!r}, which is not known" if unknown else ""
    return DecodedText(utf8, problem)


def mended(xml: bytes) -> bytes:
    """Read bare ampersands and HTML's entities in XML as browsers read them in HTML.

    >>> mended(b"<a>?a&b&amp;c&nbsp;d&;</a><![CDATA[&e]]>")
    b'<a>?a&amp;b&amp;c&#160;d&amp;;</a><![CDATA[&e]]>'
    """
    return AMPERSANDS.sub(_mended, xml, MENDED_MAX)


def is_damaged(url: str) -> bool:
    """Return whether a URL holds characters that stand for bytes that could not be read."""
    return DAMAGED in url or "\x7f" in url


def _encoding_of(body: bytes, charset: str | None) -> tuple[str, str]:
    """Return the encoding of a body, and the last name for it that is unknown."""
    for mark, name in MARKS:
        if body.startswith(mark):
            return name, ""
    if detected := ZEROS.get(tuple(byte == 0 for byte in body[:4])):  # type: ignore[arg-type]
        return detected, ""
    declared = DECLARED.match(body[:DECLARATION_BYTES])
    unknown = ""
    for label in (charset, declared and declared[1].decode("latin-1")):
        if label and (encoding := _encoding(label)):
            return encoding, ""
        unknown = label or unknown
    return UTF_8, unknown


def _encoding(label: str) -> str | None:
    """Return the encoding that browsers read a label as; None for one they don't read."""
    name = encoding_of(label)
    if name in (REPLACEMENT, "x-user-defined"):
        return None
    return UTF_8 if name in ("utf-16le", "utf-16be") else name  # Their zeros would have told: such a file is in UTF-8.


def _mended(match: re.Match[bytes]) -> bytes:
    if match[0].startswith(b"<"):
        return match[0]
    name = (match[1] or b"").decode("latin-1")
    character = html.entities.html5.get(name, "")
    return "".join(f"&#{ord(char)};" for char in character).encode() or b"&amp;" + (match[1] or b"")
