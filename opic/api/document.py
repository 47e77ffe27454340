"""The OpenAPI document, and the pages that show it: derived from the table of calls, their models and docstrings.

FastAPI derives it. It answers no request, and is imported only for this, which takes half a second.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import getdoc
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel
from starlette.responses import Response

from opic import __version__
from opic.api import models, models_local
from opic.api import models_classes as classes
from opic.api import models_leases as leases
from opic.api import models_politeness as manners
from opic.api import models_sites as sites
from opic.api.access import OPEN_PATHS
from opic.api.etags import KEPT
from opic.api.groups import TAG_OF, TAGS
from opic.api.models_event import event_schemas
from opic.api.problems import Json, ProblemDetails, described

_NOT_MOVED: Final = "The answer would say the same as the one with the ETag in `If-None-Match`, but for `as_of`."
ABOUT: Final = (
    "Crawl events in, page importance and the next pages to fetch out. "
    "Every error is an RFC 9457 problem (`application/problem+json`); every answer from a view that may lag says "
    "in `as_of` which moment it shows. Grains are whole numbers up to 2^62: read them as 64-bit integers."
)


@dataclass(frozen=True, slots=True)
class Described:
    """A call of the API. The docstrings of its handler and of its answer describe it."""

    method: str
    path: str
    call: Callable[..., Any]
    answer: type[BaseModel] | Mapping[str, Any]  # The model of the answer, or the content of one that is no JSON.
    problems: tuple[int, ...]  # The statuses of its problems, but for those of all calls.
    status: int = 200
    body: Mapping[str, Any] | None = None  # By media type, as the document has it.
    headers: tuple[Mapping[str, Any], ...] = ()


def openapi(calls: Iterable[Described], *, secured: bool) -> dict[str, Any]:
    """Return the OpenAPI document of calls; `secured`: whether they need the token."""
    from fastapi import FastAPI
    from fastapi.openapi.utils import get_openapi

    app = FastAPI(generate_unique_id_function=lambda route: route.name)
    for call in calls:
        _add(app, call, secured=secured)
    document = get_openapi(title="OPIC", version=__version__, description=ABOUT, routes=app.routes, tags=TAGS)
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
    if secured:
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in OPEN_PATHS:
            document["paths"][path]["get"]["security"] = []
    return document


def _parameters(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for calls in document["paths"].values():
        for call in calls.values():
            yield from call.get("parameters", ())


def _add(app: Any, one: Described, *, secured: bool) -> None:
    summary, _, more = (getdoc(one.call) or "").partition("\n")
    refused = () if one.path in OPEN_PATHS else (401,) if secured else (403,)
    modelled = isinstance(one.answer, type)
    told: dict[str, Any] = {"description": "Metrics.", "content": one.answer}
    if modelled:
        told = {"model": one.answer, "description": getdoc(one.answer)}
    app.add_api_route(
        one.path,
        _as_fastapi_reads_it(one.call),
        methods=[one.method],
        tags=[TAG_OF[one.path]],
        status_code=one.status,
        response_class=Json if modelled else Response,
        response_model=None,
        responses={one.status: told, **described(one.path, *refused, *one.problems, 500)},
        summary=summary.rstrip("."),
        description=more.strip(),
        openapi_extra={
            **({"requestBody": {"required": True, "content": one.body}} if one.body else {}),
            **({"parameters": list(one.headers)} if one.headers else {}),
        },
    )


def _as_fastapi_reads_it(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call with FastAPI's marker of query parameters in the place of ours."""
    from fastapi import Query

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


def swagger_page() -> str:
    """Return the page that shows the document, by Swagger UI from our own files: it works without internet access."""
    from fastapi.openapi.docs import get_swagger_ui_html

    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="OPIC",
        swagger_js_url="/docs/files/swagger-ui-bundle.js",
        swagger_css_url="/docs/files/swagger-ui.css",
        swagger_favicon_url="data:,",
        swagger_ui_parameters={"validatorUrl": None, "tryItOutEnabled": True, "defaultModelsExpandDepth": 0},
    )
    return bytes(page.body).decode()
