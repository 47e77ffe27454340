"""HTTP request handlers of what operators define: classes of pages, URL rules and trap thresholds.

Each is replaced as a whole by PUT, or changed in part by PATCH. Both answer with a version, which is the ETag too. With
`If-Match`, a change takes effect only if the version is still the one named there; else the answer is 412.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from opic.api import bodies, queries
from opic.api.problems import Json, Problem
from opic.api.request_bodies import media_type, read_asked, read_body
from opic.api.validation import Asked
from opic.model.classes import ClassesChange, check_change, check_classes
from opic.service.service import Backend

_TAG: Final = re.compile(r'(?:W/)?"([0-9a-f]{1,64})"')


class Definitions:
    """The request handlers: a coroutine reads the request; a method in a worker thread runs what may block."""

    def __init__(self, backend: Backend) -> None:
        """Answer for a backend."""
        self._backend = backend

    async def put_classes(self, request: Request) -> Response:
        """Replace the classes of pages and their weights.

        A page belongs to the first class that it matches; a page that matches none has weight 1. Grants of the virtual
        page follow the new weights at once. Known pages are classified again; `reclassified` is their number. The
        answer waits for that up to 5 seconds; `settled` is false if its counts are not final. The call can safely be
        repeated.
        """
        return await self._asked(request, bodies.ClassesGiven, self._define)

    def _define(self, asked: bodies.ClassesGiven, version: str) -> Mapping[str, object]:
        given = msgspec.to_builtins(asked.classes)
        classes = check_classes(given, self._backend.limits.normalization)
        return self._reclassified(ClassesChange(classes, version=version))

    async def patch_classes(self, request: Request) -> Response:
        """Change some classes of pages; the others stay as they are.

        Changes made at the same time are all kept, unless they are of one class. Else it is as PUT.
        """
        return await self._asked(request, bodies.SomeClasses, self._change_classes)

    def _change_classes(self, asked: bodies.SomeClasses, version: str) -> Mapping[str, object]:
        given = msgspec.to_builtins(asked.classes)
        return self._reclassified(check_change(given, asked.remove, version, self._backend.limits.normalization))

    def _reclassified(self, change: ClassesChange) -> Mapping[str, object]:
        done = self._backend.define(change)
        now = time.time()
        return {**self._backend.classes(), "reclassified": done.pages, "settled": done.settled, "as_of": now}

    async def get_classes(self, _: queries.Nothing) -> Response:
        """Return the current classes of pages, in order, with their numbers of pages and their shares of each grant."""
        return await _versioned(self._classes)

    def _classes(self) -> Mapping[str, object]:
        now = time.time()
        return {**self._backend.classes(), "as_of": now}

    async def put_rules(self, request: Request) -> Response:
        """Replace the URL rules, the trap thresholds, or both, which decide which pages may be suggested.

        The part that is left out stays as it is; an empty list removes all rules.
        All endpoints use them a second later. Pages that are held back stay known and keep their cash. If a crawler
        reads such a page anyway, its cash is passed on as usual.
        """
        return await self._asked(request, bodies.RulesGiven, self._set_rules)

    def _set_rules(self, asked: bodies.RulesGiven, version: str) -> Mapping[str, object]:
        self._backend.check_room()
        return self._backend.admission.replace(msgspec.to_builtins(asked), version).shown()

    async def patch_rules(self, request: Request) -> Response:
        """Add or remove some URL rules, or set some trap thresholds; the others stay as they are.

        Changes made at the same time are all kept.
        """
        return await self._asked(request, bodies.SomeRules, self._change_rules)

    def _change_rules(self, asked: bodies.SomeRules, version: str) -> Mapping[str, object]:
        self._backend.check_room()
        return self._backend.admission.change(msgspec.to_builtins(asked), version).shown()

    async def get_rules(self, _: queries.Nothing) -> Response:
        """Return the current URL rules and trap thresholds."""
        return await _versioned(lambda: self._backend.admission.policy().shown())

    async def _asked(
        self, request: Request, kind: type[Asked], do: Callable[[Asked, str], Mapping[str, object]]
    ) -> Response:
        version = if_match(request)
        media_type(request)
        body = await read_body(request, self._backend.settings.max_body_bytes)
        return await _versioned(lambda: do(read_asked(body, kind), version))


def if_match(request: Request) -> str:
    """Return the version that `If-Match` names, "" if any will do.

    Raises:
        Problem: it is no version of definitions.
    """
    given = request.headers.getlist("if-match")
    if given in ([], ["*"]):
        return ""
    if (match := _TAG.fullmatch(", ".join(given))) is None:
        raise Problem("bad-input", 'If-Match: one ETag of this path, such as "3c3e7f0a4b1d9a57", or *')
    return match[1]


async def _versioned(ask: Callable[[], Mapping[str, Any]]) -> Response:
    """Run in a worker thread; send the version of the answer as its ETag."""

    def answer() -> Response:
        found = ask()
        return Json(found, headers={"ETag": f'"{found["version"]}"'})

    return await run_in_threadpool(answer)
