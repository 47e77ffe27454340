"""Rows of columns as numpy arrays, and the packed record of a page that was read or went away."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from opic.ledger import Measure

I64 = ">i8"  # BITFIELD is big-endian.
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
DIGEST_BYTES = 6


def by_block(ids: Int64s, rows: int) -> Iterator[tuple[int, Int64s, slice]]:
    """Yield (block, offsets in it, where they are in `ids`) for increasing ids."""
    blocks = ids // rows
    edges = np.flatnonzero(np.diff(blocks)) + 1
    starts = [0, *edges.tolist(), len(ids)] if len(ids) else [0]
    for start, end in pairwise(starts):
        block = int(blocks[start])
        yield block, ids[start:end] - block * rows, slice(start, end)


@dataclass(slots=True)
class Record:
    """What the store keeps of a page besides its int64 columns: only pages that were read or went away have one."""

    reads: int = 0
    digest: int = 0
    times_gone: int = 0
    gone_until_us: int = 0
    measures: tuple[Measure, ...] = ()

    def pack(self) -> bytes:
        """Pack as varints: about 11 bytes a measure, since clocks and times are differences from the one before."""
        out = bytearray()
        _put(out, (self.reads, self.times_gone))
        if self.times_gone:
            _put(out, (self.gone_until_us,))
        if self.reads:
            out += self.digest.to_bytes(DIGEST_BYTES, "little")
        clock = fetched = 0
        for m in self.measures:
            step = m.fetched_at_us - fetched
            # Fetch times may run backwards: zigzag keeps small differences of either sign short.
            _put(out, (m.clock - clock, m.cash, step << 1 if step >= 0 else (-step << 1) - 1))
            clock, fetched = m.clock, m.fetched_at_us
        return bytes(out)

    @classmethod
    def unpack(cls, packed: bytes) -> "Record":
        """Unpack; empty bytes are a page without a record."""
        if not packed:
            return cls()
        numbers = _Varints(packed)
        record = cls(reads=numbers.take(), times_gone=numbers.take())
        if record.times_gone:
            record.gone_until_us = numbers.take()
        if record.reads:
            record.digest = int.from_bytes(packed[numbers.at : numbers.at + DIGEST_BYTES], "little")
            numbers.at += DIGEST_BYTES
        measures = []
        clock = fetched = 0
        while numbers.at < len(packed):
            clock += numbers.take()
            cash, zigzag = numbers.take(), numbers.take()
            fetched += zigzag >> 1 if zigzag & 1 == 0 else -((zigzag + 1) >> 1)
            measures.append(Measure(clock, cash, fetched))
        record.measures = tuple(measures)
        return record


def _put(out: bytearray, numbers: Iterable[int]) -> None:
    for number in numbers:
        left = number
        while left > 0x7F:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)


class _Varints:
    def __init__(self, packed: bytes) -> None:
        self.packed, self.at = packed, 0

    def take(self) -> int:
        n = shift = 0
        while True:
            byte = self.packed[self.at]
            self.at += 1
            n |= (byte & 0x7F) << shift
            if byte < 0x80:
                return n
            shift += 7
