"""Snapshots that stand still, as if the last one had been made a moment ago on a large busy store."""

from opic.query.snapshots import Snapshots


def stand_still(mirror: Snapshots) -> None:
    """Show the present snapshot from now on."""
    shown = mirror.fresh()
    mirror._current = lambda _: shown  # type: ignore[method-assign]


def go_on(mirror: Snapshots) -> None:
    """Let it look again."""
    del mirror._current  # type: ignore[method-assign]
