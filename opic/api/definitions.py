"""HTTP request handlers of what operators define: classes of pages, URL rules and trap thresholds.

Each is replaced as a whole by PUT, or changed in part by PATCH. Both answer with a version, which is the ETag too. With
`If-Match`, a change takes effect only if the version is still the one named there; else the answer is 412.
"""

import re
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from opic.api import bodies, queries
from opic.api.problems import Json, Problem
from opic.model.classes import ClassesChange, check_change, check_classes
from opic.service.backend import Backend
from opic.service.class_changes import define, shown_classes
from opic.service.positions import shown_position

_TAG: Final = re.compile(r'(?:W/)?"([0-9a-f]{1,64})"')


class Definitions:
    """The request handlers; they run in a worker thread, since they may block."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def put_classes(self, request: Request, asked: bodies.ClassesGiven) -> Response:
        """Replace the classes of pages and their weights.

        A page belongs to the first class that it matches; a page that matches none has weight 1. Grants of the virtual
        page follow the new weights at once. Known pages are classified again; `reclassified` is their number. The
        answer waits for that up to 5 seconds; `settled` is false if its counts are not final. The call can safely be
        repeated.
        """
        classes = check_classes(msgspec.to_builtins(asked.classes), self._backend.limits.normalization)
        return self._reclassified(ClassesChange(classes, version=if_match(request)))

    def patch_classes(self, request: Request, asked: bodies.SomeClasses) -> Response:
        """Change some classes of pages; the others stay as they are.

        Changes made at the same time are all kept, unless they are of one class. Else it is as PUT.
        """
        given, normalization = msgspec.to_builtins(asked.classes), self._backend.limits.normalization
        return self._reclassified(check_change(given, asked.remove, if_match(request), normalization))

    def _reclassified(self, change: ClassesChange) -> Response:
        done = define(self._backend, change)
        now, position = time.time(), shown_position(done.end)
        more = {"reclassified": done.pages, "settled": done.settled, "position": position, "as_of": now}
        return _versioned({**shown_classes(self._backend), **more})

    def get_classes(self, _: queries.Nothing) -> Response:
        """Return the current classes of pages, in order, with their numbers of pages and their shares of each grant."""
        now = time.time()
        return _versioned({**shown_classes(self._backend), "as_of": now})

    def put_rules(self, request: Request, asked: bodies.RulesGiven) -> Response:
        """Replace the URL rules, the trap thresholds, or both, which decide which pages may be suggested.

        The part that is left out stays as it is; an empty list removes all rules.
        All endpoints use them a second later. Pages that are held back stay known and keep their cash. If a crawler
        reads such a page anyway, its cash is passed on as usual.
        """
        version = if_match(request)
        self._backend.check_room()
        return _versioned(self._backend.admission.replace(msgspec.to_builtins(asked), version).shown())

    def patch_rules(self, request: Request, asked: bodies.SomeRules) -> Response:
        """Add or remove some URL rules, or set some trap thresholds; the others stay as they are.

        Changes made at the same time are all kept.
        """
        version = if_match(request)
        self._backend.check_room()
        return _versioned(self._backend.admission.change(msgspec.to_builtins(asked), version).shown())

    def get_rules(self, _: queries.Nothing) -> Response:
        """Return the current URL rules and trap thresholds."""
        return _versioned(self._backend.admission.policy().shown())


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


def _versioned(answer: Mapping[str, Any]) -> Response:
    """Send the version of the answer as its ETag."""
    return Json(answer, headers={"ETag": f'"{answer["version"]}"'})
