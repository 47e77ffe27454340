"""Header fields, as WARC records and HTTP messages have them."""

import re
from collections.abc import Iterable
from typing import Final, Self

FOLD: Final = re.compile(rb"\r?\n[ \t]+")  # A line that begins with white space belongs to the one before it.


class Fields(dict[str, list[str]]):
    """Values of header fields, by name in lower case: several where a field is repeated."""

    @classmethod
    def parse(cls, head: bytes, encoding: str = "latin-1") -> Self:
        """Parse lines that end in LF or CRLF; a line that is no field is passed over.

        What the encoding does not have is read as Latin-1, which has all bytes.

        >>> Fields.parse(b"Vary: a\\r\\nLocation:\\r\\n /there\\r\\nVARY: b")
        {'vary': ['a', 'b'], 'location': ['/there']}
        """
        fields = cls()
        for line in FOLD.sub(b" ", head).split(b"\n"):
            name, colon, value = line.partition(b":")
            if colon:
                fields.add(name.strip().decode("latin-1"), _text(value.strip(), encoding))
        return fields

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, object]]) -> Self:
        """Return fields whose values may be lists."""
        fields = cls()
        for name, value in pairs:
            for item in value if isinstance(value, list) else [value]:
                fields.add(name, str(item))
        return fields

    def add(self, name: str, value: str) -> None:
        self.setdefault(name.lower(), []).append(value)

    def first(self, name: str) -> str:
        """Return the first value of a field; empty if there is none."""
        return next(iter(self.get(name, ())), "")

    def tokens(self, name: str) -> list[str]:
        """Return the elements of a list in one field or several, in lower case.

        >>> Fields.parse(b"Content-Encoding: gzip, BR\\nContent-Encoding: zstd").tokens("content-encoding")
        ['gzip', 'br', 'zstd']
        """
        elements = ",".join(self.get(name, ())).lower().split(",")
        return [token for element in elements if (token := element.strip())]


def _text(value: bytes, encoding: str) -> str:
    try:
        return value.decode(encoding)
    except UnicodeDecodeError:
        return value.decode("latin-1")
