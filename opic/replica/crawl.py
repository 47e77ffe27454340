"""A crawl: its shards, a replica of each shard, and reads across all shards.

This module only reads; `opic.ingest` writes. A replica is loaded on its first use. Each answer is consistent with one
journal position per shard and is no older than the call: a call first lets the replicas catch up, which takes one round
trip for all shards. Concurrent calls share that round trip. Where answers need not be current (`opic.replica.upkeep`),
a question takes what a thread saw a moment ago: see `recent`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s, Uint8s, Uint16s, Uint32s
from opic.errors import StoreDamaged, StoreError, StoreUnavailable, UrlMissing
from opic.model.books import Books, BooksAudit
from opic.model.cash import FORGOTTEN
from opic.model.ledger_page import COLUMNS, LedgerPage
from opic.replica.changes import Changes
from opic.replica.crawl_audit import CrawlAudit
from opic.replica.crawl_shards import CrawlShards
from opic.replica.effect import Head
from opic.replica.fingerprints import Fingerprints
from opic.replica.follow import Follower, catch_up
from opic.replica.histories import Measures
from opic.replica.known_since import KnownSince
from opic.replica.replica import Replica
from opic.replica.upkeep import Upkeep
from opic.replica.urls import read_urls_of_many
from opic.store.shard import Shard
from opic.urls.canonical import host_of, shard_of

log = logging.getLogger("opic.replica")

T = TypeVar("T")
# Interval at which the background thread catches up: some hundred kilobytes of journal at full speed.
FOLLOW_SECONDS: Final = 0.1
FOLLOW_SECONDS_MAX: Final = 5.0  # Longest interval while the store is unavailable.
# Where answers need not be current, the background thread catches up at this interval while questions come, and these
# take what that thread has seen, if it is no older than the second: so no question waits for the journal.
FOLLOW_SECONDS_ASKED: Final = 0.02
RECENT_SECONDS: Final = 0.06
ASKED_SECONDS: Final = 1.0  # How long after a question the next ones are expected.
END_SECONDS: Final = 2.0
RECENT_URLS_MAX: Final = 4_096  # Half a megabyte.
LOOKS_MAX = 5  # Consecutive attempts, each interrupted by a reload.
PAGES_AT_ONCE = 1_000  # Pages read under one lock: about 10 ms.
OF_LEDGER: Final = tuple(column.name for column in COLUMNS if column.dtype)  # Columns of the ledger that a replica has.
Place = tuple[int, int]  # Where a page is: its shard, and its id in that shard.


class Outdated(Exception):
    """A replica was reloaded in the meantime, so ids may now belong to other pages."""


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """How far a replica follows its shard's journal."""

    lsn: int  # LSN of the last record applied.
    age_seconds: float  # Time since its head was last compared with the journal's head.
    pages: int
    loads: int  # How often it was loaded from the checkpoint.


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of pages, in the order requested, and the books of each shard as of the same journal positions."""

    as_of: float  # Unix seconds; the data is at least as recent.
    books: list[Books]
    heads: list[Head]
    measures: Measures
    cash: Int64s  # The cash of each page. A gone page has returned its grants, so its cash may be negative.
    spent: Int64s
    inflow: Int64s
    state: Uint8s
    reads: Uint32s  # How often each page was read in total.
    nearness: Uint16s  # See `opic.model.page_notes`; 0 where the depth is unknown.


ROWS: Final = ("spent", "inflow", "state", "reads", "nearness")  # Columns of `Rows`.


class Crawl(CrawlShards):
    """The open shards of one crawl, with a replica of each."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Use `open` instead: it checks that the store matches."""
        super().__init__(shards)
        self.replicas = [Replica(shard.rules, shard.number, yields=shard.yields) for shard in self.shards]
        self._followers = [
            Follower(shard.client, shard.keys, replica)
            for shard, replica in zip(self.shards, self.replicas, strict=True)
        ]
        # Recently read URLs, with the load counts of the replicas that they are valid for. Replaced as a whole.
        self._recent_urls: tuple[list[int], dict[Place, str]] = ([], {})
        # The shards' secret, with the load counts of the replicas that it is valid for. Replaced as a whole.
        self._made = (self.loads, Fingerprints(self.shards[0].secret))
        self._turn, self._following = threading.Lock(), threading.Lock()
        self._asked = self._served = 0
        self.as_of = 0.0  # Unix seconds; the replicas are at least as recent.
        self.upkeep = Upkeep()
        self._opened_at = time.monotonic()
        self._looked_at = float("-inf")  # When the replicas last began to catch up, monotonic.
        self._question_at = float("-inf")  # When a question last took what the thread has seen.
        self._done = threading.Event()
        self._keeper: threading.Thread | None = None

    # Following the journals.

    def follow(self, since: float | None = None) -> list[Replica]:
        """Bring the replicas up to date with the journals and return them. Concurrent calls share one round trip.

        Args:
            since: a time by `time.monotonic`; nothing is asked if the replicas were brought up to date after it. The
                steps of one question give the time at which it came.

        Raises:
            StoreUnavailable: the store is unavailable.
            StoreDamaged: a record or a block can't be read.
        """
        if since is not None and self._looked_at > since:
            return self.replicas
        with self._turn:
            self._asked += 1
            ticket = self._asked
        with self._following:
            if self._served < ticket and not (since is not None and self._looked_at > since):
                with self._turn:
                    served = self._asked  # Serves all who wait now: they called before the next read.
                now, monotonic = time.time(), time.monotonic()
                catch_up(self.client, self._followers)
                if self._made[0] != self.loads:
                    self._renew()
                self._served, self.as_of, self._looked_at = served, now, monotonic
        return self.replicas

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of all replicas, so that they do not change, and none is being loaded."""
        with ExitStack() as stack:
            for replica in self.replicas:
                stack.enter_context(replica.lock)
            yield

    def show(self) -> None:
        """See that every later answer shows the store as it is now, or later, also where it is of a kept state."""
        self.follow()
        with self._turn:  # So it goes back only with the clock.
            self.upkeep.shown_from = self.as_of

    def begin_changes(self, changes: Mapping[int, Changes]) -> None:
        """Follow the changes of shards from now on, and their journals up to now; see `opic.replica.changes`."""
        with self._following:
            marks = self.ask([["XADD", self.shards[shard].keys.changes, "*", "n", 0, "t", 0] for shard in changes])
            for (shard, shard_changes), mark in zip(changes.items(), marks, strict=True):
                if shard_changes not in (following := self._followers[shard].changes):
                    following.append(shard_changes)
                shard_changes.begin(mark)
            catch_up(self.client, self._followers)

    @property
    def stopped(self) -> bool:
        """Whether the crawl took no writes when it was last followed, because it is being moved to another one."""
        return any(follower.stopped for follower in self._followers)

    def recent(self) -> float:
        """Return what a question gives `follow` as `since`: now, or a moment ago where answers need not be current."""
        now = time.monotonic()
        if self._keeper is None or self.upkeep.quick:
            return now
        self._question_at = now
        return now - RECENT_SECONDS

    def _renew(self) -> None:
        """Read the shards' metadata again after a replica was reloaded."""
        loads = self.loads
        for shard in self.shards:
            shard.renew()
        self._made = (loads, Fingerprints(self.shards[0].secret))

    @property
    def loads(self) -> list[int]:
        """How often each replica was loaded: while this stays the same, ids name the same pages."""
        return [replica.loads for replica in self.replicas]

    def steadily(self, ask: Callable[[], T]) -> T:
        """Run `ask`, which reads the replicas several times; run it again if a replica was reloaded in the meantime.

        Code that finds a page and then reads its URL or its row must do both inside `ask`: another thread may reload a
        replica in between, and then the id belongs to another page.

        A URL may also be missing because the server restarted and lost a block but kept the record sent before it. The
        replica dropped the URL from memory when the block was written. The journal still has it then, so the replica is
        reloaded, once.

        Raises:
            StoreUnavailable: every attempt was interrupted by a reload.
            StoreDamaged: a URL is in neither the checkpoint nor the journal.
        """
        loaded = False
        for _ in range(LOOKS_MAX):
            loads = self.loads
            try:
                answer = ask()
            except (
                Outdated,
                IndexError,
                KeyError,
                StoreDamaged,
            ) as error:  # Possibly because ids now belong to other pages or to none.
                if loads == self.loads:
                    if not isinstance(error, UrlMissing) or loaded:
                        raise
                    self._load_anew(error.shard, loads[error.shard])
                    loaded = True
                continue
            if loads == self.loads:
                return answer
        raise StoreUnavailable("the store was recreated or its server restarted repeatedly: try again")

    def _load_anew(self, shard: int, loads: int) -> None:
        """Reload a replica whose load count was `loads`, unless another thread has reloaded it already."""
        with self._following:
            if self.replicas[shard].loads == loads:
                self._followers[shard].load()

    def keep_following(self, seconds: float = FOLLOW_SECONDS) -> None:
        """Start a thread that brings the replicas up to date every `seconds` seconds, or more often; until `close`.

        Without it, the first query after an idle hour would read the whole journal, and the journal could be trimmed
        past a replica that fell behind. While the store is unavailable the thread tries less and less often.
        """
        self.upkeep.threads = True
        self._keeper = threading.Thread(target=self._keep, args=(seconds,), name="opic-follow", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """Stop the thread started by `keep_following`."""
        self._done.set()
        if self._keeper is not None:
            self._keeper.join(END_SECONDS)  # If the store hangs, the thread ends by itself later.

    def _keep(self, seconds: float) -> None:
        wait = seconds
        while not self._done.wait(min(wait, FOLLOW_SECONDS_ASKED) if self._is_asked() else wait):
            try:
                if time.monotonic() - self._looked_at >= (FOLLOW_SECONDS_ASKED if self._is_asked() else seconds):
                    self.follow()
            except StoreError as error:
                if wait == seconds and not self._done.is_set():
                    log.warning("can't follow the store: %s", error)
                wait = min(2 * wait, FOLLOW_SECONDS_MAX)
            else:
                if wait != seconds:
                    log.info("following the store again after an outage")
                wait = seconds

    def _is_asked(self) -> bool:
        return time.monotonic() - self._question_at < ASKED_SECONDS

    def heads(self) -> list[Head]:
        """Return the head of each replica. Equal results of two calls mean that nothing changed in between."""
        return [replica.head for replica in self.replicas]

    def standing(self) -> list[ReplicaStanding]:
        """Return how far each replica follows its journal, without a request to the store."""
        now = time.monotonic()
        return [
            ReplicaStanding(
                replica.head.lsn, now - max(follower.checked_at, self._opened_at), len(replica), replica.loads
            )
            for replica, follower in zip(self.replicas, self._followers, strict=True)
        ]

    # Pages.

    def ids_of(self, urls: Sequence[str]) -> list[Place | None]:
        """Return the place of each page, given canonical URLs; None for an unknown page."""
        self.follow()
        return self.steadily(lambda: self.find(urls))

    def find(self, urls: Sequence[str], *, locked: bool = True, forgotten: bool = False) -> list[Place | None]:
        """As `ids_of`, in the replicas as they are. Call it inside `steadily`, or without `locked` in `undisturbed`.

        With `forgotten`, pages that were forgotten have the place that they had.
        """
        loads, secret = self._made
        if loads != self.loads:  # A reload renews `_made` under the lock; wait for it.
            self.follow()
            loads, secret = self._made
        fingerprints, shards = secret.hash_strings(urls), len(self.shards)
        numbers = np.array([shard_of(host_of(url), shards) if shards > 1 else 0 for url in urls], np.int64)
        places: list[Place | None] = [None] * len(urls)
        for number in np.unique(numbers).tolist():
            positions = np.flatnonzero(numbers == number)
            with self.replicas[number].reading(locked=locked) as replica:
                ids = (replica.index if forgotten else replica).find(fingerprints[positions]).tolist()
            for i, page in zip(positions.tolist(), ids, strict=True):
                places[i] = (number, page) if page >= 0 else None
        if loads != self.loads:
            raise Outdated
        return places

    def find_rows(self, urls: Sequence[str], since: float | None = None) -> tuple[list[Place | None], Rows]:
        """Return the place of each page (None if unknown), given canonical URLs, and the rows of the known pages.

        Call it inside `steadily`. `since` is as in `follow`; but a page is unknown only if it is now.
        """
        called = time.monotonic()
        self.follow(since)
        places = self.find(urls)
        if None in places and self._looked_at <= called:
            self.follow()
            places = self.find(urls)
        return places, self.rows([page for page in places if page is not None])

    def undisturbed(self, ask: Callable[[], T]) -> T | None:
        """Return `ask()`, which reads the replicas without their locks, as nothing may wait in an event loop.

        None if they were not brought up to date a moment ago, or if a thread does so in the meantime.
        """
        versions = [replica.version for replica in self.replicas]
        if self._looked_at <= self.recent() or self._made[0] != self.loads or any(version & 1 for version in versions):
            return None
        try:
            answer = ask()
        except Exception:
            if versions == [replica.version for replica in self.replicas]:
                raise
            return None  # What it read was half changed.
        return answer if versions == [replica.version for replica in self.replicas] else None

    def rows(self, places: Sequence[Place], *, locked: bool = True) -> Rows:
        """Return the rows of pages by place. Rows of one shard are consistent with one journal position.

        Without `locked`, call it inside `undisturbed`.
        """
        as_of = self.as_of  # Read first: other threads may advance the replicas in the meantime.
        order: dict[int, list[int]] = {}
        for index, (number, _) in enumerate(places):
            order.setdefault(number, []).append(index)
        columns, measures = list[list[NDArray[Any]]](), list[Measures]()
        books, heads = list[Books](), list[Head]()
        for number, of_shard in enumerate(self.replicas):
            positions = order.get(number, [])
            ids = np.array([places[index][1] for index in positions], np.int64)
            with of_shard.reading(locked=locked) as replica:
                books.append(replica.books)
                heads.append(replica.head)
                if not positions and (order or number):  # Without any page, the columns are empty ones of shard 0.
                    continue
                if int(ids.max(initial=-1)) >= replica.pages:
                    raise IndexError(f"shard {number} has no page {int(ids.max())}")
                columns.append([replica.cash(ids), *replica.columns_of(ROWS, ids)])
                measures.append(replica.histories.measures(replica.columns.row[ids]))
        if len(columns) == 1:
            return Rows(as_of, books, heads, measures[0], *columns[0])
        back = np.argsort(np.array([index for number in sorted(order) for index in order[number]], np.int64))
        joined = [np.concatenate(parts)[back] for parts in zip(*columns, strict=True)]
        return Rows(as_of, books, heads, _joined_measures(measures, back), *joined)

    def urls_of(self, places: Iterable[Place]) -> dict[Place, str]:
        """Return URLs by place. Call it inside `steadily`, so that the places are valid for the current load.

        Recently read URLs are cached: the frontier reads the URL of a page once to judge it and once to lease it.
        """
        loads = self.loads
        then, recent = self._recent_urls
        if loads != then or len(recent) > RECENT_URLS_MAX:
            recent = {}
            self._recent_urls = loads, recent
        wanted, by_place = dict[int, list[int]](), dict[Place, str]()
        for page in places:
            if (url := recent.get(page)) is not None:
                by_place[page] = url
            else:
                wanted.setdefault(page[0], []).append(page[1])
        asked = [(self.shards[number].keys, self.replicas[number], ids) for number, ids in wanted.items()]
        for number, urls in zip(wanted, read_urls_of_many(self.client, asked) if asked else (), strict=True):
            by_place |= {(number, i): url for i, url in urls.items()}
            recent |= {(number, i): url for i, url in urls.items() if url}  # A forgotten page may be known again.
        return by_place

    def urls_in(self, shard: int, ids: range) -> list[str]:
        """Return the URLs of pages with consecutive ids in a shard, "" for forgotten ones; see `urls_of`."""
        urls = read_urls_of_many(self.client, [(self.shards[shard].keys, self.replicas[shard], ids)])[0]
        return [urls[i] for i in ids]

    def known_since(self) -> list[KnownSince]:
        """Return when pages became known, by shard."""
        notes = self.ask([["HGETALL", shard.keys.known_since] for shard in self.shards])
        return list(map(KnownSince, notes, self.replicas))

    def page(self, url: str) -> LedgerPage | None:
        """Return a page in the ledger's form, or None if it is unknown."""

        def ask() -> LedgerPage | None:
            (page,) = self.find([url])
            return None if page is None else self._pages(page[0], range(page[1], page[1] + 1))[0]

        self.follow()
        return self.steadily(ask)

    def pages(self) -> Iterator[LedgerPage]:
        """Yield every known page in the ledger's form, shard by shard. For tests and exports.

        Raises:
            StoreUnavailable: a replica was reloaded meanwhile, so the remaining pages may belong to another history.
        """
        replicas = self.follow()
        for (number, replica), loads in zip(enumerate(replicas), self.loads, strict=True):
            pages, head = len(replica), replica.head
            for first in range(0, pages, PAGES_AT_ONCE):
                ids = range(first, min(first + PAGES_AT_ONCE, pages))
                batch = self.steadily(partial(self._pages, number, ids))
                if replica.loads != loads and replica.head != head:
                    raise StoreUnavailable(f"shard {number} was reloaded while its pages were read: try again")
                yield from batch

    def _pages(self, number: int, ids: range) -> list[LedgerPage]:
        urls, metas, pages = self.urls_in(number, ids), self.metas_of(number, ids), []
        names = self.metas_of(number, [~page for page in ids]) if self.rules.normalize else [b""] * len(ids)
        with self.replicas[number].reading() as replica:
            rows = replica.columns.row[np.array(ids)].tolist()
            numbers = zip(*(replica.column(name, np.array(ids)).tolist() for name in OF_LEDGER), strict=True)
            for page_id, url, meta, name, row, values in zip(ids, urls, metas, names, rows, numbers, strict=True):
                measures, anchors = deque(replica.histories.measures_of(row)), replica.histories.anchors_of(row)
                of_page = dict(zip(OF_LEDGER, values, strict=True))
                pages.append(
                    LedgerPage(
                        url, page_id, meta=meta, name=name.decode(), measures=measures, anchors=anchors, **of_page
                    )
                )
        return [page for page in pages if page.state != FORGOTTEN]

    # All shards.

    def audit(self) -> tuple[BooksAudit, list[BooksAudit]]:
        """Recount the books of the whole crawl and of each shard; return both. Each shard is read at one LSN."""
        return CrawlAudit(self.shards, self.follow, self.ask).run()


_NOTHING = np.empty(0, np.int64)


def _joined_measures(parts: Sequence[Measures], order: Int64s) -> Measures:
    """Concatenate the measures of several shards' pages and reorder the pages."""
    counts = np.concatenate([_NOTHING, *(np.diff(part.starts) for part in parts)])[order]
    shift, starts = 0, []
    for part in parts:
        starts.append(part.starts[:-1] + shift)
        shift += len(part.clock)
    first = np.concatenate([_NOTHING, *starts])[order]
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    rows = np.repeat(first - ends[:-1], counts) + np.arange(int(ends[-1]))
    clock, cash, at_us = (
        np.concatenate([_NOTHING, *(getattr(part, name) for part in parts)])[rows]
        for name in ("clock", "cash", "at_us")
    )
    return Measures(ends, clock, cash, at_us)
