"""The ASGI application: every request passes here, once in and once out.

A request gets an id, is refused or routed to its handler, and its answer gets the headers for caching and is compressed
where that helps. Each request is counted; one that fails has a line in the log, an unexpected error also a traceback,
and the caller an answer.
"""

import logging
import random
import re
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from hashlib import blake2b
from os.path import normpath
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette_compress import CompressMiddleware
from swagger_ui_bundle import swagger_ui_path

from opic.api.access import LIMITER, OVER_RATE, RUNNING, TOKEN, Access, begin_call, delay_refusal, header
from opic.api.crawl_calls import OtherCrawls
from opic.api.problems import Problem, fit_for_log, from_error, internal
from opic.api.router import CRAWL, CRAWLS, VERSION, Route, Routes
from opic.errors import OpicError
from opic.service.tokens import Token

log = logging.getLogger("opic.api")

DOC_FILES: Final = "/docs/files/"
QUIET_PATHS: Final = ("/healthz", "/readyz", "/metrics")  # Requested every few seconds: logged at DEBUG.
CALL_PATH: Final = "opic.path"  # Of a request's scope: the path of its call, without the crawl that it names.
ID_HEADER: Final = b"x-request-id"
COMPRESSED_BYTES_MIN: Final = 1_024  # A smaller body fits in one packet anyway.
LEVEL: Final = 1  # Of gzip and zstd: see docs/decisions/0015.
NO_SUCH_PATH: Final = "no such path here: /docs lists those there are"
# Calls whose answers have an ETag: a hash of the answer without `as_of`, which always changes; so it is a weak one.
WITH_ETAG: Final = ("/v1/top", "/v1/hosts", "/v1/domains", "/openapi.json")
_AS_OF = re.compile(rb'"(?:rank_)?as_of":[-+0-9.eE]+,?')
_ids = random.Random()  # noqa: S311 - ids are no secrets and grant no access; system randomness would be slow
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Application:
    """An ASGI application that answers HTTP requests by `routes`."""

    def __init__(
        self,
        routes: Routes,
        access: Access,
        *,
        instance: str,
        document: Callable[[], Mapping[str, Any]],
        observe: Callable[[str, str, int, float], None],
        others: OtherCrawls | None = None,
        problem_of: Callable[[OpicError], Problem] = from_error,
        log_requests: bool = False,
    ) -> None:
        """Answer requests.

        Args:
            routes: the calls and pages.
            access: who may ask.
            instance: what tells this service from another program on its port.
            document: returns the OpenAPI document.
            observe: called after each request with its method, its route's path or `other`, the status (0: aborted)
                and the seconds it took.
            others: answers calls on other crawls; None: there are none.
            problem_of: converts an error of ours to what the caller gets.
            log_requests: log every request; else only those that were aborted or answered with a 5xx status.
        """
        self.instance, self.openapi = instance, document
        self._routes, self._access, self._observe, self._problem_of = routes, access, observe, problem_of
        self._others, self._log_requests = others, log_requests
        self._files = StaticFiles(directory=swagger_ui_path)
        self._compressed = CompressMiddleware(
            _send, minimum_size=COMPRESSED_BYTES_MIN, zstd_level=LEVEL, gzip_level=LEVEL, brotli=False
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        started, status, method = time.perf_counter(), 0, scope["method"]
        # A GET route answers HEAD too; the server leaves the body out.
        inner = {**scope, "method": "GET" if method == "HEAD" else method}
        request, sent_bytes = Request(inner, receive), 0
        given = header(request, ID_HEADER) or ""
        request_id = inner["opic.id"] = given if _ID.fullmatch(given) else f"{_ids.getrandbits(64):016x}"
        try:
            response = await self._answer(request)
            status, sent_bytes = response.status_code, len(getattr(response, "body", b""))
            await self._send(response, request, send)
        except ClientDisconnect:
            log.info("the client of request %s disconnected", request_id)
        except CancelledError:  # The grace period of the shutdown is over.
            if status:
                raise
            problem = Problem("ending", "the service shut down before the request was done: send it again")
            status = problem.status
            await self._send(problem.response(request_id), request, send)
        except Exception as error:  # Last resort: the caller gets an answer, the log a traceback.
            log.exception("request %s failed", request_id)
            _drop_tracebacks(error)
            if not status:
                response = internal().response(request_id)
                status = response.status_code
                await self._send(response, request, send)
        finally:
            if RUNNING in inner:
                inner[LIMITER].end(sent_bytes)
            seconds = time.perf_counter() - started
            self._observe(inner["method"], _path(inner), status, seconds)
            tells = self._log_requests or status >= 500 or status == 0
            level = logging.INFO if tells and scope["path"] not in QUIET_PATHS else logging.DEBUG
            if log.isEnabledFor(level):
                _log(level, method, inner, status, 1000 * seconds)

    async def _answer(self, request: Request) -> Response:
        """Return the answer to a request, with the headers that all answers have."""
        path, scope = request.scope["path"], request.scope
        try:
            response = await self._routed(request, path)
        except (Problem, OpicError, HTTPException) as error:
            problem = self._problem(error)
            if problem.status >= 500:
                scope["opic.why"] = problem.detail
            if problem.kind == OVER_RATE:
                await delay_refusal(request)
            if problem.kind == "internal":
                log.error("request %s failed", scope["opic.id"], exc_info=error)
            response = problem.response(scope["opic.id"])
            _drop_tracebacks(error)
        _set_cache_headers(request, scope.get(CALL_PATH, path), response)
        if (limiter := scope.get(LIMITER)) is not None:
            response.raw_headers.extend(limiter.fields())
        return response

    async def _routed(self, request: Request, path: str) -> Response:
        matched = self._routes.find(path)
        if matched is None and (named := self._routes.find_in_crawl(path)) is not None:
            request.scope[CALL_PATH], matched = named
        is_open = path.startswith(DOC_FILES) if matched is None else matched.is_open
        token = self._access.holder(request, is_open=is_open)
        if token is not None:
            request.scope[TOKEN] = token
        if matched is not None:
            if (route := matched.by_method.get(request.method)) is None:
                raise _wrong_method(matched.by_method)
            request.scope["opic.route"], request.scope["path_params"] = route, matched.parameters
            if route.role is not None:
                crawl = matched.parameters.get(CRAWL)
                if token is not None:
                    self._access.check(token, route.role, crawl, of_any=route.path == CRAWLS)
                limiter = self._access.tokens.anonymous if token is None else token.limiter
                if limiter is not None:
                    begin_call(request, limiter, request.scope.get(CALL_PATH, path))
                if (
                    CALL_PATH in request.scope
                    and (others := self._others) is not None
                    and not others.is_own(str(crawl))
                ):
                    return await others.answer(str(crawl), request.scope[CALL_PATH], request)
            return await route.handler(request)
        if is_open:
            if request.method != "GET":
                raise _wrong_method({"GET": None})
            return await self._files.get_response(normpath(path.removeprefix(DOC_FILES)), request.scope)
        raise Problem("no-such-path", NO_SUCH_PATH)

    def _problem(self, error: Problem | OpicError | HTTPException) -> Problem:
        if isinstance(error, OpicError):
            return self._problem_of(error)
        if isinstance(error, HTTPException):  # Of a file that is not there.
            return Problem("no-such-path", NO_SUCH_PATH, status=error.status_code)
        return error

    async def _send(self, response: Response, request: Request, send: Send) -> None:
        response.raw_headers.append((ID_HEADER, request.scope["opic.id"].encode()))
        body: bytes | None = getattr(response, "body", None)  # None of a file, which is compressed as it is read.
        if body is not None and len(body) < COMPRESSED_BYTES_MIN:
            await response(request.scope, request.receive, send)
        else:
            request.scope["opic.response"] = response
            await self._compressed(request.scope, request.receive, send)


async def _send(scope: Scope, receive: Receive, send: Send) -> None:
    await scope["opic.response"](scope, receive, send)


def _set_cache_headers(request: Request, path: str, response: Response) -> None:
    """Set Cache-Control of an answer, and ETag of some; make these a 304 if they would be what If-None-Match names."""
    if path not in WITH_ETAG or request.method != "GET":
        if path.startswith("/v1/"):
            response.raw_headers.append((b"cache-control", b"no-store"))
        return
    headers = response.headers
    if response.status_code != 200:
        headers["Cache-Control"] = "no-store"
        return
    tag = f'"{blake2b(_AS_OF.sub(b"", response.body), digest_size=12).hexdigest()}"'
    headers["ETag"], headers["Cache-Control"] = f"W/{tag}", "no-cache"
    known = {etag.strip().removeprefix("W/") for etag in request.headers.get("if-none-match", "").split(",")}
    if tag in known or "*" in known:
        response.status_code, response.body = 304, b""
        del headers["content-length"], headers["content-type"]


def _drop_tracebacks(error: BaseException | None) -> None:
    """Break the cycles from an error to the frames that it passed, some of which hold it, and others the body.

    A future holds its exception, and the frame that awaits it often holds the future. Such a cycle stays in memory
    until the garbage collector runs, which is rare.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _wrong_method(taken: Mapping[str, object]) -> Problem:
    allowed = ", ".join(sorted({*taken, *({"HEAD"} if "GET" in taken else ())}))
    return Problem("wrong-method", f"this path takes {allowed}", headers={"Allow": allowed})


def _path(scope: Scope) -> str:
    """Return the path of the route that answers, with the name of its parameter; `other` for unknown ones."""
    route: Route | None = scope.get("opic.route")
    if route is None:
        return "other"
    return route.path if CALL_PATH not in scope else f"{CRAWLS}/{{{CRAWL}}}/{route.path.removeprefix(VERSION)}"


def _log(level: int, method: str, scope: Scope, status: int, ms: float) -> None:
    """Write the access log line of a request; without a search of the stack for who wrote it, a third of the cost."""
    method, request_id = fit_for_log(method), scope["opic.id"]
    path = fit_for_log(scope.get("raw_path", b"").decode("latin-1") or scope["path"])
    why = f" ({fit_for_log(scope['opic.why'])})" if "opic.why" in scope else ""
    token: Token | None = scope.get(TOKEN)
    if token is not None:
        why = f" token={token.name}{why}"
    given = (method, path, status or "aborted", ms, request_id, why)
    record = logging.LogRecord(log.name, level, "", 0, "%s %s %s %.1f ms id=%s%s", given, None)
    record.__dict__ |= {
        "request_id": request_id,
        "method": method,
        "route": _path(scope),
        "status": status,
        "ms": round(ms, 1),
        **({"token": token.name} if token is not None else {}),
    }
    log.handle(record)
