"""Lists of strings such as URLs, compressed in pieces of 64, so that reading one string unpacks its piece alone.

    up to 64 lines        a zstd frame of the lines, separated by line feeds
    more                  "P"; the number of pieces and where each ends, uint32, little-endian; their frames

Lists that are rarely read for one string are in one frame, which is smaller by a seventh: the URLs of a record.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import Final

from opic.errors import StoreDamaged
from opic.model.compression import compress, decompress

# In pieces of 255 a URL takes 9 to 16 bytes instead of 11 to 18 (real crawls), and three times as long to read.
LINES_A_PIECE: Final = 64
IN_PIECES: Final = b"P"
COUNT: Final = Struct("<I")
PIECE_BYTES_MAX: Final = 1 << 30  # Unpacked.


def pack_lines(lines: Sequence[str]) -> bytes:
    """Pack strings that contain no line feed."""
    if len(lines) <= LINES_A_PIECE:
        return pack_frame(lines)
    pieces = [pack_frame(lines[first : first + LINES_A_PIECE]) for first in range(0, len(lines), LINES_A_PIECE)]
    ends = accumulate(map(len, pieces))
    return b"".join([IN_PIECES, pack(f"<{1 + len(pieces)}I", len(pieces), *ends), *pieces])


def pack_frame(lines: Sequence[str]) -> bytes:
    """Pack strings that contain no line feed in a single frame, however many there are."""
    return compress("\n".join(lines).encode())


def in_pieces(packed: bytes) -> bool:
    """Return whether lines are packed in pieces, as `pack_lines` does with more than LINES_A_PIECE."""
    return packed.startswith(IN_PIECES)


def unpack_urls(packed: bytes) -> list[str]:
    """Return all lines packed by `pack_lines` or `pack_frame`.

    Raises:
        StoreDamaged: they can't be unpacked.
    """
    if not packed:
        return []
    if not in_pieces(packed):
        return text_of(_unpacked(packed)).split("\n")
    ends, start = _ends(packed)
    pieces = [_unpacked(packed[start + a : start + b]) for a, b in pairwise((0, *ends))]
    return text_of(b"\n".join(pieces)).split("\n")


def lines_around(packed: bytes, number: int) -> tuple[int, list[str]]:
    """Return the piece that a line is in: the number of its first line, and its lines.

    The line is missing if the piece ends before it.

    Raises:
        StoreDamaged: the piece can't be unpacked, or not decoded.
    """
    if not packed:
        return 0, []
    if not in_pieces(packed):
        return 0, text_of(_unpacked(packed)).split("\n")
    ends, start = _ends(packed)
    index = number // LINES_A_PIECE
    if index >= len(ends):
        return index * LINES_A_PIECE, []
    piece = packed[start + (ends[index - 1] if index else 0) : start + ends[index]]
    return index * LINES_A_PIECE, text_of(_unpacked(piece)).split("\n")


def text_of(lines: bytes) -> str:
    """Decode lines.

    Raises:
        StoreDamaged: they can't be decoded.
    """
    try:
        return lines.decode()
    except UnicodeDecodeError as error:
        raise _damaged(error) from error


def _ends(packed: bytes) -> tuple[tuple[int, ...], int]:
    """Return where the pieces end, counted from the start of the first one, and that start."""
    try:
        (count,) = COUNT.unpack_from(packed, len(IN_PIECES))
        return unpack_from(f"<{count}I", packed, start := len(IN_PIECES) + COUNT.size), start + COUNT.size * count
    except StructError as error:
        raise _damaged(error) from error


def _unpacked(piece: bytes) -> bytes:
    try:
        return decompress(piece, PIECE_BYTES_MAX)
    except ValueError as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> StoreDamaged:
    return StoreDamaged(f"a block of URLs is damaged ({error}): restore a backup")
