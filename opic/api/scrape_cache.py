"""What /metrics looks at beside the scrapes: no scrape waits long, whatever stands still."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from opic.errors import StoreError

T = TypeVar("T")


class Beside(Generic[T]):
    """Looks at something in a thread of its own, at most one at a time; keeps what it saw last."""

    def __init__(self, name: str, look: Callable[[], T], rest_seconds: float = 0.0, share_max: float = 1.0) -> None:
        """Look at nothing yet.

        Args:
            name: of the thread.
            look: sees it; a StoreError it raises is no sight.
            rest_seconds: the least time from the beginning of a look to that of the next.
            share_max: of the time that looking may take; after a slow look the rest is longer.
        """
        self._name, self._look, self._rest, self._share = name, look, rest_seconds, share_max
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due = 0.0  # Monotonic.
        self._well = False  # The last look saw something.
        self._seen: tuple[T, float] | None = None  # And when that look began.

    def now(self, wait_seconds: float) -> T | None:
        """Return what is seen now; None if that fails, or is not done within some seconds."""
        thread = self._begin()
        thread.join(wait_seconds)
        return self._seen[0] if self._seen is not None and self._well and not thread.is_alive() else None

    def lately(self, wait_seconds: float) -> tuple[T, float] | None:
        """Return what was seen last and how many seconds ago; only the first look of all is waited for, so long."""
        thread = self._begin()
        if self._seen is None:
            thread.join(wait_seconds)
        return None if self._seen is None else (self._seen[0], time.monotonic() - self._seen[1])

    def _begin(self) -> threading.Thread:
        """Start a look, if none is under way and it is time; return the thread of the last one."""
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
            pass  # What was seen before gets older.
        finally:
            self._well = well
            self._due = began + max(self._rest, (time.monotonic() - began) / self._share)
