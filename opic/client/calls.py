"""Calls as values: the request, the type of the answer, and whether the call may be retried.

`crawl_methods` and `query_methods` name them, `methods` sends them.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, TypeVar, cast
from urllib.parse import quote

import httpx
import msgspec

from opic.client import answers
from opic.client.errors import BadAnswer, CallFailed, ClientError, EventsRejected, failure
from opic.client.host_pace import HostPace, retry_after_seconds
from opic.messages.terms import POSITION_HEADER

VERSION: Final = "/v1/"
CRAWLS: Final = "/v1/crawls"  # The path of the crawls themselves, and the beginning of calls on one of them.
BAD_ANSWER_CHARS: Final = 200
ANOTHER_PROGRAM: Final = "another program listens there: give the client the URL that `opic serve` prints"

Form = Literal["msgpack", "json", "lines"]
Events = Iterable[answers.Event | Mapping[str, Any] | msgspec.Raw]
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
        rejected: makes the error of an answer that lists things the service rejected; None if it is no error.
        outcome: of a call that does not fail: makes its result of the error, or of None.
        then: called with the answer, also with one that lists rejected things.
    """

    method: str
    path: str
    answer: type[Any]
    again: bool = True
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    rejected: Callable[[Any], CallFailed] | None = None
    outcome: Callable[[ClientError | None], T] | None = None
    then: Callable[[Any], None] | None = None

    def request(self, after: str | None = None, crawl: str | None = None) -> dict[str, Any]:
        """Return the arguments for httpx.

        Args:
            after: the position of a write that the answer is to show.
            crawl: the crawl that the call is about; None is the service's OPIC_CRAWL.
        """
        in_crawl = self.path.startswith(VERSION) and not self.path.startswith(CRAWLS)
        position = [("after", after)] if in_crawl and after is not None else []
        return {
            "method": self.method,
            "url": crawl_path(crawl) + self.path[len(VERSION) - 1 :] if in_crawl and crawl else self.path,
            "params": [*self.parameters.items(), *position],
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
            raise _failure(self, response)
        if self.answer is str:
            return cast(T, response.text)
        try:
            answer = msgspec.json.decode(response.content, type=self.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = response.text[:BAD_ANSWER_CHARS]
            where = f"{self.method} {response.url}"
            raise BadAnswer(f"{where}: unexpected answer, so {ANOTHER_PROGRAM}: {error}: {said!r}") from None
        if self.outcome is not None:
            return self.outcome(None)
        if POSITION_HEADER in response.headers:
            answer = msgspec.structs.replace(answer, position=response.headers[POSITION_HEADER])
        if self.then is not None:
            self.then(answer)
        if self.rejected is not None and answer.rejected:
            raise self.rejected(answer)
        return cast(T, answer)

    def failed(self, error: ClientError) -> T:
        """Return the result of a call that gave an error, or raise the error."""
        if self.outcome is None:
            raise error
        return self.outcome(error)


def _failure(call: Call[Any], response: httpx.Response) -> ClientError:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):  # The answer is from a proxy or another program.
        if response.has_redirect_location:
            target = response.headers["location"]
            return BadAnswer(f"{call.method} {response.url} redirects to {target}: give the client the URL behind it")
        if response.status_code in (404, 405, 501):  # With opic's own, a problem comes.
            said = f"{response.status_code} {response.reason_phrase}"
            return BadAnswer(f"{call.method} {response.url}: unexpected answer {said}, so {ANOTHER_PROGRAM}")
        problem = {"title": response.reason_phrase, "detail": response.text[:BAD_ANSWER_CHARS]}
    return failure(response.status_code, problem, retry_after_seconds(response.headers.get("retry-after")))


def get(path: str, answer: type[T], method: str = "GET", /, **parameters: Any) -> Call[T]:
    """Return a call with query parameters; those that are None are left out."""
    return Call(method, path, answer, parameters=_given(parameters))


def post(path: str, answer: type[T], method: str = "POST", /, **body: Any) -> Call[T]:
    """Return a call with a JSON body; fields that are None are left out."""
    # Use the standard library: msgspec would encode NaN as null, which has a meaning of its own.
    encoded = json.dumps(msgspec.to_builtins(_given(body)), allow_nan=False, separators=(",", ":")).encode()
    return Call(method, path, answer, body=encoded, headers={"content-type": FORMS["json"]})


def change(method: str, path: str, answer: type[T], version: str | None, /, **body: Any) -> Call[T]:
    """Return a change of definitions; of some of them, or of a version, it can't be made twice."""
    call = post(path, answer, method, **body)
    if version is not None:
        call = replace(call, headers={**call.headers, "if-match": f'"{version}"'})
    return replace(call, again=method == "PUT" and version is None)


def _given(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def texts(given: Iterable[str]) -> list[str]:
    """Return strings as a list. A single string is an error: it would be split into characters."""
    if isinstance(given, str):
        raise TypeError(f"{given!r} is a string: pass a list of strings")
    return list(given)


def names(leases: Iterable[str | answers.Page]) -> list[str]:
    """Return leases, some of them given as their pages, by name."""
    return [lease if isinstance(lease, str) else lease.lease for lease in leases]


def crawl_path(crawl: str) -> str:
    """Return the path of a crawl, with which those of calls on it begin."""
    return f"{CRAWLS}/{quote(crawl, safe='')}"


def local_path(domain: str) -> str:
    """Return the path of the ranked list of a local domain."""
    return f"/v1/local/{quote(domain, safe='')}"


def events(
    sent: Events,
    form: Form = "msgpack",
    *,
    once: bool,
    key: str | None = None,
    raise_rejected: bool = True,
    pace: HostPace | None = None,
) -> Call[answers.Accepted]:
    """Send events as an array or as JSON Lines. With an Idempotency-Key the call may be retried.

    Hosts that asked for a wait, by an event that is accepted, rest in `pace`.
    """
    headers = {"content-type": FORMS[form]}
    if once or key is not None:
        headers["idempotency-key"] = key or uuid.uuid4().hex
    again, rejected = "idempotency-key" in headers, EventsRejected if raise_rejected else None
    every = list(sent)
    if form == "lines":
        body = msgspec.json.Encoder().encode_lines(every)
    else:
        body = msgspec.msgpack.encode(every) if form == "msgpack" else msgspec.json.encode(every)

    def rest_hosts(answer: answers.Accepted) -> None:
        refused = {rejection.index for rejection in answer.rejected}
        for index, event in enumerate(every):
            if pace is not None and index not in refused and not isinstance(event, msgspec.Raw):
                pace.note(*_answer_of(event))

    return Call(
        "POST", "/v1/events", answers.Accepted, again, body=body, headers=headers, rejected=rejected, then=rest_hosts
    )


def _answer_of(event: answers.Event | Mapping[str, Any]) -> tuple[str, int, float | None]:
    """Return the URL of an event, its status, and the wait that it asks for."""
    if isinstance(event, Mapping):
        return event["url"], event.get("status", 200), event.get("retry_after")
    return event.url, event.status, event.retry_after


def readiness(error: ClientError | None) -> answers.Ready:
    """Return what a call of /readyz shows, by its error."""
    if error is None:
        return answers.Ready(True)
    return answers.Ready(False, error.detail if isinstance(error, CallFailed) else str(error))
