"""The exact importance of all pages beside a snapshot of them: for the top, hosts, domains, and search."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from opic.query.exact import BoundedView, ExactView
from opic.query.snapshots import Snapshot, Snapshots
from opic.query.top_pages import best_pages

TOPS_KEPT_MAX: Final = 32  # Number of cached top answers, of at most 1,000 pages each.


@dataclass(frozen=True, slots=True)
class ExactPages:
    """A snapshot, and the exact importance of its pages."""

    exact: ExactView
    snapshot: Snapshot
    view: BoundedView
    _tops: dict[object, dict[str, Any]] = field(default_factory=dict)

    @property
    def as_of(self) -> float:
        """A time (Unix seconds) that nothing here is older than."""
        return min(self.snapshot.as_of, self.exact.as_of)

    def top(self, n: int, within: str | None, after: str | None) -> dict[str, Any]:
        """Return the most important pages as `opic.query.top_pages.best_pages` does, and which ranks are certain."""
        answer = self._tops.get(key := (n, within, after))
        if answer is None:
            answer = best_pages(self.snapshot, self.view, n, within, after)
            certain = self.exact.certain([page["importance"] for page in answer["pages"]])
            for page, sure in zip(answer["pages"], certain, strict=True):
                page |= {"policy": "exact", "window": None, "error_bound": self.exact.bound, "certain": sure}
            if len(self._tops) >= TOPS_KEPT_MAX:
                self._tops.clear()
            self._tops[key] = answer
        return answer | {"as_of": self.as_of}


class LatestExactPages:
    """Makes `ExactPages`, and returns the last ones again: while nothing changed, or for a moment on a large store."""

    def __init__(self, snapshots: Snapshots, view: Callable[[bool], ExactView]) -> None:
        """Take snapshots and, by `view`, exact importance, settled further if told so."""
        self._snapshots, self._view = snapshots, view
        self._last: ExactPages | None = None

    def latest(self, *, further: bool = False) -> ExactPages:
        """Return the pages as they are now, or as they were a moment ago on a large busy store.

        Args:
            further: settle further where that is cheap; see `Exact.view`.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: as `Exact.view`.
        """
        last = self._last
        exact, snapshot = self._view(further), self._snapshots.fresh()
        view = exact.beside(snapshot)
        if last is not None and last.view is view:
            found = replace(last, snapshot=snapshot)  # Nothing has changed; the snapshot may have a later time.
        else:
            found = ExactPages(exact, snapshot, view)
        self._last = found
        return found
