"""The calls of the public contract, one method each."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Protocol

import anyio
import anyio.to_thread
from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from opic.api import models
from opic.api.bodies import Asked, idempotency_key, media_type, read_asked, read_body
from opic.api.intake import Intake, take
from opic.api.problems import Json, Problem
from opic.classes import check_classes
from opic.errors import BadInput
from opic.events import Limits
from opic.log import Call
from opic.service import Backend
from opic.urls import canonical_url

READY_SECONDS: Final = 5.0  # A probe that waits longer has its answer: no.
READY_THREADS: Final = 4  # Of their own, so that slow calls do not make the service look dead.


class Service(Protocol):
    """What the endpoint serves: an open store, and whether it may be asked."""

    backend: Backend

    def not_ready(self) -> str | None:
        """Return why no request should come here now, or None."""


class Calls:
    """The calls: a coroutine reads what is asked, a method in a worker thread does it, where it may block."""

    def __init__(self, service: Service) -> None:
        """Answer for `service`."""
        self._service = service
        self._settings = service.backend.settings
        self._ready_threads: anyio.CapacityLimiter | None = None

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
        def judge(now_us: int, limits: Limits) -> Intake:
            return take(body, form, now_us=now_us, limits=limits)

        if key is not None:
            intake = self._service.backend.accept_once(Call.of(key, form, body), judge)
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

    async def post_next(self, request: Request) -> Response:
        """Hand out the pages to fetch next, each under a lease, the best first.

        Fewer than asked for may come: hosts rest between two of their pages. An empty list says when to come back.
        """
        return await self._asked(request, models.NextPages, self._next)

    def _next(self, asked: models.NextPages) -> Mapping[str, object]:
        self._check_n(asked.n)
        self._check_count("busy_hosts", asked.busy_hosts)
        self._service.backend.check_room()  # A lease is written; and what came of it could not be told.
        now = time.time()
        found = self._service.backend.frontier.next(
            asked.n,
            asked.crawler,
            lease_seconds=asked.lease_seconds,
            busy_hosts=asked.busy_hosts,
            domain=asked.domain,
            mode=asked.mode,
        )
        return {**found, "as_of": now}

    async def post_release(self, request: Request) -> Response:
        """Give pages back unread. A lease that is over counts for nothing."""
        return await self._asked(request, models.Leases, self._release)

    def _release(self, asked: models.Leases) -> Mapping[str, object]:
        self._check_count("leases", asked.leases)
        self._service.backend.check_room()
        return self._service.backend.frontier.release(asked.leases)

    async def get_importance(self, asked: Annotated[models.OnePage, Query()]) -> Response:
        """Return the importance of one page, and what it rests on."""
        return await _in_thread(lambda: self._importance(asked))

    def _importance(self, asked: models.OnePage) -> Mapping[str, object]:
        as_of = self._as_of(asked.policy)
        (page,) = self._service.backend.query.importance([asked.url], asked.policy, asked.window)
        if page is None:
            raise Problem("unknown-page", self._service.backend.query.never_seen(asked.url))
        return {**page, "as_of": as_of}

    async def post_importance(self, request: Request) -> Response:
        """Return the importance of many pages, in the order asked; null for a page never seen."""
        return await self._asked(request, models.ManyPages, self._importances)

    def _importances(self, asked: models.ManyPages) -> Mapping[str, object]:
        self._check_count("urls", asked.urls)
        as_of = self._as_of(asked.policy)
        found = self._service.backend.query.importance(asked.urls, asked.policy, asked.window)
        pages = [page or self._never_seen(url) for url, page in zip(asked.urls, found, strict=True)]
        return {"pages": pages, "as_of": as_of}

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
        as_of = self._as_of(asked.policy)
        pages = self._service.backend.query.top(asked.n, asked.domain, asked.policy, asked.window)
        return {"pages": pages, "as_of": as_of}

    async def get_audit(self, _: Annotated[models.Nothing, Query()]) -> Response:
        """Recount the books: whole columns are read, so this is for a person or a nightly check."""
        return await _in_thread(self._service.backend.query.audit)

    async def get_stats(self, _: Annotated[models.Nothing, Query()]) -> Response:
        """Count pages, rounds, and the events that wait: of this instant."""
        return await _in_thread(self._stats)

    def _stats(self) -> Mapping[str, object]:
        now = time.time()
        return {**self._service.backend.stats(), "as_of": now}

    async def get_healthz(self) -> Response:
        """Say that the process lives. Asks nothing else, so a store that is away restarts nobody."""
        return Json({"status": "ok"})

    async def get_readyz(self) -> Response:
        """Say whether requests are welcome, else why not."""
        if self._ready_threads is None:
            self._ready_threads = anyio.CapacityLimiter(READY_THREADS)
        reason: str | None = f"the store did not answer within {READY_SECONDS:.0f} s"
        with anyio.move_on_after(READY_SECONDS):
            reason = await anyio.to_thread.run_sync(
                self._service.not_ready, abandon_on_cancel=True, limiter=self._ready_threads
            )
        if reason is not None:
            raise Problem("not-ready", reason)
        return Json({"status": "ready"})

    async def not_built_yet(self, request: Request) -> Response:
        """Refuse a call that the contract names and this version does not have."""
        raise Problem("not-built-yet", f"{request.url.path} is not built yet")

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

    def _check_count(self, name: str, given: Sequence[str]) -> None:
        limit = self._settings.max_urls
        if len(given) > limit:
            raise BadInput(f"{len(given):,} {name} is over OPIC_MAX_URLS {limit:,}: send them in several calls")


async def _in_thread(ask: Callable[[], Mapping[str, object]], status: int = 200) -> Response:
    """Ask and encode in a worker thread: 10,000 pages are some megabytes, and others wait for the loop."""
    return await run_in_threadpool(lambda: Json(ask(), status))
