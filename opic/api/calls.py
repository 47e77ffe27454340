"""HTTP request handlers: one method for each call of the public API."""

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final, Protocol

import anyio.to_thread
import msgspec
from msgspec.structs import asdict
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from opic import __version__
from opic.api import bodies, queries
from opic.api.access import count_events
from opic.api.coalescing import Coalescer, InLoop, while_connected
from opic.api.event_bodies import Intake, read_events
from opic.api.problems import Json, Problem
from opic.api.request_bodies import idempotency_key, media_type, read_body
from opic.api.router import Answer
from opic.errors import BadEvent, BadInput
from opic.frontier import PagesRequest
from opic.frontier.requests import BY_LINK_SCORE, EXPANSIONS
from opic.ingest.event_log import KeyedCall, Positions
from opic.ingest.traces import called_by
from opic.messages import sentences
from opic.messages.frontier import NextPages
from opic.messages.local import RankedDomain
from opic.messages.terms import POSITION_HEADER
from opic.model.cash import MILLION
from opic.model.events import EventLimits, TraceContext, page_of, shown_canonical, trace_of
from opic.query.forecast import forecast
from opic.query.inflow import inflow
from opic.query.inlinks import inlinks, most_linked
from opic.query.page_entries import EXACT
from opic.query.page_queries import Ask, ImportanceAnswer
from opic.query.search import search
from opic.service.backend import Backend
from opic.service.positions import read_position, shown_position
from opic.store.local_lists import put_list, read_heads, read_list
from opic.urls.canonical import canonical_host, host_of, shown

SMALL_BODY_BYTES: Final = 1 << 14  # A body up to this size is decoded in the event loop, in less than .2 ms.
EVENT_THREADS: Final = 2  # A large call does not hold up the others.
TOGETHER_URLS: Final = 200  # A call for more pages, or by a window policy, gets its own thread, as it may take long.
SLOW_THREADS: Final = 4
READY_SECONDS: Final = 5.0  # Timeout of the readiness check; after it the answer is "not ready".
EXCERPT_BYTES: Final = 500  # Bytes shown of a dead letter's value, which may be as large as a body.
Handed = Callable[[NextPages, str, str | None], object]
POSITION_HEADER_BYTES_MAX: Final = 2_048  # nginx gives up on an answer whose headers take more than 4 kB.
JUDGING_THREADS: Final = 1  # Of each crawl: only one at a time computes, and a flooded crawl leaves others their turn.
WAITING_THREADS: Final = 8  # Those in which calls wait for a worker that lags.
READY_THREADS: Final = 4  # Separate threads, so that slow calls do not make the service look dead.


class Service(Protocol):
    """What the endpoint serves: an open store and its readiness."""

    backend: Backend

    def not_ready(self) -> str | None:
        """Return the reason why the service is not ready for requests, or None."""


class Calls:
    """The request handlers: coroutines, and methods that run in a worker thread, since they may block."""

    def __init__(
        self,
        backend: Backend,
        not_ready: Callable[[], str | None],
        handed: Handed = lambda *_: None,
        instance: str | None = None,
    ) -> None:
        """Answer for an open store.

        Args:
            backend: the store.
            not_ready: returns why the service is not ready.
            handed: is told each answer to `next`: the answer, its mode and its recrawl policy.
            instance: what tells this service from another program on its port.
        """
        self.instance = instance or uuid.uuid4().hex
        self._handed, self._not_ready, self._backend = handed, not_ready, backend
        self._settings = backend.settings
        self._pages = Coalescer[Ask, ImportanceAnswer](self._importances, "importance")
        self._slow_pages = Coalescer[Ask, ImportanceAnswer](self._importances, "slow importance", 1, SLOW_THREADS)
        self._at_hand = InLoop[Ask, ImportanceAnswer | None](self._found_at_hand)
        self._ready_threads = anyio.CapacityLimiter(READY_THREADS)
        self._waiting_threads = anyio.CapacityLimiter(WAITING_THREADS)
        self._judging_threads = anyio.CapacityLimiter(JUDGING_THREADS)
        # Slow on a Kafka topic or a long series: one thread each answers all waiting requests together.
        self._dead_letters = Coalescer(self._newest_letters, "opic-letters")
        self._series = Coalescer(self._series_and_curve, "opic-series")
        # One thread does one search after the other, so that they leave time for other calls.
        self._searches = Coalescer(self._search, "opic-search", 1)
        self._requests = Coalescer[PagesRequest, NextPages](self._next, "next")
        # Calls that come while others wait for the disk are written with one append, and share a sync.
        self._events = Coalescer[tuple[Sequence[bytes], TraceContext | None], Positions](
            self._accept, "opic-events", threads=EVENT_THREADS
        )

    async def show(self, position: str) -> None:
        """Wait until answers show the effect of a write; see `Backend.show`."""
        positions = read_position(position)
        await anyio.to_thread.run_sync(self._backend.show, positions, limiter=self._waiting_threads)

    async def post_events(self, request: Request) -> Response:
        """Accept one crawl event, an array of events, or JSON Lines; in JSON or MessagePack.

        Accepted events are durable. A single invalid event gets a 422. In an array or JSON Lines the valid events are
        accepted and the others listed. A body that is not well-formed is refused whole. After a 503, or no answer, some
        may have been accepted. With an `Idempotency-Key` the same call can be repeated: within 24 hours it takes effect
        once, with the same answer; its `position`, which may be a later one, is the header `Opic-Position` instead.
        """
        key, caller = idempotency_key(request), _trace_of(request)
        form = media_type(request, events=True)
        body = await read_body(request, self._settings.max_body_bytes, form)

        def judge(now_us: int, limits: EventLimits) -> Intake:
            intake = read_events(body, form, now_us=now_us, limits=limits)
            count_events(request, len(intake.values) + len(intake.rejected))
            return intake

        def judged() -> tuple[Intake, Positions]:
            if key is not None:
                with called_by([] if caller is None else [caller]):
                    return self._backend.accept_once(KeyedCall.of(key, form, body), judge)
            return judge(self._backend.clock.now_us(), self._backend.limits), {}

        small = key is None and len(body) <= SMALL_BODY_BYTES and self._backend.clock.is_known
        threads = self._judging_threads if key is None else None  # With a key, most of the time is the store's.
        try:
            intake, ends = judged() if small else await anyio.to_thread.run_sync(judged, limiter=threads)
        except BadEvent as error:  # The body is one event.
            if (page := page_of(body, self._backend.limits)) is not None:
                await run_in_threadpool(self._backend.note_refusals, {page: str(error)})
            raise
        if key is None and intake.values:
            ends = await self._events.ask((intake.values, caller))
        if intake.refused:
            await run_in_threadpool(self._backend.note_refusals, intake.refused)
        answer = {"accepted": len(intake.values), "rejected": intake.rejected}
        more: dict[str, object] = {"links_left_out": intake.links_left_out} if intake.links_left_out else {}
        position, headers = shown_position(ends) if intake.values else "", dict[str, str]()
        if position and key is None:
            more["position"] = position
        elif position and len(position) <= POSITION_HEADER_BYTES_MAX:
            headers[POSITION_HEADER] = position
        return Json({**answer, **more}, 202, headers)

    def _accept(self, calls: Sequence[tuple[Sequence[bytes], TraceContext | None]]) -> Sequence[Exception | Positions]:
        with called_by([caller for _, caller in calls if caller is not None]):
            return self._backend.accept_together([values for values, _ in calls])

    def post_seeds(self, request: Request, asked: bodies.Seeds) -> Answer:
        """Add seed pages, without reading them, and wait until they are known.

        A single URL that is refused gets a 422. Among several the good ones are taken, and the others listed.
        """
        self._check(urls=asked.urls)
        count_events(request, len(asked.urls))
        return self._backend.seed(**asdict(asked))

    def delete_pages(self, asked: queries.PagesToForget) -> Answer:
        """Forget pages, with their links and metadata, and wait until this has taken effect.

        Their cash goes to the virtual page. Backups made from then on do not have them. A page that is named again, by
        a link, an event or a seed, becomes known again. The call can safely be repeated. `dry_run` only counts them.
        """
        return self._backend.forget(**asdict(asked))

    async def get_canonical(self, asked: queries.OneUrl) -> Response:
        """Return the canonical form of a URL, by the normalization rules of the crawl. The page need not be known."""
        return Json(shown_canonical(asked.url, self._backend.limits))

    async def post_next(self, request: Request, asked: bodies.NextRequest) -> Response:
        """Hand out the pages to fetch next, each under a lease, the best first.

        There may be fewer pages than requested, because of host delays. If there are none, `retry_after` says when to
        ask again, or `exhausted` that waiting alone will bring none; `waiting` counts the pages that are held back.
        """
        self._check(asked.n, busy_hosts=asked.busy_hosts, crawl_delays=asked.crawl_delays)
        gone = threading.Event()
        pages_request = self._backend.frontier.request(**asdict(asked), gone=gone.is_set)
        if asked.mode == "coverage":  # Without trust, this caller is refused, not those answered together with it.
            await run_in_threadpool(self._backend.coverage.recent)
        if asked.policy == BY_LINK_SCORE or asked.policy in EXPANSIONS:  # So is one that asks for what is not kept.
            await run_in_threadpool(self._backend.links.present)
        answer = await while_connected(request, self._requests.ask(pages_request), gone)
        self._handed(answer, asked.mode, asked.policy)
        return Json(answer)

    def _next(self, requests: Sequence[PagesRequest]) -> Sequence[NextPages]:
        self._backend.check_room()  # Leasing writes to the store; so would the events about the fetched pages.
        answers = self._backend.frontier.next_many(requests)
        left = [answer.pages for request, answer in zip(requests, answers, strict=True) if request.gone()]
        if leases := [page.lease for pages in left for page in pages]:
            self._backend.frontier.release(leases)
        return answers

    def put_politeness(self, asked: bodies.PolitenessGiven) -> Answer:
        """Replace the delays, caps and revisit times of individual hosts; all other hosts use the default settings.

        They apply at once, at all endpoints, to pages handed out from then on. A delay set here overrides the
        crawl-delay in the host's robots.txt, which otherwise applies if it is longer than ours.
        """
        self._check(hosts=asked.hosts)
        self._backend.check_room()
        rules = self._backend.limits.normalization
        hosts = {canonical_host(name, rules): host for name, host in asked.hosts.items()}
        self._backend.frontier.set_host_politeness(hosts)
        return self.get_politeness(queries.OfHost())

    def get_politeness(self, asked: queries.OfHost) -> Answer:
        """Return the default politeness of hosts, that of individual hosts, and what shares the delay of one host."""
        now, settings, hosts = time.time(), self._settings, self._backend.frontier.host_politeness()
        return {
            "host_delay_seconds": settings.host_delay_seconds,
            "host_in_flight": settings.host_in_flight or None,
            "revisit_seconds": settings.revisit_seconds,
            "hosts": {name: asdict(politeness) for name, politeness in sorted(hosts.items())},
            "politeness_by": settings.politeness_by,
            "host_group": asked.host and self._backend.frontier.host_group(asked.host),
            "as_of": now,
        }

    def get_frontier(self, asked: queries.FrontierHead) -> Answer:
        """Return the pages that would be handed out next, without leasing them. They may change at any time."""
        self._check(asked.n)
        return self._backend.frontier.peek(asked.n, asked.domain, asked.mode)

    def post_release(self, asked: bodies.Leases) -> Answer:
        """Release leases on pages that will not be fetched. Expired leases are ignored."""
        self._check(leases=asked.leases)
        self._backend.check_room()
        return self._backend.frontier.release(asked.leases)

    def post_leases_renew(self, asked: bodies.RenewLeases) -> Answer:
        """Let leases run for longer, from now on. The answer lists those that had already ended as lost."""
        self._check(leases=asked.leases)
        self._backend.check_room()
        return self._backend.frontier.renew(asked.leases, asked.lease_seconds)

    async def get_importance(self, asked: queries.OnePage) -> Response:
        """Return the importance of one page, and the values it is computed from."""
        ask = Ask([asked.url], asked.policy, asked.window)
        answer = await self._at_hand.ask(ask) or await self._ask_for(ask)
        (page,) = answer.pages
        return Json({**self._known(page, asked.url), **_times(answer)})

    def _importances(self, asked: Sequence[Ask]) -> Sequence[ImportanceAnswer | Exception]:
        return self._backend.query.importances(asked)

    def _found_at_hand(self, asked: Sequence[Ask]) -> Sequence[ImportanceAnswer | Exception | None]:
        return self._backend.query.importances_at_hand(asked)

    async def post_importance(self, asked: bodies.ManyPages) -> Response:
        """Return the importance of many pages, in the order of the request; null for a page never seen."""
        self._check(urls=asked.urls)
        answer = await self._ask_for(Ask(asked.urls, asked.policy, asked.window))
        # 10,000 pages are some megabytes, whose encoding would block the event loop.
        return await run_in_threadpool(lambda: Json(self._told(asked.urls, answer)))

    async def _ask_for(self, ask: Ask) -> ImportanceAnswer:
        query = self._backend.query  # Its policy may have to be computed, which no coroutine may wait for.
        quick = ask.policy in (EXACT, "static") or (ask.policy is None and query.by_cash == "static")
        together = self._pages if quick and len(ask.urls) <= TOGETHER_URLS else self._slow_pages
        return await together.ask(ask)

    def _told(self, urls: Sequence[str], answer: ImportanceAnswer) -> Mapping[str, object]:
        limits = self._backend.limits
        pages = [
            page or {"url": limits.canonical(url), "importance": None}
            for url, page in zip(urls, answer.pages, strict=True)
        ]
        return {"pages": pages, **_times(answer)}

    def get_history(self, asked: queries.OneUrl) -> Answer:
        """Return the last measures of a page, oldest first: the cash that each read spent, and the clock."""
        now = time.time()  # The history is read from the store, not from a snapshot.
        return {**self._known(self._backend.query.history(asked.url), asked.url), "as_of": now}

    def get_top(self, asked: queries.TopPages) -> Answer:
        """Return the most important pages, or those that most pages link to, descending."""
        self._check(asked.n)
        backend, terms = self._backend, (asked.n, asked.domain, asked.policy, asked.window, asked.after)
        if asked.by == "inlinks":
            if asked.state is not None:
                raise BadInput(f"state={asked.state} is for by=importance, not for by=inlinks")
            return most_linked(backend.query, backend.links, *terms)
        answer = backend.query.top_from(*terms, state=asked.state)
        pages = answer["pages"]
        if not pages:
            return answer
        certain = [bool(page.get("certain")) for page in pages]
        return {**answer, "certainty": sentences.certainty(certain, pages[0].get("error_bound"))}

    def get_hosts(self, asked: queries.TopSites) -> Answer:
        """Return the most important hosts, descending. A host's importance is the sum of its pages' importance."""
        self._check(asked.n)
        return self._backend.query.sites("host", asked.n, asked.policy, asked.window)

    def get_domains(self, asked: queries.TopSites) -> Answer:
        """Return the most important registered domains, descending.

        A domain's importance is the sum of the importance of the pages of all its hosts.
        """
        self._check(asked.n)
        return self._backend.query.sites("domain", asked.n, asked.policy, asked.window)

    def get_inflow(self, asked: queries.DomainInflow) -> Answer:
        """Return the cash that pages of a registered domain or a host received from outside, and the importance there.

        The count is of what came from other registered domains. So of a host there are bounds: `inflow`, and
        `inflow_max`, which also allows for the other hosts of its domain.
        """
        self._check(asked.n)
        area = {"host": asked.host, "prefix": asked.prefix, "policy": asked.policy, "window": asked.window}
        return inflow(self._backend.query, asked.domain, asked.after, asked.n, **area)

    def post_inflow(self, asked: bodies.ManyPages) -> Answer:
        """Return what comes to the pages of a list from all other pages, by any policy.

        Not with OPIC_KEEP_LINKS=off at the workers.

        The pages come in the order of the request; those that are gone or were never seen are `missing`.
        """
        self._check(urls=asked.urls)
        return inflow(self._backend.query, urls=asked.urls, policy=asked.policy, window=asked.window)

    def get_inlinks(self, asked: queries.PageInlinks) -> Answer:
        """Return pages that were read and whose links, as last read, lead to a page.

        Not with OPIC_KEEP_LINKS=off at the workers.
        """
        self._check(asked.n)
        answer = inlinks(self._backend.query, self._backend.links, asked.url, asked.n)
        return self._known(answer, asked.url)

    def get_coverage(self, asked: queries.CoverageTarget) -> Answer:
        """Return the share of personalized PageRank that the fetched pages are guaranteed to hold.

        The teleport of this PageRank is to the trusted seeds. The guarantee is a lower bound for the graph as fetched
        so far, and holds for any links that pages not yet fetched may have. Where other pages than the trusted ones
        deserve trust too, `delta` is their share of it.
        """
        return self._backend.coverage.now().answer(asked.target, asked.delta)

    def put_local(self, domain: str, asked: bodies.LocalList) -> Answer:
        """Replace the ranked list of a local domain. Its estimator makes this call; the list moves no cash."""
        self._check(pages=asked.pages)
        name = canonical_host(domain)
        for page in asked.pages:
            host = host_of(self._backend.limits.canonical(page.url))
            if host != name and not host.endswith(f".{name}"):
                raise BadInput(f"{shown(page.url)} is not a page of {name}")
        if any(b.importance > a.importance for a, b in pairwise(asked.pages)):
            raise BadInput("the pages are not in descending order of importance")
        self._backend.check_room()
        put_list(self._backend.crawl.client, self._backend.shard.keys, name, msgspec.to_builtins(asked))
        return {"domain": name, "pages": len(asked.pages)}

    def get_local(self, _: queries.Nothing) -> Answer:
        """Return the local domains that have a ranked list, newest first.

        A list expires 30 days after its last update. At most 1,000 are kept, in 256 MiB.
        """
        now, backend = time.time(), self._backend
        heads = read_heads(backend.crawl.client, backend.shard.keys)
        told = [{"domain": head.domain, **head.fields, "expires_at": head.expires_at} for head in heads]
        shown_fields = RankedDomain.__struct_fields__
        return {"domains": [{k: v for k, v in fields.items() if k in shown_fields} for fields in told], "as_of": now}

    def get_local_list(self, domain: str, asked: queries.LocalHead) -> Answer:
        """Return the last ranked list of a local domain."""
        self._check(asked.n)
        name, backend = canonical_host(domain), self._backend
        ranking = read_list(backend.crawl.client, backend.shard.keys, name)
        if ranking is None:
            raise Problem("no-list", f"no estimator has sent a list of {name}: `opic local-rank` makes one")
        pages = [{**page, "rank": rank} for rank, page in enumerate(ranking.pop("pages")[: asked.n], 1)]
        return {"domain": name, "pages": pages, **ranking}

    def get_explain(self, asked: queries.OnePage) -> Answer:
        """Explain a page's score and whether it is handed out next: the parts of its cash, the formula with numbers.

        `reasons` says the same in sentences.
        """
        explanation = self._known(self._backend.explain(asked.url, asked.policy, asked.window), asked.url)
        return {**explanation, "reasons": sentences.reasons(explanation)}

    async def get_search(self, asked: queries.UrlPart) -> Response:
        """Find pages by a part of their URL.

        The search looks at URLs for about a second, and says at how many it looked; `next` continues it.
        """
        self._check(asked.n)
        return Json(await self._searches.ask(asked))

    def _search(self, asked: Sequence[queries.UrlPart]) -> list[Mapping[str, object]]:
        query = self._backend.query
        return [search(query, ask.text, ask.n, ask.domain, ask.after) for ask in asked]

    def get_audit(self, _: queries.Nothing) -> Answer:
        """Recount the books. This reads whole columns, so it is meant for manual use or a nightly check."""
        return self._backend.query.audit()

    def get_stats(self, _: queries.Nothing) -> Answer:
        """Return the current counts of pages, rounds and waiting events."""
        now, settings = time.time(), self._settings
        where = {"crawl": settings.crawl, "store": settings.store_shown(), "opic_version": __version__}
        return {**self._backend.stats(), **where, "as_of": now}

    async def get_series(self, asked: queries.SeriesPoints) -> Response:
        """Return the progress of the crawl: rounds, clock and pages over time, and the error bound over rounds.

        Error bound and pages have a point for each sixteenth of a doubling of the rounds, recorded while an endpoint
        runs. `forecast` says when all pages will be read, if that can be told.
        """
        return Json(await self._series.ask(asked.n))

    def _series_and_curve(self, asked: Sequence[int]) -> list[Mapping[str, object]]:
        now, curve = time.time(), self._backend.curve
        points, progress = curve.so_far()
        fields = dataclasses.asdict(forecast(progress, round(now * MILLION)))
        told = {
            "convergence": [point.shown() for point in points],
            "progress": [counts.shown() for counts in progress],
            "forecast": {**fields, "text": sentences.ending(fields)},
            "as_of": now,
        }
        return [{"series": curve.series(n), **told} for n in asked]

    async def get_dead_letters(self, asked: queries.NewestLetters) -> Response:
        """Return the newest dead letters, newest first: events that were refused, and why."""
        return Json(await self._dead_letters.ask(asked.n))

    def _newest_letters(self, asked: Sequence[int]) -> list[Mapping[str, object]]:
        now = time.time()
        letters = self._backend.letters.newest(max(asked), value_bytes_max=EXCERPT_BYTES)
        shown = [letter.shown() for letter in reversed(letters)]
        return [{"dead_letters": shown[:n], "as_of": now} for n in asked]

    async def get_healthz(self) -> Response:
        """Report that the process is alive. Does not check the store, so an outage of it restarts no process."""
        return Json({"status": "ok", "instance": self.instance, "crawl": self._settings.crawl})

    async def get_readyz(self) -> Response:
        """Report whether the service is ready for requests, and if not, why; and what an operator should see to."""
        reason, warnings = None, list[str]()
        with anyio.move_on_after(READY_SECONDS) as waiting:
            reason, warnings = await anyio.to_thread.run_sync(
                self._looked, abandon_on_cancel=True, limiter=self._ready_threads
            )
        if waiting.cancelled_caught:
            reason = f"{self._backend.waits_for} did not answer within {READY_SECONDS:.0f} s"
        if reason is not None:
            raise Problem("not-ready", reason)
        return Json({"status": "ready", "warnings": warnings})

    def _looked(self) -> tuple[str | None, list[str]]:
        """Return why the service is not ready, or None, and what an operator should see to."""
        reason = self._not_ready()
        return reason, [] if reason is not None else self._backend.warnings()

    def _known(self, entry: dict[str, object] | None, url: str) -> dict[str, object]:
        """Return what was found of a page, or raise the problem that it was never seen."""
        if entry is None:
            raise Problem("unknown-page", self._backend.query.never_seen(url))
        return entry

    def _check(self, n: int = 0, **given: Collection[object]) -> None:
        """Refuse a call that asks for more than `n` may be, or brings more of anything than it may."""
        if n > self._settings.max_n:
            raise BadInput(f"n={n:,} is over OPIC_MAX_N {self._settings.max_n:,}")
        limit = self._settings.max_urls
        for name, some in given.items():
            if len(some) > limit:
                raise BadInput(f"{len(some):,} {name} is over OPIC_MAX_URLS {limit:,}: send them in several calls")


def _times(answer: ImportanceAnswer) -> dict[str, float]:
    """Return the `as_of` fields of an answer."""
    return {"as_of": answer.as_of} | ({} if answer.rank_as_of is None else {"rank_as_of": answer.rank_as_of})


def _trace_of(request: Request) -> TraceContext | None:
    named = ((name, value) for name, value in request.scope["headers"] if name.startswith(b"trace"))
    return trace_of({name.decode("latin-1"): value for name, value in named})
