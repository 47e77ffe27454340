"""The calls as values: the request, the type of the answer, and whether the call may be retried.

`sync` and `aio` only send them; the rest of both clients is here.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, Literal, TypeVar

import httpx
import msgspec
from tenacity import RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from opic.client import answers
from opic.client.errors import BadAnswer, CallFailed, ClientError, Unavailable, Unreachable, failure

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0  # A service whose store hangs answers 503 after ten seconds.
RETRY_SECONDS: Final = 60.0  # A killed store is back within seconds, a replaced service within a minute.
BACKOFF_FIRST_SECONDS: Final = 0.1
BACKOFF_MAX_SECONDS: Final = 10.0
BAD_ANSWER_CHARS: Final = 200

Form = Literal["msgpack", "json", "lines"]
Events = Iterable[answers.Event | Mapping[str, Any]]
FORMS: Final[Mapping[Form, str]] = {
    "msgpack": "application/msgpack",
    "json": "application/json",
    "lines": "application/x-ndjson",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call of the endpoint.

    Attributes:
        method: HTTP method.
        path: path below the service's URL.
        answer: type of the body of a successful answer.
        again: whether the call is idempotent, so that it may be retried if there is no answer, or a 503.
        parameters: query parameters.
        body: the encoded body.
        headers: additional headers.
    """

    method: str
    path: str
    answer: type[T]
    again: bool = True
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def request(self) -> dict[str, Any]:
        """Return the arguments for httpx."""
        return {
            "method": self.method,
            "url": self.path,
            "params": dict(self.parameters),
            "content": self.body,
            "headers": dict(self.headers),
        }

    def read(self, response: httpx.Response) -> T:
        """Decode the answer.

        Raises:
            CallFailed: the service answered with an error.
            BadAnswer: the answer is not one of this service.
        """
        if not response.is_success:
            raise _failure(response)
        try:
            return msgspec.json.decode(response.content, type=self.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = response.text[:BAD_ANSWER_CHARS]
            raise BadAnswer(f"{self.method} {response.url}: unexpected answer: {error}: {said!r}") from None


def no_answer(call: Call[Any], error: httpx.HTTPError | httpx.InvalidURL) -> ClientError:
    """Return the exception for an error of httpx."""
    said = f"{call.method} {call.path}: {str(error) or type(error).__name__}"
    if isinstance(error, httpx.DecodingError):
        return BadAnswer(said)
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or not isinstance(
        error, httpx.TransportError
    ):
        return ClientError(said)  # The request was not sent; a retry would fail in the same way.
    return Unreachable(said)


def _failure(response: httpx.Response) -> CallFailed:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):  # The answer is from a proxy or another program.
        problem = {"title": response.reason_phrase, "detail": response.text[:BAD_ANSWER_CHARS]}
    return failure(response.status_code, problem, _seconds_until(response.headers.get("retry-after", "")))


def _seconds_until(header: str) -> float | None:
    """Parse a Retry-After header: a number of seconds, or a date."""
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def retrying(call: Call[Any], seconds: float) -> dict[str, Any]:
    """Return the arguments for tenacity: retry an idempotent call with back-off until `seconds` have passed."""

    def worth_it(error: BaseException) -> bool:
        return call.again and isinstance(error, (Unreachable, Unavailable))

    return {
        "retry": retry_if_exception(worth_it),
        "wait": _wait,
        "stop": stop_before_delay(seconds),
        "reraise": True,
    }


_backoff = wait_random_exponential(multiplier=BACKOFF_FIRST_SECONDS, max=BACKOFF_MAX_SECONDS)


def _wait(state: RetryCallState) -> float:
    """Return the service's Retry-After plus the random back-off, so that many clients do not return all at once."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(error, "retry_after", None) or 0.0
    return float(asked + _backoff(state))


# --- The calls of the contract ---------------------------------------------------------------------------------------


def _given(**parameters: str | float | None) -> dict[str, str | int | float]:
    return {name: value for name, value in parameters.items() if value is not None}


def _posted(path: str, answer: type[T], body: Mapping[str, Any], method: str = "POST") -> Call[T]:
    asked = {name: value for name, value in body.items() if value is not None}
    # Use the standard library: msgspec would encode NaN as null, which has a meaning of its own.
    encoded = json.dumps(msgspec.to_builtins(asked), allow_nan=False, separators=(",", ":")).encode()
    return Call(method, path, answer, body=encoded, headers={"content-type": FORMS["json"]})


def texts(given: Iterable[str]) -> list[str]:
    """Return strings as a list. A single string is an error: it would be split into characters."""
    if isinstance(given, str):
        raise TypeError(f"{given!r} is a string: pass a list of strings")
    return list(given)


def events(sent: bytes, form: Form, *, once: bool, key: str | None) -> Call[answers.Accepted]:
    """Send events. With an Idempotency-Key the call may be retried."""
    headers = {"content-type": FORMS[form]}
    if once or key is not None:
        headers["idempotency-key"] = key or uuid.uuid4().hex
    again = "idempotency-key" in headers
    return Call("POST", "/v1/events", answers.Accepted, again, body=sent, headers=headers)


def encoded(events: Events, form: Form) -> bytes:
    """Encode events as an array or as JSON Lines."""
    every = list(events)
    if form == "lines":
        return msgspec.json.Encoder().encode_lines(every)
    return msgspec.msgpack.encode(every) if form == "msgpack" else msgspec.json.encode(every)


def encoded_one(event: answers.Event | Mapping[str, Any], form: Form) -> bytes:
    """Encode a single event, without an array."""
    return msgspec.msgpack.encode(event) if form == "msgpack" else msgspec.json.encode(event)


def seeds(urls: Iterable[str]) -> Call[answers.Seeded]:
    """Add seed pages."""
    return _posted("/v1/seeds", answers.Seeded, {"urls": texts(urls)})


def next_pages(
    n: int,
    crawler: str,
    *,
    lease_seconds: float | None,
    domain: str | None,
    mode: answers.Mode | None,
    busy_hosts: Iterable[str],
) -> Call[answers.NextPages]:
    """Lease the pages to fetch next."""
    body = {"n": n, "crawler": crawler, "lease_seconds": lease_seconds, "domain": domain, "mode": mode}
    return _posted("/v1/next", answers.NextPages, {**body, "busy_hosts": texts(busy_hosts) or None})


def release(leases: Iterable[str | answers.Page]) -> Call[answers.Released]:
    """Release leases."""
    names = [one if isinstance(one, str) else one.lease for one in leases]
    return _posted("/v1/release", answers.Released, {"leases": names})


def importance(url: str, policy: answers.Policy | None, window: answers.Window | None) -> Call[answers.Importance]:
    """Get the importance of one page."""
    parameters = _given(url=url, policy=policy, window=window)
    return Call("GET", "/v1/importance", answers.Importance, parameters=parameters)


def importances(
    urls: Iterable[str], policy: answers.Policy | None, window: answers.Window | None
) -> Call[answers.Importances]:
    """Get the importance of many pages."""
    body = {"urls": texts(urls), "policy": policy, "window": window}
    return _posted("/v1/importance", answers.Importances, body)


def top(
    n: int | None, domain: str | None, policy: answers.Policy | None, window: answers.Window | None
) -> Call[answers.Top]:
    """Get the most important pages."""
    parameters = _given(n=n, domain=domain, policy=policy, window=window)
    return Call("GET", "/v1/top", answers.Top, parameters=parameters)


def hosts(n: int | None) -> Call[answers.Hosts]:
    """Get the most important hosts."""
    return Call("GET", "/v1/hosts", answers.Hosts, parameters=_given(n=n))


def history(url: str) -> Call[answers.History]:
    """Get the last reads of a page."""
    return Call("GET", "/v1/history", answers.History, parameters={"url": url})


def explain(url: str) -> Call[dict[str, Any]]:
    """Get the explanation of a page's score."""
    return Call("GET", "/v1/explain", dict[str, Any], parameters={"url": url})


def inflow(domain: str, after: str | None, n: int | None) -> Call[answers.Inflows]:
    """Get the in-flow of a domain's pages."""
    return Call("GET", "/v1/inflow", answers.Inflows, parameters=_given(domain=domain, after=after, n=n))


def audit() -> Call[answers.Audit]:
    """Recount the books."""
    return Call("GET", "/v1/audit", answers.Audit)


def stats() -> Call[answers.Stats]:
    """Get the counts of the service."""
    return Call("GET", "/v1/stats", answers.Stats)


def classes() -> Call[answers.Classes]:
    """Get the current classes of pages."""
    return Call("GET", "/v1/classes", answers.Classes)


def define_classes(defined: Sequence[answers.PageClass | Mapping[str, Any]]) -> Call[answers.Classes]:
    """Replace the classes of pages."""
    return _posted("/v1/classes", answers.Classes, {"classes": list(defined)}, "PUT")


def healthz() -> Call[dict[str, Any]]:
    """Check whether the process is alive."""
    return Call("GET", "/healthz", dict[str, Any], again=False)


def readyz() -> Call[dict[str, Any]]:
    """Check whether the service is ready for requests."""
    return Call("GET", "/readyz", dict[str, Any], again=False)
