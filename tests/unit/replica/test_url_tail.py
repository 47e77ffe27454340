"""URLs of the newest pages, packed as they came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.replica.packed_lines import LINES_A_PIECE, in_pieces, pack_frame
from opic.replica.url_tail import UrlTail

SIZES = [1, 2, LINES_A_PIECE - 1, LINES_A_PIECE, LINES_A_PIECE + 1, 3 * LINES_A_PIECE]
COUNTS = st.lists(st.sampled_from(SIZES), max_size=6)


def url(page: int) -> str:
    """Return the URL of a page."""
    return f"http://host-{page % 7}.example/{page}"


def filled(first: int, counts: list[int]) -> UrlTail:
    """Return a tail of chunks of so many pages."""
    tail = UrlTail()
    tail.start(first)
    for count in counts:
        tail.append(count, pack_frame([url(page) for page in range(tail.end, tail.end + count)]))
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


def test_urls_of_a_record_are_packed_in_pieces_at_their_first_read() -> None:
    tail = UrlTail()
    tail.start(5)
    tail.append(200, pack_frame([url(page) for page in range(5, 205)]))
    assert tail.get([100, 204]) == {100: url(100), 204: url(204)}
    assert in_pieces(tail._chunks[0].packed)
    assert tail.run(5, 205) == [url(page) for page in range(5, 205)]
