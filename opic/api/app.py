"""The application of an open service: the table of its calls, and its pages."""

import json
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from opic.api import models, models_console, models_local
from opic.api import models_classes as classes
from opic.api import models_leases as leases
from opic.api import models_politeness as manners
from opic.api import models_rules as rules
from opic.api import models_sites as sites
from opic.api.access import Access
from opic.api.application import Application
from opic.api.calls import Calls, Service
from opic.api.console import PAGE_PATHS, page
from opic.api.definitions import Definitions
from opic.api.document import Described, openapi, swagger_page
from opic.api.metrics import OPENMETRICS, TEXT, Metrics
from opic.api.problems import Problem, from_error
from opic.api.request_bodies import JSON, LINES, MSGPACK
from opic.api.router import Handler, Routes
from opic.errors import DiskFull, OpicError, StoreUnavailable
from opic.service.service import Backend

log = logging.getLogger("opic.api")


def create_app(service: Service, *, allow_open: bool = False, metrics: Metrics | None = None) -> Application:
    """Create the application that serves `service`. The settings, including the token, are those of its backend.

    Without a token, requests must name this machine in their header Host, unless `allow_open` is set. `metrics` are
    those of the process, if something else counts in them too.

    >>> app = create_app(service)  # doctest: +SKIP
    >>> serve(app, sockets=[bind("127.0.0.1", 8080)])  # doctest: +SKIP
    """
    backend = service.backend
    settings = backend.settings
    token = settings.api_token.get_secret_value() if settings.api_token is not None else None
    metrics = metrics or Metrics(backend)
    calls = Calls(service, metrics.handed)

    async def get_metrics(request: Request) -> Response:
        """Return metrics for Prometheus.

        The text format, or OpenMetrics where `Accept` asks for it.
        """
        body, kind = await run_in_threadpool(metrics.scrape, request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    table = _described(calls, Definitions(backend), get_metrics)

    @cache
    def document() -> dict[str, Any]:
        return openapi(table, secured=token is not None)

    routes = Routes()
    for one in table:
        routes.add(one.method, one.path, one.call)
    _add_pages(routes, document)
    return Application(
        routes,
        Access(token, None if allow_open else [settings.host]),
        instance=calls.instance,
        secured=token is not None,
        document=document,
        observe=metrics.observe,
        problem_of=lambda error: _problem_of(error, backend),
    )


def _add_definitions(add: Callable[..., None], calls: Definitions) -> None:
    def change(method: str, path: str, call: Callable[..., Any], answer: type[BaseModel], of: type[BaseModel]) -> None:
        add(method, path, call, answer, (*_PUT, 412), body=_json_body(of), headers=(_IF_MATCH,))

    change("PUT", "/v1/classes", calls.put_classes, classes.Reclassified, classes.Classes)
    change("PATCH", "/v1/classes", calls.patch_classes, classes.Reclassified, classes.SomeClasses)
    add("GET", "/v1/classes", calls.get_classes, classes.ClassesFound, (422, 503))
    change("PUT", "/v1/rules", calls.put_rules, rules.RulesFound, rules.Rules)
    change("PATCH", "/v1/rules", calls.patch_rules, rules.RulesFound, rules.SomeRules)
    add("GET", "/v1/rules", calls.get_rules, rules.RulesFound, (422, 503))


def _described(calls: Calls, definitions: Definitions, get_metrics: Handler) -> list[Described]:
    """Return the table of calls, in the order in which the document has them."""
    found = list[Described]()

    def add(*given: Any, **named: Any) -> None:
        found.append(Described(*given, **named))

    posted = (400, 403, 413, 415, 422, 501, 503)
    # Seeds first: a person who tries the calls in the order of the page finds something in every answer.
    add("POST", "/v1/seeds", calls.post_seeds, models.Seeded, posted, body=_json_body(models.Seeds))
    events, once = calls.post_events, (_IDEMPOTENCY_KEY,)
    add("POST", "/v1/events", events, models.Accepted, posted, status=202, body=_EVENTS_BODY, headers=once)
    add("DELETE", "/v1/pages", calls.delete_pages, sites.Forgotten, (422, 501, 503))
    _add_definitions(add, definitions)
    add("GET", "/v1/canonical", calls.get_canonical, sites.CanonicalUrl, (422, 503))
    add("POST", "/v1/next", calls.post_next, models.Next, (*posted, 409), body=_json_body(models.NextPages))
    add("GET", "/v1/frontier", calls.get_frontier, models.FrontierShown, (409, 422, 503))
    polite = _json_body(manners.Politeness)
    add("PUT", "/v1/politeness", calls.put_politeness, manners.PolitenessFound, _PUT, body=polite)
    add("GET", "/v1/politeness", calls.get_politeness, manners.PolitenessFound, (422, 503))
    add("POST", "/v1/release", calls.post_release, leases.Released, posted, body=_json_body(leases.Leases))
    add(
        "POST", "/v1/leases/renew", calls.post_leases_renew, leases.Renewed, posted, body=_json_body(leases.RenewLeases)
    )
    add("GET", "/v1/importance", calls.get_importance, models.OneImportance, (404, 422, 503))
    many = _json_body(models.ManyPages)
    add("POST", "/v1/importance", calls.post_importance, models.ManyImportances, posted, body=many)
    add("GET", "/v1/history", calls.get_history, models.History, (404, 422, 503))
    add("GET", "/v1/top", calls.get_top, sites.Top, (422, 503))
    add("GET", "/v1/hosts", calls.get_hosts, sites.Hosts, (422, 503))
    add("GET", "/v1/domains", calls.get_domains, sites.SiteDomains, (422, 503))
    add("GET", "/v1/search", calls.get_search, models_console.Search, (422, 503))
    add("GET", "/v1/inflow", calls.get_inflow, sites.Inflow, (409, 422, 503))
    add("POST", "/v1/inflow", calls.post_inflow, sites.Inflow, (*posted, 409), body=many)
    add("GET", "/v1/inlinks", calls.get_inlinks, sites.Inlinks, (404, 409, 422, 503))
    add("GET", "/v1/coverage", calls.get_coverage, sites.CoverageFound, (409, 422, 503))
    kept = _json_body(models_local.LocalList)
    add("GET", "/v1/local", calls.get_local, models_local.LocalDomains, (422, 503))
    add("PUT", "/v1/local/{domain}", calls.put_local, models_local.LocalListKept, _PUT, body=kept)
    add("GET", "/v1/local/{domain}", calls.get_local_list, models_local.LocalRanking, (404, 422, 503))
    add("GET", "/v1/explain", calls.get_explain, sites.Explained, (404, 422, 503))
    add("GET", "/v1/audit", calls.get_audit, models.Audited, (422, 503))
    add("GET", "/v1/stats", calls.get_stats, models.Stats, (422, 503))
    add("GET", "/v1/series", calls.get_series, models_console.Series, (422, 503))
    add("GET", "/v1/dead-letters", calls.get_dead_letters, models_console.DeadLetters, (422, 503))
    add("GET", "/healthz", calls.get_healthz, models.Healthy, ())
    add("GET", "/readyz", calls.get_readyz, models.Ready, (503,))
    text = {"schema": {"type": "string"}}
    add("GET", "/metrics", get_metrics, {TEXT: text, OPENMETRICS: text}, ())
    return found


_PUT: Final = (400, 403, 409, 413, 415, 422, 503)
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
    "oneOf": [
        {"$ref": "#/components/schemas/CrawlEvent"},
        {"type": "array", "items": {"$ref": "#/components/schemas/CrawlEvent"}},
    ]
}
_EVENTS_BODY: Final = {
    JSON: {"schema": _EVENTS, "example": models.EXAMPLES["CrawlEvent"][0]},
    MSGPACK[0]: {"schema": _EVENTS},
    LINES[0]: {
        "schema": {"type": "string", "pattern": r"\S", "description": "A crawl event a line."},
        "example": '{"url":"https://a.example/","links":["https://b.example/"]}\n{"url":"https://b.example/"}\n',
    },
}


_BODIES: Final = models.BODIES | classes.BODIES | leases.BODIES | rules.BODIES | manners.BODIES | models_local.BODIES


def _json_body(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {JSON: {"schema": _in_place(schema, schema.pop("$defs", {})), "example": _BODIES[model.__name__]}}


def _in_place(part: Any, named: dict[str, Any]) -> Any:
    """Inline the definitions that a body's schema refers to, since it can't have definitions beside it."""
    if isinstance(part, list):
        return [_in_place(one, named) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:  # Keys beside it, like a default, belong to this place.
        beside = {name: one for name, one in part.items() if name != "$ref"}
        part = {**named[part["$ref"].removeprefix("#/$defs/")], **beside}
    return {name: _in_place(one, named) for name, one in part.items()}


def _add_pages(routes: Routes, document: Callable[[], dict[str, Any]]) -> None:
    """Add the console, the document and the page that shows it."""

    @cache
    def shown() -> bytes:
        return json.dumps(document(), ensure_ascii=False, separators=(",", ":")).encode()

    async def get_document() -> Response:
        return Response(await run_in_threadpool(shown), media_type=JSON)

    async def get_docs() -> Response:
        return HTMLResponse(await run_in_threadpool(swagger_page))

    for path in sorted(PAGE_PATHS):
        routes.add("GET", path, page(path))
    routes.add("GET", "/docs", get_docs)
    routes.add("GET", "/openapi.json", get_document)


def _problem_of(error: OpicError, backend: Backend) -> Problem:
    if type(error) is StoreUnavailable and (full := backend.disk_full()) is not None:
        error = DiskFull(f"{full} ({error})")  # The full disk is why the store is unavailable.
    return from_error(error)
