"""A mirror that stands still, as if it had looked a moment ago on a large busy store."""

from opic.mirror import Mirror


def stand_still(mirror: Mirror) -> None:
    """Let a mirror show its last state from now on."""
    shown = mirror.fresh()
    mirror._current = lambda _: shown  # type: ignore[method-assign]


def go_on(mirror: Mirror) -> None:
    """Let it look again."""
    del mirror._current  # type: ignore[method-assign]
