"""HTTP messages as records have them: what a request asked, what an answer says, and its body, decoded."""

import re
from dataclasses import dataclass
from typing import Final

from opic.archives.fields import Fields
from opic.archives.records import BODY_BYTES_MAX
from opic.compressed import GZIP_MAGIC, decodable
from opic.html.media_types import MediaType

HEAD_BYTES_MAX: Final = 256 << 10  # Of one answer; browsers take no more.
STATUS_LINE: Final = re.compile(rb"[\r\n]*HTTP(?:/[0-9.]+)?[ \t]+(\d{3})(?!\d)[^\n]*(?:\n|$)", re.IGNORECASE)
HEAD_END: Final = re.compile(rb"\n\r?\n")
SWITCHING_PROTOCOLS: Final = 101  # The one interim status that no other follows.
METHOD: Final = re.compile(rb"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+) ")
CHUNK_SIZE: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]{0,4096})?\r?\n")
CODINGS_MAX: Final = 5  # Of a body; as many as curl and urllib3 decode.
UNCODED: Final = ("identity", "none")
ZLIB_METHOD: Final = 8
PLAIN_TEXT: Final = "text/plain"
SNIFFED_BYTES: Final = 1_445  # Of a body.
BINARY: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    fields: Fields
    body: bytes = b""  # Without transfer and content coding, up to BODY_BYTES_MAX.
    cut: bool = False  # Whether the body is longer, or can't be decoded in whole.

    @property
    def content_type(self) -> str:
        """Its Content-Type; that of a page whose type is not given, and not to be sniffed, is that of plain text."""
        given = ",".join(self.fields.get("content-type", ()))
        nosniff = self.fields.tokens("x-content-type-options")[:1] == ["nosniff"]
        return PLAIN_TEXT if nosniff and MediaType.of(given).unknown else given

    @property
    def location(self) -> bytes:
        """The target of a redirect; empty if there is none."""
        return self.fields.first("location").encode("latin-1", "replace")


def method_of(block: bytes) -> str:
    """Return the method of a request; empty if it has none."""
    match = METHOD.match(block, 0, 64)
    return match[1].decode().upper() if match else ""


def parse_answer(block: bytes, *, cut: bool = False) -> HttpAnswer | None:
    """Parse the block of a response: its final answer, behind interim ones; None where it has no HTTP answer.

    Args:
        block: the message, or its beginning.
        cut: whether there is more.
    """
    position = 0
    while line := STATUS_LINE.match(block, position):
        status, begin = int(line[1]), line.end()
        # A line ends just before the header: a header without fields ends there.
        end = HEAD_END.search(block, begin - 1, begin + HEAD_BYTES_MAX)
        if end is None and len(block) > begin + HEAD_BYTES_MAX:
            return None
        head, position = block[begin : end.start() if end else len(block)], end.end() if end else len(block)
        if not 100 <= status <= 199 or status == SWITCHING_PROTOCOLS:
            return decoded_answer(status, Fields.parse(head), block[position:], cut=cut)
    return None


def decoded_answer(status: int, fields: Fields, body: bytes, *, cut: bool = False) -> HttpAnswer:
    """Return an answer with its body decoded; `cut`: whether that is only its beginning."""
    body, wrong = _decoded(body, [*fields.tokens("content-encoding"), *fields.tokens("transfer-encoding")])
    return HttpAnswer(status, fields, body[:BODY_BYTES_MAX], cut or wrong or len(body) > BODY_BYTES_MAX)


def _decoded(body: bytes, codings: list[str]) -> tuple[bytes, bool]:
    """Decode a body, the last coding first; return it, and whether a part of it can't be decoded.

    A body that has not a coding which it should have is returned as it is: some writers leave the header of what they
    have decoded. It is whole if it looks like text.
    """
    wrong = False
    for coding in codings[: -CODINGS_MAX - 1 : -1]:
        if coding == "chunked":
            body, cut = _dechunked(body)
        elif coding in UNCODED or not body:
            continue
        elif name := _coding_of(body, coding):
            decoded, whole = decodable(body, name, BODY_BYTES_MAX + 1)
            # What looks like text never had the coding, even where a part of it can be decoded.
            body, cut = (decoded, not whole) if whole or (decoded and is_binary(body)) else (body, is_binary(body))
        else:
            cut = is_binary(body)
        wrong = wrong or cut
    return body, wrong or (len(codings) > CODINGS_MAX and is_binary(body))


def _coding_of(body: bytes, coding: str) -> str | None:
    """Return what `decodable` calls a coding, None where a body can't have it, or it is not known."""
    if coding in ("br", "zstd"):
        return coding
    if coding not in ("gzip", "x-gzip", "deflate"):
        return None
    if body.startswith(GZIP_MAGIC):
        return "gzip"
    if body[0] & 0x0F == ZLIB_METHOD and int.from_bytes(body[:2], "big") % 31 == 0:
        return "zlib"
    return "deflate" if coding == "deflate" else None  # Servers send it with the header of zlib and without.


def is_binary(body: bytes) -> bool:
    """Whether a body begins with bytes that text does not have: see the MIME Sniffing standard."""
    return BINARY.search(body, 0, SNIFFED_BYTES) is not None


def _dechunked(body: bytes) -> tuple[bytes, bool]:
    """Return a chunked body as one, and whether its chunks are broken; a body without chunks is returned as it is."""
    parts, position = list[bytes](), 0
    while line := CHUNK_SIZE.match(body, position):
        size, position = int(line[1], 16), line.end()
        if not size:
            return b"".join(parts), False
        parts.append(body[position : position + size])
        position += size
        position += 2 if body[position : position + 2] == b"\r\n" else 1
    return (b"".join(parts), True) if parts else (body, False)
