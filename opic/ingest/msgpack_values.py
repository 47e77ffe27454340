"""MessagePack framing: finds where each value of a file ends, without decoding it.

An error inside a value then affects only that value.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgpack
import msgspec

from opic.errors import BadFraming

READ_BYTES: Final = 1 << 16
WRAPPING: Final = b"\xc9\xff\xff\xff\xff"  # msgpack adds 1 to this length of an extension in 32 bits, and gets 0.

_whole = msgspec.msgpack.Decoder(msgspec.Raw).decode


def cut_stream(file: BinaryIO, bytes_max: int) -> Iterator[bytes]:
    """Cut a stream of concatenated values, holding only one value and one read buffer in memory.

    Raises:
        BadFraming: the stream ends within a value, or a value starts with a byte that MessagePack does not define, is
            nested too deeply, or is longer than `bytes_max`.
    """
    unpacker: Any = msgpack.Unpacker(max_buffer_size=bytes_max + 2 * READ_BYTES)
    buffer, start = bytearray(), 0  # The part of the stream from `start` on that is in memory.
    while chunk := file.read(READ_BYTES):
        buffer += chunk
        unpacker.feed(chunk)
        used = 0
        try:
            while True:
                unpacker.skip()
                end = unpacker.tell() - start
                if end - used > bytes_max:
                    raise _too_long(start + used, bytes_max)
                value = bytes(buffer[used:end])
                if WRAPPING in value:
                    _whole(value)
                yield value
                used = end
        except msgpack.OutOfData:
            pass  # The value continues in the next chunk; the unpacker resumes there.
        except msgspec.DecodeError:
            raise _too_long(start + used, bytes_max) from None
        except msgpack.FormatError:
            raise BadFraming(f"no MessagePack value starts like something behind byte {start + used:,}") from None
        except msgpack.StackError:
            raise BadFraming(f"the value at byte {start + used:,} is nested too deeply") from None
        del buffer[:used]
        start += used
        if len(buffer) > bytes_max:
            raise _too_long(start, bytes_max)
    if buffer:
        raise BadFraming(f"it ends in the middle of the value at byte {start:,}")


def _too_long(offset: int, bytes_max: int) -> BadFraming:
    return BadFraming(f"the value at byte {offset:,} is of over OPIC_MAX_BODY_BYTES {bytes_max:,} bytes")
