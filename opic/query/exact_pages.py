"""The exact importance of all pages beside a snapshot of them: for the top, hosts, domains, and search."""

from collections.abc import Callable
from dataclasses import dataclass

from opic.query.exact import BoundedView, ExactView
from opic.query.snapshots import Snapshot, Snapshots


@dataclass(frozen=True, slots=True)
class ExactPages:
    """A snapshot, and the exact importance of its pages."""

    exact: ExactView
    snapshot: Snapshot
    view: BoundedView

    @property
    def as_of(self) -> float:
        """A time (Unix seconds) that nothing here is older than."""
        return min(self.snapshot.as_of, self.exact.as_of)


class LatestExactPages:
    """Makes `ExactPages`. What is computed of them is kept with the snapshot while nothing changes."""

    def __init__(self, snapshots: Snapshots, view: Callable[[bool], ExactView]) -> None:
        """Take snapshots and, by `view`, exact importance, settled further if told so."""
        self._snapshots, self._view = snapshots, view

    def latest(self, *, further: bool = False) -> ExactPages:
        """Return the pages as they are now, or as they were a moment ago on a large busy store.

        Args:
            further: settle further where that is cheap; see `Exact.view`.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: as `Exact.view`.
        """
        exact, snapshot = self._view(further), self._snapshots.fresh()
        return ExactPages(exact, snapshot, exact.beside(snapshot))
