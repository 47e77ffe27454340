"""Fingerprints are SipHash-1-3: compared with a plain one, and that one with CPython's own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opic.replica import fingerprints
from opic.replica.fingerprints import FEW, KEY_BYTES, NO_PAGE, STRINGS_AT_ONCE, Fingerprints

MASK = (1 << 64) - 1
KEY = bytes(range(KEY_BYTES))


def siphash(key: bytes, data: bytes, rounds: int = 1, final_rounds: int = 3) -> int:
    """SipHash as its paper has it, a word at a time."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & MASK

    def mix(a: int, b: int, bits: int) -> None:
        v[a] = (v[a] + v[b]) & MASK
        v[b] = rotated(v[b], bits) ^ v[a]

    def sip_round() -> None:
        mix(0, 1, 13)
        v[0] = rotated(v[0], 32)
        mix(2, 3, 16)
        mix(0, 3, 21)
        mix(2, 1, 17)
        v[2] = rotated(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        for _ in range(rounds):
            sip_round()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(final_rounds):
        sip_round()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def expected(key: bytes, strings: list[str]) -> list[int]:
    return [siphash(key, string.encode("utf-8", "surrogatepass")) or 1 for string in strings]


def test_the_plain_twin_is_the_published_siphash_2_4() -> None:
    # The 15 bytes 0 to 14 under the key 0 to 15: appendix A of the paper.
    assert siphash(KEY, bytes(range(15)), rounds=2, final_rounds=4) == 0xA129CA6149BE45E5


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="this Python hashes strings by another algorithm")
def test_the_plain_twin_is_cpythons_own_siphash_1_3() -> None:
    words = ["", "a", "http://a.example/", "x" * 63, "x" * 64, "x" * 300]
    code = f"print([hash(word) & {MASK:#x} for word in {words[1:]!r}])"
    seeded = {**os.environ, "PYTHONHASHSEED": "0"}  # The key is then all zero.
    answer = subprocess.run([sys.executable, "-c", code], env=seeded, capture_output=True, text=True, check=True).stdout
    assert answer.strip() == str([siphash(bytes(16), word.encode()) for word in words[1:]])
    assert Fingerprints(bytes(16)).hash_strings(words[1:]).tolist() == [
        siphash(bytes(16), word.encode()) for word in words[1:]
    ]


TEXTS = st.text(st.characters(), max_size=40) | st.text("ab/\n\0", max_size=200) | st.text("aé€𝄞\ud800", max_size=30)


@given(key=st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), strings=st.lists(TEXTS, max_size=40))
@example(key=KEY, strings=[])
@example(key=KEY, strings=[""])
@example(key=KEY, strings=["", "", ""])
@example(key=KEY, strings=["a\nb", "c"])
@example(key=KEY, strings=["\ud800", "\udfff" * 9])
@example(key=KEY, strings=["x" * length for length in range(140)])
@example(key=KEY, strings=["short"] * 20 + ["y" * 2_048] * 3 + ["z" * 70_000])
@example(key=KEY, strings=["x" * 600_000])
def test_fingerprints_are_siphash_1_3(key: bytes, strings: list[str]) -> None:
    few, hashes = Fingerprints(key).hash_strings(strings), expected(key, strings)
    assert few.dtype == np.uint64
    assert few.tolist() == hashes
    if strings and sum(map(len, strings)) < 5_000_000 // FEW:
        times = FEW // len(strings) + 1
        assert Fingerprints(key).hash_strings(strings * times).tolist() == hashes * times
    if strings:  # Some among many.
        many = Fingerprints(key).hash_strings([*strings, *[""] * FEW])
        assert many.tolist() == hashes + expected(key, [""]) * FEW


def test_a_string_has_the_same_fingerprint_in_any_batch() -> None:
    strings = [f"http://{'h' * (i % 50)}.example/{i}" for i in range(STRINGS_AT_ONCE + 1_000)]
    known = Fingerprints(KEY)
    together = known.hash_strings(strings)
    assert together.tolist() == [int(known.hash_strings([string])[0]) for string in strings]
    assert together[::500].tolist() == expected(KEY, strings[::500])


def test_no_string_has_the_fingerprint_reserved_for_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero(Fingerprints):
        def _hash(self, strings: Sequence[object]) -> np.ndarray:
            return np.zeros(len(strings), np.uint64)

        _hash_few = _hash

    assert Zero(KEY).hash_strings(["a", "b"]).tolist() == [1, 1]
    assert set(Zero(KEY).hash_strings(["a"] * FEW).tolist()) == {1}
    assert NO_PAGE == 0


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_key_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"has 16 bytes, not {size}"):
        fingerprints.Fingerprints(bytes(size))


@pytest.mark.parametrize("count", [1, 40, STRINGS_AT_ONCE])
def test_threads_share_one_object(count: int) -> None:
    """Each query of an endpoint hashes in a thread of its own; a wrong hash would answer that a page was never seen."""
    hashing = Fingerprints(KEY)
    strings = [[f"http://{thread}.example/{number}" * 8 for number in range(count)] for thread in range(4)]
    wanted = [hashing.hash_strings(own).tolist() for own in strings]
    calls = max(2_000 // count, 20)

    def wrong(thread: int) -> int:
        return sum(hashing.hash_strings(strings[thread]).tolist() != wanted[thread] for _ in range(calls))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # Threads take turns between almost any two calls of numpy.
    try:
        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(wrong, range(4))) == 0
    finally:
        sys.setswitchinterval(switch)
