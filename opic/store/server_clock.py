"""The clock of the store's server: what is kept, expires or takes effect at a time goes by it, on every machine.

A process whose own clock is wrong would otherwise date records in the future, or end early what others keep.
"""

import time
from typing import Final

from opic.errors import StoreUnavailable
from opic.store.connection import Client, store_errors

ASK_SECONDS: Final = 1.0  # After a failover another server's clock counts, and clocks of machines drift.


def server_now_us(client: Client, key: str) -> int:
    """Return the time of the server of a key in microseconds."""
    with store_errors():
        return int(client.fcall_ro("opic_5_now", 1, key))


class ServerClock:
    """The time of a key's server, asked at most every ASK_SECONDS and carried on by this machine's monotonic clock."""

    def __init__(self, client: Client, key: str) -> None:
        self._client, self._key = client, key
        self._known: tuple[float, int] | None = None  # Monotonic time, and the server's at that moment.

    @property
    def is_known(self) -> bool:
        """Whether `now_us` sends nothing now."""
        return self._known is not None and time.monotonic() - self._known[0] < ASK_SECONDS

    def now_us(self) -> int:
        """Return the server's time in microseconds.

        Raises:
            StoreUnavailable: the server has never answered. If it is silent now, its clock is carried on.
        """
        if not self.is_known:
            self._ask()
        assert self._known is not None
        asked_at, server_us = self._known
        return server_us + int(1e6 * (time.monotonic() - asked_at))

    def _ask(self) -> None:
        before = time.monotonic()
        try:
            server_us = server_now_us(self._client, self._key)
        except StoreUnavailable:
            if self._known is None:
                raise
            return
        self._known = (before + time.monotonic()) / 2, server_us
