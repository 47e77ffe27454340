"""The calls of the public contract, one method each."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Protocol

import anyio
import anyio.to_thread
from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from opic.api import models, models_console, models_rules
from opic.api import models_politeness as manners
from opic.api import models_sites as sites
from opic.api.coalescing import Coalescer, while_connected
from opic.api.event_bodies import Intake, take
from opic.api.problems import Json, Problem
from opic.api.request_bodies import Asked, idempotency_key, media_type, read_asked, read_body
from opic.errors import BadInput
from opic.frontier import Manners, PagesRequest
from opic.frontier.admission import check_policy
from opic.ingest.event_log import KeyedCall
from opic.model.classes import check_classes
from opic.model.events import EventLimits
from opic.query.inflow import inflow
from opic.query.queries import Ask, ImportanceAnswer
from opic.service.service import Backend
from opic.urls.canonical import canonical_host, canonical_url

TOGETHER_URLS: Final = 200  # A call about more pages, or by a window policy, has a thread for itself: it may take long.
SLOW_THREADS: Final = 4
READY_SECONDS: Final = 5.0  # A probe that waits longer has its answer: no.
EXCERPT_BYTES: Final = 500  # Of a dead letter's value, which may be as large as a body.
NOTHING_HANDED: Final[Mapping[str, Any]] = {"pages": [], "retry_after": 0}
READY_THREADS: Final = 4  # Of their own, so that slow calls do not make the service look dead.


class Service(Protocol):
    """What the endpoint serves: an open store, and whether it may be asked."""

    backend: Backend

    def not_ready(self) -> str | None:
        """Return why no request should come here now, or None."""


class Calls:
    """The calls: a coroutine reads what is asked, a method in a worker thread does it, where it may block."""

    def __init__(self, service: Service, handed: Callable[[Mapping[str, Any]], object] = lambda _: None) -> None:
        """Answer for `service`; `handed` is told what crawlers get when they ask for pages."""
        self._handed = handed
        self._service = service
        self._settings = service.backend.settings
        self._pages = Coalescer[Ask, ImportanceAnswer](self._importances, "importance")
        self._slow_pages = Coalescer[Ask, ImportanceAnswer](self._importances, "slow importance", 1, SLOW_THREADS)
        self._ready_threads: anyio.CapacityLimiter | None = None
        # Slow on a topic, or on a long series: however many ask, each is worked out by one thread, for all of them.
        self._dead_letters = Coalescer(self._newest_letters, "opic-letters")
        self._series = Coalescer(self._series_and_curve, "opic-series")
        self._wishes = Coalescer[PagesRequest, Mapping[str, object]](self._next, "next")

    async def post_events(self, request: Request) -> Response:
        """Take one crawl event, an array of them, or JSON Lines; JSON, or MessagePack.

        Accepted means durable. A single event that can't be taken is a 422; in an array or lines the good ones are
        taken and the others listed. After a 503, or no answer, some may have been taken. With an `Idempotency-Key`
        the same call may be sent again: within 24 hours it takes effect once, and the answer is the same.
        """
        key = idempotency_key(request)
        form = media_type(request, events=True)
        body = await read_body(request, self._settings.max_body_bytes, form)
        return await _in_thread(lambda: self._take(body, form, key), 202)

    def _take(self, body: bytes, form: str, key: str | None) -> Mapping[str, object]:
        def judge(now_us: int, limits: EventLimits) -> Intake:
            return take(body, form, now_us=now_us, limits=limits)

        if key is not None:
            intake = self._service.backend.accept_once(KeyedCall.of(key, form, body), judge)
        else:
            intake = judge(time.time_ns() // 1000, self._settings.limits())
            if intake.values:
                self._service.backend.accept(intake.values)
        return {"accepted": len(intake.values), "rejected": intake.rejected}

    async def post_seeds(self, request: Request) -> Response:
        """Make pages known without a read of them, and wait until they are."""
        return await self._asked(request, models.Seeds, self._seed)

    def _seed(self, asked: models.Seeds) -> Mapping[str, object]:
        if "trust" in asked.model_fields_set:
            raise BadInput("trust is reserved until coverage is built: leave it out")
        self._check_count("urls", asked.urls)
        return self._service.backend.seed(asked.urls)

    async def put_classes(self, request: Request) -> Response:
        """Define the classes of pages and their weights, in the place of those before.

        A page is in the first class that it matches, else in none, with weight 1. The virtual page grants it by the
        weight, at once; pages that are known already are classified anew soon after, as `reclassified` says how many.
        Without error it may be sent again any number of times.
        """
        return await self._asked(request, models.Classes, self._define)

    def _define(self, asked: models.Classes) -> Mapping[str, object]:
        classes = check_classes([one.model_dump() for one in asked.classes])
        now = time.time()
        reclassified = self._service.backend.define(classes)
        return {**self._service.backend.classes(), "reclassified": reclassified, "as_of": now}

    async def get_classes(self, _: Annotated[models.Nothing, Query()]) -> Response:
        """Return the classes of pages, in order, with their pages and their shares of each grant: of this instant."""
        return await _in_thread(self._classes)

    def _classes(self) -> Mapping[str, object]:
        now = time.time()
        return {**self._service.backend.classes(), "as_of": now}

    async def put_rules(self, request: Request) -> Response:
        """Set which URLs may be suggested and what counts as a trap, in the place of what was set before.

        All endpoints go by it a second later. Pages that are held back stay known, keep their cash, and pass on what
        they have when a crawler reads them all the same.
        """
        return await self._asked(request, models_rules.Rules, self._set_rules)

    def _set_rules(self, asked: models_rules.Rules) -> Mapping[str, object]:
        policy = check_policy(asked.model_dump(exclude_unset=True))
        self._service.backend.check_room()
        self._service.backend.admission.put(policy)
        return policy.shown()

    async def get_rules(self, _: Annotated[models.Nothing, Query()]) -> Response:
        """Return which URLs may be suggested and what counts as a trap, as set now."""
        return await _in_thread(lambda: self._service.backend.admission.policy().shown())

    def _importances(self, asked: Sequence[Ask]) -> Sequence[ImportanceAnswer | Exception]:
        return self._service.backend.query.importances(asked)

    async def post_next(self, request: Request) -> Response:
        """Hand out the pages to fetch next, each under a lease, the best first.

        Fewer than asked for may come: hosts rest between two of their pages. An empty list says when to come back.
        """
        media_type(request)
        asked = read_asked(await read_body(request, self._settings.max_body_bytes), models.NextPages)
        self._check_n(asked.n)
        self._check_count("busy_hosts", asked.busy_hosts)
        self._check_count("crawl_delays", asked.crawl_delays)
        wish = self._service.backend.frontier.wish(
            asked.n,
            lease_seconds=asked.lease_seconds,
            busy_hosts=asked.busy_hosts,
            domain=asked.domain,
            mode=asked.mode,
            crawl_delays=asked.crawl_delays,
        )
        now, gone = time.time(), threading.Event()
        found = await while_connected(request, self._wishes.ask(replace(wish, gone=gone.is_set)), gone)
        self._handed(found)
        return Json({**found, "as_of": now})

    def _next(self, wishes: Sequence[PagesRequest]) -> Sequence[Mapping[str, object]]:
        backend = self._service.backend
        backend.check_room()  # A lease is written; and what came of it could not be told.
        # A store that stands still makes crawlers give up. What is sent to it takes effect when it goes on, so it is
        # asked something else first.
        backend.crawl.follow()
        wanted = [wish for wish in wishes if not wish.gone()]
        found = dict(zip(map(id, wanted), backend.frontier.next_many(wanted), strict=True))
        left: list[Any] = [found[id(wish)]["pages"] for wish in wanted if wish.gone()]
        if leases := [page["lease"] for pages in left for page in pages]:
            backend.frontier.release(leases)
        return [found.get(id(wish), NOTHING_HANDED) for wish in wishes]

    async def put_politeness(self, request: Request) -> Response:
        """Set how hosts are spared, in the place of what was set before; others go by the settings.

        It holds at once, at all endpoints, for pages handed out from then on. A delay set here wins over what a host's
        robots.txt asks for, which otherwise holds where it is longer than ours.
        """
        return await self._asked(request, manners.Politeness, self._set_manners)

    def _set_manners(self, asked: manners.Politeness) -> Mapping[str, object]:
        self._check_count("hosts", asked.hosts)
        self._service.backend.check_room()
        found = {canonical_host(name): host for name, host in asked.hosts.items()}
        frontier = self._service.backend.frontier
        frontier.set_manners({name: Manners(host.delay_seconds, host.in_flight) for name, host in found.items()})
        return self._manners()

    async def get_politeness(self, _: Annotated[models.Nothing, Query()]) -> Response:
        """Return how hosts are spared: by the settings, and as was set for some of them."""
        return await _in_thread(self._manners)

    def _manners(self) -> Mapping[str, object]:
        now, settings = time.time(), self._settings
        hosts = {name: found._asdict() for name, found in self._service.backend.frontier.manners().items()}
        return {
            "host_delay_seconds": settings.host_delay_seconds,
            "host_in_flight": settings.host_in_flight or None,
            "hosts": dict(sorted(hosts.items())),
            "as_of": now,
        }

    async def get_frontier(self, asked: Annotated[models.FrontierHead, Query()]) -> Response:
        """Return the pages that would be handed out next, without leasing them: a look, not a promise."""
        return await _in_thread(lambda: self._peek(asked))

    def _peek(self, asked: models.FrontierHead) -> Mapping[str, object]:
        self._check_n(asked.n)
        now = time.time()
        return {**self._service.backend.frontier.peek(asked.n, asked.domain, asked.mode), "as_of": now}

    async def post_release(self, request: Request) -> Response:
        """Give pages back unread. A lease that is over counts for nothing."""
        return await self._asked(request, models.Leases, self._release)

    def _release(self, asked: models.Leases) -> Mapping[str, object]:
        self._check_count("leases", asked.leases)
        self._service.backend.check_room()
        return self._service.backend.frontier.release(asked.leases)

    async def get_importance(self, asked: Annotated[models.OnePage, Query()]) -> Response:
        """Return the importance of one page, and what it rests on."""
        found = await self._ask_for(Ask([asked.url], asked.policy, asked.window))
        (page,) = found.pages
        if page is None:
            raise Problem("unknown-page", self._service.backend.query.never_seen(asked.url))
        return Json({**page, **_times(found)})

    async def post_importance(self, request: Request) -> Response:
        """Return the importance of many pages, in the order asked; null for a page never seen."""
        media_type(request)
        asked = read_asked(await read_body(request, self._settings.max_body_bytes), models.ManyPages)
        self._check_count("urls", asked.urls)
        found = await self._ask_for(Ask(asked.urls, asked.policy, asked.window))
        return await _in_thread(lambda: self._told(asked.urls, found))

    async def _ask_for(self, ask: Ask) -> ImportanceAnswer:
        static = (ask.policy or self._service.backend.query.policy) == "static"
        together = self._pages if static and len(ask.urls) <= TOGETHER_URLS else self._slow_pages
        return await together.ask(ask)

    def _told(self, urls: Sequence[str], found: ImportanceAnswer) -> Mapping[str, object]:
        pages = [page or self._never_seen(url) for url, page in zip(urls, found.pages, strict=True)]
        return {"pages": pages, **_times(found)}

    def _never_seen(self, url: str) -> dict[str, object]:
        return {"url": canonical_url(url, self._settings.max_url_bytes), "importance": None}

    async def get_history(self, asked: Annotated[models.PageHistory, Query()]) -> Response:
        """Return the last measures of a page, oldest first: what its reads spent, and when on the clock."""
        return await _in_thread(lambda: self._history(asked))

    def _history(self, asked: models.PageHistory) -> Mapping[str, object]:
        now = time.time()  # Read from the store, not from the mirror.
        found = self._service.backend.query.history(asked.url)
        if found is None:
            raise Problem("unknown-page", self._service.backend.query.never_seen(asked.url))
        return {**found, "as_of": now}

    async def get_top(self, asked: Annotated[models.TopPages, Query()]) -> Response:
        """Return the most important pages, descending."""
        return await _in_thread(lambda: self._top(asked))

    def _top(self, asked: models.TopPages) -> Mapping[str, object]:
        self._check_n(asked.n)
        pages, as_of = self._service.backend.query.top_as_of(asked.n, asked.domain, asked.policy, asked.window)
        return {"pages": pages, "as_of": as_of}

    async def get_hosts(self, asked: Annotated[sites.TopHosts, Query()]) -> Response:
        """Return the most important hosts, descending: the importance of a host is the sum of its pages'."""
        return await _in_thread(lambda: self._hosts(asked))

    def _hosts(self, asked: sites.TopHosts) -> Mapping[str, object]:
        self._check_n(asked.n)
        as_of = self._as_of(asked.policy)
        return {"hosts": self._service.backend.query.hosts(asked.n, asked.policy, asked.window), "as_of": as_of}

    async def get_inflow(self, asked: Annotated[sites.DomainInflow, Query()]) -> Response:
        """Return what came to the pages of a registered domain by links from outside, and how important the rest is."""
        return await _in_thread(lambda: self._inflow(asked))

    def _inflow(self, asked: sites.DomainInflow) -> Mapping[str, object]:
        self._check_n(asked.n)
        return inflow(self._service.backend.query, asked.domain, asked.after, asked.n)

    async def get_explain(self, asked: Annotated[models.OnePage, Query()]) -> Response:
        """Say why a page has its score and is next or not: its cash by its parts, the policy's formula with numbers."""
        return await _in_thread(lambda: self._explain(asked))

    def _explain(self, asked: models.OnePage) -> Mapping[str, object]:
        as_of = self._as_of(asked.policy)
        found = self._service.backend.explain(asked.url, asked.policy, asked.window)
        if found is None:
            raise Problem("unknown-page", self._service.backend.query.never_seen(asked.url))
        return {**found, "as_of": as_of}

    async def get_audit(self, _: Annotated[models.Nothing, Query()]) -> Response:
        """Recount the books: whole columns are read, so this is for a person or a nightly check."""
        return await _in_thread(self._service.backend.query.audit)

    async def get_stats(self, _: Annotated[models.Nothing, Query()]) -> Response:
        """Count pages, rounds, and the events that wait: of this instant."""
        return await _in_thread(self._stats)

    def _stats(self) -> Mapping[str, object]:
        now = time.time()
        return {**self._service.backend.stats(), "as_of": now}

    async def get_series(self, asked: Annotated[models_console.SeriesPoints, Query()]) -> Response:
        """Return the way that the crawl took: rounds and clock over time, and how its error bound fell.

        The curve has a point each sixteenth of a doubling of the rounds, kept while an endpoint runs.
        """
        return Json(await self._series.ask(asked.n))

    def _series_and_curve(self, asked: Sequence[int]) -> list[Mapping[str, object]]:
        now, curve = time.time(), self._service.backend.curve
        convergence = [point.shown() for point in curve.points()]
        return [{"series": curve.series(n), "convergence": convergence, "as_of": now} for n in asked]

    async def get_dead_letters(self, asked: Annotated[models_console.NewestLetters, Query()]) -> Response:
        """Return the newest dead letters, newest first: events that can't be taken, and why."""
        return Json(await self._dead_letters.ask(asked.n))

    def _newest_letters(self, asked: Sequence[int]) -> list[Mapping[str, object]]:
        now = time.time()
        letters = self._service.backend.letters.newest(max(asked), value_bytes_max=EXCERPT_BYTES)
        shown = [letter.shown() for letter in reversed(letters)]
        return [{"dead_letters": shown[:n], "as_of": now} for n in asked]

    async def get_healthz(self) -> Response:
        """Say that the process lives. Asks nothing else, so a store that is away restarts nobody."""
        return Json({"status": "ok"})

    async def get_readyz(self) -> Response:
        """Say whether requests are welcome, else why not."""
        if self._ready_threads is None:
            self._ready_threads = anyio.CapacityLimiter(READY_THREADS)
        reason: str | None = None
        with anyio.move_on_after(READY_SECONDS) as waiting:
            reason = await anyio.to_thread.run_sync(
                self._service.not_ready, abandon_on_cancel=True, limiter=self._ready_threads
            )
        if waiting.cancelled_caught:
            reason = f"{self._service.backend.waits_for} did not answer within {READY_SECONDS:.0f} s"
        if reason is not None:
            raise Problem("not-ready", reason)
        return Json({"status": "ready"})

    async def _asked(
        self, request: Request, model: type[Asked], do: Callable[[Asked], Mapping[str, object]]
    ) -> Response:
        """Do what a JSON object in the body asks for."""
        media_type(request)
        body = await read_body(request, self._settings.max_body_bytes)
        return await _in_thread(lambda: do(read_asked(body, model)))

    def _as_of(self, policy: str | None) -> float:
        """Return a time that what the mirror shows from now on, by this policy, is no older than."""
        return self._service.backend.query.as_of(policy)

    def _check_n(self, n: int) -> None:
        if n > self._settings.max_n:
            raise BadInput(f"n={n:,} is over OPIC_MAX_N {self._settings.max_n:,}")

    def _check_count(self, name: str, given: Collection[str]) -> None:
        limit = self._settings.max_urls
        if len(given) > limit:
            raise BadInput(f"{len(given):,} {name} is over OPIC_MAX_URLS {limit:,}: send them in several calls")


async def _in_thread(ask: Callable[[], Mapping[str, object]], status: int = 200) -> Response:
    """Ask and encode in a worker thread: 10,000 pages are some megabytes, and others wait for the loop."""
    return await run_in_threadpool(lambda: Json(ask(), status))


def _times(found: ImportanceAnswer) -> dict[str, float]:
    """Return of when an answer is."""
    return {"as_of": found.as_of} | ({} if found.rank_as_of is None else {"rank_as_of": found.rank_as_of})
