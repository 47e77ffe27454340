"""A mirror that stands still, as if its thread had looked a moment ago."""

import math
import threading

from opic.mirror import Mirror


def stand_still(mirror: Mirror) -> None:
    """Let a mirror show its last state from now on."""
    mirror._shown, mirror._keeper = (mirror.fresh(), math.inf), threading.current_thread()


def go_on(mirror: Mirror) -> None:
    """Let it look again."""
    mirror._keeper = None
