"""How much of a test of many cases is run: all by `make thorough`, a part by `make test`, less by `make check`."""

import os

from hypothesis import settings

THOROUGH = bool(os.environ.get("THOROUGH_TESTS"))
USUAL = 100  # What Hypothesis takes unless told; the profiles `opic` and `quick` take fewer (tests/conftest.py).
PART = 15  # Per cent of what a thorough run tries.


def examples(count: int, **others: int) -> settings:
    """Settings for so many examples, or for as much less as the profile's is less than usual."""
    return settings(max_examples=max(1, count * settings().max_examples // USUAL), **others)


def part_of(count: int) -> int:
    """How many of `count` cases a run tries."""
    return count if THOROUGH else max(1, count * PART // 100)
