"""Calls that an endpoint refuses: large bodies, bad ones, wrong calls."""

from typing import Any, NamedTuple

_JSON = {"Content-Type": "application/json"}


class RefusedCall(NamedTuple):
    """A call, and the statuses that it may be answered with."""

    method: str
    path: str
    wanted: set[int]
    given: dict[str, Any] = {}  # noqa: RUF012 - never written to


REFUSED = [
    RefusedCall("POST", "/v1/events", {422}, {"json": {"url": "http://a.example/", "tags": ["t"] * 500_000 + [1]}}),
    RefusedCall("POST", "/v1/events", {422}, {"json": {"url": "http://a.example/" + "a" * (4 << 20)}}),
    RefusedCall("POST", "/v1/events", {413}, {"content": b"a" * (17 << 20), "headers": _JSON}),
    RefusedCall("POST", "/v1/events", {400, 422}, {"content": b'{"url": ', "headers": _JSON}),
    RefusedCall("POST", "/v1/events", {202, 422}, {"json": [{"url": "no url"}, {"url": "ftp://a.example/"}]}),
    RefusedCall("GET", "/v1/importance", {404}, {"params": {"url": "http://never.seen.example/"}}),
    RefusedCall("GET", "/v1/nothing", {404}),
    RefusedCall("DELETE", "/v1/top", {405}),
]
