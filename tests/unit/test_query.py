"""The parts of the answers that need no store."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import BadInput
from opic.query.rankings import largest
from opic.urls.canonical import canonical_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("example.org", "example.org"),
        ("EXAMPLE.Org", "example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
    ],
)
def test_host_is_named_as_in_canonical_urls(text: str, host: str) -> None:
    assert canonical_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/",
        "a b",
        "a/b",
        "a?b",
        "a#b",
        "a:81",
        "u@a",
        "http://a",
        "a/",
        "a\\",
        "a:80",
        "[::1]:80",
        "a\t",
        "[a",
        "%",
        "\ud800",
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a host or a domain"):
        canonical_host(text)


@given(st.lists(st.integers(-2, 6)), st.integers(1, 12), st.none() | st.integers(-3, 7))
def test_largest_is_the_head_of_a_stable_sort_whatever_was_guessed(
    values: list[int], count: int, least: int | None
) -> None:
    expected = sorted((i for i, value in enumerate(values) if value >= 0), key=lambda i: -values[i])
    # Negative values are left out, wherever they stand.
    assert largest(np.array(values, np.int64), count, least).tolist() == expected[:count]
