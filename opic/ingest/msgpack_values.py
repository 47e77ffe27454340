"""MessagePack framing: finds where each value of a body or a file ends, without decoding and without recursion.

An error inside a value then affects only that value, as long as its end can be found: a body or a file is first cut
into values, and each value is decoded separately.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgpack

from opic.errors import BadFraming

SLOW_TOKENS_MAX: Final = 2_000_000  # Values inside values; about half a second.
READ_BYTES: Final = 1 << 16
WRAPPING: Final = b"\xc9\xff\xff\xff\xff"  # msgpack adds 1 to this length of an extension in 32 bits, and gets 0.
NESTED_TOO_DEEPLY: Final = "nested too deeply to be cut into values"
# First bytes from 0xc4 on: size of the length field, additional bytes, nested values per unit of length.
_LONG: Final[dict[int, tuple[int, int, int]]] = {
    **{0xC4 + i: (1 << i, 0, 0) for i in range(3)},  # bin
    **{0xC7 + i: (1 << i, 1, 0) for i in range(3)},  # ext
    **{0xD9 + i: (1 << i, 0, 0) for i in range(3)},  # str
    **{0xDC + i: (2 << i, 0, 1) for i in range(2)},  # array
    **{0xDE + i: (2 << i, 0, 2) for i in range(2)},  # map
}
_FIXED: Final[dict[int, int]] = {
    **{0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8},  # nil, false, true, floats
    **{0xCC + i: 1 << i for i in range(4)},  # uint
    **{0xD0 + i: 1 << i for i in range(4)},  # int
    **{0xD4 + i: 1 + (1 << i) for i in range(5)},  # fixext
}


def is_array(body: bytes) -> bool:
    """Return whether a value starts like an array."""
    return body[0] & 0xF0 == 0x90 or body[0] in (0xDC, 0xDD)


def is_map(body: bytes) -> bool:
    """Return whether a value starts like a map."""
    return body[0] & 0xF0 == 0x80 or body[0] in (0xDE, 0xDF)


def cut_array(body: bytes) -> Iterator[bytes]:
    """Cut an array into its elements, one at a time.

    Raises:
        BadFraming: the array is truncated, something follows it, or a value starts with a byte that MessagePack does
            not define; or finding the ends of deeply nested values takes more than SLOW_TOKENS_MAX tokens.

    >>> list(cut_array(bytes([0x92, 0x01, 0xA1, 0x61])))
    [b'\\x01', b'\\xa1a']
    """
    unpacker: Any = msgpack.Unpacker(max_buffer_size=len(body))
    unpacker.feed(body)
    at, tokens_left = 0, SLOW_TOKENS_MAX if WRAPPING in body else 0
    try:
        count = unpacker.read_array_header()
        at = unpacker.tell()
        for _ in range(count):
            if not tokens_left:
                try:
                    unpacker.skip()
                    end = unpacker.tell()
                except msgpack.StackError:  # Its stack is limited; from here on, count the values instead.
                    tokens_left = SLOW_TOKENS_MAX
            if tokens_left:
                end, tokens_left = _end_slowly(body, at, tokens_left)
            yield body[at:end]
            at = end
    except msgpack.OutOfData:
        raise _truncated() from None
    except msgpack.FormatError:
        raise BadFraming(f"no MessagePack value starts like something behind byte {at}") from None
    if at != len(body):
        raise BadFraming(f"too much after the array, at byte {at}")


def end_of(body: bytes) -> int:
    """Return where the first value of a body ends.

    Raises:
        BadFraming: the value has no end in the body.
    """
    return _end_slowly(body, 0, SLOW_TOKENS_MAX)[0]


def _end_slowly(body: bytes | bytearray, at: int, tokens_left: int) -> tuple[int, int]:
    """Return where the value at `at` ends, and how many tokens are left. Each token costs 0.25 us."""
    values = 1
    while values:
        if at >= len(body):
            raise _truncated()
        if (tokens_left := tokens_left - 1) <= 0:
            raise BadFraming(NESTED_TOO_DEEPLY)
        first = body[at]
        at, values = at + 1, values - 1
        if first < 0x80 or first >= 0xE0:
            continue
        if first < 0xC0:
            count = first & (0x1F if first >= 0xA0 else 0x0F)
            if first >= 0xA0:
                at += count
            else:
                values += count if first >= 0x90 else 2 * count
        elif first in _LONG:
            width, more, inside = _LONG[first]
            length = int.from_bytes(body[at : at + width])
            at += width + (0 if inside else length + more)
            values += inside * length
        elif first in _FIXED:
            at += _FIXED[first]
        else:
            raise BadFraming(f"no MessagePack value starts with the byte 0x{first:02x}, at {at - 1}")
    if at > len(body):
        raise _truncated()
    return at, tokens_left


def cut_stream(file: BinaryIO, bytes_max: int) -> Iterator[bytes]:
    """Cut a stream of concatenated values, holding only one value and one read buffer in memory.

    Raises:
        BadFraming: as `cut_array`, or a value is longer than `bytes_max`.
    """
    unpacker: Any = msgpack.Unpacker(max_buffer_size=bytes_max + 2 * READ_BYTES)
    begun = 0  # Position in the stream where the unpacker started.
    held, start = bytearray(), 0  # The part of the stream from `start` on that is in memory.
    while chunk := file.read(READ_BYTES):
        held += chunk
        unpacker.feed(chunk)
        used = 0
        try:
            while True:
                try:
                    unpacker.skip()
                    end = begun + unpacker.tell() - start
                    surely = held.find(WRAPPING, used, end) < 0
                except msgpack.StackError:
                    surely = False
                if not surely:  # Count instead; a new unpacker continues after the value.
                    end = _end_in_stream(file, held, used, bytes_max)
                    begun, unpacker = start + end, msgpack.Unpacker(max_buffer_size=bytes_max + 2 * READ_BYTES)
                    unpacker.feed(held[end:])
                if end - used > bytes_max:
                    raise _too_long(start + used, bytes_max)
                yield bytes(held[used:end])
                used = end
        except msgpack.OutOfData:
            pass  # The value continues in the next chunk; the unpacker resumes there.
        except msgpack.FormatError:
            raise BadFraming(f"no MessagePack value starts like something behind byte {start + used:,}") from None
        except _Truncated:
            raise BadFraming(f"it ends in the middle of the value at byte {start + used:,}") from None
        del held[:used]
        start += used
        if len(held) > bytes_max:
            raise _too_long(start, bytes_max)
    if held:
        raise BadFraming(f"it ends in the middle of the value at byte {start:,}")


def _end_in_stream(file: BinaryIO, held: bytearray, at: int, bytes_max: int) -> int:
    """Return where the value at `at` ends, reading on until all of it is in memory or it exceeds `bytes_max`."""
    while True:
        try:
            return _end_slowly(held, at, SLOW_TOKENS_MAX)[0]
        except _Truncated:
            size = len(held) - at
            if size > bytes_max:
                return len(held)
            wanted = len(held) + max(READ_BYTES, size)  # Double the amount, because counting restarts.
            while len(held) < wanted and (chunk := file.read(READ_BYTES)):
                held += chunk
            if len(held) - at == size:
                raise


class _Truncated(BadFraming):
    """The value ends after the bytes that were read."""


def _truncated() -> BadFraming:
    return _Truncated("it ends in the middle of a value")


def _too_long(at: int, bytes_max: int) -> BadFraming:
    return BadFraming(f"the value at byte {at:,} is of over OPIC_MAX_BODY_BYTES {bytes_max:,} bytes")
