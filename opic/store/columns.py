"""Rows of columns as numpy arrays, and the packed record of a page that was read or went away."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from opic.cash import Anchor
from opic.ledger import Measure

I64 = ">i8"  # BITFIELD is big-endian.
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
DIGEST_BYTES = 6
INCREMENT_MAX = 1 << 52  # Of a cell at once, since Lua numbers are doubles. A credit may be larger, if paid at once.
ANCHOR_BITS = 2  # There are up to two anchors; their number goes with that of the departures.


def by_block(ids: Int64s, rows: int) -> tuple[list[int], list[int], Int64s]:
    """Say in which blocks increasing ids lie.

    Returns:
        The blocks; where each begins in `ids`, and the end; and the offset of each id in its block.

    >>> by_block(np.array([1, 3, 10, 25]), rows=10)
    ([0, 1, 2], [0, 2, 3, 4], array([1, 3, 0, 5]))
    """
    blocks = ids // rows
    starts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist()] if len(ids) else []
    return blocks[starts].tolist(), [*starts, len(ids)], ids - blocks * rows


def increments(offsets: Int64s, sums: Int64s, edges: Sequence[int]) -> list[list[int]]:
    """Return offset, amount, offset, amount, .. for each block; `edges` say where one begins."""
    pairs: list[int] = np.column_stack((offsets, sums)).ravel().tolist()
    blocks = [pairs[2 * a : 2 * b] for a, b in pairwise(edges)]
    if len(sums) and int(np.abs(sums).max()) > INCREMENT_MAX:
        for block in blocks:
            _cut_large(block)
    return blocks


def _cut_large(pairs: list[int]) -> None:
    """Put several increments in the place of one whose amount a double might not hold."""
    for at in range(0, len(pairs), 2):
        left = pairs[at + 1]
        while abs(left) > INCREMENT_MAX:
            part = INCREMENT_MAX if left > 0 else -INCREMENT_MAX
            pairs += (pairs[at], part)
            left -= part
        pairs[at + 1] = left


@dataclass(slots=True)
class Record:
    """What the store keeps of a page besides its int64 columns: only pages that were read or went away have one."""

    reads: int = 0
    digest: int = 0
    times_gone: int = 0
    gone_until_us: int = 0
    measures: tuple[Measure, ...] = ()
    anchors: tuple[Anchor, ...] = ()

    def pack(self) -> bytes:
        """Pack as varints: about 11 bytes a measure, since clocks and times are differences from the one before."""
        out = bytearray()
        _put(out, (self.reads, self.times_gone << ANCHOR_BITS | len(self.anchors)))
        if self.times_gone:
            _put(out, (self.gone_until_us,))
        clock = spent = 0
        for anchor in self.anchors:
            _put(out, (anchor[0] - clock, anchor[1] - spent))
            clock, spent = anchor
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
        record, went = cls(reads=numbers.take()), numbers.take()
        record.times_gone = went >> ANCHOR_BITS
        if record.times_gone:
            record.gone_until_us = numbers.take()
        spent = clock = 0
        for _ in range(went & (1 << ANCHOR_BITS) - 1):
            clock, spent = clock + numbers.take(), spent + numbers.take()
            record.anchors += ((clock, spent),)
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


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of n pages, oldest first: those of page i are starts[i] to starts[i + 1]. And its older anchor."""

    reads: Int64s  # (n,), how often each page was ever read.
    starts: Int64s  # (n + 1,)
    clock: Int64s  # (m,), as are the others.
    cash: Int64s
    fetched_at_us: Int64s
    anchor_clock: Int64s  # (n,), 0 where there is none; as below.
    anchor_spent: Int64s
    dangling: NDArray[np.bool_]  # (n,), read, and without links when it was last.


def unpack_measures(records: Sequence[bytes]) -> Measures:
    """Unpack the measures and the older anchor of many records at once; `Record.unpack` is its plain twin.

    Costs about 1 us a record of a few measures, and for the moment some ten times the bytes of all records.
    """
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    packed = np.frombuffer(b"".join(records), np.uint8)
    ends = np.cumsum(lengths)
    at = ends - lengths
    some = np.flatnonzero(lengths)
    # The heads, a number of all records at a time: reads, departures, the end of the last one, the digest.
    numbers, where = _take(packed, at[some])
    reads = np.zeros(len(records), np.int64)
    reads[some] = numbers
    went, where = _take(packed, where)
    gone = np.flatnonzero(went >> ANCHOR_BITS)
    _, where[gone] = _take(packed, where[gone])
    anchor = np.zeros((2, len(records)), np.int64)
    for nth in range(1, 3):
        has = np.flatnonzero((went & (1 << ANCHOR_BITS) - 1) >= nth)
        for part in range(2):
            part_of, where[has] = _take(packed, where[has])
            if nth == 1:
                anchor[part, some[has]] = part_of
    dangling, read = np.zeros(len(records), np.bool_), numbers > 0
    dangling[some[read]] = ~packed[where[read, np.newaxis] + np.arange(DIGEST_BYTES)].any(axis=1)
    at[some] = where + np.where(read, DIGEST_BYTES, 0)
    # What is left of each is numbers only, so that one pass over the bytes finds them all.
    edges = np.zeros(len(packed) + 1, np.int64)
    np.add.at(edges, at, 1)
    np.add.at(edges, ends, -1)
    tails = np.cumsum(edges[:-1]) > 0
    inside = packed[tails]
    last = inside < 0x80
    stops = np.flatnonzero(last)
    if not len(stops):
        nothing = np.empty(0, np.int64)
        starts = np.zeros(len(records) + 1, np.int64)
        return Measures(reads, starts, nothing, nothing, nothing, anchor[0], anchor[1], dangling)
    firsts = np.concatenate(([0], stops[:-1] + 1))
    shifts = 7 * (np.arange(len(inside)) - np.repeat(firsts, stops - firsts + 1))
    numbers = np.add.reduceat((inside & 0x7F).astype(np.int64) << shifts, firsts).reshape(-1, 3)
    starts = np.zeros(len(records) + 1, np.int64)
    starts[1:] = np.searchsorted(stops, np.cumsum(ends - at)) // 3
    steps = numbers[:, 2]
    times = (steps >> 1) ^ -(steps & 1)  # Zigzag.
    clock, cash, times = _summed(numbers[:, 0], starts), numbers[:, 1].copy(), _summed(times, starts)
    return Measures(reads, starts, clock, cash, times, anchor[0], anchor[1], dangling)


def join_measures(parts: Sequence[Measures]) -> Measures:
    """Put the measures of pages after those of the pages before them."""
    starts, so_far = [np.zeros(1, np.int64)], 0
    for part in parts:
        starts.append(part.starts[1:] + so_far)
        so_far += len(part.clock)
    nothing = np.empty(0, np.int64)
    names = ("reads", "clock", "cash", "fetched_at_us", "anchor_clock", "anchor_spent")
    reads, clock, cash, fetched, anchor_clock, anchor_spent = (
        np.concatenate([nothing, *(getattr(p, name) for p in parts)]) for name in names
    )
    dangling = np.concatenate([np.empty(0, np.bool_), *(part.dangling for part in parts)])
    return Measures(reads, np.concatenate(starts), clock, cash, fetched, anchor_clock, anchor_spent, dangling)


def _take(packed: Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """Read one varint at each place; return the numbers, and the places after them."""
    numbers, at, shift = np.zeros(len(at), np.int64), at.copy(), 0
    open_ = np.arange(len(at))
    while len(open_):
        byte = packed[at[open_]].astype(np.int64)
        numbers[open_] |= (byte & 0x7F) << shift
        at[open_] += 1
        open_, shift = open_[byte >= 0x80], shift + 7
    return numbers, at


def _summed(steps: Int64s, starts: Int64s) -> Int64s:
    """Sum up differences within each page. Running sums may wrap around 2^64; their differences come out right."""
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(steps)))
    found: Int64s = sums[1:] - np.repeat(sums[starts[:-1]], np.diff(starts))
    return found


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
