"""HTTP error responses: RFC 9457 problem details, and the table of their kinds.

A client branches on `status`, or on `type` if it needs to know more. `title` is the same for all problems of a kind.
`detail` is for people: it names the thing, the value, the limit and the way out.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response

from opic import errors

JSON: Final = "application/json"
MEDIA_TYPE: Final = "application/problem+json"
RETRY_SECONDS: Final = 1  # A killed store is back within a second or two; a backlog drains by thousands a second.
MENDED_SECONDS: Final = 10  # A person has to act: free disk space or create the missing topic.
LOGGED_CHARS_MAX: Final = 200
EXAMPLE_ID: Final = "1f0c9a2b7d3e4f60"  # Of a request.

KINDS: Final[dict[str, tuple[int, str]]] = {  # By the last part of `type`: HTTP status and title.
    "not-http": (400, "Malformed HTTP request"),
    "not-json": (400, "Invalid JSON body"),
    "not-msgpack": (400, "Invalid MessagePack body"),
    "not-decoded": (400, "Body does not match its Content-Encoding"),
    "no-token": (401, "Missing or invalid bearer token"),
    "not-allowed": (403, "The token is not for this call or crawl"),
    "foreign-host": (403, "Host header of another machine refused"),
    "foreign-origin": (403, "Cross-origin request refused"),
    "no-such-path": (404, "Unknown path"),
    "no-such-crawl": (404, "Unknown crawl"),
    "unknown-page": (404, "Unknown page"),
    "no-list": (404, "No list of this domain"),
    "wrong-method": (405, "Method not allowed"),
    "slow": (408, "Request timeout"),
    "refused": (409, "Conflict with the state of the store"),
    "changed": (412, "Changed in the meantime"),
    "no-trust": (409, "No page is trusted"),
    "not-kept": (409, "The data for this are not kept here"),
    "too-large": (413, "Body too large"),
    "target-too-long": (414, "Path and query too long"),
    "wrong-media-type": (415, "Unsupported media type"),
    "bad-input": (422, "Invalid value"),
    "bad-url": (422, "Invalid URL"),
    "bad-event": (422, "Invalid event"),
    "key-reused": (422, "Idempotency-Key reused with another body"),
    "over-rate": (429, "Over a rate limit"),
    "head-too-large": (431, "Request headers too large"),
    "internal": (500, "Internal error"),
    "not-built-yet": (501, "Not implemented yet"),
    "not-ready": (503, "Not ready"),
    "ending": (503, "Shutting down"),
    "kafka-refused": (503, "Kafka is misconfigured"),
    "kafka-throttled": (503, "A quota of Kafka is used up"),
    "disk-full": (503, "The store's disk is full"),
    "keys-full": (503, "Too many Idempotency-Keys in use"),
    "too-many-connections": (503, "Too many connections"),
    "too-many-crawls": (503, "Too many crawls are open"),
    "store-away": (503, "Store unavailable"),
}
# Kinds that only some calls answer with, or none that the OpenAPI document describes.
ONLY_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "not-http": (),
    "not-msgpack": ("/v1/events",),
    "no-such-path": (),
    "no-list": ("/v1/local/{domain}",),
    "unknown-page": ("/v1/importance", "/v1/history", "/v1/explain", "/v1/inlinks"),
    "no-trust": ("/v1/coverage", "/v1/frontier", "/v1/next"),
    "not-kept": (
        "/v1/importance",
        "/v1/top",
        "/v1/hosts",
        "/v1/domains",
        "/v1/explain",
        "/v1/coverage",
        "/v1/frontier",
        "/v1/inflow",
        "/v1/inlinks",
        "/v1/next",
    ),
    "refused": ("/v1/classes", "/v1/rules", "/v1/politeness", "/v1/local/{domain}", "/v1/crawls/{crawl}"),
    "changed": ("/v1/classes", "/v1/rules"),
    "bad-event": ("/v1/events",),
    "key-reused": ("/v1/events",),
    "keys-full": ("/v1/events",),
    "not-ready": ("/readyz",),
}
# An example of `detail` for each kind that the document describes.
DETAILS: Final[Mapping[str, str]] = {
    "not-json": "the body is not JSON: invalid character (byte 0)",
    "not-msgpack": "the body is not a decodable array of events: Input data was truncated; none of it was taken",
    "not-decoded": "the body is not gzip: it is truncated",
    "no-token": "OPIC_API_TOKEN is set here: send the header Authorization: Bearer …",
    "not-allowed": "this call wants the role crawl, and the token crawler-7 has read",
    "foreign-host": "the header Host is 'a.example', and OPIC_API_TOKEN is not set: use http://localhost",
    "foreign-origin": "the header Origin names another site than Host: set OPIC_API_TOKEN to allow that",
    "no-such-crawl": "there is no crawl 'news': GET /v1/crawls lists those there are, PUT makes one",
    "unknown-page": "https://a.example/ was never seen",
    "no-list": "no estimator has sent a list of a.example: `opic local-rank` makes one",
    "refused": "the classes were accepted, but are not in effect: other classes were set at the same time",
    "changed": "the classes are of version 3c3e7f0a4b1d9a57, not 0d1c5f9e2b7a6c48: read them again, and change those",
    "no-trust": "no page is trusted: give seeds trust with POST /v1/seeds or `opic seed --trust 1 URL`",
    "not-kept": "OPIC_INFLOW is off for this store: it does not record in-flow",
    "too-large": "the body is over OPIC_MAX_BODY_BYTES 16,777,216: send it in several calls",
    "wrong-media-type": "Content-Type 'text/plain' is not taken: send application/json",
    "bad-input": "n=1,001 is over OPIC_MAX_N 1,000",
    "bad-url": "url '/about' is not an absolute http(s) URL",
    "bad-event": "url '/about' is not an absolute http(s) URL",
    "key-reused": "this Idempotency-Key came with another body before",
    "over-rate": "100 events a second are allowed, and these are used up: send it again in 12 s",
    "internal": "the service failed; its log says why under this request's id",
    "not-built-yet": "OPIC_TRACK=links is not built yet: use off",
    "not-ready": "the worker is not running; it is being started",
    "ending": "the service shut down before the request was done: send it again",
    "kafka-refused": "there is no topic crawl.events: `opic topics create` makes it",
    "kafka-throttled": "Kafka at kafka:9092 answers, but holds this user back by a quota for another 20 s",
    "disk-full": "the disk of the store is full (12.0 MiB free, 64.0 MiB wanted): make room on it",
    "keys-full": "4,194,304 Idempotency-Keys are remembered, OPIC_MAX_KEYS_BYTES allows no more",
    "too-many-connections": "the service has as many connections as OPIC_MAX_CONNECTIONS allows: try again",
    "too-many-crawls": "crawl 'news' can't be opened: as many are open as OPIC_MAX_CRAWLS allows, 2",
    "store-away": "the store does not answer",
}


class Problem(Exception):
    """An error response, as an exception that may be raised anywhere in a call."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Describe the problem.

        Args:
            kind: a key of KINDS.
            detail: what happened, and what to do about it; untrusted text in it must be shortened and escaped.
            status: HTTP status, if it differs from that of the kind.
            headers: additional headers of the answer.
            errors: the invalid values.
        """
        super().__init__(detail)
        self.kind, self.detail, self.errors = kind, detail, errors
        self.status = status or KINDS[kind][0]
        self.headers = dict(headers or {})
        if self.status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_SECONDS))

    @property
    def phrase(self) -> str:
        return HTTPStatus(self.status).phrase

    def members(self, request_id: str | None = None) -> dict[str, object]:
        title = KINDS[self.kind][1]
        members = {
            "type": f"urn:opic:problem:{self.kind}",
            "title": title,
            "status": self.status,
            "detail": self.detail,
        }
        more = {"errors": list(self.errors), "request_id": request_id}
        return {**members, **{name: value for name, value in more.items() if value}}

    def response(self, request_id: str | None = None) -> "Json":
        return Json(self.members(request_id), self.status, self.headers, MEDIA_TYPE)


class Json(Response):
    """A JSON response and a line end, ASCII only: integers are exact, NaN is null, lone surrogates are escaped."""

    def __init__(
        self, content: object, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = JSON
    ) -> None:
        self.status_code, self.background, self.body = status, None, _encoded(content) + b"\n"
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", media_type.encode())]
        self.raw_headers += [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]


def _encoded(content: object) -> bytes:
    """Encode as JSON. msgspec takes a twentieth of the time that json takes, but escapes nothing."""
    with suppress(UnicodeEncodeError):  # Of a lone surrogate.
        if (encoded := msgspec.json.encode(content)).isascii():
            return encoded
    return json.dumps(content, allow_nan=False, separators=(",", ":"), default=msgspec.to_builtins).encode("ascii")


# The first that fits. Others are internal.
OF_ERRORS: Final[Sequence[tuple[type[errors.OpicError], str]]] = (
    (errors.NoSuchCrawl, "no-such-crawl"),
    (errors.TooManyCrawls, "too-many-crawls"),
    (errors.NotPermitted, "refused"),
    (errors.KeyReused, "key-reused"),
    (errors.KeysFull, "keys-full"),
    (errors.DiskFull, "disk-full"),
    (errors.ChangedMeanwhile, "changed"),
    (errors.Refused, "refused"),
    (errors.NoTrust, "no-trust"),
    (errors.NotKept, "not-kept"),
    (errors.BadEvent, "bad-event"),
    (errors.BadUrl, "bad-url"),
    (errors.BadInput, "bad-input"),
    (errors.NotBuiltYet, "not-built-yet"),
    (errors.KafkaRefused, "kafka-refused"),
    (errors.KafkaThrottled, "kafka-throttled"),
    (errors.StoreUnavailable, "store-away"),
)


def from_error(error: errors.OpicError) -> Problem:
    """Convert one of our exceptions to a problem; for internal errors, the answer contains no detail."""
    kind = next((kind for error_type, kind in OF_ERRORS if isinstance(error, error_type)), None)
    if kind is None:
        return internal()
    headers = {}
    if isinstance(error, (errors.KeysFull, errors.KafkaThrottled)):
        headers["Retry-After"] = str(error.retry_seconds)
    elif kind in ("disk-full", "kafka-refused", "too-many-crawls"):
        headers["Retry-After"] = str(MENDED_SECONDS)
    return Problem(kind, str(error), headers=headers)


def internal() -> Problem:
    """Return the problem for an internal error, which only refers the caller to the log."""
    return Problem("internal", "the service failed; its log says why under this request's id")


def fit_for_log(text: str) -> str:
    """Shorten and escape untrusted text: one line, without terminal control sequences."""
    cut = text if len(text) <= LOGGED_CHARS_MAX else text[:LOGGED_CHARS_MAX] + "..."
    return cut if cut.isprintable() and cut.isascii() else ascii(cut)[1:-1]


def described(path: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the problems of a call that have these statuses for the OpenAPI document, each with an example."""
    responses: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        kinds = [kind for kind, (code, _) in KINDS.items() if code == status and path in ONLY_OF.get(kind, (path,))]
        responses[status] = {
            "description": "; ".join(KINDS[kind][1] for kind in kinds),
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "examples": {
                        kind: {"summary": KINDS[kind][1], "value": Problem(kind, DETAILS[kind]).members(EXAMPLE_ID)}
                        for kind in kinds
                    },
                }
            },
            **({"headers": _RETRY_AFTER} if status in (429, 503) else {}),
        }
    return responses


_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}}}
