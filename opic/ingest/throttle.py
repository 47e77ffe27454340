"""What a client knows of a broker's quota: until when it is held back, and for how long it was in all."""

import time
from typing import Final

ABOUT: Final = "Time that Kafka held this process back by a quota, in seconds."  # For metrics.


class Throttle:
    """How long a server holds its client back, as its answers say. Thread-safe: one thread writes.

    >>> throttle = Throttle()
    >>> throttle.hold(60.0)
    >>> 59 < throttle.left <= 60
    True
    """

    def __init__(self) -> None:
        self._until = float("-inf")
        self.total = 0.0  # Seconds; overlapping ones count once.

    def hold(self, seconds: float) -> None:
        """Note that the server holds the client back for so long, from now on."""
        now = time.monotonic()
        until = max(self._until, now + seconds)
        self.total += until - max(self._until, now)
        self._until = until

    @property
    def left(self) -> float:
        """Seconds that are left; 0 where nothing holds the client back."""
        return max(self._until - time.monotonic(), 0.0)
