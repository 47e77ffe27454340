"""Frontier scheduler: choose pages from the hot orders of the replicas and lease them in the store.

Requests that arrive at the same time are answered together: the replicas catch up, pages are chosen for all requests in
the order of their keys over all shards, and one pipeline asks each shard to lease its own pages. That call alone
decides, and checks each page's lease, back-off and host again; so any number of endpoints may hand out pages. The order
is that of a moment ago, when the replicas caught up, and with them what other endpoints leased and released.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np

from opic.admission import Admission, Ration
from opic.errors import StoreError
from opic.frontier.choices import Choices
from opic.frontier.crawl_orders import READ, UNREAD, CrawlOrders, Orders
from opic.frontier.group_claims import GroupClaims
from opic.frontier.hot_crawl import HotCrawl
from opic.frontier.leases import (
    Lease,
    LeaseAnswer,
    Quota,
    await_leases,
    lease_command,
    release_leases,
    server_runs,
)
from opic.frontier.next_answers import NextAnswers, Shares, Shortage
from opic.frontier.page_counts import FREE
from opic.frontier.page_keys import GREEDY, keys_by_cash, times_priority
from opic.frontier.request_parts import ChosenPage, Leased, RequestPart, ShardCall
from opic.frontier.requests import SHARE_BY_IMPORTANCE, Choice, FrontierTerms, PagesRequest
from opic.messages.frontier import NextPages, Page
from opic.model.cash import MILLION, Flag
from opic.model.page_notes import depth_of, unpack_meta
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.replica.effect import Head
from opic.urls.canonical import host_of

BATCH_SHARE: Final = 10  # If over 1 in 10 live pages is requested or leased, a batch ends at half its best page's cash.
CANDIDATES_SPARE: Final = 16  # Spare pages for a single shard, at most twice as many as were refused last. They double
SPARE_DOUBLED_MAX: Final = 5  # each turn, up to this many times.
IDLE_SECONDS: Final = 1.0  # After this long a call includes shards that none of its pages is in, if answers lag.
PAGES_A_CALL: Final = 500  # Such a call blocks the server for less than 5 ms.
PAGES_TOGETHER: Final = 2_000  # Requests for more pages in total are answered one after the other.
TURNS_MAX: Final = 200  # Maximum number of turns of one call; it then answers with the pages it has.
log = logging.getLogger("opic.frontier")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Peeked:
    """What would be handed out next."""

    places: list[Place]  # Best first.
    keys: list[float]  # What orders them, largest first.
    order: str  # What the keys are: exact (importance), cash, trust, random or cycle.
    shortage: Shortage


_Chosen = tuple[int, ChosenPage, RequestPart | None]  # The shard, a page there, and what it is for; None: a spare page.


class FrontierScheduler:
    """Chooses and leases pages for `opic.frontier.Frontier`. Thread-safe; calls are answered one at a time."""

    def __init__(
        self,
        crawl: Crawl,
        terms: FrontierTerms,
        admission: Admission | None,
        pending: Callable[[], bool],
        orders: CrawlOrders,
        *,
        shares: Shares,
    ) -> None:
        self.crawl, self.terms, self.admission, self._orders = crawl, terms, admission, orders
        self.hot = HotCrawl(crawl, terms, admission)
        self.choices = Choices(self.hot, admission)
        self._answers = NextAnswers(crawl, self.hot, self.choices, orders, pending, shares=shares)
        self._lock = threading.Lock()
        self._refused = 0  # Pages that the last call could not lease,
        self.refusals = 0  # and all calls together.
        self._rationed = False  # Whether the last choice skipped pages because of the quota of their host or site.
        self._discoveries = 0.0  # Fraction of a never-read page carried over from rounding the share.
        self._greedy = terms.strategy == GREEDY
        self._given = dict[Lease, int]()  # Leases granted but not returned to a caller yet, with their ends,
        self._claimed = dict[int, dict[str, float]]()  # and the rests of groups that begin with them, by home.

    def forget(self) -> None:
        """Drop the hot orders. They are a cache, and are rebuilt from the replicas and the store."""
        with self._lock:
            self.hot.drop()

    def ask(self, question: Callable[[], T], given: Collection[Lease] = ()) -> T:
        """Answer a question about the orders as they are now; if a replica was reloaded, answer it again.

        Args:
            question: raises Outdated, or what `Crawl.steadily` names, where it finds that a replica was reloaded.
            given: the leases that it has granted; they are released before it is answered again.

        Raises:
            StoreUnavailable: every attempt was interrupted by a reload.
        """
        self.crawl.follow(self.crawl.recent())  # What is loaded for the first time interrupts no attempt.
        return self.crawl.steadily(partial(self._attempt, question, given))

    def _attempt(self, question: Callable[[], T], given: Collection[Lease]) -> T:
        with self._lock:
            try:
                if given:  # Not returned to a crawler; their ids may mean other pages now.
                    release_leases(self.crawl, given)
                    self.crawl.follow()
                self.hot.prepare()
                return question()
            except BaseException:
                self.hot.drop()  # The orders may be partly updated, and leases granted that we do not know of.
                raise

    def peek(self, request: PagesRequest) -> "Peeked":
        """Return the pages that would be handed out next, and what holds others back."""
        orders = self._orders.orders_for([request])
        return self.ask(partial(self._peeked, request, orders))

    def _peeked(self, request: PagesRequest, orders: Orders) -> "Peeked":
        self.choices.use(orders)
        picked = self.choices.pick(request.choice(request.mode, request.hosts), request.n)
        shortage = self._answers.shortage(request.mode, request.domains, request.nearness, not len(picked))
        is_ranked = self.choices.ranking(request.mode) is not None
        order = "trust" if request.mode == "coverage" else self.terms.order(ranked=is_ranked)
        places = list(zip(picked.shards.tolist(), picked.ids.tolist(), strict=True))
        return Peeked(places, picked.counts.tolist(), order, shortage)

    # Serving requests.

    def serve(self, requests: Sequence[PagesRequest]) -> list[NextPages]:
        """Lease pages for each request, as if they had come one after the other; see `Frontier.next`."""
        orders, runs = self._orders.orders_for(requests), server_runs(self.crawl)
        given, claimed = dict[Lease, int](), dict[int, dict[str, float]]()
        try:
            answers = self.ask(partial(self._serve, requests, orders, given, claimed), given)
            await_leases(self.crawl, given, runs, claimed)
        except StoreError:
            try:  # No crawler received them, and a lease that expires counts as a failed fetch.
                release_leases(self.crawl, given)
            except StoreError as error:
                log.warning("%d leases that no crawler received remain until they expire: %s", len(given), error)
            raise
        return answers

    def _serve(
        self,
        requests: Sequence[PagesRequest],
        orders: Orders,
        given: dict[Lease, int],
        claimed: dict[int, dict[str, float]],
    ) -> list[NextPages]:
        """Answer requests; note the leases that were granted, and until when groups rest since then."""
        given.clear()
        claimed.clear()
        self._given, self._claimed = given, claimed
        self.choices.use(orders)
        answers, start = list[NextPages](), 0
        while start < len(requests):
            end, pages = start + 1, requests[start].n
            while end < len(requests) and pages + requests[end].n <= PAGES_TOGETHER:
                pages += requests[end].n
                end += 1
            answers += self._serve_together(requests[start:end])
            start = end
        return answers

    def _serve_together(self, every: Sequence[PagesRequest]) -> list[NextPages]:
        as_of = self.crawl.as_of
        # While a store hangs, crawlers give up; but a command sent to it takes effect later. So see who is still there.
        gone = [request.gone() for request in every]
        requests = [request for request, left in zip(every, gone, strict=True) if not left]
        if delays := {host: delay for request in requests for host, delay in request.crawl_delays.items()}:
            self.hot.report(delays)
        hosts_given = [set[str]() for _ in requests]
        parts = [
            part for index, request in enumerate(requests) for part in self._parts(index, request, hosts_given[index])
        ]
        self._lease(parts)
        if any(part.by.mode != requests[part.index].mode for part in parts):  # Fill up if pages of one mode ran out.
            missing = [request.wanted for request in requests]
            for part in parts:
                missing[part.index] -= part.given
            rest = [
                RequestPart.of(index, request, request.mode, missing[index], hosts_given[index])
                for index, request in enumerate(requests)
                if request.mode == "any" and missing[index]
            ]
            if rest:
                parts += rest
                self._lease(rest)
        granted: list[list[Leased]] = [[] for _ in requests]
        for part in parts:
            granted[part.index] += part.granted
        if self._rationed and not all(granted):  # No other pages are available, so lift the quotas.
            idle = [index for index, pages in enumerate(granted) if not pages]
            rest = [
                RequestPart.of(index, requests[index], requests[index].mode, requests[index].wanted, hosts_given[index])
                for index in idle
            ]
            self._lease(rest, idle=True)
            for part in rest:
                granted[part.index] += part.granted
        # A very short lease may end between two turns, and its page come again: the later lease counts.
        granted = [list({page.lease.shard_page: page for page in pages}.values()) for pages in granted]
        answers = iter(self._answers.answers_to(requests, granted, as_of, rationed=self._rationed))
        return [self._answers.empty(as_of) if left else next(answers) for left in gone]

    def _parts(self, index: int, request: PagesRequest, hosts_given: set[str]) -> list[RequestPart]:
        modes, share = {request.mode: request.wanted}, self.terms.share
        if request.mode == "any" and self.choices.ranking(request.mode) is not None:
            share = SHARE_BY_IMPORTANCE if share is None else share
            free = self.hot.totals()[FREE]
            if not free[READ]:  # It saves a second turn.
                share = 1.0
            elif not free[UNREAD]:
                share = 0.0
        if share is not None and request.mode == "any":
            self._discoveries += request.wanted * share
            discover = min(int(self._discoveries), request.wanted)
            self._discoveries -= discover
            modes = {"discover": discover, "refresh": request.wanted - discover}
        return [RequestPart.of(index, request, mode, wanted, hosts_given) for mode, wanted in modes.items() if wanted]

    def _lease(self, parts: Sequence[RequestPart], *, idle: bool = False) -> None:
        """Lease pages for the parts, in turns, until all have what they asked for or no more are left."""
        self._rationed = False
        for turn in range(TURNS_MAX):
            missing = RequestPart.due(parts)
            if turn and not missing:
                break
            spare = min(2 * self._refused, CANDIDATES_SPARE) << min(turn, SPARE_DOUBLED_MAX)
            heads = self.crawl.heads()
            calls = self._choose(missing, spare, idle=idle)
            if not turn:  # Call the other shards too, to end expired leases.
                asked, now = {call.shard for call in calls}, time.monotonic()
                every = self.crawl.upkeep.quick
                others = [
                    shard for shard, hot in enumerate(self.hot.shards) if every or now - hot.called_at >= IDLE_SECONDS
                ]
                calls += [ShardCall(shard) for shard in others if shard not in asked]
            if calls:
                self._ask(calls, heads)

    def _choose(self, parts: Sequence[RequestPart], spare: int, *, idle: bool) -> list[ShardCall]:
        """Choose pages for all parts, part by part, and some spare ones; hold them until the answer arrives."""
        groups: dict[Choice, list[RequestPart]] = {}
        for part in parts:
            groups.setdefault(part.by, []).append(part)
        if len(self.hot.shards) > 1 or len(groups) > 1:
            spare = 0  # Several would compete for spares.
        chosen = list[_Chosen]()
        ration = self.admission.ration(idle=idle) if self.admission else None
        for by, group in groups.items():
            # A request for domains is not limited by their share of the crawl.
            chosen += self._choose_group(by, group, spare, None if by.domains else ration, len(chosen))
        by_shard: dict[int, list[ShardCall]] = {}
        for shard, page, wanting in chosen:
            calls = by_shard.setdefault(shard, [])
            if not calls or len(calls[-1].pages) >= PAGES_A_CALL:
                calls.append(ShardCall(shard))
            call = calls[-1]
            call.pages.append(page)
            if wanting is not None and (not call.parts or call.parts[-1] is not wanting):
                call.parts.append(wanting)
                call.counts.append(1)
            elif wanting is not None:
                call.counts[-1] += 1
        return [call for calls in by_shard.values() for call in calls]

    def _choose_group(
        self, by: Choice, group: Sequence[RequestPart], spare: int, ration: Ration | None, before: int
    ) -> list[_Chosen]:
        """Choose pages for parts that share a choice, in the order of the parts, and spare ones after them.

        Args:
            by: the choice.
            group: the parts.
            spare: number of spare pages.
            ration: the quota of large hosts and outgrown sites.
            before: how many pages were chosen for other parts.
        """
        spare = spare if by.hosts is None else 0  # Spares are of other hosts than the first.
        picked = self.choices.pick(by, sum(part.left for part in group) + spare, ration)
        priorities = self.choices.priorities(picked)
        worths = times_priority(picked.counts, 1 / priorities).tolist()  # A batch ends by worth without priorities.
        columns = (picked.ids, picked.hosts, picked.counts, priorities)
        pages = map(ChosenPage, *(column.tolist() for column in columns))
        candidates = list(zip(picked.shards.tolist(), pages, strict=True))
        chosen, least, leases = list[_Chosen](), -math.inf, before + self.hot.leases()
        live = sum(replica.books.live for replica in self.crawl.replicas)
        for part in group:
            start = len(chosen)
            if part.cut is None:
                # The keys of recrawl policies and of the strategies Random and Cycle tell nothing about worth.
                by_worth = by.policy is None and (by.mode == "coverage" or self._greedy)
                part.cut = by_worth and (part.request.n + leases + start) * BATCH_SHARE > live
            best = max((lease.worth for lease in part.granted), default=worths[start] if start < len(worths) else 0)
            least = best / 2 if part.cut and best > 0 else -math.inf  # Read pages by importance are below 0.
            end = _end(worths, start, part.left, least)
            chosen += [(shard, page, part) for shard, page in candidates[start:end]]
            if end == start:
                part.left = 0
        if by.policy:
            self.choices.taken(by, picked.only(slice(len(chosen))))
        if spare and chosen:
            start = len(chosen)
            chosen += [(shard, page, None) for shard, page in candidates[start : _end(worths, start, spare, least)]]
        taken = picked.only(slice(len(chosen)))
        self.hot.reserve(taken.shards, taken.ids, taken.hosts)
        if ration is not None:
            ration.count_chosen((taken.hosts * len(self.hot.shards) + taken.shards).tolist())
            self._rationed |= ration.refused
        return chosen

    def _ask(self, calls: Sequence[ShardCall], heads: Sequence[Head]) -> None:
        """Lease the chosen pages in the store; `heads` are those of the replicas before the choice."""
        commands = []
        for call in calls:
            with self.hot.locked(call.shard) as hot:  # Else the ids may mean other pages now.
                names = hot.replica.hosts.names
            quotas = [
                Quota(count, part.request.seconds, part.request.crawler, part.request.host_pages or 1)
                for part, count in zip(call.parts, call.counts, strict=True)
            ]
            pages = [(page.id, names[page.host]) for page in call.pages]
            keys = self.crawl.shards[call.shard].keys
            commands.append(lease_command(keys, self.terms.politeness, pages, quotas))
        answers = [LeaseAnswer.parse(answer) for answer in self.crawl.ask(commands)]
        called = time.monotonic()
        self._refused = sum(len(answer.refused) for answer in answers)
        self.refusals += self._refused
        for call, answer in zip(calls, answers, strict=True):
            for page in answer.granted:
                self._given[Lease((call.shard, call.pages[page.position].id), page.until_us)] = page.until_us
        for call, answer in zip(calls, answers, strict=True):
            with self.hot.locked(call.shard) as hot:
                ids = np.array([page.id for page in call.pages], np.int64)
                hosts = np.array([page.host for page in call.pages], np.int64)
                hot.record_answer(ids, hosts, answer, self.hot.heard(call.shard))
        answers = self._without_early(calls, answers, heads, called)
        if self.hot.groups:
            answers = self._without_resting(calls, answers)
            self.hot.groups.answered()
        self._grant(calls, answers)

    def _without_early(
        self, calls: Sequence[ShardCall], answers: Sequence[LeaseAnswer], heads: Sequence[Head], called: float
    ) -> list[LeaseAnswer]:
        """Give back the leases of pages that turn out to have been read while we chose; return the other answers.

        The store decides about leases and waits, but does not know when a page was read. An event may end the lease of
        another endpoint between our choice and our call, made at `called`, monotonic; the journal up to the head that
        the call saw tells.
        """
        replicas = self.crawl.replicas
        if any(
            answer.granted and answer.head.lsn > replicas[call.shard].head.lsn
            for call, answer in zip(calls, answers, strict=True)
        ):
            self.crawl.follow(called)
        kept, early_leases = [], list[Lease]()
        for call, answer in zip(calls, answers, strict=True):
            if not answer.granted or replicas[call.shard].head == heads[call.shard]:
                kept.append(answer)
                continue
            ids = np.array([call.pages[page.position].id for page in answer.granted], np.int64)
            with self.hot.locked(call.shard) as hot:
                early = hot.too_early(ids).tolist()
            pages = list(zip(answer.granted, ids.tolist(), early, strict=True))
            early_leases += [Lease((call.shard, page_id), page.until_us) for page, page_id, soon in pages if soon]
            kept.append(replace(answer, granted=[page for page, _, soon in pages if not soon]))
        if early_leases:
            release_leases(self.crawl, early_leases)
        return kept

    def _without_resting(self, calls: Sequence[ShardCall], answers: Sequence[LeaseAnswer]) -> list[LeaseAnswer]:
        """Give back the leases of pages whose politeness group rests, as its home says; return the other answers."""
        claims = GroupClaims(self.hot.groups, calls, answers)
        if not claims.pages:
            return list(answers)
        rulings = claims.rulings(self.crawl.ask(claims.commands([shard.keys for shard in self.crawl.shards])))
        kept, refused = claims.kept(rulings)
        release_leases(self.crawl, refused)
        self.refusals += len(refused)
        self.hot.rest_claimed(rulings)
        for home, by_home in rulings.items():
            rests = {ruling.name: ruling.until for ruling in by_home if ruling.granted and ruling.until}
            self._claimed.setdefault(home, {}).update(rests)
        return kept

    def _grant(self, calls: Sequence[ShardCall], answers: Sequence[LeaseAnswer]) -> None:
        """Add the leased pages to the parts they were leased for."""
        leased = [(call, answer, page) for call, answer in zip(calls, answers, strict=True) for page in answer.granted]
        if not leased:
            return
        chosen = [call.pages[page.position] for call, _, page in leased]
        places = [(call.shard, page.id) for (call, _, _), page in zip(leased, chosen, strict=True)]
        rows, urls = self.crawl.rows(places), self.crawl.urls_of(places)
        total, (first, *_) = self.hot.total(rows.books), self.crawl.shards
        modes = {part.by.mode for call in calls for part in call.parts}
        by_cash = {mode for mode in modes if self._greedy and self.choices.ranking(mode) is None}
        # What comes by cash does so by the cash that it has now.
        cash_keys = keys_by_cash(rows.cash, (rows.state & Flag.OPEN) != 0, self.terms.discovery)
        columns = (rows.cash, rows.spent, cash_keys, rows.reads, rows.nearness)
        values = zip(*(column.tolist() for column in columns), strict=True)
        for (call, answer, granted), choice, shard_page, row in zip(leased, chosen, places, values, strict=True):
            if not urls[shard_page]:  # It was forgotten a moment ago, and its lease with it.
                continue
            part, (cash, spent, cash_key, reads, nearness) = call.parts[granted.quota], row
            lease, meta = Lease(shard_page, granted.until_us), answer.metas.get(granted.position)
            page = Page(
                url=answer.names.get(granted.position) or urls[shard_page],  # The name under which it answered last.
                cash=cash,
                importance=min(max(spent + cash, 0) / total, 1.0),
                fetched_before=reads > 0,
                lease=lease.signed(first.secret, first.lineage),
                lease_until=granted.until_us / MILLION,
                depth=depth_of(nearness) if nearness else None,
                meta=unpack_meta(meta) if meta else {},
            )
            as_now = part.by.mode in by_cash and part.by.policy is None and choice.priority == 1
            key = cash_key if as_now else choice.key
            part.granted.append(Leased(lease, page, choice.host, key, choice.priority))
            if part.request.host_pages is not None:
                part.hosts_given.add(host_of(urls[shard_page]))
            part.left = 0 if part.by.hosts else part.left - 1  # With a limit on hosts, what the first choice gives.
        if self.admission is not None:
            shards = len(self.hot.shards)
            self.admission.note([page.host * shards + shard for page, (shard, _) in zip(chosen, places, strict=True)])


def _end(worths: Sequence[float], start: int, count: int, least: float) -> int:
    """Return the end of the next pages, at most `count`, that are worth at least so much."""
    end = start
    while end < min(start + count, len(worths)) and worths[end] >= least:
        end += 1
    return end
