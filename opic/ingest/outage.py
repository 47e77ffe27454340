"""Logs an outage of the store or of Kafka: one line when it begins and one when it ends."""

import logging
import threading
import time


class Outage:
    """What is known of an outage, however many calls fail in between. Thread-safe.

    >>> outage = Outage(logging.getLogger("opic.ingest"))
    >>> outage.began(OSError("the store does not answer"))
    True
    >>> outage.began(OSError("the store does not answer"))
    False
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._lock = log, threading.Lock()
        self._since: float | None = None
        self._kinds: set[type[Exception]] = set()

    def began(self, error: Exception) -> bool:
        """Log an error, unless one of its kind was logged in this outage; return whether it was logged."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
            if type(error) in self._kinds:
                return False
            self._kinds.add(type(error))
        self._log.warning("%s; retrying until this is over", error)
        return True

    def ended(self) -> None:
        """Log that the outage is over, if there was one."""
        if self._since is None:  # Checked without the lock, for calls that succeed are many.
            return
        with self._lock:
            since, self._since = self._since, None
            self._kinds.clear()
        if since is not None:
            self._log.warning("everything answers again, after %.1f s", time.monotonic() - since)
