"""Columns by page id of which most pages have nothing, and how they are packed for the checkpoint."""

from typing import Any, ClassVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from opic.replica.columns import Growing
from opic.replica.effect import ZSTD_LEVEL


class PageTable(Growing):
    """Columns by page id that are a part of a block of the checkpoint. Where they are all 0 there need be no rows."""

    NAME: ClassVar[str]  # In errors.

    @property
    def used(self) -> bool:
        """Whether any page has a row."""
        return len(getattr(self, self.COLUMNS[0][0])) > 0

    def rows(self, ids: NDArray[np.integer]) -> tuple[NDArray[Any], ...]:
        """Return the columns of pages, (n,) each; 0 where a page has no row."""
        return tuple(self.column(name, ids) for name, _ in self.COLUMNS)

    def column(self, name: str, ids: NDArray[np.integer]) -> NDArray[Any]:
        """Return one column of pages, (n,); 0 where a page has no row."""
        column = getattr(self, name)
        found, inside = np.zeros(len(ids), column.dtype), ids < len(column)
        found[inside] = column[ids[inside]]
        return found

    def pack(self, first: int, end: int) -> bytes:
        """Pack the columns of pages `first` to `end` for the checkpoint; b"" where all is 0."""
        parts = self.rows(np.arange(first, end))
        if not any(part.any() for part in parts):
            return b""
        packed = b"".join(part.astype(part.dtype.newbyteorder("<")).tobytes() for part in parts)
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(packed)

    def unpack(self, first: int, pages: int, packed: bytes) -> None:
        """Take in what `pack` packed of at most `pages` pages; a block may have grown since.

        Raises:
            ValueError: the length is wrong.
            zstandard.ZstdError: it can't be unpacked.
        """
        dtypes = {name: np.dtype(dtype).newbyteorder("<") for name, dtype in self.COLUMNS}
        page_bytes = sum(dtype.itemsize for dtype in dtypes.values())
        columns = zstandard.ZstdDecompressor().decompress(packed, max_output_size=page_bytes * pages)
        count, rest = divmod(len(columns), page_bytes)
        if rest:
            raise ValueError(f"{self.NAME} have a wrong length")
        self.reserve(first + count)
        at = 0
        for name, dtype in dtypes.items():
            getattr(self, name)[first : first + count] = np.frombuffer(columns, dtype, count, at)
            at += dtype.itemsize * count
