"""Fingerprints of URLs: SipHash-1-3 under a secret key, by siphash24 for a few, in numpy for thousands at once.

A fingerprint stands for a URL in the store, so the key belongs to the store and never changes. The key is secret, so
that an attacker can't choose URLs that collide. With 10^7 pages, about one look-up in 10^12 of unknown strings is
expected to match by mistake.

The algorithm is Aumasson and Bernstein's SipHash (2012) with one round per word and three at the end, as in the hash
tables of CPython and Rust.
"""

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from siphash24 import siphash13

from opic.arrays import Int64s, Uint64s

KEY_BYTES: Final = 16
NO_PAGE: Final = 0  # No string has this fingerprint.
STRINGS_AT_ONCE: Final = 4_096  # The hash state of this many strings fits in the L2 cache.
FEW: Final = (
    320  # Fewer strings are faster by the library, at .75 us each; numpy needs .2 us each, and 240 us at least.
)
LEFT_MIN: Final = 6  # Where fewer strings are longer than all others, they are hashed by the library.

_WORD: Final = 8
_BLOCK_WORDS: Final = 8  # Words copied from each string at once.
_BLOCK: Final = _WORD * _BLOCK_WORDS
_PADDING: Final = "\0" * _BLOCK
_LINE_FEED: Final = np.uint8(ord("\n"))
_V0, _V1, _V2, _V3 = 0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573
_FINAL_XOR: Final = np.array(0xFF, np.uint64)
_FINAL_ROUNDS: Final = 3
_LENGTH_SHIFT: Final = np.uint64(56)
# By the number of bytes in a string's last word: a mask of the bits that belong to the string.
_TAIL_BITS: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD)], np.uint64)
# Bits of each rotation to the left, and 64 minus these to the right. Numpy handles arrays faster than scalars.
_L13, _L16, _L17, _L21, _L32 = (np.array(bits, np.uint64) for bits in (13, 16, 17, 21, 32))
_R13, _R16, _R17, _R21, _R32 = (np.array(64 - bits, np.uint64) for bits in (13, 16, 17, 21, 32))


class Fingerprints:
    """Computes fingerprints under one key. Thread-safe: concurrent queries share one object."""

    def __init__(self, key: bytes) -> None:
        """Use a secret key.

        Raises:
            ValueError: the key does not have KEY_BYTES bytes.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a fingerprint key has {KEY_BYTES} bytes, not {len(key)}")
        k0, k1 = (int.from_bytes(key[start : start + _WORD], "little") for start in (0, _WORD))
        self._key, self._kept = key, threading.local()
        self._start = np.array([[_V0 ^ k0], [_V1 ^ k1], [_V2 ^ k0], [_V3 ^ k1]], np.uint64)

    def hash_strings(self, strings: Sequence[str]) -> Uint64s:
        """Return the fingerprint of each string's UTF-8 bytes, never NO_PAGE; shape (n,).

        Lone surrogates, which UTF-8 can't encode, count as three bytes each, so that no string raises. A URL of 53
        bytes costs about 0.2 us when thousands are hashed at once.

        >>> Fingerprints(bytes(range(16))).hash_strings(["", "http://a.example/"]).tolist()
        [12370263754033579228, 17327320160347516722]
        """
        fingerprints = np.empty(len(strings), np.uint64)
        for first in range(0, len(strings), STRINGS_AT_ONCE):
            part = strings[first : first + STRINGS_AT_ONCE]
            few = len(part) < FEW
            hashes = (
                self._hash_few([string.encode("utf-8", "surrogatepass") for string in part])
                if few
                else self._hash(part)
            )
            fingerprints[first : first + len(part)] = hashes
        fingerprints[fingerprints == NO_PAGE] = 1
        return fingerprints

    def _rows(self, strings: int) -> Uint64s:
        """Return uninitialised rows for v0 to v3 of each string and scratch, shape (5, strings).

        The allocator takes large arrays from the system each time, which would double the time of a full batch: each
        thread keeps its own. Threads must not share one: that gave wrong fingerprints, and known pages were not found.
        """
        kept: Uint64s | None = getattr(self._kept, "rows", None)
        if kept is None:
            kept = self._kept.rows = np.empty((5, STRINGS_AT_ONCE), np.uint64)
        return kept[:, :strings]

    def _hash_few(self, texts: Sequence[bytes]) -> Uint64s:
        """Return the hashes of texts, one at a time."""
        digests = [siphash13(text, key=self._key).digest() for text in texts]
        return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False)

    def _hash(self, strings: Sequence[str]) -> Uint64s:
        """Return the hashes of 1 to STRINGS_AT_ONCE strings."""
        text, starts, lengths = _joined(strings)
        words = lengths >> 3
        longest = int(words.max())
        # Sort the longest first, so that the strings with a word w come first. numpy uses radix sort for uint16.
        rank = longest - words
        order = (rank.astype(np.uint16) if longest < 1 << 16 else rank).argsort(kind="stable")
        starts, lengths = starts[order], lengths[order]
        # By w: how many strings have at least w words.
        counts = np.bincount(words, minlength=longest + 1)[::-1].cumsum()[::-1].tolist()
        rows = self._rows(len(strings))
        rows[:4] = self._start
        w = 0
        while w < longest and counts[w + 1] >= LEFT_MIN:
            if w % _BLOCK_WORDS == 0:
                block = _loaded(text, starts[: counts[w + 1]] + w * _WORD, _BLOCK_WORDS)
            _compress(rows[:, : counts[w + 1]], block[: counts[w + 1], w % _BLOCK_WORDS])
            w += 1
        left = counts[w + 1] if w < longest else 0
        last = _loaded(text, starts + (lengths & -_WORD), 1)[:, 0]
        last &= _TAIL_BITS[lengths & (_WORD - 1)]
        last |= lengths.astype(np.uint64) << _LENGTH_SHIFT
        _compress(rows, last)
        rows[2] ^= _FINAL_XOR
        for _ in range(_FINAL_ROUNDS):
            _round(*rows)
        hashes = rows[0] ^ rows[1] ^ rows[2] ^ rows[3]
        spans = zip(starts[:left].tolist(), lengths[:left].tolist(), strict=True)
        hashes[:left] = self._hash_few([text[start : start + length] for start, length in spans])
        back: Uint64s = np.empty_like(hashes)
        back[order] = hashes
        return back


def _compress(rows: Uint64s, words: Uint64s) -> None:
    """Mix the next word of each string into its state; `rows`, shape (5, n), are v0 to v3 and scratch space."""
    rows[3] ^= words
    _round(*rows)
    rows[0] ^= words


def _round(v0: Uint64s, v1: Uint64s, v2: Uint64s, v3: Uint64s, scratch: Uint64s) -> None:
    """Compute one SipRound in place."""
    v0 += v1
    _rotate(v1, _L13, _R13, scratch)
    v1 ^= v0
    _rotate(v0, _L32, _R32, scratch)
    v2 += v3
    _rotate(v3, _L16, _R16, scratch)
    v3 ^= v2
    v0 += v3
    _rotate(v3, _L21, _R21, scratch)
    v3 ^= v0
    v2 += v1
    _rotate(v1, _L17, _R17, scratch)
    v1 ^= v2
    _rotate(v2, _L32, _R32, scratch)


def _rotate(words: Uint64s, left: Uint64s, right: Uint64s, scratch: Uint64s) -> None:
    np.left_shift(words, left, out=scratch)
    np.right_shift(words, right, out=words)
    np.bitwise_or(words, scratch, out=words)


def _joined(strings: Sequence[str]) -> tuple[bytes, Int64s, Int64s]:
    """Return the bytes of all strings, padded so that a block can be read anywhere; each start; each length."""
    text = "\n".join([*strings, _PADDING])
    if text.isascii():
        encoded = text.encode("ascii")
        ends = (np.frombuffer(encoded, np.uint8) == _LINE_FEED).nonzero()[0]
        if len(ends) == len(strings):  # No string has a line feed itself.
            starts = np.empty_like(ends)
            starts[0] = 0
            np.add(ends[:-1], 1, out=starts[1:])
            return encoded, starts, ends - starts
    parts = [string.encode("utf-8", "surrogatepass") for string in strings]
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join([*parts, _PADDING.encode()]), lengths.cumsum() - lengths, lengths


def _loaded(text: bytes, starts: Int64s, words: int) -> Uint64s:
    """Return `words` little-endian words from each start on, which need not be aligned; shape (n, words)."""
    size = words * _WORD
    windows: np.ndarray = np.ndarray((len(text) - size + 1,), np.dtype((np.void, size)), text, strides=(1,))
    return windows[starts].view("<u8").reshape(-1, words).astype(np.uint64, copy=False)
