"""The ASGI application: routes, error handlers, OpenAPI document, console and API documentation pages."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import getdoc
from typing import Annotated, Any, Final, get_args, get_origin

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette_compress import CompressMiddleware

from opic import __version__
from opic.api import models, models_console, models_local
from opic.api import models_classes as classes
from opic.api import models_leases as leases
from opic.api import models_politeness as manners
from opic.api import models_rules as rules
from opic.api import models_sites as sites
from opic.api.calls import Calls, Service
from opic.api.console import PAGE_PATHS, page
from opic.api.definitions import Definitions
from opic.api.etags import KEPT, Fresh
from opic.api.groups import TAG_OF, TAGS
from opic.api.metrics import OPENMETRICS, TEXT, Metrics
from opic.api.middleware import OPEN_PATHS, Gate
from opic.api.models_event import event_schemas
from opic.api.problems import Json, Problem, ProblemDetails, described, from_error, from_validation
from opic.api.request_bodies import JSON, LINES, MSGPACK
from opic.api.router import Direct, OnError, Routes
from opic.errors import DiskFull, OpicError, StoreUnavailable

log = logging.getLogger("opic.api")

COMPRESSED_BYTES_MIN: Final = 1_024  # A smaller body fits in one packet anyway.
LEVEL: Final = 1  # Of gzip and zstd: see docs/decisions/0015.
_NOT_MOVED: Final = "The answer would say the same as the one with the ETag in `If-None-Match`, but for `as_of`."
ABOUT = (
    "Crawl events in, page importance and the next pages to fetch out. "
    "Every error is an RFC 9457 problem (`application/problem+json`); every answer from a view that may lag says "
    "in `as_of` which moment it shows. Grains are whole numbers up to 2^62: read them as 64-bit integers."
)


def create_app(service: Service, *, allow_open: bool = False) -> FastAPI:
    """Create the application that serves `service`. The settings, including the token, are those of its backend.

    Without a token, requests must name this machine in their header Host, unless `allow_open` is set.

    >>> app = create_app(service)  # doctest: +SKIP
    >>> serve(app, sockets=[bind("127.0.0.1", 8080)])  # doctest: +SKIP
    """
    settings = service.backend.settings
    token = settings.api_token
    on_error: dict[int | type[Exception], OnError] = {
        Problem: _on_problem,
        OpicError: _on_error,
        RequestValidationError: _on_validation,
        HTTPException: _on_http,
    }
    app = _App(
        title="OPIC",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        exception_handlers=on_error,
    )
    app.state.secured = token is not None
    app.state.backend = service.backend
    metrics = Metrics(service.backend)
    secret = token.get_secret_value() if token is not None else None
    app.state.direct = Routes()
    # The middleware added last is the first to handle a request.
    app.add_middleware(Direct, routes=app.state.direct, on_error=on_error)
    app.add_middleware(Fresh)
    app.add_middleware(
        CompressMiddleware, minimum_size=COMPRESSED_BYTES_MIN, zstd_level=LEVEL, gzip_level=LEVEL, brotli=False
    )
    app.add_middleware(Gate, token=secret, observe=metrics.observe, hosts=None if allow_open else [settings.host])
    calls = Calls(service, metrics.handed)
    app.state.instance = calls.instance
    _add_calls(app, calls)
    _add_metrics(app, metrics)
    _add_pages(app)
    return app


class _App(FastAPI):
    """FastAPI, plus the parts of the OpenAPI document that it can't derive."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, which is built once."""
        if self.openapi_schema is None:
            document = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes, tags=TAGS
            )
            parts = document.setdefault("components", {})
            schemas = parts.setdefault("schemas", {})
            schemas |= {"Problem": ProblemDetails.model_json_schema(), **event_schemas()}
            parts_examples = (models, classes, leases, manners, sites, models_local)
            for name, examples in (pair for part in parts_examples for pair in part.EXAMPLES.items()):
                schemas[name]["examples"] = examples
            for path in KEPT:
                if path in document["paths"]:
                    document["paths"][path]["get"]["responses"]["304"] = {"description": _NOT_MOVED}
            for parameter in _parameters(document):
                if parameter["in"] == "path":
                    parameter["schema"]["examples"] = [models_local.PATH_EXAMPLES[parameter["name"]]]
                if parameter["required"] and "examples" in parameter["schema"]:
                    parameter["example"] = parameter["schema"]["examples"][0]  # What Swagger UI fills in.
            if self.state.secured:
                parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"token": []}]
                for path in OPEN_PATHS:
                    document["paths"][path]["get"]["security"] = []
            self.openapi_schema = document
        return self.openapi_schema


def _parameters(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for calls in document["paths"].values():
        for call in calls.values():
            yield from call.get("parameters", ())


def _add_call(  # noqa: PLR0917 - a row of a table
    app: FastAPI,
    method: str,
    path: str,
    call: Callable[..., Any],
    answer: type[BaseModel],
    problems: tuple[int, ...],
    *,
    status: int = 200,
    body: dict[str, Any] | None = None,
    headers: tuple[dict[str, Any], ...] = (),
) -> None:
    """Add a route for a call, described by the docstrings of the call and of its answer."""
    summary, _, more = (getdoc(call) or "").partition("\n")
    refused = () if path in OPEN_PATHS else (401,) if app.state.secured else (403,)
    app.add_api_route(
        path,
        _as_fastapi_reads_it(call),
        methods=[method],
        tags=[TAG_OF[path]],
        status_code=status,
        response_class=Json,
        response_model=None,
        responses={
            status: {"model": answer, "description": getdoc(answer)},
            **described(path, *refused, *problems, 500),
        },
        summary=summary.rstrip("."),
        description=more.strip(),
        openapi_extra={
            **({"requestBody": {"required": True, "content": body}} if body else {}),
            **({"parameters": list(headers)} if headers else {}),
        },
    )
    app.state.direct.add(method, path, app.routes[-1], call)


def _as_fastapi_reads_it(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call with FastAPI's marker of query parameters in the place of ours."""
    signature = inspect.signature(call)
    parameters = [
        parameter.replace(annotation=Annotated[get_args(parameter.annotation)[0], Query()])
        if get_origin(parameter.annotation) is Annotated
        else parameter
        for parameter in signature.parameters.values()
    ]

    async def handler(*given: Any, **named: Any) -> Any:
        return await call(*given, **named)

    handler.__name__ = call.__name__
    handler.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return handler


def _add_definitions(add: Callable[..., None], calls: Definitions) -> None:
    def change(method: str, path: str, call: Callable[..., Any], answer: type[BaseModel], of: type[BaseModel]) -> None:
        add(method, path, call, answer, (*_PUT, 412), body=_json_body(of), headers=(_IF_MATCH,))

    change("PUT", "/v1/classes", calls.put_classes, classes.Reclassified, classes.Classes)
    change("PATCH", "/v1/classes", calls.patch_classes, classes.Reclassified, classes.SomeClasses)
    add("GET", "/v1/classes", calls.get_classes, classes.ClassesFound, (422, 503))
    change("PUT", "/v1/rules", calls.put_rules, rules.RulesFound, rules.Rules)
    change("PATCH", "/v1/rules", calls.patch_rules, rules.RulesFound, rules.SomeRules)
    add("GET", "/v1/rules", calls.get_rules, rules.RulesFound, (422, 503))


def _add_calls(app: FastAPI, calls: Calls) -> None:
    add = partial(_add_call, app)
    posted = (400, 403, 413, 415, 422, 501, 503)
    # Seeds first: a person who tries the calls in the order of the page finds something in every answer.
    add("POST", "/v1/seeds", calls.post_seeds, models.Seeded, posted, body=_json_body(models.Seeds))
    events, once = calls.post_events, (_IDEMPOTENCY_KEY,)
    add("POST", "/v1/events", events, models.Accepted, posted, status=202, body=_EVENTS_BODY, headers=once)
    add("DELETE", "/v1/pages", calls.delete_pages, sites.Forgotten, (422, 501, 503))
    _add_definitions(add, Definitions(app.state.backend))
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


def _add_metrics(app: FastAPI, metrics: Metrics) -> None:
    async def get_metrics(request: Request) -> Response:
        body, kind = await run_in_threadpool(metrics.scrape, request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    text = {"schema": {"type": "string"}}
    app.add_api_route(
        "/metrics",
        get_metrics,
        methods=["GET"],
        response_class=Response,
        response_model=None,
        responses={
            200: {"description": "Metrics.", "content": {TEXT: text, OPENMETRICS: text}},
            **described("/metrics", 500),
        },
        name="get_metrics",
        tags=[TAG_OF["/metrics"]],
        summary="Return metrics for Prometheus",
        description="The text format, or OpenMetrics where `Accept` asks for it.",
    )


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


def _add_pages(app: FastAPI) -> None:
    """Serve the console, and Swagger UI from our own files, so that both work without internet access."""

    async def docs() -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="OPIC",
            swagger_js_url="/docs/files/swagger-ui-bundle.js",
            swagger_css_url="/docs/files/swagger-ui.css",
            swagger_favicon_url="data:,",
            swagger_ui_parameters={"validatorUrl": None, "tryItOutEnabled": True, "defaultModelsExpandDepth": 0},
        )

    for path in sorted(PAGE_PATHS):
        app.add_api_route(path, page(path), methods=["GET"], include_in_schema=False)
    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)
    app.mount("/docs/files", StaticFiles(packages=[("fastapi_offline", "static")]))


async def _on_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    if problem.status >= 500:
        request.scope["opic.why"] = problem.detail
    return problem.response(request.scope.get("opic.id"))


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OpicError)
    if type(error) is StoreUnavailable and (full := request.app.state.backend.disk_full()) is not None:
        error = DiskFull(f"{full} ({error})")  # The full disk is why the store is unavailable.
    problem = from_error(error)
    if problem.kind == "internal":
        log.error("request %s failed", request.scope.get("opic.id"), exc_info=error)
    return await _on_problem(request, problem)


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _on_problem(request, from_validation(error.errors()))


async def _on_http(request: Request, error: Exception) -> Response:
    """Answer the router's errors: no such path, or method not allowed."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        problem = Problem("no-such-path", "no such path here: /docs lists those there are")
    elif error.status_code == 405:
        # The router knows the methods of the first route only.
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        methods = {
            method for route in routes if route.path_regex.match(request.url.path) for method in route.methods or ()
        }
        methods = methods or {"GET"}  # A file.
        allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        problem = Problem("wrong-method", f"this path takes {allowed}", headers={"Allow": allowed})
    else:
        problem = Problem("bad-input", str(error.detail), status=error.status_code, headers=error.headers)
    return await _on_problem(request, problem)
