"""The best pages of a crawl, in parts: each answer says where the next one goes on."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.errors import BadInput
from opic.query.exact_view import ExactView
from opic.query.rankings import View, largest, ranks_of_best
from opic.query.snapshots import Snapshot
from opic.urls.canonical import host_of

Page = dict[str, object]
CURSOR_CHARS_MAX: Final = 60
SAME: Final = 0.01  # A page whose value changed by no more than this share since it was told keeps its place.


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last page of an answer, and its importance or in-links as told there.

    The next answer goes on after this page as it stands by then. If its value has changed by more than SAME, or it is
    gone, it goes on below the value told. So while a crawl goes on, pages that pass it are left out or come twice.
    """

    shard: int
    page: int
    value: float

    @classmethod
    def parse(cls, text: str, shards: int) -> "Cursor":
        """Return the cursor that `str` made this text of.

        Raises:
            BadInput: it is none of a crawl with so many shards.
        """
        shard, _, rest = text.partition("-")
        page, _, value = rest.partition("-")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        whole = all(part.isascii() and part.isdecimal() for part in (shard, page)) and len(text) <= CURSOR_CHARS_MAX
        if not (whole and 0 <= number < math.inf and int(shard) < shards and int(page) < 1 << 32):
            raise BadInput(f"after={text[:40]!r} is not from this service: send the `next` of the answer before")
        return cls(int(shard), int(page), number)

    def __str__(self) -> str:
        return f"{self.shard}-{self.page}-{self.value!r}"

    def later(self, values: Int64s | Float64s, position: int, total: float = 1.0) -> Bools:
        """Return a mask of the positions that come after it, if values descend, and equal ones go by position.

        Args:
            values: (n,).
            position: that of its page; n or more if it is newer than the values.
            total: what a value is divided by to be told.
        """
        edge = self.value * total
        if position < len(values) and abs(float(own := values[position]) - edge) <= SAME * edge:
            edge = own
        later: Bools = values < edge
        equal = np.flatnonzero(values == edge)
        later[equal[equal > position]] = True
        return later


def answer_of(pages: list[Page], cursor: Callable[[int], Cursor], n: int, as_of: float) -> dict[str, Any]:
    """Return the answer for the best pages, of which there are more than `n` if more follow; and `cursor(place)`."""
    return {"pages": pages[:n], **({"next": str(cursor(n - 1))} if len(pages) > n else {}), "as_of": as_of}


def best_pages(
    shown: Snapshot | ExactView,
    view: View | None,
    n: int,
    within: str | None,
    after: str | None,
    *,
    state: str | None = None,
) -> tuple[dict[str, Any], float]:
    """Return the best live pages, descending, ties by position: an answer without its policy.

    Pages that were forgotten since are left out. Also returns the importance that these had.

    Args:
        shown: the pages.
        view: their estimates; None for the static ones of a snapshot.
        n: maximum number of pages.
        within: only pages of this host or domain and its subdomains; ranks are still among all pages.
        after: the "next" of the answer before.
        state: only pages in this state; see `CrawlPages.of_state`.

    Raises:
        BadInput: `after` is not from an answer.
    """
    scores: Int64s | Float64s = shown.scores if view is None else view.scores
    total = shown.total if view is None else 1.0
    if within is state is after is None:
        positions = _first(shown, view, n + 1)
    else:
        some = _some(shown, scores, total, within, after)
        if state is not None:
            some = some[shown.of_state(state)[some]]
        positions = some[largest(scores[some], n + 1)]
    best = scores[positions].tolist()
    if view is not None:
        ranks = view.ranks(best)
    else:
        assert isinstance(shown, Snapshot)
        ranks = ranks_of_best(best) if within is state is after is None else shown.ranking.ranks(best)
    places = shown.places(positions)
    urls, rows = shown.crawl.urls_of(places), shown.crawl.rows(places)
    cash = rows.cash if isinstance(shown, ExactView) else shown.cash[positions]
    columns = [urls[shard_page] for shard_page in places], best, ranks, cash.tolist(), rows.reads.tolist()
    pages = [_entry(*row, total) for row in zip(*columns, strict=True)]
    answer = answer_of(pages, lambda last: Cursor(*places[last], best[last] / total), n, shown.as_of)
    lost = sum(score / total for shard_page, score in zip(places[:n], best, strict=False) if not urls[shard_page])
    answer["pages"] = [page for page in answer["pages"] if page["url"]]
    return answer, lost


def _entry(  # noqa: PLR0917 - the columns of a page
    url: str, score: float, rank: int, cash: int, reads: int, total: float
) -> Page:
    host = host_of(url) if url else ""
    return {"url": url, "importance": min(score / total, 1.0), "rank": rank, "cash": cash, "reads": reads, "host": host}


def _some(
    shown: Snapshot | ExactView, scores: Int64s | Float64s, total: float, within: str | None, after: str | None
) -> Int64s:
    """Return the positions of the pages of a domain that come after a cursor."""
    mask = np.ones(len(scores), np.bool_) if within is None else shown.within(within)
    if after is not None:
        cursor = Cursor.parse(after, len(shown.starts) - 1)
        position = shown.positions(np.array([cursor.shard]), np.array([cursor.page]))
        mask &= cursor.later(scores, int(position[0]), total)
    return np.flatnonzero(mask)


def _first(shown: Snapshot | ExactView, view: View | None, count: int) -> Int64s:
    """Return the positions of the best pages, descending, ties by position."""
    if isinstance(shown, Snapshot) and view is None:
        return shown.top(count)[:count]
    assert view is not None
    ascending = view.ascending
    least = float(ascending[-count]) if count <= len(ascending) and ascending[-count] > 0 else None
    return largest(view.scores, count, least)
