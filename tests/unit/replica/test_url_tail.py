"""URLs of the newest pages, packed as they came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.replica.effect import pack_lines
from opic.replica.url_tail import PIECE_URLS, UrlTail

COUNTS = st.lists(st.sampled_from([1, 2, PIECE_URLS - 1, PIECE_URLS, PIECE_URLS + 1, 3 * PIECE_URLS]), max_size=6)


def url(page: int) -> str:
    """Return the URL of a page."""
    return f"http://host-{page % 7}.example/{page}"


def filled(first: int, counts: list[int]) -> UrlTail:
    """Return a tail of chunks of so many pages."""
    tail = UrlTail()
    tail.start(first)
    for count in counts:
        tail.append(count, pack_lines([url(page) for page in range(tail.end, tail.end + count)]))
    return tail


@given(st.integers(0, 1_000), COUNTS, st.data())
def test_pages_are_found_in_any_order_after_any_reads_and_truncations(
    first: int, counts: list[int], data: st.DataObject
) -> None:
    tail = filled(first, counts)
    ends = [first + sum(counts[: n + 1]) for n in range(len(counts))]
    for _ in range(data.draw(st.integers(0, 4))):
        some = data.draw(st.lists(st.integers(max(first - 2, 0), first + sum(counts) + 2), max_size=5))
        assert tail.get(some) == {page: url(page) for page in some if tail.first <= page < tail.end}
    a = data.draw(st.integers(tail.first, tail.end))
    b = data.draw(st.integers(a, tail.end))
    assert tail.run(a, b) == [url(page) for page in range(a, b)]
    cut = data.draw(st.sampled_from([first, *ends]))
    tail.truncate(cut)
    assert tail.end == cut
    tail.drop(dropped := data.draw(st.integers(first, first + sum(counts))))
    assert first <= tail.first <= max(dropped, first)
    assert tail.get(range(first, cut)) == {page: url(page) for page in range(tail.first, cut)}


def test_run_that_is_partly_missing_is_refused() -> None:
    tail = filled(10, [5])
    for first, end in ((9, 12), (12, 16), (14, 12)):
        with pytest.raises(KeyError, match="within 10 to 15"):
            tail.run(first, end)


def test_large_chunk_is_unpacked_whole_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from opic.replica import url_tail

    unpacked: list[int] = []
    unpack = url_tail.unpack_urls

    def counting(packed: bytes) -> list[str]:
        urls = unpack(packed)
        unpacked.append(len(urls))
        return urls

    monkeypatch.setattr(url_tail, "unpack_urls", counting)
    tail = filled(0, [10, 20 * PIECE_URLS])
    for page in (10, 5, 10 + 7 * PIECE_URLS, 5, 10 + 19 * PIECE_URLS):
        assert tail.get([page]) == {page: url(page)}
    assert unpacked == [20 * PIECE_URLS, 10, PIECE_URLS, 10, PIECE_URLS]
