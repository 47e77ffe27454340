"""The application of an open service: the table of its calls, and its pages."""

import json
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from opic.api import examples
from opic.api.access import Access
from opic.api.application import Application
from opic.api.calls import Calls, Service
from opic.api.console import PAGE_PATHS, page
from opic.api.crawl_calls import CrawlCalls, OtherCrawls
from opic.api.definitions import Definitions
from opic.api.document import PAGE, REFERENCE, Described, openapi
from opic.api.metrics import OPENMETRICS, TEXT, Metrics
from opic.api.problems import JSON, Problem, from_error
from opic.api.request_bodies import LINES, MSGPACK
from opic.api.router import Handler, Routes
from opic.errors import DiskFull, OpicError, StoreUnavailable
from opic.messages import definitions, events, frontier, importance, local, operation
from opic.service.backend import Backend
from opic.service.open_crawls import OpenCrawls
from opic.service.tokens import Role, Tokens
from opic.settings import Settings


def create_app(
    service: Service,
    *,
    allow_open: bool = False,
    metrics: Metrics | None = None,
    tokens: Tokens | None = None,
    instance: str | None = None,
    crawls: OpenCrawls | None = None,
) -> Application:
    """Create the application that serves `service`. The settings are those of its backend.

    Where no token is required, requests must name this machine in their header Host, unless `allow_open` is set.
    `metrics` and `tokens` are those of the process, if it uses them elsewhere too; `instance` is the service's name, if
    it had one before; `crawls` are those of the process, by default the service's own, and others as calls name them.

    >>> app = create_app(service)  # doctest: +SKIP
    >>> serve(app, sockets=[bind("127.0.0.1", 8080)])  # doctest: +SKIP
    """
    backend, settings = service.backend, service.backend.settings
    tokens = tokens or Tokens(settings)
    metrics = metrics or Metrics(backend, tokens)
    crawls = crawls or OpenCrawls(settings, lambda: service.backend)
    calls, of_crawls = Calls(backend, service.not_ready, metrics.handed, instance), CrawlCalls(crawls)

    async def get_metrics(request: Request) -> Response:
        """Return metrics for Prometheus.

        The text format, or OpenMetrics where `Accept` asks for it.
        """
        body, kind = await run_in_threadpool(metrics.scrape, request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    table = table_of(calls, Definitions(backend), of_crawls, get_metrics)

    @cache
    def document() -> dict[str, Any]:
        return openapi(table, secured=tokens.required, crawl=settings.crawl)

    routes = _routes(table, calls, settings)
    _add_pages(routes, document)
    return Application(
        routes,
        Access(tokens, {tokens.crawl, settings.crawl}, None if allow_open else [settings.host]),
        instance=calls.instance,
        document=document,
        observe=metrics.observe,
        others=OtherCrawls(crawls, partial(_routes_for, of_crawls, get_metrics)),
        problem_of=lambda error: _problem_of(error, backend),
        log_requests=settings.log_requests,
    )


def _routes_for(
    of_crawls: CrawlCalls, get_metrics: Handler, backend: Backend, count_pages: Callable[[int], None]
) -> Routes:
    """Return the routes of a crawl that is not OPIC_CRAWL; the function is told how many pages are handed out."""
    calls = Calls(backend, backend.not_ready, lambda answer, *_: count_pages(len(answer.pages)))
    return _routes(table_of(calls, Definitions(backend), of_crawls, get_metrics), calls, backend.settings)


def _routes(table: Iterable[Described], calls: Calls, settings: Settings) -> Routes:
    routes = Routes(settings.max_body_bytes, calls.show)
    for entry in table:
        routes.add(entry.method, entry.path, entry.call, entry.role)
    return routes


def table_of(calls: Calls, defined: Definitions, of_crawls: CrawlCalls, get_metrics: Handler) -> list[Described]:
    """Return the table of calls, in the order in which the document has them."""
    table = list[Described]()

    def add(method: str, path: str, role: Role | None, *given: Any, **named: Any) -> None:
        table.append(Described(method, path, role, *given, **named))

    # Seeds first: a person who tries the calls in the order of the page finds something in every answer.
    add("POST", "/v1/seeds", "publish", calls.post_seeds, events.Seeded, _POST)
    sent = {"status": 202, "body": _EVENTS_BODY, "headers": (_IDEMPOTENCY_KEY,)}
    add("POST", "/v1/events", "publish", calls.post_events, events.Accepted, _POST, **sent)
    add("DELETE", "/v1/pages", "admin", calls.delete_pages, events.Forgotten, (422, 501, 503))
    change = {"problems": (*_PUT, 412), "headers": (_IF_MATCH,)}
    add("PUT", "/v1/classes", "admin", defined.put_classes, definitions.Reclassified, **change)
    add("PATCH", "/v1/classes", "admin", defined.patch_classes, definitions.Reclassified, **change)
    add("GET", "/v1/classes", "read", defined.get_classes, definitions.Classes)
    add("PUT", "/v1/rules", "admin", defined.put_rules, definitions.Rules, **change)
    add("PATCH", "/v1/rules", "admin", defined.patch_rules, definitions.Rules, **change)
    add("GET", "/v1/rules", "read", defined.get_rules, definitions.Rules)
    add("GET", "/v1/canonical", "read", calls.get_canonical, events.CanonicalUrl)
    add("POST", "/v1/next", "crawl", calls.post_next, frontier.NextPages, (*_POST, 409))
    add("GET", "/v1/frontier", "read", calls.get_frontier, frontier.FrontierPreview, (409, 422, 503))
    add("PUT", "/v1/politeness", "admin", calls.put_politeness, frontier.Politeness, _PUT)
    add("GET", "/v1/politeness", "read", calls.get_politeness, frontier.Politeness)
    add("POST", "/v1/release", "crawl", calls.post_release, frontier.Released, _POST)
    add("POST", "/v1/leases/renew", "crawl", calls.post_leases_renew, frontier.Renewed, _POST)
    by_policy = (409, 422, 503)  # The service may not keep what a policy needs.
    add("GET", "/v1/importance", "read", calls.get_importance, importance.OneImportance, (404, 409, 422, 503))
    add("POST", "/v1/importance", "read", calls.post_importance, importance.Importances, (*_POST, 409))
    add("GET", "/v1/history", "read", calls.get_history, importance.History, (404, 422, 503))
    add("GET", "/v1/top", "read", calls.get_top, importance.Top, by_policy)
    add("GET", "/v1/hosts", "read", calls.get_hosts, importance.Hosts, by_policy)
    add("GET", "/v1/domains", "read", calls.get_domains, importance.SiteDomains, by_policy)
    add("GET", "/v1/search", "read", calls.get_search, importance.Search)
    add("GET", "/v1/inflow", "read", calls.get_inflow, importance.Inflows, (409, 422, 503))
    add("POST", "/v1/inflow", "read", calls.post_inflow, importance.Inflows, (*_POST, 409))
    add("GET", "/v1/inlinks", "read", calls.get_inlinks, importance.Inlinks, (404, 409, 422, 503))
    add("GET", "/v1/coverage", "read", calls.get_coverage, frontier.Coverage, (409, 422, 503))
    add("GET", "/v1/local", "read", calls.get_local, local.LocalDomains)
    add("PUT", "/v1/local/{domain}", "publish", calls.put_local, local.LocalListKept, _PUT)
    add("GET", "/v1/local/{domain}", "read", calls.get_local_list, local.LocalRanking, (404, 422, 503))
    add("GET", "/v1/explain", "read", calls.get_explain, importance.Explanation, (404, 409, 422, 503))
    add("GET", "/v1/audit", "read", calls.get_audit, operation.Audit)
    add("GET", "/v1/stats", "read", calls.get_stats, operation.Stats)
    add("GET", "/v1/series", "read", calls.get_series, operation.Series)
    add("GET", "/v1/dead-letters", "read", calls.get_dead_letters, operation.DeadLetters)
    add("GET", "/healthz", None, calls.get_healthz, operation.Healthy, ())
    add("GET", "/readyz", None, calls.get_readyz, operation.Readiness, (503,))
    add("GET", "/metrics", None, get_metrics, {TEXT: _TEXT, OPENMETRICS: _TEXT}, ())
    return table + _rows_of_crawls(of_crawls)


def _rows_of_crawls(calls: CrawlCalls) -> list[Described]:
    path, made = "/v1/crawls/{crawl}", {"status": 201, "also": {200: "It was there already, with these rules."}}
    return [
        Described("GET", "/v1/crawls", "read", calls.get_crawls, operation.CrawlList),
        Described("PUT", path, "admin", calls.put_crawl, operation.CrawlMade, _PUT, **made),  # type: ignore[arg-type]
        Described("DELETE", path, "admin", calls.delete_crawl, operation.CrawlRemoved, (404, 409, 422, 503)),
    ]


_POST: Final = (400, 403, 413, 415, 422, 501, 503)
_PUT: Final = (400, 403, 409, 413, 415, 422, 503)
_TEXT: Final = {"schema": {"type": "string"}}
_IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "Change only this version: the ETag of an answer of this path. Else the answer is 412.",
    "schema": {"type": "string", "pattern": r'^(\*|(W/)?"[0-9a-f]{1,64}")$'},
}
_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Names this call: sent again within 24 hours, it takes effect once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}
_EVENTS: Final = {
    "oneOf": [{"$ref": f"{REFERENCE}CrawlEvent"}, {"type": "array", "items": {"$ref": f"{REFERENCE}CrawlEvent"}}]
}
_EVENTS_BODY: Final = {
    JSON: {"schema": _EVENTS, "example": examples.ANSWERS["CrawlEvent"]},
    MSGPACK[0]: {"schema": _EVENTS},
    LINES[0]: {
        "schema": {"type": "string", "pattern": r"\S", "description": "A crawl event a line."},
        "example": '{"url":"https://a.example/","links":["https://b.example/"]}\n{"url":"https://b.example/"}\n',
    },
}


def _add_pages(routes: Routes, document: Callable[[], dict[str, Any]]) -> None:
    """Add the console, the document and the page that shows it."""

    @cache
    def shown() -> bytes:
        return json.dumps(document(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    async def get_document() -> Response:
        return Response(await run_in_threadpool(shown), media_type=JSON)

    async def get_docs() -> Response:
        return HTMLResponse(PAGE)

    for path in sorted(PAGE_PATHS):
        routes.add("GET", path, page(path), None)
    routes.add("GET", "/docs", get_docs, None)
    routes.add("GET", "/openapi.json", get_document, None)


def _problem_of(error: OpicError, backend: Backend) -> Problem:
    if type(error) is StoreUnavailable and (full := backend.disk_full()) is not None:
        error = DiskFull(f"{full} ({error})")  # The full disk is why the store is unavailable.
    return from_error(error)
