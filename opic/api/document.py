"""The OpenAPI document, and the page that shows it: derived from the table of calls, their types and docstrings."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from inspect import cleandoc, getdoc
from typing import Any, Final

import msgspec
from msgspec import Struct

from opic import __version__
from opic.api import examples
from opic.api.application import WITH_ETAG
from opic.api.problems import JSON, described
from opic.api.router import AFTER, CRAWL, CRAWLS, WITH_BODY, asked_of, in_crawl
from opic.messages.operation import ProblemDetails
from opic.model.events import CrawlEvent
from opic.service.positions import POSITION
from opic.service.tokens import ROLES, Role
from opic.urls.traps import Traps

ABOUT: Final = (
    "Crawl events in, page importance and the next pages to fetch out. "
    "Every error is an RFC 9457 problem (`application/problem+json`); every answer from a view that may lag says "
    "in `as_of` which moment it shows. Grains are whole numbers up to 2^62: read them as 64-bit integers."
)
REFERENCE: Final = "#/components/schemas/"
GROUPS: Final = (  # Groups of calls, by what one does with them: name, about, paths.
    ("Feed", "Tell what was crawled, and what to begin with.", ("/v1/events", "/v1/seeds", "/v1/pages")),
    (
        "Crawl",
        "Which pages to fetch next, and how much of the important ones is fetched.",
        ("/v1/next", "/v1/release", "/v1/leases/renew", "/v1/frontier", "/v1/coverage"),
    ),
    (
        "Importance",
        "How important pages, hosts and domains are, and why.",
        (
            "/v1/importance",
            "/v1/top",
            "/v1/hosts",
            "/v1/domains",
            "/v1/search",
            "/v1/explain",
            "/v1/history",
            "/v1/inlinks",
            "/v1/inflow",
        ),
    ),
    (
        "Define",
        "Classes of pages, rules of URLs, delays of hosts.",
        ("/v1/classes", "/v1/rules", "/v1/canonical", "/v1/politeness"),
    ),
    ("Local domains", "Lists of the local-domain estimator.", ("/v1/local", "/v1/local/{domain}")),
    (
        "Operate",
        "What the service holds, and whether all is well.",
        ("/v1/stats", "/v1/audit", "/v1/series", "/v1/dead-letters", "/healthz", "/readyz", "/metrics"),
    ),
    ("Crawls", "Several crawls of one store, behind one endpoint.", ("/v1/crawls", "/v1/crawls/{crawl}")),
)
TAG_OF: Final = {path: name for name, _, paths in GROUPS for path in paths}
_NOT_MOVED: Final = "The answer would say the same as the one with the ETag in `If-None-Match`, but for `as_of`."
_AFTER: Final = {
    "description": "The `position` of an answer: this one shows the effect of what was written by then.",
    "schema": {"type": "string", "pattern": POSITION},
}
_SCHEME: Final = (
    f"A token has one or more of the roles {', '.join(ROLES)}, on one crawl, several or all. `crawl` includes "
    "`publish`, `admin` includes all. Each call names the role that it wants in its `security`."
)

Schemas = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Described:
    """A call of the API. The docstrings of its handler and of its answer describe it."""

    method: str
    path: str
    role: Role | None  # What a token must have to make it; None: it needs no token.
    call: Callable[..., Any]
    answer: type[Struct] | Mapping[str, Any]  # The type of the answer, or the content of one that is no JSON.
    problems: tuple[int, ...] = (422, 503)  # The statuses of its problems, but for those of all calls.
    status: int = 200
    body: Mapping[str, Any] | None = None  # The content by media type, of a body that is not only JSON.
    headers: tuple[Mapping[str, Any], ...] = ()
    also: Mapping[int, str] = dataclasses.field(default_factory=dict)  # What other statuses of the same answer mean.


def openapi(calls: Iterable[Described], *, secured: bool, crawl: str) -> dict[str, Any]:
    """Return the OpenAPI document of calls.

    Each path is there once. A server with a variable stands for the other crawls, by which generated clients and the
    page choose one; paths that are of no crawl name the first server alone.

    Args:
        calls: the table.
        secured: whether they need a token.
        crawl: OPIC_CRAWL.
    """
    table = list(calls)
    asked = {kind for row in table if (kind := asked_of(row.call)) is not None}  # The document has them in place.
    answers = {row.answer for row in table if isinstance(row.answer, type)}
    schemas = schemas_of([CrawlEvent, ProblemDetails, *asked, *answers])
    in_place = {kind.__name__: schemas.pop(kind.__name__) for kind in asked}
    for name, default in asdict(Traps()).items():
        schemas["Thresholds"]["properties"][name]["default"] = default
    schemas["Problem"] = schemas.pop(ProblemDetails.__name__) | {"title": "Problem"}
    for name, example in examples.ANSWERS.items():
        schemas[name]["examples"] = [example]
    paths: dict[str, dict[str, Any]] = {}
    for row in table:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, in_place, secured=secured)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "OPIC", "version": __version__, "description": ABOUT},
        "servers": [
            {"url": "/", "description": f"The crawl {crawl}."},
            {
                "url": f"{CRAWLS}/{{{CRAWL}}}",
                "description": "Any crawl.",
                "variables": {CRAWL: {"default": crawl, "description": "Its name, as GET /v1/crawls lists it."}},
            },
        ],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
        "tags": [{"name": name, "description": about} for name, about, _ in GROUPS],
    }
    if secured:
        scheme = {"type": "http", "scheme": "bearer", "description": _SCHEME}
        document["components"]["securitySchemes"] = {"token": scheme}
    return document


def schemas_of(kinds: Iterable[type[Struct]]) -> Schemas:
    """Return the JSON Schemas of types and of those that they refer to, by name."""
    _, schemas = msgspec.json.schema_components(kinds, ref_template=f"{REFERENCE}{{name}}")
    for schema in schemas.values():
        schema["description"] = cleandoc(schema["description"])
        for name, field in schema["properties"].items():
            if field.get("default", ...) is None:
                del field["default"]  # To leave a field out and to say null is the same.
            if (null := field.pop("always", None)) is not None:
                _always(field, null)
                schema["required"].append(name)
    return schemas


def _always(field: Schemas, null: bool) -> None:
    """Say that the service always sends a field: without a default, and without null, unless it sends null."""
    field.pop("default", None)
    if not null and "anyOf" in field:
        (part,) = (option for option in field.pop("anyOf") if option != {"type": "null"})
        field |= part


def _operation(row: Described, schemas: Schemas, *, secured: bool) -> dict[str, Any]:
    summary, _, more = (getdoc(row.call) or "").partition("\n")
    refused = () if row.role is None else (401, 403, 429) if secured else (403, 429)
    answer: dict[str, Any] = {"description": "Metrics.", "content": row.answer}
    if isinstance(row.answer, type):
        schema = {"$ref": f"{REFERENCE}{row.answer.__name__}"}
        answer = {"description": getdoc(row.answer), "content": {JSON: {"schema": schema}}}
    asked, body = asked_of(row.call), row.body
    parameters = [*_of_path(row.path), *row.headers]
    if asked is not None and row.method in WITH_BODY:
        body = {JSON: {"schema": schemas[asked.__name__], "example": examples.BODIES[asked.__name__]}}
    elif asked is not None:
        parameters += _of_query(schemas[asked.__name__])
    if in_crawl(row.path) and all(parameter["name"] != AFTER for parameter in parameters):
        parameters.append({"name": AFTER, "in": "query", "required": False, **_AFTER})
    operation: dict[str, Any] = {
        "tags": [TAG_OF[row.path]],
        "summary": summary.rstrip("."),
        "description": more.strip(),
        "operationId": row.call.__name__,
        "parameters": parameters,
    }
    if not in_crawl(row.path):
        operation["servers"] = [{"url": "/"}]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    no_crawl = (404,) if in_crawl(row.path) and 404 not in row.problems else ()
    problems = described(row.path, *refused, *no_crawl, *row.problems, 500)
    operation["responses"] = {str(status): said for status, said in {row.status: answer, **problems}.items()}
    for status, about in row.also.items():
        operation["responses"][str(status)] = {**answer, "description": about}
    if row.path in WITH_ETAG:
        operation["responses"]["304"] = {"description": _NOT_MOVED}
    if secured:  # OpenAPI 3.1: of a scheme without scopes, the list has the roles that are required.
        operation["security"] = [] if row.role is None else [{"token": [row.role]}]
    return {name: part for name, part in operation.items() if part not in ("", []) or name == "security"}


def _of_path(path: str) -> Iterator[dict[str, Any]]:
    for name, example in examples.PATHS.items():
        if f"{{{name}}}" in path:
            schema = {"type": "string", "examples": [example]}
            yield {"name": name, "in": "path", "required": True, "schema": schema, "example": example}


def _of_query(asked: Schemas) -> list[dict[str, Any]]:
    """Describe query parameters, the required ones first."""
    parameters = []
    for name, schema in asked["properties"].items():
        needed, told = name in asked["required"], {k: v for k, v in schema.items() if k in ("description", "example")}
        if needed and "examples" in schema:
            told["example"] = schema["examples"][0]  # What Swagger UI fills in.
        plain = {k: v for k, v in schema.items() if k not in told}
        parameters.append({"name": name, "in": "query", "required": needed, "schema": plain, **told})
    return sorted(parameters, key=lambda parameter: not parameter["required"])


PAGE: Final = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/docs/files/swagger-ui.css">
<link rel="icon" href="data:,">
<title>OPIC</title>
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/files/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#swagger-ui", layout: "BaseLayout", deepLinking: true, showExtensions: true,
  showCommonExtensions: true, validatorUrl: null, tryItOutEnabled: true, defaultModelsExpandDepth: 0,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
})
</script>
</body>
</html>
"""  # Swagger UI from our own files: it works without internet access.
