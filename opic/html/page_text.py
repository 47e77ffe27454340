"""The text of a page: its media type and its encoding, found as browsers find them."""

import re
from dataclasses import dataclass
from typing import Final

from selectolax.lexbor import LexborHTMLParser

from opic.html.encodings import FALLBACK, UTF_8, decode, encoding_of, is_utf_8
from opic.html.media_types import MediaType

SPACE: Final = r"\t\n\f\r "
PRESCAN_BYTES: Final = 1_024  # Where a `<meta>` may name the encoding, unless the `<head>` is longer.
BYTE_ORDER_MARKS: Final = ((b"\xef\xbb\xbf", UTF_8), (b"\xff\xfe", "utf-16le"), (b"\xfe\xff", "utf-16be"))
XML_MARKS: Final = ((b"<\0?\0x\0", "utf-16le"), (b"\0<\0?\0x", "utf-16be"))  # `<?x`.
INSTEAD: Final = {"utf-16le": UTF_8, "utf-16be": UTF_8}  # A page in these could not have been read so far.
mentions_charset = re.compile(rb"charset", re.IGNORECASE).search
_xml_encoding = re.compile(rb"<\?xml[^>]*?encoding[\0- ]*=[\0- ]*(?:\"([^\">]*)\"|'([^'>]*)')").match
_charset_in_content = re.compile(
    rf"charset[{SPACE}]*=[{SPACE}]*(?:\"([^\"]*)\"|'([^']*)'|([^{SPACE};\"']+))", re.IGNORECASE
).search


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of a page, and how it was read."""

    text: str
    encoding: str  # As the Encoding standard names it.
    xml: bool = False


def page_text(page: bytes | str, content_type: str | None, charset: str | None = None) -> PageText | None:
    """Return the text of a page, None if it is neither HTML nor XML.

    The encoding is that of the byte order mark, else that of the header, else that which the page names, else UTF-8 if
    the page is in it, else windows-1252. What can't be decoded becomes U+FFFD; XML in UTF-8 ends there.

    Args:
        page: the body, or its text, which counts as UTF-8.
        content_type: the header, None if there was none.
        charset: the encoding, instead of that which the header names.

    >>> page_text(b'<meta charset="iso-8859-1">caf\\xe9', "text/html")
    PageText(text='<meta charset="iso-8859-1">café', encoding='windows-1252', xml=False)
    """
    given = MediaType.of(content_type)
    if not given.may_have_links:
        return None
    media = given.sniffed(page if isinstance(page, bytes) else page[:PRESCAN_BYTES].encode("utf-8", "replace"))
    if media.unknown:
        return None
    if isinstance(page, str):
        return PageText(page, UTF_8, media.xml)
    mark, encoding = next((mark for mark in BYTE_ORDER_MARKS if page.startswith(mark[0])), (b"", None))
    encoding = encoding or encoding_of(charset or media.charset or "") or _named(page, xml=media.xml)
    if encoding is None:
        encoding = UTF_8 if media.xml or is_utf_8(page) else FALLBACK
    body = page[len(mark) :]
    if media.xml and encoding == UTF_8:
        try:
            return PageText(body.decode(), encoding, xml=True)
        except UnicodeDecodeError as error:
            body = body[: error.start]
    return PageText(decode(body, encoding), encoding, media.xml)


def _named(page: bytes, *, xml: bool) -> str | None:
    """Return the encoding that a page names itself, by `<meta>` or by the declaration of XML."""
    for mark, encoding in XML_MARKS:
        if page.startswith(mark):
            return encoding
    named = None if xml or not mentions_charset(page) else _named_by_meta(page)
    named = FALLBACK if named == "x-user-defined" else named  # As the HTML standard has it.
    if named is None and (declared := _xml_encoding(page[:PRESCAN_BYTES])) is not None:
        named = encoding_of((declared[1] or declared[2] or b"").decode("latin-1"))
    return INSTEAD.get(named or "", named)


def _named_by_meta(page: bytes) -> str | None:
    start = LexborHTMLParser(page[:PRESCAN_BYTES])
    encoding = _first_of(start, "meta")
    if encoding is None and len(page) > PRESCAN_BYTES and (start.body is None or start.body.child is None):
        encoding = _first_of(LexborHTMLParser(page), "head meta")
    return encoding


def _first_of(tree: LexborHTMLParser, selector: str) -> str | None:
    for node in tree.css(selector):
        given = {name: value or "" for name, value in node.attributes.items()}
        label = given.get("charset")
        if label is None and given.get("http-equiv", "").lower() == "content-type":
            content = _charset_in_content(given.get("content", ""))
            label = content and next(filter(None, content.groups()), None)
        if label and (encoding := encoding_of(label)):
            return encoding
    return None
