"""The kept links of a crawl, as the shards of another crawl keep them; and the digests of links.

Where the shards are others, links within a shard become links to another one and the other way round. A link to a page
that no shard knows is left out at the end: it is not known where its host is.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from opic.arrays import Bools, Int64s, Uint16s, Uint32s, Uint64s
from opic.migration.places import Places
from opic.model.page_links import PageLinks
from opic.model.transfer import far_numbers
from opic.replica.effect import links_digest

UNKNOWN_LINKS: Final = np.uint64(1)  # The digest of links that are not kept; no links have 0.


class MovedLinks:
    """Carries the links of pages over, a part at a time; what is given later of a page replaces what was before."""

    def __init__(self, places: Places, urls: Sequence[Sequence[str]]) -> None:
        """Take the places of pages, and the URLs of each shard of the source, by id; both may grow."""
        self._places, self._urls = places, urls
        self._digests = [np.zeros(0, np.uint64) for _ in places.source]  # By shard of the source and id.
        self._far = [np.zeros(0, np.int64) for _ in places.source]  # The `far_number` of each page.
        self._later: list[tuple[int, PageLinks]] = []  # Links of which some lead to pages that were not known yet.
        self.left_out = 0  # Links to pages that no shard knows.

    def digests(self, shard: int) -> Uint64s | None:
        """Return the digests of a source shard's pages, once `carried` was given all links; None where they stay.

        A page whose links are not kept is read next as one that shows others.
        """
        if self._places.stay:
            return None
        replica = self._places.source[shard]
        was = replica.histories.rows.digest[replica.columns.row[: len(replica)]]
        noted = self._grown(shard)
        return np.where(was == 0, np.uint64(0), np.where(noted == 0, UNKNOWN_LINKS, noted))

    def _grown(self, shard: int) -> Uint64s:
        more = len(self._places.source[shard]) - len(self._digests[shard])
        if more > 0:
            self._digests[shard] = np.concatenate((self._digests[shard], np.zeros(more, np.uint64)))
        return self._digests[shard]

    def carried(self, shard: int, links: PageLinks) -> Iterator[tuple[int, PageLinks]]:
        """Yield the links of distinct pages of a shard of the source, by shard there.

        Those of a page that links to a page not known yet wait for `rest`.
        """
        for index, (source, older) in enumerate(self._later):
            if source == shard:
                others = np.flatnonzero(~np.isin(older.pages, links.pages))
                self._later[index] = source, older.select_rows(others)
        row, target, fresh = self._targets(links, shard)
        early = np.flatnonzero(~self._places.has(shard, links.pages))  # The store may be ahead of the replicas.
        if len(unknown := np.union1d(row[target < 0], early)):
            self._later.append((shard, links.select_rows(unknown)))
            links = links.select_rows(np.setdiff1d(np.arange(len(links)), unknown))
            row, target, fresh = self._targets(links, shard)
        yield from self._carried(shard, links.pages, row, target, fresh)

    def rest(self) -> Iterator[tuple[int, PageLinks]]:
        """Yield the links that waited, without those to pages that no shard knows."""
        waiting, self._later = self._later, []
        for shard, links in waiting:
            row, target, fresh = self._targets(links, shard)
            known = target >= 0
            self.left_out += int((~known).sum())
            yield from self._carried(shard, links.pages, row[known], target[known], fresh[known])

    def _targets(self, links: PageLinks, shard: int) -> tuple[Int64s, Int64s, Bools]:
        """Return for each link its row, the page that it leads to, -1 for an unknown one, and whether it was new."""
        rows, places = np.arange(len(links)), self._places
        target = np.full(len(links.far), -1, np.int64)
        for other in np.unique(links.far_shards).tolist():
            some = np.flatnonzero(links.far_shards == other)
            ids = places.source[other].index.find(links.far[some])
            placed = places.has(other, ids)
            target[some] = np.where(placed, places.first[other] + ids, -1)
        row = np.concatenate((np.repeat(rows, links.near_counts), np.repeat(rows, links.far_counts)))
        near = np.where(places.has(shard, links.near), places.number(shard, links.near), -1)
        pages = np.concatenate((near, target))
        return row, pages, np.concatenate((links.near_new, links.far_new))

    def _carried(
        self, shard: int, ids: Uint32s, row: Int64s, target: Int64s, fresh: Bools
    ) -> Iterator[tuple[int, PageLinks]]:
        if not len(ids):
            return
        pages = self._places.number(shard, ids)
        to, own_id, number = self._places.shard[pages], self._places.id[pages], self._places.id[target]
        target_shard = self._places.shard[target]
        far = target_shard != to[row]
        if not self._places.stay:
            self._note_digests(shard, ids, row, number, far, target)
        prints = np.zeros(len(target), np.uint64)
        prints[far] = self._places.prints(target[far])
        for receiver in np.unique(to).tolist():
            rows = np.flatnonzero(to == receiver)
            rows = rows[np.argsort(own_id[rows])]
            yield receiver, _part(rows, own_id, row, number, far, prints, target_shard, fresh)

    def _note_digests(  # noqa: PLR0917 - columns of one table
        self, shard: int, ids: Uint32s, row: Int64s, number: Int64s, far: Bools, target: Int64s
    ) -> None:
        """Compute the digests of what pages link to, as the new shards number it; see `transfer.links_digest`."""
        values = number.copy()
        away = target[far]
        values[far] = self._places.gathered(away, np.int64, self._far_numbers)
        order = np.lexsort((values, row))
        packed = values[order].astype("<i8").tobytes()
        sizes = 8 * np.bincount(row, minlength=len(ids))
        ends = np.cumsum(sizes)
        spans = zip((ends - sizes).tolist(), ends.tolist(), strict=True)
        self._grown(shard)[ids] = [links_digest(packed[first:end]) for first, end in spans]

    def _far_numbers(self, shard: int, ids: Uint32s) -> Int64s:
        """Return the far numbers of pages of a shard, which are computed once."""
        known, urls = self._far[shard], self._urls[shard]
        if len(known) < len(urls):
            known = self._far[shard] = np.concatenate((known, np.zeros(len(urls) - len(known), np.int64)))
        if len(missing := np.unique(ids[known[ids] == 0])):
            known[missing] = far_numbers([urls[page] for page in missing.tolist()])
        return known[ids]


def _part(  # noqa: PLR0917 - columns of one table
    rows: Int64s,
    own_id: Int64s,
    row: Int64s,
    number: Int64s,
    far: Bools,
    prints: Uint64s,
    target_shard: Uint16s,
    fresh: Bools,
) -> PageLinks:
    """Return the links of some rows, in their order, as a shard keeps them."""
    position = np.full(len(own_id), -1, np.int64)
    position[rows] = np.arange(len(rows))
    here = position[row]
    near, away = np.flatnonzero((here >= 0) & ~far), np.flatnonzero((here >= 0) & far)
    near = near[np.lexsort((number[near], here[near]))]
    away = away[np.argsort(here[away], kind="stable")]
    near_counts, far_counts = (np.bincount(here[some], minlength=len(rows)).astype(np.uint32) for some in (near, away))
    return PageLinks(
        own_id[rows].astype(np.uint32), near_counts, number[near].astype(np.uint32), far_counts, prints[away],
        target_shard[away], fresh[near], fresh[away],
    )  # fmt: skip
