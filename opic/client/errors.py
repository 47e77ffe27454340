"""What a call may raise: one tree, by who can do something about it.

An answer that is no success is RFC 9457 problem details; each of its members is an attribute here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from opic.errors import OpicError


class ClientError(OpicError):
    """The root: catching it catches whatever a client raises on purpose."""


class Unreachable(ClientError):
    """No answer: nobody listens there, the connection broke, or the time was over."""


class BadAnswer(ClientError):
    """An answer that is not one of this service: another program listens there, or a newer version."""


class CallFailed(ClientError):
    """The service answered with a problem.

    Attributes:
        status: the HTTP status.
        type: a URN that tells kinds of problems apart, like `urn:opic:problem:bad-event`.
        title: what kind of problem it is.
        detail: what happened, and what to do about it.
        request_id: what to look for in the service's log.
        errors: each value that can't be taken, where there are several.
        retry_after: seconds after which to try again, where the service says so.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        """Take the members of a problem."""
        self.status, self.retry_after = status, retry_after
        self.type = str(problem.get("type", "about:blank"))
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.request_id: str | None = problem.get("request_id")
        self.errors: Sequence[Mapping[str, Any]] = problem.get("errors", ())
        super().__init__(f"{status} {self.title}: {self.detail}")


class BadRequest(CallFailed):
    """400, 413, 415, 422 and the like: what was sent can't be taken, now or later."""


class Unauthorized(CallFailed):
    """401, 403: the token is missing, or is not the service's."""


class NotFound(CallFailed):
    """404: a page never seen, or a path that this service does not have."""


class Conflict(CallFailed):
    """409: the store can't take this as it is now."""


class NotBuilt(CallFailed):
    """501: the contract has it, this version of the service does not."""


class Unavailable(CallFailed):
    """503, and what proxies say in its place: a backend is away; `retry_after` says when to come back."""


class ServiceFailed(CallFailed):
    """500: the service's own fault; its log says why under `request_id`."""


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
    """Return the exception that an answer with this status is."""
    kind = _BY_STATUS.get(status) or (BadRequest if status < 500 else ServiceFailed)
    return kind(status, problem, retry_after)
