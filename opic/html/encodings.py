"""The encodings of pages, as the Encoding standard has them.

Labels are those of webencodings. Characters are those of Python's codecs, with what these lack: browsers read some
bytes that Python refuses, and some that Python reads otherwise. A test compares all of them with Chromium.
Source: https://encoding.spec.whatwg.org.
"""

import codecs
from functools import lru_cache, partial
from typing import Final
from urllib.parse import quote_from_bytes

import webencodings
from webencodings.labels import LABELS

UTF_8: Final = "utf-8"
FALLBACK: Final = "windows-1252"  # Of pages that name none.
REPLACEMENT: Final = "replacement"
WITHOUT_ENCODER: Final = (UTF_8, "utf-16le", "utf-16be", REPLACEMENT)  # Queries of their pages are in UTF-8.
# Characters that Python's codecs read otherwise.
READ_OTHERWISE: Final = {
    "koi8-u": str.maketrans("╝╬", "ўЎ"),
    "shift_jis": str.maketrans("\uf8f0\uf8f1\uf8f2\uf8f3", "\ufffd\ufffd\ufffd\ufffd"),
    "euc-jp": str.maketrans("〜‖−¢£¬", "～∥－￠￡￢"),
    "big5": str.maketrans("•､‾∼♂☉¥¢£", "‧﹑¯～⊕⊙￥￠￡"),
}
# The first bytes of pairs of bytes, and those of them that are only read.
LEADS: Final = {
    "big5": range(0x81, 0xFF), "euc-jp": range(0xA1, 0xFF), "euc-kr": range(0x81, 0xFF), "gbk": range(0x81, 0xFF),
    "gb18030": range(0x81, 0xFF), "shift_jis": (*range(0x81, 0xA0), *range(0xE0, 0xFD)),
    "iso-2022-jp": (),
}  # fmt: skip
ONLY_READ: Final = {"big5": range(0x81, 0xA1), "shift_jis": (0xED, 0xEE, *range(0xF0, 0xFA))}
BY_PYTHON: Final = ("gb18030", "iso-2022-jp")  # What their pages have in queries is encoded by Python's codec.
SAFE_IN_QUERY: Final = "!$%&()*+,-./:;=?@[\\]^_`{|}~"  # The other bytes of ASCII are escaped, as in the URL standard.


def encoding_of(label: str) -> str | None:
    """Return the name of the encoding that a label stands for, None if there is no such label.

    >>> encoding_of(" Latin1 "), encoding_of("x-sjis"), encoding_of("punycode")
    ('windows-1252', 'shift_jis', None)
    """
    encoding = webencodings.lookup(label) if label.isascii() else None
    return None if encoding is None else str(encoding.name)


def is_utf_8(data: bytes) -> bool:
    """Return whether this is UTF-8 that is no ASCII; the last character may be cut off."""
    try:
        return not codecs.getincrementaldecoder(UTF_8)().decode(data).isascii()
    except UnicodeDecodeError:
        return False


def decode(data: bytes, encoding: str) -> str:
    """Return the text of bytes; what can't be decoded becomes U+FFFD.

    >>> decode(b"\\x80\\x81", "windows-1252"), decode(b"\\x80\\xa1\\xa1", "gbk"), decode(b"\\xff\\xff", "utf-8")
    ('€\\x81', '€\\u3000', '\\ufffd\\ufffd')
    """
    if encoding == REPLACEMENT:
        return "\ufffd" if data else ""
    if encoding in WITHOUT_ENCODER:
        return data.decode(encoding, "replace")
    codec = webencodings.lookup("gb18030" if encoding == "gbk" else encoding).codec_info
    text: str = codec.decode(data, _handler(encoding))[0]
    return text.translate(READ_OTHERWISE[encoding]) if encoding in READ_OTHERWISE else text


def encode_query(query: str, encoding: str) -> str:
    """Percent-encode what is not ASCII in a query, in the encoding of its page.

    Characters that the encoding lacks become numeric character references. Source: https://url.spec.whatwg.org,
    percent-encode after encoding.

    >>> encode_query("q=é", "windows-1252"), encode_query("q=日", "windows-1252"), encode_query("q=é", "utf-16le")
    ('q=%E9', 'q=%26%2326085%3B', 'q=é')
    """
    if query.isascii() or encoding in WITHOUT_ENCODER:
        return query  # The URL parser escapes UTF-8 by itself.
    if encoding in BY_PYTHON:
        return _quoted(query.encode(encoding, _handler(encoding)))
    return query.translate(_escapes(encoding))


def _quoted(encoded: bytes) -> str:
    return quote_from_bytes(encoded, SAFE_IN_QUERY)


class _Escapes(dict[int, str]):
    """What stands for a character in a query, by code point."""

    def __missing__(self, code: int) -> str:
        return chr(code) if code < 0x80 else f"%26%23{code}%3B"


@lru_cache(maxsize=8)
def _escapes(encoding: str) -> _Escapes:
    """Return the inverse of `decode`, for characters of one byte or two; the first of several pairs counts."""
    escapes = _Escapes()
    leads = [lead for lead in LEADS.get(encoding, ()) if lead not in ONLY_READ.get(encoding, ())]
    pairs = (bytes([lead, trail]) for lead in leads for trail in range(0x40, 0xFF))
    katakana = (bytes([0x8E, trail]) for trail in range(0xA1, 0xE0)) if encoding == "euc-jp" else ()
    for encoded in (*(bytes([byte]) for byte in range(0x80, 0x100)), *pairs, *katakana):
        text = decode(encoded, encoding)
        if len(text) == 1 and text > "\x7f" and text != "\ufffd":
            escapes.setdefault(ord(text), _quoted(encoded))
    return escapes


def _read(encoding: str, error: UnicodeError) -> tuple[str, int]:
    """Handle what a codec of Python can't convert."""
    if isinstance(error, UnicodeEncodeError):
        return f"%26%23{ord(error.object[error.start])}%3B", error.start + 1
    assert isinstance(error, UnicodeDecodeError)
    start = error.start
    pair = error.object[start : start + 2]
    leads = LEADS.get(encoding)
    if leads is None:
        special = "\u05ba" if pair[0] == 0xCA and encoding == "windows-1255" else "\ufffd"
        return chr(pair[0]) if pair[0] < 0xA0 else special, start + 1
    if encoding in ("gbk", "gb18030") and pair[0] == 0x80:
        return "€", start + 1
    if len(pair) == 1 or pair[0] not in leads or pair[1] < 0x80:
        return "\ufffd", start + 1
    # Rows of JIS X 0208 that Python knows in Shift_JIS alone.
    return _of_shift_jis(*pair) if encoding == "euc-jp" and pair[1] in leads else "\ufffd", start + 2


def _of_shift_jis(row: int, cell: int) -> str:
    """Return the character of JIS X 0208 whose bytes in EUC-JP are given."""
    row, odd = divmod(row - 0xA1, 2)
    cell += odd * 94 - 0xA1
    pair = bytes([row + (0x81 if row < 0x1F else 0xC1), cell + (0x40 if cell < 0x3F else 0x41)])
    return decode(pair, "shift_jis")[0]


def _handler(encoding: str) -> str:
    return f"opic.html.{encoding}"


for _encoding in set(LABELS.values()):
    codecs.register_error(_handler(_encoding), partial(_read, _encoding))
