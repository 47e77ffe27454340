"""Snapshots that stand still, as if the last one had been made a moment ago on a large busy store."""

from opic.query.snapshots import Snapshots


def stand_still(snapshots: Snapshots) -> None:
    """Show the present snapshot from now on."""
    shown = snapshots.fresh()
    snapshots._current = lambda _: shown  # type: ignore[method-assign]


def go_on(snapshots: Snapshots) -> None:
    """Let it look again."""
    del snapshots._current  # type: ignore[method-assign]
