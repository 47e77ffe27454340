"""Background probes for /metrics: slow checks run in their own threads, so that a scrape never waits long."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from opic.errors import StoreError

T = TypeVar("T")


class Beside(Generic[T]):
    """Runs a probe in a background thread, at most one at a time, and keeps its last result."""

    def __init__(self, name: str, probe: Callable[[], T], rest_seconds: float = 0.0, share_max: float = 1.0) -> None:
        """Create the probe. It first runs when a result is requested.

        Args:
            name: name of the thread.
            probe: if it raises StoreError, the last result stays unchanged.
            rest_seconds: minimum time between the starts of two probes.
            share_max: maximum share of the time that the probe may run; after a slow probe the pause is longer.
        """
        self._name, self._look, self._rest, self._share = name, probe, rest_seconds, share_max
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due = 0.0  # Monotonic.
        self._well = False  # Whether the last probe succeeded.
        self._seen: tuple[T, float] | None = None  # The last result, and when its probe began.

    def now(self, wait_seconds: float) -> T | None:
        """Return the current result; None if the probe fails or is not done within `wait_seconds`."""
        thread = self._begin()
        thread.join(wait_seconds)
        return self._seen[0] if self._seen is not None and self._well and not thread.is_alive() else None

    def lately(self, wait_seconds: float) -> tuple[T, float] | None:
        """Return the last result and its age in seconds; wait, up to `wait_seconds`, only if there is none yet."""
        thread = self._begin()
        if self._seen is None:
            thread.join(wait_seconds)
        return None if self._seen is None else (self._seen[0], time.monotonic() - self._seen[1])

    def _begin(self) -> threading.Thread:
        """Start a probe if none is running and it is due; return the thread of the last one."""
        with self._lock:
            thread = self._thread
            if thread is None or (not thread.is_alive() and time.monotonic() >= self._due):
                thread = self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
            return thread

    def _run(self) -> None:
        began, well = time.monotonic(), False
        try:
            self._seen, well = (self._look(), began), True
        except StoreError:
            pass  # Keep the last result; its age grows.
        finally:
            self._well = well
            self._due = began + max(self._rest, (time.monotonic() - began) / self._share)
