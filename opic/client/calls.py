"""Each call as a value: what is sent, what the answer is read as, and whether it may be sent again.

`sync` and `aio` differ in who waits only; everything else of both is here.
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
ANSWER_SECONDS: Final = 30.0  # A service whose store stands still says so after ten.
RETRY_SECONDS: Final = 60.0  # Killed stores are back within seconds, replaced services within a minute.
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
        method: of HTTP.
        path: below the service's URL.
        answer: what the body of a success is.
        again: sent twice it does what it does once, so it may be sent again where no answer, or a 503, came.
        parameters: of the query.
        body: encoded.
        headers: beside those that every call has.
    """

    method: str
    path: str
    answer: type[T]
    again: bool = True
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def request(self) -> dict[str, Any]:
        """Return what httpx wants to know."""
        return {
            "method": self.method,
            "url": self.path,
            "params": dict(self.parameters),
            "content": self.body,
            "headers": dict(self.headers),
        }

    def read(self, response: httpx.Response) -> T:
        """Return the answer.

        Raises:
            CallFailed: the service says no.
            BadAnswer: it is none of this service.
        """
        if not response.is_success:
            raise _failure(response)
        try:
            return msgspec.json.decode(response.content, type=self.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = response.text[:BAD_ANSWER_CHARS]
            raise BadAnswer(
                f"{self.method} {response.url} answered what is no answer to it: {error}: {said!r}"
            ) from None


def no_answer(call: Call[Any], error: httpx.HTTPError | httpx.InvalidURL) -> ClientError:
    """Return what it means that httpx has no answer for us."""
    said = f"{call.method} {call.path}: {str(error) or type(error).__name__}"
    if isinstance(error, httpx.DecodingError):
        return BadAnswer(said)
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or not isinstance(
        error, httpx.TransportError
    ):
        return ClientError(said)  # It never left us, nor will it.
    return Unreachable(said)


def _failure(response: httpx.Response) -> CallFailed:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):  # Of a proxy, or another program.
        problem = {"title": response.reason_phrase, "detail": response.text[:BAD_ANSWER_CHARS]}
    return failure(response.status_code, problem, _seconds_until(response.headers.get("retry-after", "")))


def _seconds_until(header: str) -> float | None:
    """Read a Retry-After, which is seconds or a date."""
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def retrying(call: Call[Any], seconds: float) -> dict[str, Any]:
    """Return how tenacity repeats a call: not at all, or with back-off until `seconds` have passed."""

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
    """Wait as long as the service asks, and never less than the back-off: many clients come back at many times."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(error, "retry_after", None) or 0.0
    return float(asked + _backoff(state))


# --- The calls of the contract ---------------------------------------------------------------------------------------


def _given(**parameters: str | float | None) -> dict[str, str | int | float]:
    return {name: value for name, value in parameters.items() if value is not None}


def _posted(path: str, answer: type[T], body: Mapping[str, Any], method: str = "POST") -> Call[T]:
    asked = {name: value for name, value in body.items() if value is not None}
    # The standard library's, since msgspec would send a NaN as null, which means something.
    encoded = json.dumps(msgspec.to_builtins(asked), allow_nan=False, separators=(",", ":")).encode()
    return Call(method, path, answer, body=encoded, headers={"content-type": FORMS["json"]})


def texts(given: Iterable[str]) -> list[str]:
    """Return texts as a list; one text alone is a mistake, since its characters are texts too."""
    if isinstance(given, str):
        raise TypeError(f"{given!r} is one text: give a list of them")
    return list(given)


def events(sent: bytes, form: Form, *, once: bool, key: str | None) -> Call[answers.Accepted]:
    """Send events. With an Idempotency-Key it may be sent again."""
    headers = {"content-type": FORMS[form]}
    if once or key is not None:
        headers["idempotency-key"] = key or uuid.uuid4().hex
    again = "idempotency-key" in headers
    return Call("POST", "/v1/events", answers.Accepted, again, body=sent, headers=headers)


def encoded(events: Events, form: Form) -> bytes:
    """Encode events as an array, or as lines."""
    every = list(events)
    if form == "lines":
        return msgspec.json.Encoder().encode_lines(every)
    return msgspec.msgpack.encode(every) if form == "msgpack" else msgspec.json.encode(every)


def encoded_one(event: answers.Event | Mapping[str, Any], form: Form) -> bytes:
    """Encode one event, alone."""
    return msgspec.msgpack.encode(event) if form == "msgpack" else msgspec.json.encode(event)


def seeds(urls: Iterable[str]) -> Call[answers.Seeded]:
    """Make pages known."""
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
    """Ask what to fetch."""
    body = {"n": n, "crawler": crawler, "lease_seconds": lease_seconds, "domain": domain, "mode": mode}
    return _posted("/v1/next", answers.NextPages, {**body, "busy_hosts": texts(busy_hosts) or None})


def release(leases: Iterable[str | answers.Page]) -> Call[answers.Released]:
    """Give pages back."""
    names = [one if isinstance(one, str) else one.lease for one in leases]
    return _posted("/v1/release", answers.Released, {"leases": names})


def importance(url: str, policy: answers.Policy | None, window: answers.Window | None) -> Call[answers.Importance]:
    """Ask about one page."""
    parameters = _given(url=url, policy=policy, window=window)
    return Call("GET", "/v1/importance", answers.Importance, parameters=parameters)


def importances(
    urls: Iterable[str], policy: answers.Policy | None, window: answers.Window | None
) -> Call[answers.Importances]:
    """Ask about many."""
    body = {"urls": texts(urls), "policy": policy, "window": window}
    return _posted("/v1/importance", answers.Importances, body)


def top(
    n: int | None, domain: str | None, policy: answers.Policy | None, window: answers.Window | None
) -> Call[answers.Top]:
    """Ask for the best pages."""
    parameters = _given(n=n, domain=domain, policy=policy, window=window)
    return Call("GET", "/v1/top", answers.Top, parameters=parameters)


def hosts(n: int | None) -> Call[answers.Hosts]:
    """Ask for the best sites."""
    return Call("GET", "/v1/hosts", answers.Hosts, parameters=_given(n=n))


def history(url: str) -> Call[answers.History]:
    """Ask what a page's reads spent."""
    return Call("GET", "/v1/history", answers.History, parameters={"url": url})


def explain(url: str) -> Call[dict[str, Any]]:
    """Ask why."""
    return Call("GET", "/v1/explain", dict[str, Any], parameters={"url": url})


def inflow(domain: str, after: str | None, n: int | None) -> Call[answers.Inflows]:
    """Ask what comes to a domain."""
    return Call("GET", "/v1/inflow", answers.Inflows, parameters=_given(domain=domain, after=after, n=n))


def audit() -> Call[answers.Audit]:
    """Have the books recounted."""
    return Call("GET", "/v1/audit", answers.Audit)


def stats() -> Call[answers.Stats]:
    """Ask for counts."""
    return Call("GET", "/v1/stats", answers.Stats)


def classes() -> Call[answers.Classes]:
    """Ask which classes hold."""
    return Call("GET", "/v1/classes", answers.Classes)


def define_classes(defined: Sequence[answers.PageClass | Mapping[str, Any]]) -> Call[answers.Classes]:
    """Define classes."""
    return _posted("/v1/classes", answers.Classes, {"classes": list(defined)}, "PUT")


def healthz() -> Call[dict[str, Any]]:
    """Ask whether the process lives."""
    return Call("GET", "/healthz", dict[str, Any], again=False)


def readyz() -> Call[dict[str, Any]]:
    """Ask whether calls are welcome."""
    return Call("GET", "/readyz", dict[str, Any], again=False)
