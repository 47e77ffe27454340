"""How many examples a property is tried with: all in `make test`, a share of them in the quick `make check`."""

from hypothesis import settings

USUAL = 100  # What Hypothesis takes unless told; the profile `quick` takes fewer (tests/conftest.py).


def examples(count: int, **others: int) -> settings:
    """Settings for so many examples, or for as much less as the profile's is less than usual."""
    return settings(max_examples=max(1, count * settings().max_examples // USUAL), **others)
