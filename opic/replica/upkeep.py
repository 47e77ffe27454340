"""The rule of how current answers are: by what it costs to keep up what is computed over all pages of a crawl.

While each of these computations takes QUICK_SECONDS of CPU at most, a question does those that it needs, and its answer
is current. Else threads do them, and a question takes what they made last, if no older than AGE_SECONDS_MAX. A process
without such threads, as a command without a service, always does them by itself.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

QUICK_SECONDS: Final = 0.0005  # CPU time, which other processes hardly change: some 50,000 pages.
REST: Final = 4  # Questions take a fifth of a core at most for it: after one of theirs they wait for this multiple
REST_SECONDS_MAX: Final = 0.01  # of its CPU time, but for no longer than this.
PASSES: Final = 5  # The least of as many counts: a single one may take long because much had changed.
AGE_SECONDS_MAX: Final = 0.9  # No answer shows an older state: one second minus the time to answer.


class Upkeep:
    """What it costs to keep up with a crawl, and so who does it. Thread-safe."""

    def __init__(self) -> None:
        """Begin with nothing measured, in a process without threads."""
        self.threads = False  # Whether threads compute as well.
        self.shown_from = 0.0  # Unix seconds: no answer is of an older state; see `Crawl.show`.
        self._passes = dict[str, deque[float]]()  # CPU seconds, by what was computed.
        self._cost, self._rested_at = 0.0, 0.0

    @property
    def quick(self) -> bool:
        """Whether questions compute what they need, and so show the present state."""
        return not self.threads or self._cost <= QUICK_SECONDS

    def serves(self, as_of: float, age_seconds_max: float = AGE_SECONDS_MAX) -> bool:
        """Return whether a question takes a state of this time (Unix seconds) although there may be later ones."""
        return not self.quick and time.time() - as_of < age_seconds_max and as_of >= self.shown_from

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Measure a computation over all pages, by a thread or a question."""
        began = time.thread_time()
        yield
        passes = self._passes.setdefault(what, deque([0.0] * PASSES, PASSES))
        passes.append(time.thread_time() - began)
        self._cost = max(map(min, list(self._passes.values())))

    @contextmanager
    def rested(self) -> Iterator[None]:
        """Wait until questions may compute again, where threads do so as well, and measure what this one takes."""
        if self.threads and self.quick:
            time.sleep(max(self._rested_at - time.monotonic(), 0.0))
        began = time.thread_time()
        yield
        rest = min(REST * (time.thread_time() - began), REST_SECONDS_MAX)
        self._rested_at = max(self._rested_at, time.monotonic() + rest)
