"""Frontier scheduler: choose pages from the hot orders of the replicas and lease them in the store.

Requests that arrive at the same time are answered together: the replicas catch up, pages are chosen for all requests in
the order of cash over all shards, and one pipeline asks each shard to lease its own pages. That call alone decides, and
checks each page's lease, back-off and host again; so any number of endpoints may hand out pages. On a small store the
call leases pages only if they were chosen from the store's current state; if not, we choose again, so the order is
exact. On a large store the order is that of a moment ago, when the replicas caught up.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from opic.admission import Admission
from opic.errors import NotKept, NoTrust, StoreDamaged, StoreError, StoreUnavailable
from opic.frontier.expansion import InLinkColumns
from opic.frontier.hot_crawl import HotCrawl
from opic.frontier.hot_shard import HotShard
from opic.frontier.lease_call import LeaseAnswer, Quota, lease_command
from opic.frontier.leases import (
    ChosenPage,
    Chunk,
    Lease,
    Leased,
    RequestPart,
    await_leases,
    release_leases,
    server_runs,
)
from opic.frontier.next_answers import NextAnswers
from opic.frontier.page_keys import GREEDY, times_priority
from opic.frontier.picking import Picked
from opic.frontier.ranked_order import READ, UNREAD, RankedOrder, RankedOrders
from opic.frontier.requests import BY_LINK_SCORE, EXPANSIONS, SHARE_BY_IMPORTANCE, Choice, FrontierTerms, PagesRequest
from opic.model.cash import Flag
from opic.query.kept_links import KeptLinks
from opic.query.link_scores import LinkScores
from opic.replica import Crawl
from opic.replica.crawl import LOOKS_MAX, Outdated, Place, Rows
from opic.replica.effect import Head

BATCH_SHARE: Final = 10  # If over 1 in 10 live pages is requested or leased, a batch ends at half its best page's cash.
CANDIDATES_SPARE: Final = 16  # Spare pages for a single shard, at most twice as many as were refused last. They double
SPARE_DOUBLED_MAX: Final = 5  # each turn, up to this many times.
IDLE_SECONDS: Final = 1.0  # On a large store, after this long a call includes shards that none of its pages is in.
PAGES_A_CALL: Final = 500  # Such a call blocks the server for less than 5 ms.
PAGES_TOGETHER: Final = 2_000  # Requests for more pages in total are answered one after the other.
STRICT_TRIES: Final = 4  # Attempts to lease from the exact state of a store that changes; then we accept a stale one.
TURNS_MAX: Final = 200  # Maximum number of turns of one call; it then answers with the pages it has.
log = logging.getLogger("opic.frontier")


class Scheduler:
    """Chooses and leases pages for `opic.frontier.Frontier`. Thread-safe; calls are answered one at a time."""

    def __init__(
        self,
        crawl: Crawl,
        terms: FrontierTerms,
        admission: Admission | None,
        pending: Callable[[], bool] = lambda: False,
        *,
        ranked: RankedOrders | None = None,
        links: KeptLinks | None = None,
    ) -> None:
        """See `opic.frontier.Frontier`."""
        self._ranked, self._links = ranked or RankedOrders(), links
        self._inlinks = None if links is None else InLinkColumns(links)
        self.crawl, self.terms, self.admission = crawl, terms, admission
        self.hot = HotCrawl(crawl, terms, admission)
        self._answers = NextAnswers(crawl, self.hot, self._ranked, pending)
        self.lock = threading.Lock()
        self._refused = 0  # Pages that the last call could not lease.
        self._rationed = False  # Whether the last choice skipped pages because of the quota of their host or site.
        self._discoveries = 0.0  # Fraction of a never-read page carried over from rounding the share.
        self._given: list[Lease] = []  # Leases granted but not returned to a caller yet.

    def forget(self) -> None:
        """Drop the hot orders. They are a cache, and are rebuilt from the replicas and the store."""
        with self.lock:
            self.hot.drop()

    def peek(self, wish: PagesRequest) -> list[tuple[int, int]]:
        """Return the places of the pages that would be handed out next."""
        trust, worth, scores = self._trust([wish]), self._ranked.by_importance(), self._scores([wish])
        linked = self.renew_inlinks([wish])
        with self.lock:
            self._use(trust, worth, scores, linked=linked)
            try:
                self.hot.look()
                picked = self.hot.pick(wish.choice(wish.mode, wish.hosts), wish.n)
            except BaseException:
                self.hot.drop()  # The orders may be partly updated.
                raise
        return list(zip(picked.shards.tolist(), picked.ids.tolist(), strict=True))

    def _use(
        self, trust: RankedOrder | None, worth: RankedOrder | None, scores: LinkScores | None, *, linked: bool
    ) -> None:
        self.hot.trust, self.hot.scores = trust or self.hot.trust, scores or self.hot.scores
        self.hot.worth = worth
        if linked and self._inlinks is not None:
            self.hot.take_inlinks(self._inlinks)

    def _trust(self, wishes: Sequence[PagesRequest]) -> RankedOrder | None:
        """Return the order for requests with mode coverage, computed before others wait; None if there are none.

        Raises:
            NoTrust: no page is trusted, and all requests have this mode.
        """
        if all(wish.mode != "coverage" for wish in wishes):
            return None
        if not self._ranked.has_trust:
            raise NoTrust("this frontier has no coverage")
        try:
            return self._ranked.by_trust()
        except (NoTrust, NotKept):
            if all(wish.mode == "coverage" for wish in wishes):
                raise
            return RankedOrder.empty(len(self.crawl))

    def _scores(self, wishes: Sequence[PagesRequest]) -> LinkScores | None:
        """Return the link scores for requests with a policy that draws by them; None if there are none.

        Raises:
            NotKept: no links are kept.
        """
        if all(wish.policy != BY_LINK_SCORE for wish in wishes):
            return None
        if self._links is None:
            raise NotKept("this frontier has no link scores")
        return self._links.scores()

    def renew_inlinks(self, wishes: Sequence[PagesRequest]) -> bool:
        """Bring the in-links up to date for requests with a policy that goes by them; return whether there are any.

        Raises:
            NotKept: no links are kept.
        """
        if all(wish.policy not in EXPANSIONS for wish in wishes):
            return False
        if self._inlinks is None:
            raise NotKept("this frontier has no in-links")
        self._inlinks.renew()
        return True

    # Serving requests.

    def serve(self, wishes: Sequence[PagesRequest]) -> list[dict[str, object]]:
        """Lease pages for each request, as if they had come one after the other; see `Frontier.next`."""
        trust, scores, runs = self._trust(wishes), self._scores(wishes), server_runs(self.crawl)
        worth, linked = self._ranked.by_importance(), self.renew_inlinks(wishes)
        given: list[Lease] = []
        with self.lock:
            self._use(trust, worth, scores, linked=linked)
            answers: list[dict[str, object]] = []
            at = 0
            while at < len(wishes):
                end, pages = at + 1, wishes[at].n
                while end < len(wishes) and pages + wishes[end].n <= PAGES_TOGETHER:
                    pages += wishes[end].n
                    end += 1
                try:
                    answers += self._serve_steadily(wishes[at:end])
                except BaseException:
                    self.hot.drop()  # It is unknown which of the requested leases were granted.
                    raise
                given += self._given
                at = end
        try:
            await_leases(self.crawl, given, runs)
        except StoreError:
            self._release_again(given)
            raise
        return answers

    def _release_again(self, leases: Sequence[Lease]) -> None:
        """Release leases that no crawler received: one that expires counts as a failed fetch."""
        try:
            self._release(leases)
        except StoreError as error:
            log.warning("%d leases that no crawler received remain until they expire: %s", len(leases), error)

    def _serve_steadily(self, wishes: Sequence[PagesRequest]) -> list[dict[str, object]]:
        """Serve requests from one history: start over if a replica was reloaded in the meantime."""
        for _ in range(LOOKS_MAX):
            self._given.clear()
            try:
                return self._serve(wishes)
            except Outdated:
                release_leases(self.crawl, self._given)  # Not returned yet; their ids may mean other pages now.
                self.hot.drop()
        raise StoreUnavailable("the store was rebuilt or its server restarted repeatedly during the call; try again")

    def _serve(self, wishes: Sequence[PagesRequest]) -> list[dict[str, object]]:
        self.hot.prepare()
        as_of = self.crawl.as_of
        # While a store hangs, crawlers give up; but a command sent to it takes effect later. So see who is still there.
        gone = [wish.gone() for wish in wishes]
        found = iter(self._hand_out([wish for wish, left in zip(wishes, gone, strict=True) if not left]))
        return [{**(self._answers.empty() if left else next(found)), "as_of": as_of} for left in gone]

    def _hand_out(self, wishes: Sequence[PagesRequest]) -> list[dict[str, object]]:
        self.report({host: delay for wish in wishes for host, delay in wish.crawl_delays.items()})
        parts = [part for at, wish in enumerate(wishes) for part in self._parts(at, wish)]
        self._lease(parts)
        if any(part.mode != wishes[part.at].mode for part in parts):  # Fill up if pages of one mode ran out.
            missing = [wish.wanted for wish in wishes]
            for part in parts:
                missing[part.at] -= part.given
            rest = [
                RequestPart.of(at, wish, wish.mode, missing[at])
                for at, wish in enumerate(wishes)
                if wish.mode == "any" and missing[at]
            ]
            if rest:
                parts += rest
                self._lease(rest)
        granted: list[list[Leased]] = [[] for _ in wishes]
        for part in parts:
            granted[part.at] += part.granted
        if self._rationed and not all(granted):  # No other pages are available, so lift the quotas.
            idle = [at for at, pages in enumerate(granted) if not pages]
            rest = [RequestPart.of(at, wishes[at], wishes[at].mode, wishes[at].wanted) for at in idle]
            self._lease(rest, idle=True)
            for part in rest:
                granted[part.at] += part.granted
        # A very short lease may end between two turns, and its page come again: the later lease counts.
        granted = [list({page.place: page for page in pages}.values()) for pages in granted]
        if any(page.loads != self.crawl.replicas[page.place[0]].loads for pages in granted for page in pages):
            raise Outdated
        return self._answers.of(wishes, granted, rationed=self._rationed)

    def _parts(self, at: int, wish: PagesRequest) -> list[RequestPart]:
        modes, share = {wish.mode: wish.wanted}, self.terms.share
        if self.hot.ranking(wish.mode, None) is not None and wish.mode == "any":
            share = SHARE_BY_IMPORTANCE if share is None else share
            if not self.hot.free(READ):  # It saves a second turn.
                share = 1.0
            elif not self.hot.free(UNREAD):
                share = 0.0
        if share is not None and wish.mode == "any":
            self._discoveries += wish.wanted * share
            discover = min(int(self._discoveries), wish.wanted)
            self._discoveries -= discover
            modes = {"discover": discover, "refresh": wish.wanted - discover}
        return [RequestPart.of(at, wish, mode, wanted) for mode, wanted in modes.items() if wanted]

    def report(self, delays: Mapping[str, float]) -> None:
        """Store crawl-delays, but only of hosts that have pages here, so that a client can't fill the store.

        Each report is sent, because another endpoint may have stored another one since, and the last one counts.
        """
        by_shard: dict[int, list[str]] = {}
        for host, delay in delays.items():
            if (place := self.hot.number(host)) is not None:
                by_shard.setdefault(place[0], []).extend((host, repr(delay)))
        if by_shard:
            self.crawl.ask([
                ["FCALL", "opic_4_delays", 1, self.crawl.shards[shard].keys.crawl_delays, *pairs]
                for shard, pairs in by_shard.items()
            ])  # fmt: skip

    def block(self, host: str, until: float) -> None:
        """Lease no page of a host before a time, in Unix seconds, if it has pages here; a past time ends that."""
        if (place := self.hot.number(host)) is not None:
            keys = self.crawl.shards[place[0]].keys
            self.crawl.ask([["FCALL", "opic_4_block", 2, keys.blocks, keys.freed, host, repr(until)]])

    def limit(self, host: str, pages: int) -> bool:
        """Limit how many pages of a host are read; 0 removes the limit. Return whether the host has pages."""
        if (place := self.hot.number(host)) is None:
            return False
        keys = self.crawl.shards[place[0]].keys
        self.crawl.ask([["FCALL", "opic_4_limit", 2, keys.limits, keys.freed, host, pages]])
        return True

    def _lease(self, parts: Sequence[RequestPart], *, idle: bool = False) -> None:
        """Lease pages for the parts, in turns, until all have what they asked for or no more are left."""
        self._rationed = False
        turn, first = 0, True
        while turn < TURNS_MAX and (first or any(part.missing for part in parts)):
            strict = turn < STRICT_TRIES and self.hot.is_exact()
            heads = self.crawl.heads()
            spare = min(2 * self._refused, CANDIDATES_SPARE) << min(turn, SPARE_DOUBLED_MAX)
            chunks = self._choose([part for part in parts if part.missing], spare, idle=idle)
            if not chunks and not first:
                break
            if first:  # Call all shards, to check that their states are those we saw and to end expired leases.
                asked, now = {chunk.shard for chunk in chunks}, time.monotonic()
                others = [at for at, hot in enumerate(self.hot.shards) if strict or now - hot.called_at >= IDLE_SECONDS]
                chunks += [Chunk(shard) for shard in others if shard not in asked]
                if not chunks:
                    break
            again = self._ask(
                chunks, heads if strict else None, sweep=turn == 0 or not strict, patient=turn < STRICT_TRIES
            )
            turn, first = turn + 1, False
            if again:
                self.hot.prepare()
                first = True
                for part in parts:
                    part.over, part.cut = False, part.cut if part.granted else None

    def _choose(self, parts: Sequence[RequestPart], more: int, *, idle: bool) -> list[Chunk]:
        """Choose pages for all parts, part by part, and some spare ones; hold them until the answer arrives."""
        groups: dict[Choice, list[RequestPart]] = {}
        for part in parts:
            groups.setdefault(part.choice, []).append(part)
        by_shard: dict[int, list[Chunk]] = {}
        leases, live = self.hot.running(), self.hot.live()
        ration = self.admission.ration(idle=idle) if self.admission else None
        for by, group in groups.items():
            total = sum(part.missing for part in group)
            # Several would compete for spares, and spares are of other hosts than the first.
            spare = more if len(self.crawl) == len(groups) == 1 and by.hosts is None else 0
            # A request for domains is not limited by their share of the crawl.
            limits = None if by.domains else ration
            picked = self.hot.pick(by, total + spare, limits)
            priorities = self.hot.priorities(picked.shards, picked.ids)  # A batch ends by worth without these.
            counts, at, least = times_priority(picked.counts, 1 / priorities).tolist(), 0, -math.inf
            shards, ids, hosts = picked.shards.tolist(), picked.ids.tolist(), picked.hosts.tolist()
            pages = list(map(ChosenPage, ids, hosts, picked.counts.tolist(), priorities.tolist()))
            for part in group:
                if part.cut is None:
                    # The keys of recrawl policies and of the strategies Random and Cycle tell nothing about worth.
                    by_worth = by.policy is None and (by.mode == "coverage" or self.terms.strategy == GREEDY)
                    part.cut = by_worth and (part.request.n + leases) * BATCH_SHARE > live
                best = max((lease.worth for lease in part.granted), default=counts[at] if at < len(counts) else 0)
                least = best / 2 if part.cut and best > 0 else -math.inf  # Read pages by importance are below 0.
                end = at
                while end < min(at + part.missing, len(counts)) and counts[end] >= least:
                    _chunk(by_shard, shards[end]).add(pages[end], part)
                    end += 1
                part.over = end == at
                leases += end - at
                at = end
            if at:
                while at < len(counts) and counts[at] >= least and spare:
                    by_shard[0][-1].add(pages[at])
                    at, spare = at + 1, spare - 1
            self._reserve(picked.first(at))
            if ration is not None:
                ration.take((picked.hosts[:at] * len(self.crawl) + picked.shards[:at]).tolist())
                self._rationed |= ration.refused
        return [chunk for chunks in by_shard.values() for chunk in chunks]

    def _reserve(self, pages: Picked) -> None:
        """Keep pages from other choices until the answer of the store arrives."""
        for shard in set(pages.shards.tolist()):
            hot, mine = self.hot.shards[shard], pages.only(pages.shards == shard)
            with hot.replica.lock:
                if hot.loads == hot.replica.loads:
                    hot.order.reserve(mine.ids, mine.hosts)

    def _ask(self, chunks: Sequence[Chunk], heads: Sequence[Head] | None, *, sweep: bool, patient: bool) -> bool:
        """Lease the chosen pages in the store; return whether to choose again from the current state.

        With `heads`, the journal heads at the time of the choice, a shard leases nothing if its head or its leases have
        changed. With `patient`, it also leases nothing if a lease was released elsewhere. With `sweep` it ends expired
        leases first. Otherwise a lease that expires while we choose would hold its page only in the store, and the page
        would be chosen and refused repeatedly.
        """
        commands, seen, hots = [], set[int](), [self.hot.shards[chunk.shard] for chunk in chunks]
        for chunk, hot in zip(chunks, hots, strict=True):
            again = chunk.shard in seen  # Our own earlier call to this shard has changed its leases.
            seen.add(chunk.shard)
            stamp = hot.stamp if heads is not None else hot.stamp._replace(leases=None)
            with hot.replica.lock:
                if hot.loads != hot.replica.loads:  # The ids may mean other pages now.
                    raise Outdated
                hot.begin_call()
                names = hot.replica.hosts.names
            commands.append(
                lease_command(
                    self.crawl.shards[chunk.shard].keys,
                    self.terms.politeness,
                    [(page.id, names[page.host]) for page in chunk.pages],
                    [
                        Quota(count, part.request.seconds, part.request.crawler, part.request.host_pages or 1)
                        for part, count in chunk.quotas()
                    ],
                    head=heads[chunk.shard] if heads is not None else None,
                    stamp=stamp if patient and not again else None,
                    sweep=sweep and not again,
                )
            )
        answers = [LeaseAnswer.parse(answer) for answer in self.crawl.ask(commands)]
        called = time.monotonic()
        moved, freed = False, set[int]()
        self._refused = sum(len(answer.refused) for answer in answers)
        for chunk, hot, answer in zip(chunks, hots, answers, strict=True):
            with hot.replica.lock:
                if hot.loads != hot.replica.loads:
                    moved = True
                    continue
                same = hot.take(chunk.ids, chunk.hosts, answer)
                hot.end_call(answer.head.lsn)
            if heads is not None and (not same or answer.head != heads[chunk.shard]):
                moved = True
            if answer.stamp.freed != hot.stamp.freed:
                freed.add(chunk.shard)
        self._given += [
            Lease((chunk.shard, chunk.pages[page.place].id), page.until_us)
            for chunk, answer in zip(chunks, answers, strict=True)
            for page in answer.granted
        ]
        self._grant(chunks, self._without_early(chunks, answers, called))
        for shard in freed:
            self.hot.hear_freed(shard)
        return moved or bool(freed)

    def _without_early(
        self, chunks: Sequence[Chunk], answers: Sequence[LeaseAnswer], called: float
    ) -> list[LeaseAnswer]:
        """Give back the leases of pages that turn out to have been read while we chose; return the other answers.

        The store decides about leases and waits, but does not know when a page was read. An event may end the lease of
        another endpoint between our choice and our call, made at `called`, monotonic; the journal up to the head that
        the call saw tells.
        """
        behind = any(
            answer.granted and answer.head.lsn > self.crawl.replicas[chunk.shard].head.lsn
            for chunk, answer in zip(chunks, answers, strict=True)
        )
        if behind:
            self.crawl.follow(called)
        kept, early_leases = [], list[Lease]()
        for chunk, answer in zip(chunks, answers, strict=True):
            hot = self.hot.shards[chunk.shard]
            with hot.replica.lock:
                if hot.loads != hot.replica.loads:
                    raise Outdated
                early = hot.too_early(chunk.ids)[[page.place for page in answer.granted]].tolist()
            pages = list(zip(answer.granted, early, strict=True))
            early_leases += [
                Lease((chunk.shard, chunk.pages[page.place].id), page.until_us) for page, soon in pages if soon
            ]
            kept.append(replace(answer, granted=[page for page, soon in pages if not soon]))
        self._take_back(early_leases)
        return kept

    def _grant(self, chunks: Sequence[Chunk], answers: Sequence[LeaseAnswer]) -> None:
        """Add the leased pages to the parts they were leased for.

        Raises:
            Outdated: a replica was reloaded since the pages were chosen.
        """
        taken = []
        for chunk, answer in zip(chunks, answers, strict=True):
            parts = [part for part, _ in chunk.quotas()]
            for page in answer.granted:
                chosen, meta = chunk.pages[page.place], answer.metas.get(page.place, b"")
                taken.append((parts[page.quota], (chunk.shard, chosen.id), chosen, page.until_us, meta))
        if not taken:
            return
        places = [place for _, place, _, _, _ in taken]
        rows, urls = self._known(places, [self.hot.shards[chunk.shard] for chunk in chunks])
        total = self.hot.total(rows.books)
        for nth, (part, place, chosen, until_us, meta) in enumerate(taken):
            if not urls[place]:  # It was forgotten a moment ago, and its lease with it.
                continue
            cash, spent, state = int(rows.cash[nth]), int(rows.spent[nth]), int(rows.state[nth])
            part.granted.append(
                Leased(
                    place=place,
                    url=urls[place],
                    cash=cash,
                    counts=self._counts(part, place, cash, chosen, read=bool(state & Flag.OPEN)),
                    importance=min(max(spent + cash, 0) / total, 1.0),
                    read_before=int(rows.reads[nth]) > 0,
                    until_us=until_us,
                    nearness=int(rows.nearness[nth]),
                    meta=meta,
                    priority=chosen.priority,
                    loads=self.hot.shards[place[0]].loads,
                )
            )
        if self.admission is not None:
            self.admission.note([chosen.host * len(self.crawl) + place[0] for _, place, chosen, _, _ in taken])

    def _counts(self, part: RequestPart, place: Place, cash: int, chosen: ChosenPage, *, read: bool) -> float:
        """Return the key by which a page comes in the answer: in the order by cash, as its cash is now."""
        if part.request.policy in EXPANSIONS:
            return chosen.priority * self.hot.inlinks_of(place)
        if self.hot.ranking(part.mode, part.request.policy) is not None:
            return chosen.key
        hot = self.hot.shards[place[0]]
        if self.terms.strategy == GREEDY and not hot.order.prioritised:
            return self.terms.counts(cash, read)
        with hot.replica.lock:
            return float(hot.order.keys(np.array([place[1]]))[0][0])

    def _known(self, places: Sequence[Place], hots: Sequence[HotShard]) -> tuple[Rows, dict[Place, str]]:
        """Return the rows and URLs of chosen pages.

        Raises:
            Outdated: a replica was reloaded since the pages were chosen.
        """
        try:
            rows_and_urls = self.crawl.steadily(lambda: (self.crawl.rows(places), self.crawl.urls_of(places)))
        except (IndexError, StoreDamaged):
            if all(hot.loads == hot.replica.loads for hot in hots):
                raise
            raise Outdated from None
        if any(hot.loads != hot.replica.loads for hot in hots):
            raise Outdated
        return rows_and_urls

    def release(self, tokens: Sequence[str]) -> int:
        """Release leases; return how many of them were still active."""
        leases = [Lease.parse(self.crawl, token) for token in tokens]
        return self._release([lease for lease in leases if lease is not None])

    def _release(self, leases: Sequence[Lease]) -> int:
        with self.lock:
            return self._take_back(leases)

    def _take_back(self, leases: Sequence[Lease]) -> int:
        count = 0
        for shard, freed, ids in release_leases(self.crawl, leases):
            self.hot.give_back(shard, freed, ids)
            count += len(ids)
        return count


def _chunk(by_shard: dict[int, list[Chunk]], shard: int) -> Chunk:
    chunks = by_shard.setdefault(shard, [])
    if not chunks or len(chunks[-1].pages) >= PAGES_A_CALL:
        chunks.append(Chunk(shard))
    return chunks[-1]
