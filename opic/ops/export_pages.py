"""All pages of a crawl with their importance, and the links between them, as of one position of the journals.

Once a `CrawlPicture` is taken, nothing follows the journals: the replicas stay at its position, whatever events the
store takes meanwhile. The URL of a page never changes. Metadata, which no replica has, is copied to a temporary file.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s
from opic.errors import NotKept, ScanBroken, StoreUnavailable
from opic.model.cash import CLASS_BITS, Flag
from opic.model.classes import OTHERS
from opic.model.host_failures import NEVER, Patience
from opic.model.ledger_page import COLUMNS
from opic.model.page_notes import unpack_meta
from opic.query.kept_links import NOT_KEPT
from opic.query.link_pairs import stored_pairs
from opic.query.page_entries import EXACT
from opic.query.queries import Query
from opic.query.rankings import View
from opic.query.snapshots import Snapshot
from opic.replica import Crawl
from opic.replica.crawl import Outdated
from opic.replica.effect import Effect
from opic.replica.fingerprints import Fingerprints
from opic.replica.replica import PAGES_A_BLOCK
from opic.replica.stored_links import read_list
from opic.replica.urls import read_urls
from opic.store.scan import scan_hash

PAGES_A_BATCH: Final = 16 * PAGES_A_BLOCK
ATTEMPTS: Final = 5
GONE_ON: Final = "the store was recreated, restored, or changed too fast during the export: try again"
EXPORTED: Final = tuple((column.name, *column.export) for column in COLUMNS if column.export is not None)
Batch = dict[str, list[Any]]


class MetaCopy:
    """The metadata of all pages as of the position of the replicas, in a temporary file."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._file = sqlite3.connect("")  # A private file, which the system removes with the process.
        self._file.execute("CREATE TABLE metas (shard, page, packed, PRIMARY KEY (shard, page)) WITHOUT ROWID")
        self._listeners = [partial(self._changed, shard) for shard in range(len(crawl))]

    def __enter__(self) -> "MetaCopy":
        for replica, listener in zip(self._crawl.replicas, self._listeners, strict=True):
            replica.effect_listeners.append(listener)
        return self

    def __exit__(self, *raised: object) -> None:
        for replica, listener in zip(self._crawl.replicas, self._listeners, strict=True):
            replica.effect_listeners.remove(listener)
        self._file.close()

    def copy(self) -> None:
        """Copy the metadata from the store; what is newer than the replicas is right once these have followed.

        Raises:
            ScanBroken: the server restarted in the meantime.
        """
        self._file.execute("DELETE FROM metas")
        for number, shard in enumerate(self._crawl.shards):
            for fields in scan_hash(shard.client, shard.keys.page_meta):
                self._put(number, [(int(page), packed) for page, packed in fields.items()])

    def _changed(self, shard: int, effect: Effect) -> None:
        self._put(shard, list(effect.metas.items()))

    def _put(self, shard: int, metas: Sequence[tuple[int, bytes]]) -> None:
        rows = ((shard, page, packed) for page, packed in metas)
        self._file.executemany("INSERT OR REPLACE INTO metas VALUES (?, ?, ?)", rows)

    def metas_in(self, shard: int, first: int, end: int) -> dict[int, dict[str, str]]:
        """Return the metadata of the pages `first` to `end` that have any."""
        asked = "SELECT page, packed FROM metas WHERE shard = ? AND page >= ? AND page < ?"
        return {page: unpack_meta(packed) for page, packed in self._file.execute(asked, (shard, first, end))}


@dataclass(frozen=True, slots=True)
class CrawlPicture:
    """All pages as of one position of the journals, numbered by row: shard by shard, in the order of first sight."""

    query: Query
    snapshot: Snapshot
    metas: MetaCopy
    policy: str
    window: float | str | None
    view: View | None  # None under the static policy.
    rows: Int64s  # By position: the row of the page, -1 for an id that is not known.
    links: Sequence[Iterator[tuple[Int64s, Int64s, Int64s]]]  # By shard, if they were asked for.
    patience: Patience = NEVER  # After how many failures in a row a page is given up.

    @property
    def pages(self) -> int:
        return int(self.rows.max(initial=-1)) + 1

    def batches(self) -> Iterator[Batch]:
        """Yield the columns of all pages in parts, by row.

        Raises:
            StoreUnavailable: the store does not have these pages any more.
        """
        shares, names = self.snapshot.shares(self.view), {0: OTHERS} | self.query.class_names()
        scores = self.snapshot.scores if self.view is None else self.view.scores
        ascending = self.snapshot.ranking.ascending if self.view is None else self.view.ascending
        for shard, part in enumerate(self.snapshot.parts):
            for first in range(0, len(part.state), PAGES_A_BATCH):
                state = part.state[first : first + PAGES_A_BATCH]
                ids = first + np.flatnonzero(state & Flag.KNOWN)
                rows = ids + self.snapshot.starts[shard]
                state, live = part.state[ids], scores[rows] >= 0
                ranks = 1 + len(ascending) - np.searchsorted(ascending, scores[rows], side="right")
                metas = self.metas.metas_in(shard, first, first + PAGES_A_BATCH)
                yield {
                    "url": self._urls(shard, ids),
                    "host": [part.hosts.names[number] for number in part.host[ids].tolist()],
                    "importance": shares[rows].tolist(),
                    "rank": or_none(ranks, live),
                    "meta": [metas.get(page, {}) for page in ids.tolist()],
                    "class": [names.get(slot, OTHERS) for slot in (state & CLASS_BITS).tolist()],
                    **self._of_replica(shard, ids),
                }

    def _urls(self, shard: int, ids: Int64s) -> list[str]:
        home, replica = self.snapshot.crawl.shards[shard], self.snapshot.crawl.replicas[shard]
        url_of = read_urls(home.client, home.keys, replica, ids.tolist())
        urls = [url_of[page] for page in ids.tolist()]
        # A crawl that was made again or restored in the meantime has other pages under these ids.
        if (Fingerprints(home.secret).hash_strings(urls) != replica.index.fingerprints[ids]).any():
            raise StoreUnavailable(GONE_ON)
        return urls

    def _of_replica(self, shard: int, ids: Int64s) -> Batch:
        with self.snapshot.crawl.replicas[shard].reading() as replica:
            if replica.head != self.snapshot.heads[shard]:
                raise StoreUnavailable(GONE_ON)
            rows, histories = replica.columns.row[ids], replica.histories
            fetched_us = histories.slots.at_us[histories.rows.newest[rows]]
            reads = replica.column("reads", ids).tolist()
            return {
                "state": states_of(replica.state[ids], replica.given_up(ids, self.patience)),
                "cash": replica.cash(ids).tolist(),
                "reads": reads,
                "last_fetched_at": or_none(fetched_us, histories.rows.kept[rows] > 0),
                **{
                    name: list(map(shown, replica.column(column_name, ids).tolist(), reads))
                    for column_name, name, shown in EXPORTED
                },
            }

    def link_batches(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield the links of the known graph, from and to rows: those of pages that are not gone, to such pages."""
        live = np.zeros(len(self.rows), np.bool_)
        live[np.flatnonzero((self.snapshot.state & (Flag.KNOWN | Flag.GONE)) == Flag.KNOWN)] = True
        for _, sources, targets in chain.from_iterable(self.links):
            there = live[targets]
            yield self.rows[sources[there]], self.rows[targets[there]]

    def hosts(self) -> dict[str, float]:
        """Return the importance of each host that has pages."""
        sites, names = self.snapshot.sites, self.snapshot.hosts
        sums = sites.sums(self.snapshot.shares(self.view))
        return {names[number]: float(sums[number]) for number in sites.order.tolist()}


def or_none(values: NDArray[Any], there: NDArray[np.bool_]) -> list[Any]:
    """Return values as a list, None where they are not there."""
    items: list[Any] = values.tolist()
    for index in np.flatnonzero(~there).tolist():
        items[index] = None
    return items


def states_of(states: NDArray[np.uint8], given_up: NDArray[np.bool_] | None) -> list[str]:
    """Name the states of known pages by their bytes; `given_up` is a mask of those that are, None if none is."""
    names = np.full(len(states), "unread", object)
    names[(states & Flag.OPEN) != 0] = "read"
    if given_up is not None:
        names[given_up] = "given_up"
    for flag, name in ((Flag.EXCLUDED, "excluded"), (Flag.GONE, "gone")):
        names[(states & flag) != 0] = name
    listed: list[str] = names.tolist()
    return listed


def take_picture(query: Query, metas: MetaCopy, *, links: bool) -> CrawlPicture:
    """Take a picture of a crawl by the default policy.

    Args:
        query: nobody else may follow the journals with its replicas.
        metas: a copy of the metadata, entered.
        links: whether the links are asked for as well. They are held in memory, compressed.

    Raises:
        NotKept: no links are kept.
        StoreUnavailable: the store is unavailable, or changes too fast.
    """
    query.policy_of(None, None)  # Settles exact importance: the second time, below, is quicker.
    for _ in range(ATTEMPTS):
        loads = query.crawl.loads
        try:
            metas.copy()
            picture = _picture(query, metas)
        except (ScanBroken, Outdated):
            continue
        if picture is None or query.crawl.loads != loads:
            continue
        if not links:
            return picture
        if (linked := _links(picture)) is not None:
            return linked
    raise StoreUnavailable(GONE_ON)


def _picture(query: Query, metas: MetaCopy) -> CrawlPicture | None:
    policy, span = query.policy_of(None, None)
    if policy == EXACT:
        exact = query.exact_view(further=True)
        snapshot = Snapshot.of(query.crawl.as_of, query.crawl, loaded=query.snapshots.loaded)
        if snapshot.heads != exact.heads:
            return None
        view: View | None = exact
    else:
        query.crawl.follow()
        snapshot = Snapshot.of(query.crawl.as_of, query.crawl, loaded=query.snapshots.loaded)
        view = None if span is None else snapshot.view(policy, span)
    known = (snapshot.state & Flag.KNOWN) != 0
    rows = np.where(known, np.cumsum(known) - 1, -1)
    return CrawlPicture(query, snapshot, metas, policy, None if span is None else span.shown(), view, rows, ())


def _links(picture: CrawlPicture) -> CrawlPicture | None:
    """Return the picture with its links, None if the store's are newer already."""
    crawl, links = picture.query.crawl, list[Iterator[tuple[Int64s, Int64s, Int64s]]]()
    if not any(replica.trust is not None for replica in crawl.replicas):
        if not any(replica.books.reads for replica in crawl.replicas):
            raise NotKept("no page has been read yet, so there are no links: leave --links out, or come back later")
        raise NotKept(NOT_KEPT)
    for number, (shard, head) in enumerate(zip(crawl.shards, picture.snapshot.heads, strict=True)):
        pairs = stored_pairs(crawl, number, picture.snapshot.starts)
        first = list(zip(range(1), pairs, strict=False))  # Reads all segments.
        if read_list(shard.client, shard.keys).lsn > head.lsn:
            return None
        links.append(chain((part for _, part in first), pairs))
    return replace(picture, links=links)
