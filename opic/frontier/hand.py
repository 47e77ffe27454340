"""Hands out pages: chosen from the hot index, leased by the store.

Wishes that come at the same time are worked out together: pages are chosen for all of them in the order of cash over
all shards, and one pipeline asks every shard to lease its own. That call alone decides, so any number of endpoints may
hand out pages: it looks at each page's cash, lease, back-off and host once more. On a small store it leases only what
was chosen from the very state that it finds, else we look again: there the order is exact. On a large one the hot index
is up to a second old, and where it moved meanwhile, a page is leased if it still counts at least half of what the first
page does that was not taken.
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from opic import mirror as mirrors
from opic.cash import MILLION
from opic.frontier.held import Held, read_held, stamps_of
from opic.frontier.leases import Chunk, Leased, Lessor, given_back
from opic.frontier.view import NEVER, VIEW_SECONDS_MAX, View
from opic.frontier.wish import Terms, Wish
from opic.mirror import Bools, Hosts, Int32s, Mirror, Snapshot
from opic.store import Crawl

BATCH_SHARE: Final = 10  # Past one page in ten asked for or out, a batch is cut at half of its best page's cash.
CANDIDATES_SPARE: Final = 16  # Of one shard: some may be refused.
PAGES_A_CALL: Final = 500  # Under 5 ms in which the server answers nobody else.
PAGES_TOGETHER: Final = 2_000  # Wishes for more are worked out one after the other.
HELD_EXACT: Final = 5_000  # Up to so many leases, waits and delays, and a mirror's PAGES_EXACT, the order is exact.
STRICT_TRIES: Final = 4  # Looks at a store that moves; after them we take what we saw.
REST: Final = 5  # Past those numbers the view rests for so many times what making it took, and VIEW_SECONDS_MAX.
TURNS_MAX: Final = 200  # Of one call: what it has by then is its answer.
RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 60.0
RETRY_SECONDS_RATIONED: Final = 0.5  # Where there are pages that somebody else may have by then, or nobody.
RETRY_SECONDS_DEFAULT: Final = 5.0  # When nothing says when; and while leases run: each may bring new cash any moment.
REPORTED_MAX: Final = 100_000  # Crawl-delays that need not be written again.


class Ration(Protocol):
    """What one choice may take of hosts that would swallow the crawl."""

    refused: bool  # Whether it refused a page.

    def fit(self, hosts: Int32s) -> Bools:
        """Tell which pages of these hosts may be had, in this order; each call goes on from the one before."""

    def take(self, hosts: Sequence[int]) -> None:
        """Count pages of these hosts as chosen, and forget what else was asked."""


class Admission(Protocol):
    """Which pages may not be offered, whatever cash they have."""

    def ration(self, snapshot: Snapshot, *, idle: bool) -> Ration | None:
        """Return what may be had now; None: all. Where nothing else is to be had, it may be more."""

    def note(self, snapshot: Snapshot, hosts: Sequence[int]) -> None:
        """Remember of which hosts pages were handed out."""

    def shut(self, snapshot: Snapshot) -> Bools | None:
        """Return which, by position; None if none is. The same object as before where nothing changed."""

    def why(self, url: str) -> list[dict[str, Any]]:
        """Return the rules that a canonical URL falls under, each with "rule" and "effect"."""


@dataclass(slots=True)
class _Part:
    """A wish, or the part of it that is for pages of one mode."""

    wish: int
    asked: int  # By the whole wish.
    n: int
    seconds: float
    mode: str
    domain: str | None
    busy: frozenset[str]
    granted: list[Leased] = field(default_factory=list)
    cut: bool | None = None  # Whether it ends at half of its best page's cash.
    over: bool = False  # There is nothing more for it.

    @property
    def missing(self) -> int:
        return 0 if self.over else self.n - len(self.granted)


class Hand:
    """What `opic.frontier.Frontier` chooses and leases by. Any thread may ask; one at a time is answered."""

    def __init__(self, crawl: Crawl, mirror: Mirror, terms: Terms, admission: Admission | None) -> None:
        """See `opic.frontier.Frontier`."""
        self.crawl, self.mirror, self.terms, self.admission = crawl, mirror, terms, admission
        self.lessor = Lessor(crawl, terms)
        self.lock = threading.Lock()
        self._view: View | None = None
        self._view_seconds = 0.0  # What making it took.
        self._depth = 0  # How far down its order was looked at.
        self._leased: list[tuple[float, Hosts, list[Leased]]] = []  # When, hosts by which numbers, what.
        self._making: Future[View] | None = None
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="frontier")
        self._rationed = False  # Whether the last choice passed over pages that are rationed.
        self._discoveries = 0.0  # Of a page: what rounding left over from the share.
        self._reported: dict[str, float] = {}

    # The view.

    def _make(self) -> View:
        began = time.monotonic()
        held = read_held(self.crawl, self.terms.politeness.retry_seconds, RETRY_SECONDS_MIN)
        snapshot = self.mirror.fresh()
        shut = self.admission.shut(snapshot) if self.admission else None
        view = View(snapshot, held, shut, self.terms, exact=_is_small(snapshot, held))
        view.as_of = began
        view.order("any", None).sort(self._depth)
        self._view_seconds = time.monotonic() - began
        return view

    def _install(self, view: View) -> View:
        """Use a view from now on, with what was leased while it was made."""
        self._leased = [noted for noted in self._leased if noted[0] >= view.as_of]
        for _, table, leased in self._leased:
            if table is view.snapshot.table:  # Else hosts have other numbers, and all leases were read anew.
                for page in leased:
                    view.note(page, self.terms.politeness.retry_seconds)
        self._view = view
        return view

    def is_exact(self, view: View) -> bool:
        """Tell whether the store is small enough for each answer to be of its very state."""
        return view.exact and _is_small(view.snapshot, view.held)

    def view(self, *, anew: bool = False) -> View:
        """Return the view to choose by; hold the lock."""
        view = self._view
        if view is None or anew:
            return self._install(self._make())
        if self.is_exact(view):
            return self._with_rules(view)
        if self._making is not None and self._making.done():
            made, self._making = self._making, None
            view = self._install(made.result())
        age = time.monotonic() - view.as_of
        if age > VIEW_SECONDS_MAX:
            if self._making is not None:
                made, self._making = self._making, None
                view = self._install(made.result())
            elif stamps_of(self.crawl) == view.stamps:
                view.as_of = time.monotonic()
            else:
                view = self._install(self._make())
        elif view.moved and self._making is None and age > self._rest():
            self._depth = view.order("any", None).depth
            self._making = self._maker.submit(self._make)
        return self._with_rules(view)

    def _rest(self) -> float:
        """Return how old a view gets before the next is made: which is done in time if it takes twice as long."""
        took = self._view_seconds
        return min(REST * took, VIEW_SECONDS_MAX / 2, VIEW_SECONDS_MAX - 2 * took)

    def _with_rules(self, view: View) -> View:
        if self.admission is not None:
            view.admit(self.admission.shut(view.snapshot))
        return view

    def seen(self) -> View:
        """Return a view for a look, of what there is now where the store is small; hold the lock."""
        view = self.view()
        if self.is_exact(view) and stamps_of(self.crawl) != view.stamps:
            view = self.view(anew=True)
        return view

    def forget(self) -> None:
        """Drop the view, a cache: it is made again from the store."""
        with self.lock:
            self._view = None

    # The wishes.

    def serve(self, wishes: Sequence[Wish]) -> list[dict[str, object]]:
        """Lease pages for each wish, in turn, as if they came one after the other; see `Frontier.next`."""
        with self.lock:
            answers: list[dict[str, object]] = []
            at = 0
            while at < len(wishes):
                end, pages = at + 1, wishes[at].n
                while end < len(wishes) and pages + wishes[end].n <= PAGES_TOGETHER:
                    pages += wishes[end].n
                    end += 1
                try:
                    answers += self._serve(wishes[at:end])
                except BaseException:
                    self._view = None  # What became of the leases asked for is not known.
                    raise
                at = end
            return answers

    def _serve(self, wishes: Sequence[Wish]) -> list[dict[str, object]]:
        self._report({host: delay for wish in wishes for host, delay in wish.crawl_delays.items()})
        parts = [part for at, wish in enumerate(wishes) for part in self._parts(at, wish)]
        view = self._lease(parts)
        if self.terms.share is not None:  # Where pages of one mode ran out, those of the other fill up.
            missing = [0] * len(wishes)
            for part in parts:
                missing[part.wish] += part.n - len(part.granted)
            rest = [
                _Part(at, wish.n, missing[at], wish.seconds, "any", wish.domain, wish.busy)
                for at, wish in enumerate(wishes)
                if wish.mode == "any" and missing[at]
            ]
            if rest:
                parts += rest
                view = self._lease(rest)
        found: list[list[Leased]] = [[] for _ in wishes]
        for part in parts:
            found[part.wish] += part.granted
        if self._rationed and not all(found):  # Nothing else is to be had.
            rest = [
                _Part(at, wish.n, wish.n, wish.seconds, wish.mode, wish.domain, wish.busy)
                for at, wish in enumerate(wishes)
                if not found[at]
            ]
            view = self._lease(rest, idle=True)
            for part in rest:
                found[part.wish] += part.granted
        return [
            self._answer(leased) if leased else {"pages": [], "retry_after": self._retry_after(view, wish)}
            for wish, leased in zip(wishes, found, strict=True)
        ]

    def _parts(self, at: int, wish: Wish) -> list[_Part]:
        modes = {wish.mode: wish.n}
        if self.terms.share is not None and wish.mode == "any":
            self._discoveries += wish.n * self.terms.share
            discover = min(int(self._discoveries), wish.n)
            self._discoveries -= discover
            modes = {"discover": discover, "refresh": wish.n - discover}
        return [_Part(at, wish.n, n, wish.seconds, mode, wish.domain, wish.busy) for mode, n in modes.items() if n]

    def _report(self, delays: Mapping[str, float]) -> None:
        """Keep what hosts' robots.txt ask for; of hosts that have pages here, so that nobody fills the store."""
        new = {host: delay for host, delay in delays.items() if self._reported.get(host) != delay}
        if not new:
            return
        view, commands = self.view(), []
        for host, delay in new.items():
            if view.number(host) is not None:
                keys = self.crawl.shard_of(f"http://{host}/").keys
                command = ["HSET", keys.crawl_delays, host, repr(delay)] if delay else ["HDEL", keys.crawl_delays, host]
                commands.append(command)
                self._reported[host] = delay
        if commands:
            self.crawl.ask(commands)
        while len(self._reported) > REPORTED_MAX:
            del self._reported[next(iter(self._reported))]

    def _lease(self, parts: Sequence[_Part], *, idle: bool = False) -> View:
        """Lease what the parts ask for, in turns, until they have it or there is no more; return the last view."""
        self._rationed = False
        view, looked_again, turn, first = self.view(), False, 0, True
        while turn < TURNS_MAX and (first or any(part.missing for part in parts)):
            strict = turn < STRICT_TRIES and self.is_exact(view)
            granted = [page for part in parts for page in part.granted]
            for page in granted:  # No answer has a page twice, however short its lease is.
                view.hold(page.place, NEVER)
            chunks = self._choose(view, [part for part in parts if part.missing], idle=idle)
            if not chunks and not first:
                break
            if first:  # All are asked: whether they stand as we saw them, and to end leases that ran out.
                asked = {chunk.shard for chunk in chunks}
                chunks += [Chunk.empty(shard) for shard in range(len(self.crawl)) if shard not in asked]
            still = self._ask(view, chunks, strict=strict, sweep=turn == 0 or not strict)
            turn, first = turn + 1, False
            if not still:
                view, first = self.view(anew=True), True
                for part in parts:
                    part.over, part.cut = False, part.cut if part.granted else None
            elif not looked_again and not strict and self._may_err(view) and not any(part.granted for part in parts):
                # Before we say that there is nothing, we look at what there is now.
                view, looked_again = self.view(anew=True), True
                for part in parts:
                    part.over, part.cut = False, None
        for page in (page for part in parts for page in part.granted):
            view.note(page, self.terms.politeness.retry_seconds)
        return view

    def _may_err(self, view: View) -> bool:
        return view.moved and time.monotonic() - view.as_of > REST * self._view_seconds

    def _choose(self, view: View, parts: Sequence[_Part], *, idle: bool) -> list[Chunk]:
        """Choose pages for all parts, each after those before it; hold them in the view meanwhile."""
        groups: dict[tuple[str, str | None, frozenset[str]], list[_Part]] = {}
        for part in parts:
            groups.setdefault((part.mode, part.domain, part.busy), []).append(part)
        chunks: list[Chunk] = []
        leases, live = sum(view.running), view.snapshot.books.live
        ration = self.admission.ration(view.snapshot, idle=idle) if self.admission else None
        for (mode, domain, busy), some in groups.items():
            total = sum(part.missing for part in some)
            spare = CANDIDATES_SPARE if len(self.crawl) == len(groups) == 1 else 0  # Nobody else may miss them.
            # Who asks for one domain wants it, however much of the crawl it is.
            fit = ration.fit if ration is not None and domain is None else None
            positions, counts, following = view.pick(view.order(mode, domain), total + spare, view.mask(busy), fit)
            passed = (
                counts[total] if len(counts) > total else following
            )  # What the first page counts that is not taken.
            at, quotas = 0, []
            for part in some:
                if part.cut is None:
                    part.cut = (part.asked + leases) * BATCH_SHARE > live
                best = max((lease.counts for lease in part.granted), default=counts[at] if at < len(counts) else 0)
                least = best / 2 if part.cut else 0
                end = at
                while end < min(at + part.missing, len(counts)) and counts[end] >= least:
                    end += 1
                if end == at:
                    part.over = True
                    continue
                quotas.append((part, end - at, max(least, passed / 2)))
                leases += end - at
                at = end
            if quotas:
                chunks += self._chunks(view, mode, quotas, positions[: at + spare].tolist())
            if ration is not None:
                ration.take(view.host[positions[: at + spare]].tolist() if quotas else ())
                self._rationed |= ration.refused
        return chunks

    def _chunks(
        self, view: View, mode: str, quotas: Sequence[tuple[_Part, int, float]], positions: Sequence[int]
    ) -> list[Chunk]:
        """Say what each shard is asked: its pages in their order, and for whom each is; spare ones come last."""
        by_shard: dict[int, list[Chunk]] = {}
        at = 0
        for part, count, least in quotas:
            for position in positions[at : at + count]:
                self._chunk(by_shard, int(view.page_shard[position]), mode).add(position, part, part.seconds, least)
            at += count
        for position in positions[at:]:
            by_shard[0][-1].positions.append(position)
        chunks = [chunk for some in by_shard.values() for chunk in some]
        for chunk in chunks:
            chunk.take(view)
        return chunks

    def _chunk(self, by_shard: dict[int, list[Chunk]], shard: int, mode: str) -> Chunk:
        chunks = by_shard.setdefault(shard, [])
        if not chunks or len(chunks[-1].positions) >= PAGES_A_CALL:
            chunks.append(Chunk(shard, mode))
        return chunks[-1]

    def _ask(self, view: View, chunks: Sequence[Chunk], *, strict: bool, sweep: bool) -> bool:
        """Let the store lease what was chosen; False if it is not as we saw it, which is all that is known then.

        With `sweep` it ends leases that ran out. One that ends while we choose would else bind its page in the store
        alone, and the page be chosen and refused again and again.
        """
        commands, seen = [], set()
        for chunk in chunks:
            again = chunk.shard in seen  # What we lease ourselves, a call before, moves what is held.
            seen.add(chunk.shard)
            held = strict and not again
            commands.append(self.lessor.command(view, chunk, state=strict, held=held, sweep=sweep and not again))
        began = time.monotonic()
        answers, leased, still = self.crawl.ask(commands), [], True
        for chunk, answer in zip(chunks, answers, strict=True):
            same, found = self.lessor.heard(view, chunk, answer)
            still = still and (same or not strict)
            leased += found
        if leased:
            self._leased.append((began, view.snapshot.table, leased))
            if self.admission is not None:
                self.admission.note(view.snapshot, [page.host for page in leased])
        if not view.moved and seen == set(range(len(self.crawl))):
            view.as_of = began
        return still

    def _answer(self, leased: Sequence[Leased]) -> dict[str, object]:
        return {
            "pages": [
                {
                    "url": page.url,
                    "cash": page.cash,
                    "importance": page.importance,
                    "fetched_before": page.read_before,
                    "lease": f"{page.place[0]}-{page.place[1]}-{page.until_us}",
                    "lease_until": page.until_us / MILLION,
                }
                for page in sorted(leased, key=lambda page: (-page.counts, page.position))
            ],
            "retry_after": 0,
        }

    def _retry_after(self, view: View, wish: Wish) -> float:
        """Return in how many seconds the first of the wanted pages may be free."""
        first = view.first_free(view.order(wish.mode, wish.domain), view.mask(wish.busy))
        if first is None:
            return RETRY_SECONDS_DEFAULT
        if self._rationed:
            first = max(first, RETRY_SECONDS_RATIONED)
        most = RETRY_SECONDS_DEFAULT if sum(view.running) else RETRY_SECONDS_MAX
        return math.ceil(min(max(first, RETRY_SECONDS_MIN), most) * 1000) / 1000

    def release(self, leases: Sequence[str]) -> int:
        """Give pages back; return how many of the leases still ran."""
        with self.lock:
            released = given_back(self.crawl, leases)
            if self._view is not None:
                for shard, ids in released.items():
                    self._view.give_back(shard, ids)
            for _, _, leased in self._leased:  # They would be held again.
                leased[:] = [page for page in leased if page.place[1] not in released.get(page.place[0], ())]
            return sum(map(len, released.values()))


def _is_small(snapshot: Snapshot, held: Held) -> bool:
    return len(snapshot) <= mirrors.PAGES_EXACT and len(held) <= HELD_EXACT
