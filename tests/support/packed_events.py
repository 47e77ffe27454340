"""What may come in place of a crawl event in MessagePack, one sample a kind; shared by all who must stand it."""

PACKED = b"\x81\xa3url\xb1http://a.example/"
DEEP_PACKED = b"\x82" + PACKED[1:] + b"\xa1x" + b"\x91" * 100_000 + b"\xc0"


def having(name: bytes, value: bytes) -> bytes:
    """The event with a field more; both are packed already, the name without its length."""
    return b"\x82" + PACKED[1:] + bytes([0xA0 + len(name)]) + name + value


# Each can be cut out from among others, so these are taken and it is refused alone.
BAD_PACKED = {
    "a number": b"\x07",
    "nil": b"\xc0",
    "an array": b"\x91" + PACKED,
    "a text": b"\xa1a",
    "an event in JSON": b'\xbb{"url":"http://a.example/"}',
    "an event in JSON as bytes": b'\xc4\x1b{"url":"http://a.example/"}',
    "no url": b"\x80",
    "a relative URL": b"\x81\xa3url\xa6/about",
    "bytes for a text": b"\x81\xa3url\xc4\x11http://a.example/",
    "bytes for a key": b"\x81\xc4\x03url\xb1http://a.example/",
    "a number for a key": b"\x82\x01\x02" + PACKED[1:],
    "a negative number for a key": b"\x82\xff\x02" + PACKED[1:],
    "a number of 64 bits for a key": b"\x82\xcf" + b"\xff" * 8 + b"\x02" + PACKED[1:],
    "nil for a key": b"\x82\xc0\x02" + PACKED[1:],
    "an array for a key": b"\x82\x90\x02" + PACKED[1:],
    "an extension for a key": b"\x82\xd4\x05x\x02" + PACKED[1:],
    "an extension": b"\xd4\x05x",
    "an extension for a text": b"\x81\xa3url\xc7\x01\x05a",
    "a timestamp": having(b"fetched_at", b"\xd6\xff\x5f\x00\x00\x00"),
    "a NaN": having(b"fetched_at", b"\xcb\x7f\xf8" + bytes(6)),
    "a NaN of 32 bits": having(b"fetched_at", b"\xca\x7f\xc0\x00\x00"),
    "a time without end": having(b"fetched_at", b"\xcb\x7f\xf0" + bytes(6)),
    "a time without beginning": having(b"fetched_at", b"\xcb\xff\xf0" + bytes(6)),
    "a negative time": having(b"fetched_at", b"\xff"),
    "a time of 64 bits": having(b"fetched_at", b"\xcf" + b"\xff" * 8),
    "a negative time of 64 bits": having(b"fetched_at", b"\xd3\x80" + bytes(7)),
    "a status that is true": having(b"status", b"\xc3"),
    "a status of 64 bits": having(b"status", b"\xcf" + b"\xff" * 8),
    "a negative status": having(b"status", b"\xd3\x80" + bytes(7)),
    "a status with a fraction": having(b"status", b"\xcb\x40\x69\x08\x00\x00\x00\x00\x00"),
    "bytes that are no UTF-8": b"\x81\xa3url\xa3\xff\xfe\xfd",
    "a lone surrogate": b"\x81\xa3url\xb3http://a.ex/\xed\xa0\x80abcd",
    "links of bytes": having(b"links", b"\x91\xc4\x01a"),
    "links of nil": having(b"links", b"\x91\xc0"),
    "links that are a map": having(b"links", b"\x81\xa1a\xa1b"),
    "links that are a text": having(b"links", b"\xb1http://a.example/"),
    "nesting without end": DEEP_PACKED,
    "an unknown version": having(b"v", b"\x02"),
    "a version of 64 bits": having(b"v", b"\xcf" + b"\xff" * 8),
    "the last of two urls, no text": b"\x82" + PACKED[1:] + b"\xa3url\x07",
}
# Nobody knows where these end, so nothing behind them is safe.
UNENDING_PACKED = {
    "a truncated event": PACKED[:-1],
    "a truncated head": b"\xdd\x00\x00",
    "half a head": b"\xde\x00",
    "an array of four thousand million": b"\xdd" + b"\xff" * 4 + PACKED,
    "a map of four thousand million": b"\xdf" + b"\xff" * 4 + PACKED,
    "a text of four thousand million": b"\x81\xa3url\xdb" + b"\xff" * 4 + b"a",
    "bytes of four thousand million": b"\x81\xa3url\xc6" + b"\xff" * 4 + b"a",
    "an extension of four thousand million": b"\x81\xa3url\xc9" + b"\xff" * 4 + b"\x05a",
    "links of four thousand million": having(b"links", b"\xdd" + b"\xff" * 4 + b"\xa1a"),
    "a byte that begins nothing": b"\xc1",
    "such a byte in an event": having(b"x", b"\xc1"),
}
