"""Exceptions of the client.

Error responses of the service are RFC 9457 problem details; their members are attributes of `CallFailed`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from opic.client.answers import Accepted, Rejected, Seeded
from opic.errors import OpicError

REJECTED_SHOWN = 3  # In the text of an exception; its `answer` lists them all.


class ClientError(OpicError):
    """Base class of all exceptions that the client raises on purpose."""


class Unreachable(ClientError):
    """There was no answer: the connection was refused or lost, or the call timed out."""


class BadAnswer(ClientError):
    """The answer is not one of this service: another program, or another version, listens at this address."""


class CallFailed(ClientError):
    """The service answered with an error.

    Attributes:
        status: the HTTP status.
        type: a URN that identifies the kind of problem, such as `urn:opic:problem:bad-event`.
        title: the kind of problem, for people.
        detail: what went wrong, and what to do about it.
        request_id: the request's id in the service's log.
        errors: the invalid values, if there are several.
        retry_after: seconds to wait before trying again, if the service says so.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status, self.retry_after = status, retry_after
        self.type = str(problem.get("type", "about:blank"))
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.request_id: str | None = problem.get("request_id")
        self.errors: Sequence[Mapping[str, Any]] = problem.get("errors", ())
        super().__init__(f"{status} {self.title}: {self.detail}")


class BadRequest(CallFailed):
    """400, 413, 415, 422 and other 4xx: the request is invalid; retrying does not help."""


class EventsRejected(BadRequest):
    """Some events of a call were refused; all others are durable. `answer` lists the rejected ones.

    It has the status and type of the problem that a single event of that kind is.
    """

    def __init__(self, answer: Accepted) -> None:
        self.answer = answer
        rejected, count = answer.rejected, answer.accepted + len(answer.rejected)
        if count == 1:
            detail = rejected[0].error
        else:
            others = f"; the other {answer.accepted:,} are accepted" if answer.accepted else ""
            detail = f"{len(rejected):,} of {count:,} events were rejected{others}: {_reasons('event', rejected)}"
        title = "Event refused" if count == 1 else "Events refused"
        super().__init__(422, {"type": "urn:opic:problem:bad-event", "title": title, "detail": detail})


class SeedsRejected(BadRequest):
    """Some seeds of a call are no URLs of pages; all others were added. `answer` lists the rejected ones."""

    def __init__(self, answer: Seeded) -> None:
        self.answer = answer
        rejected, added = answer.rejected, answer.known + answer.new
        detail = f"{len(rejected):,} seeds were rejected, {added:,} are known: {_reasons('seed', rejected)}"
        super().__init__(422, {"type": "urn:opic:problem:bad-url", "title": "Seeds refused", "detail": detail})


def _reasons(kind: str, rejected: Sequence[Rejected]) -> str:
    reasons = [f"{kind} {rejection.index}: {rejection.error}" for rejection in rejected[:REJECTED_SHOWN]]
    if len(rejected) > REJECTED_SHOWN:
        reasons.append(f"and {len(rejected) - REJECTED_SHOWN:,} more")
    return "; ".join(reasons)


class Unauthorized(CallFailed):
    """401, 403: the token is missing or wrong."""


class NotFound(CallFailed):
    """404: the page was never seen, or the service has no such path."""


class Conflict(CallFailed):
    """409: the request conflicts with the current state of the store."""


class NotBuilt(CallFailed):
    """501: this version of the service does not implement the call yet."""


class Unavailable(CallFailed):
    """429, 502, 503, 504: the service or a backend is unavailable; `retry_after` says when to try again."""


class ServiceFailed(CallFailed):
    """500: an internal error of the service; its log gives the reason under `request_id`."""


_BY_STATUS: Mapping[int, type[CallFailed]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    429: Unavailable,
    501: NotBuilt,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def failure(status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> CallFailed:
    """Return the exception for an answer with this status."""
    kind = _BY_STATUS.get(status) or (BadRequest if status < 500 else ServiceFailed)
    return kind(status, problem, retry_after)
