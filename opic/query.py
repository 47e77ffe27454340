"""Answers: how important a page is, which pages are at the top, how the books stand.

A single page is read from the store, so that its numbers are of this instant. What needs all pages (the top, a rank)
comes from a mirror of the columns in numpy: exact on a quiet or small store, at most a second old on a large busy one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic import windows
from opic.cash import CLASS_BITS, MILLION, ROUND_BITS, Books, Flag
from opic.classes import OTHERS
from opic.errors import BadInput, SettingsError
from opic.store import Shard
from opic.store.columns import Bytes, Int64s, Record
from opic.store.connection import store_errors
from opic.store.keys import ROWS_URLS
from opic.store.shard import ROWS_READ_MAX, Columns, held
from opic.urls import URL_BYTES_MAX, canonical_host, canonical_url, host_of, shown

Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
T = TypeVar("T")

POLICIES = windows.POLICIES
WINDOW_ROUNDS = 8.0
PAGES_EXACT = 100_000  # Up to so many pages, some 5 ms of reading, every answer refreshes the mirror if it has to.
REFRESH_REST = 5  # Past it, the mirror rests for so many times what its last refresh took,
AGE_SECONDS_MAX = 0.9  # but never shows a state this old: a second less the time to answer.
REFRESH_TRIES = 3
HEAD_PAGES = 1_024  # The least that is sorted at once, and kept until something moves.
URL_BLOCKS_A_CALL = 64
VIEWS_KEPT_MAX = 4  # Pairs of policy and window whose estimates a snapshot keeps, 16 bytes a page each.
DOMAINS_KEPT_MAX = 64  # Domains whose hosts are remembered.
KNOWN_GONE = Flag.KNOWN | Flag.GONE


def largest(values: Int64s | Floats, count: int) -> Int64s:
    """Return where the `count` largest values are that are not negative, descending, ties by position.

    Costs one partition, 12 ms for a million, and a sort of `count`.

    >>> largest(np.array([5, -1, 7, 5, 0]), 3)
    array([2, 0, 3])
    """
    at = np.arange(len(values))
    if count < len(values):
        edge = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > edge)
        at = np.concatenate((above, np.flatnonzero(values == edge)[: count - len(above)]))
    at = at[values[at] >= 0]
    return at[np.argsort(-values[at], kind="stable")]


def weighed(cash: Int64s, discovery: float) -> Floats:
    """Return what cash of pages never read counts in the greedy order: at least a grain, since 0 is not offered."""
    counts: Floats = np.maximum(cash * discovery, 1.0)
    return counts


class Hosts:
    """The host of every page as a number, read from the URLs as pages become known. It only grows."""

    def __init__(self, shard: Shard) -> None:
        """Nothing is read until a host is asked for: a million URLs take about a second, once."""
        self.shard = shard
        self.names: list[str] = []
        self._number: dict[str, int] = {}
        self._by_authority: dict[str, int] = {}
        self._of_page = np.zeros(0, np.int32)
        self._pages = 0
        self._domains: dict[str, tuple[int, list[int]]] = {}
        self._lock = threading.Lock()

    def of_pages(self, pages: int) -> Int32s:
        """Return the host numbers of the pages with ids below `pages`."""
        with self._lock:
            if pages > len(self._of_page):
                # A new array: whoever holds a view of the old one keeps what he saw.
                grown = np.zeros(max(pages, 2 * len(self._of_page)), np.int32)
                grown[: self._pages] = self._of_page[: self._pages]
                self._of_page = grown
            step = URL_BLOCKS_A_CALL * ROWS_URLS
            while self._pages < pages:
                ids = range(self._pages, min(pages, (self._pages // step + 1) * step))
                urls = self.shard.urls_of(ids)
                self._of_page[ids.start : ids.stop] = [self._number_of(urls[i]) for i in ids]
                self._pages = ids.stop
            view = self._of_page[:pages]
        view.flags.writeable = False
        return view

    def _number_of(self, url: str) -> int:
        authority = url.split("/", 3)[2]
        number = self._by_authority.get(authority)
        if number is None:
            host = host_of(url)
            number = self._number.setdefault(host, len(self.names))
            if number == len(self.names):
                self.names.append(host)
            if "@" not in authority:  # A site may make up any number of users.
                self._by_authority[authority] = number
        return number

    def number(self, host: str) -> int | None:
        """Return a host's number, or None if no page seen so far is there."""
        return self._number.get(host)

    def below(self, domain: str) -> list[int]:
        """Return the numbers of a host or domain and of all hosts below it."""
        with self._lock:
            seen, numbers = self._domains.pop(domain, (0, []))
            suffix = "." + domain
            new = [i for i, h in enumerate(self.names[seen:], seen) if h == domain or h.endswith(suffix)]
            found = (len(self.names), numbers + new)
            self._domains[domain] = found  # Last in, so that the first one is the longest unused.
            if len(self._domains) > DOMAINS_KEPT_MAX:
                del self._domains[next(iter(self._domains))]
        return found[1]


@dataclass(frozen=True, slots=True)
class View:
    """What a window policy makes of a snapshot: estimates of pages by id, and what they rest on."""

    estimates: Floats  # 0 for pages that are not live; sums to 1.
    scores: Floats  # The same, but -1 for pages that are not live.
    ascending: Floats  # The scores, sorted.
    warm: bool  # The policy speaks for itself; else its estimates are the static ones as yet.

    def ranks(self, scores: Sequence[float]) -> list[int]:
        """Return 1 + the number of live pages with a larger estimate, for each."""
        larger = len(self.ascending) - np.searchsorted(self.ascending, np.array(scores), side="right")
        return [1 + n for n in larger.tolist()]


@dataclass(frozen=True)
class Snapshot:
    """The columns of one instant. It never changes; what is worked out of them is kept beside them.

    All arrays are (n,), by id, ids without the KNOWN bit among them.
    """

    as_of: float  # Unix seconds; this is the state of then.
    books: Books
    v: Int64s
    spent: Int64s
    state: Bytes
    table: Hosts
    kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        """Count the ids."""
        return len(self.state)

    def _keep(self, name: str, work_out: Callable[[], T]) -> T:
        """Work something out once. Two threads at once may both do so, to the same result."""
        if name not in self.kept:
            self.kept[name] = work_out()
        kept: T = self.kept[name]
        return kept

    @property
    def host(self) -> Int32s:
        """The number of each page's host in `hosts`."""
        return self._keep("host", lambda: self.table.of_pages(len(self)))

    @property
    def hosts(self) -> Sequence[str]:
        """Host names by number; there may be more than these pages have."""
        return self.table.names

    @property
    def cash(self) -> Int64s:
        """What live pages hold; of others it means nothing."""
        return self._keep("cash", lambda: held(self.books, self.v, self.state))

    @property
    def debt(self) -> int:
        """What open pages owe in all: none does before a weight was cut."""
        return -int(self.cash[((self.state & Flag.OPEN) != 0) & (self.cash < 0)].sum()) if self.books.cuts else 0

    @property
    def overdrawn(self) -> int:
        """What live pages would have to have more for H + C of none to be negative, which is shown as 0."""
        if not self.books.cuts:
            return 0
        return -int(np.minimum(self.spent + self.cash, 0)[self._live()].sum())

    @property
    def scores(self) -> Int64s:
        """H + C of live pages, -1 for others. H is under 2^62 and C under 2^53, so an int64 holds the sum."""

        def work_out() -> Int64s:
            return np.where(self._live(), np.maximum(self.spent + self.cash, 0), -1)

        return self._keep("scores", work_out)

    def view(self, policy: str, rounds: float, shard: Shard) -> View:
        """Return what a window policy makes of this state; the measures are read the first time.

        They are read later than the columns. A measure made since then tells so by its clock and is left out, so that
        this is the state of one instant; what such a page then lacks is its oldest measures, which the new ones pushed
        out. Costs a second for a million pages, a third of them read, for each state that is asked about (a busy store
        has a new one for nearly every question), then 0.1 to 0.2 s for each further policy or window.
        """
        views: dict[tuple[str, float], View] = self._keep("views", dict)
        found = views.get((policy, rounds))
        if found is None:
            past = self._keep("past", lambda: self._past(shard))
            window = max(rounds * shard.rules.round_grains(self.books.live), 1.0)
            estimates = windows.estimate(policy, past, window, shard.rules.measures_max)
            scores = np.where(past.live, estimates, -1.0)
            found = View(estimates, scores, np.sort(scores), windows.warm(policy, past, window))
            while len(views) >= VIEWS_KEPT_MAX:
                views.pop(next(iter(views), ("", 0.0)), None)
            views[policy, rounds] = found
        return found

    def _past(self, shard: Shard) -> windows.Past:
        found = shard.measures(len(self))
        then = found.clock <= self.books.clock
        counts = np.zeros(len(then) + 1, np.int64)
        np.cumsum(then, out=counts[1:])
        kept = (found.anchor_clock > 0) & (found.anchor_clock <= self.books.clock)
        anchors = (np.where(kept, found.anchor_clock, 0), np.where(kept, found.anchor_spent, 0))
        return windows.Past(
            starts=counts[found.starts],
            clock=found.clock[then],
            spent=found.cash[then],
            cash=self.cash,
            history=self.spent,
            live=self._live(),
            now=self.books.clock,
            anchors=anchors if shard.rules.continuous else None,
        )

    def _live(self) -> Bools:
        live: Bools = (self.state & KNOWN_GONE) == Flag.KNOWN
        return live

    def ranks(self, scores: Sequence[int]) -> list[int]:
        """Return 1 + the number of live pages with a larger H + C, for each score."""
        ascending = self._keep("ascending", lambda: np.sort(self.scores))
        larger = len(ascending) - np.searchsorted(ascending, np.array(scores, np.int64), side="right")
        return [1 + n for n in larger.tolist()]

    def top(self, count: int) -> Int64s:
        """Return the ids of the live pages with most H + C, descending, ties by id."""
        return self._head("top", lambda: self.scores, count)

    def offers(self, discovery: float = 1.0) -> Int64s | Floats:
        """Return what counts in the greedy order of the pages that may be offered at all, -1 for others.

        These are live and not excluded, and have cash, or owe some. It is that cash, whichever its sign; of pages never
        read so many times as `discovery` says.
        """

        def work_out() -> Int64s | Floats:
            read = (self.state & Flag.OPEN) != 0
            fit = ((self.state & (KNOWN_GONE | Flag.EXCLUDED)) == Flag.KNOWN) & (
                (self.cash > 0) | read & (self.cash < 0)
            )
            weight = np.abs(self.cash)
            return np.where(fit, weight if discovery == 1 else np.where(read, weight, weighed(weight, discovery)), -1)

        return self._keep(f"offers {discovery}", work_out)

    def greedy(self, count: int, discovery: float = 1.0) -> Int64s:
        """Return the ids of the pages that may be offered, most cash first, ties by id, up to `count` or some more."""
        return self._head(f"greedy {discovery}", lambda: self.offers(discovery), count)

    def _head(self, name: str, values: Callable[[], Int64s | Floats], count: int) -> Int64s:
        # Lengths grow by 16 so that a rare look far down costs little more than one sort of that length.
        length = HEAD_PAGES
        while length < min(count, len(self)):
            length *= 16
        return self._keep(f"{name} {length}", lambda: largest(values(), length))


class Mirror:
    """A copy of a shard's columns that keeps itself fresh. Any thread may ask."""

    def __init__(self, shard: Shard) -> None:
        """Nothing is read yet."""
        self.shard = shard
        self.hosts = Hosts(shard)
        self._lock, self._view_lock = threading.Lock(), threading.Lock()
        self._snapshot: Snapshot | None = None
        self._read_at = self._took_seconds = 0.0  # Of the last refresh: when it began (monotonic), how long it took.

    def fresh(self) -> Snapshot:
        """Return the state of now, or of up to AGE_SECONDS_MAX ago when the store is large and busy.

        One small read when nothing moved. When something did, the columns are read again, unless there are more than
        PAGES_EXACT pages and the last refresh is younger than REFRESH_REST times what it took: so that a busy store
        of 10^7 pages spends a sixth of its reader's time on it at most.
        """
        with self._lock:
            now, kept = time.time(), self._snapshot
            if kept is not None:
                with store_errors():
                    version = int(self.shard.client.hget(self.shard.keys.books, "version") or 0)
                if version == kept.books.version:
                    self._snapshot = kept = replace(kept, as_of=now)
                    return kept
                rest = min(REFRESH_REST * self._took_seconds, AGE_SECONDS_MAX)
                if len(kept) > PAGES_EXACT and time.monotonic() - self._read_at < rest:
                    return kept
            self._snapshot = fresh = self._read()
            return fresh

    def view(self, policy: str, rounds: float) -> tuple[Snapshot, View]:
        """Return a fresh state and what a window policy makes of it. One thread works it out, others wait."""
        with self._view_lock:
            snapshot = self.fresh()
            return snapshot, snapshot.view(policy, rounds, self.shard)

    def _read(self) -> Snapshot:
        for _ in range(REFRESH_TRIES):
            as_of, self._read_at = time.time(), time.monotonic()
            columns = self.shard.columns()
            self._took_seconds = time.monotonic() - self._read_at
            snapshot = Snapshot(as_of, *_frozen(columns), self.hosts)
            # Pages that became known while we asked how many there are would be missing until the next step.
            if int(np.count_nonzero((columns.state & KNOWN_GONE) == Flag.KNOWN)) == columns.books.live:
                break
        return snapshot


def _frozen(columns: Columns) -> tuple[Books, Int64s, Int64s, Bytes]:
    for column in (columns.v, columns.spent, columns.state):
        column.flags.writeable = False
    return columns.books, columns.v, columns.spent, columns.state


class Query:
    """What can be asked of a shard."""

    def __init__(
        self,
        shard: Shard,
        mirror: Mirror,
        url_bytes_max: int = URL_BYTES_MAX,
        policy: str | None = None,
        window_rounds: float = WINDOW_ROUNDS,
    ) -> None:
        """Answer from an open shard and its mirror; `policy` and `window_rounds` are for who names none.

        Without a policy it is the one that the store's payout wants: static under grants, else interpolation.

        Raises:
            SettingsError: the store does not keep what the policy wants.
        """
        self.shard, self.mirror, self.url_bytes_max = shard, mirror, url_bytes_max
        self.policy = policy or ("interpolation" if shard.rules.continuous else "static")
        self.window_rounds = window_rounds
        try:
            windows.check_measures(self.policy, shard.rules.measures_max)
        except BadInput as error:
            raise SettingsError(f"OPIC_POLICY: {error}") from None

    def as_of(self) -> float:
        """Return a time (Unix seconds) that the state shown by answers from now on is no older than."""
        return self.mirror.fresh().as_of

    def never_seen(self, url: str) -> str:
        """Say that a page is not known."""
        return f"{canonical_url(url, self.url_bytes_max)} was never seen: neither fetched, nor linked to, nor a seed"

    def importance(
        self, urls: Sequence[str], policy: str | None = None, window: float | None = None
    ) -> list[dict[str, object] | None]:
        """Estimate the importance of pages.

        By the policy static: (H + C) / sum of H + C over live pages, of whole numbers, rounded once, as of this
        instant; the rank is the mirror's. By a window policy: as `opic.windows` says, as of the mirror's instant,
        since all pages' measures go into each page's share. Cash and reads are of this instant either way.

        Args:
            urls: any number, in any form; 2,000 at a time are of one instant.
            policy: one of POLICIES; that of OPIC_POLICY if None.
            window: in rounds, for the window policies; OPIC_WINDOW_ROUNDS if None. A round is the clock advancing by
                one grant for every live page, so W rounds are W * grant * live pages grains of the clock; under the
                continuous payout by all cash.

        Returns:
            For each URL the entry that the public contract names, or None for a page never seen. A gone page has
            importance 0 and no rank, and its cash may be negative: it has given its grants back.

        Raises:
            BadUrl: one of the URLs can't be taken.
            BadInput: the policy or the window can't, or the store keeps too few measures for it.
        """
        policy, rounds = self._policy(policy, window)
        canonical = [canonical_url(url, self.url_bytes_max) for url in urls]
        distinct = list(dict.fromkeys(canonical))
        ids = {url: i for url, i in zip(distinct, self.shard.ids_of(distinct), strict=True) if i is not None}
        entries: dict[str, dict[str, object]] = {}
        snapshot = self.mirror.fresh() if ids else None
        found = list(ids.items())
        for at in range(0, len(found), ROWS_READ_MAX):
            entries |= self._entries(dict(found[at : at + ROWS_READ_MAX]), snapshot)
        if rounds is not None and entries:
            snapshot, view = self.mirror.view(policy, rounds)
            self._by_window({ids[url]: entry for url, entry in entries.items()}, snapshot, view)
            for entry in entries.values():
                entry |= {"policy": policy, "window": rounds}
        return [entries.get(url) for url in canonical]

    def _entries(self, ids: dict[str, int], snapshot: Snapshot | None) -> dict[str, dict[str, object]]:
        rules, rows = self.shard.rules, self.shard.rows(list(ids.values()))
        overdrawn = 0 if snapshot is None else snapshot.overdrawn
        total = max(rows.books.importance_total(rules.minted) + overdrawn, 1)
        bound = self.error_bound(rows.books)
        credits, teleport = rows.books.credits(), "weighted" if rows.books.weighted else "uniform"
        names = self.shard.class_names() if any(rows.books.known_by) else {}
        entries: dict[str, dict[str, object]] = {}
        scores: dict[str, int] = {}
        for url, v, spent, state, packed in zip(
            ids, rows.v.tolist(), rows.spent.tolist(), rows.state.tolist(), rows.records, strict=True
        ):
            if not state & Flag.KNOWN:
                continue
            gone, record = bool(state & Flag.GONE), Record.unpack(packed)
            slot = state & CLASS_BITS
            cash = v if gone else v + credits[slot]
            last = record.measures[-1] if record.measures else None
            entry = entries[url] = {
                "url": url,
                "importance": 0.0 if gone else min(max(spent + cash, 0) / total, 1.0),
                "cash": cash,
                "reads": record.reads,
                "last_read_clock": last.clock if last else None,
                "last_fetched_at": last.fetched_at_us / MILLION if last else None,
                "policy": "static",
                "window": None,
                "teleport": teleport,
            }
            if slot:
                entry["class"] = names.get(slot, OTHERS)
            if bound is not None:
                entry["error_bound"] = bound
            if gone:
                entry["gone"] = True
            else:
                scores[url] = max(spent + cash, 0)
        if snapshot is not None and scores:
            for url, rank in zip(scores, snapshot.ranks(list(scores.values())), strict=True):
                entries[url]["rank"] = rank
        return entries

    def _by_window(self, entries: dict[int, dict[str, object]], snapshot: Snapshot, view: View) -> None:
        """Put a window policy's estimates in the place of the static ones. The error bound is of those alone."""
        for page_id, entry in entries.items():
            entry.pop("error_bound", None)
            # A page that came after the mirror looked has its static estimate, which is what a young page has.
            if "gone" in entry or page_id >= len(snapshot) or view.scores[page_id] < 0:
                continue
            entry["importance"] = float(view.estimates[page_id])
            (entry["rank"],) = view.ranks([view.scores[page_id]])

    def history(self, url: str) -> dict[str, object] | None:
        """Return the last measures of a page as of this instant, oldest first, or None for a page never seen.

        A measure is a read: the clock after it, the grains it spent, when the page was fetched (Unix seconds).

        Raises:
            BadUrl: the URL can't be taken.
        """
        canonical = canonical_url(url, self.url_bytes_max)
        (page_id,) = self.shard.ids_of([canonical])
        rows = None if page_id is None else self.shard.rows([page_id])
        if rows is None or not rows.state[0] & Flag.KNOWN:
            return None
        measures = Record.unpack(rows.records[0]).measures
        found = [{"clock": m.clock, "cash": m.cash, "fetched_at": m.fetched_at_us / MILLION} for m in measures]
        return {"url": canonical, "measures": found}

    def top(
        self, n: int = 100, domain: str | None = None, policy: str | None = None, window: float | None = None
    ) -> list[dict[str, object]]:
        """Return the most important live pages, descending, ties in order of first sight.

        Importance, rank and cash are of one instant, which the mirror shows; the number of reads is of now.

        Args:
            n: how many at most.
            domain: only this host or domain with all below it; ranks stay those among all pages.
            policy: as in `importance`.
            window: as in `importance`.

        Raises:
            BadInput: a parameter can't be taken.
        """
        policy, rounds = self._policy(policy, window)
        if n < 1:
            raise BadInput(f"n={n}: ask for at least one page")
        within = None if domain is None else canonical_host(domain)
        if rounds is None:
            snapshot, view = self.mirror.fresh(), None
        else:
            snapshot, view = self.mirror.view(policy, rounds)
        scores: Int64s | Floats = snapshot.scores if view is None else view.scores
        if within is not None:
            inside = np.zeros(int(snapshot.host.max(initial=-1)) + 1, np.bool_)
            numbers = np.array(snapshot.table.below(within), np.int64)
            inside[numbers[numbers < len(inside)]] = True
            at = np.flatnonzero(inside[snapshot.host])
            ids = at[largest(scores[at], n)]
        else:
            ids = snapshot.top(n)[:n] if view is None else largest(scores, n)
        if not len(ids):
            return []
        found = scores[ids].tolist()
        if view is None:
            total = max(snapshot.books.importance_total(self.shard.rules.minted) + snapshot.overdrawn, 1)
            shares, ranks = [min(score / total, 1.0) for score in found], snapshot.ranks(found)
        else:
            shares, ranks = found, view.ranks(found)
        urls, records = self.shard.urls_of(ids.tolist()), self.shard.rows(ids.tolist(), states=False).records
        return [
            {
                "url": urls[i],
                "importance": share,
                "rank": rank,
                "cash": cash,
                "reads": Record.unpack(record).reads,
                "host": host_of(urls[i]),
                "policy": policy,
                "window": rounds,
            }
            for i, share, rank, cash, record in zip(
                ids.tolist(), shares, ranks, snapshot.cash[ids].tolist(), records, strict=True
            )
        ]

    def stats(self) -> dict[str, object]:
        """Return the counts of this instant. `error_bound` is left out where it says nothing."""
        books = self.shard.books()
        bound = self.error_bound(books)
        return {
            "known_pages": books.live,
            "gone_pages": books.gone,
            "read_pages": books.open,
            "clock": books.clock,
            "rounds": books.rounds / (1 << ROUND_BITS),
            "reads": books.reads,
            "failures": books.failures,
            "links": books.links,
            "bad_links": books.bad_links,
            "dead_letters": books.dead_letters,
            **({} if bound is None else {"error_bound": bound}),
            "version": books.version,
            "shards": 1,
        }

    def error_bound(self, books: Books) -> float | None:
        """Return the bound on the static estimate's error, or None where it says nothing.

        So under the continuous payout; and once a weight was cut, on a store that moves faster than the mirror: what
        pages owe is in no total, and the mirror's sum of it is of another instant then.
        """
        rules, debt = self.shard.rules, 0
        if rules.continuous:
            return None
        if books.cuts:
            snapshot = self.mirror.fresh()
            if snapshot.books.version != books.version:
                return None
            debt = snapshot.debt
        bound = books.error_bound(rules.minted, rules.q, debt)
        return bound if bound < 2 else None

    def audit(self) -> dict[str, object]:
        """Recount the books: `minted = pages + virtual + in_flight`, in grains, all of one instant."""
        found = self.shard.audit()
        sums = {"pages": found.pages, "virtual": found.virtual, "in_flight": found.in_flight}
        shard = {"shard": 0, **sums, "conserved": found.conserved, "mismatches": list(found.mismatches)}
        return {"minted": found.minted, **sums, "conserved": found.conserved, "shards": [shard]}

    def _policy(self, policy: str | None, window: float | None) -> tuple[str, float | None]:
        """Return the policy that is meant, and its window in rounds; static has none."""
        policy = self.policy if policy is None else policy
        if policy not in POLICIES:
            raise BadInput(f"policy={shown(policy)} is none of {', '.join(POLICIES)}")
        if window is not None and not 0 < window < float("inf"):  # NaN fails every comparison.
            raise BadInput(f"window={window} is not a positive number of rounds")
        if policy == "static":
            return policy, None
        windows.check_measures(policy, self.shard.rules.measures_max)
        return policy, self.window_rounds if window is None else float(window)
