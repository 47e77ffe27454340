"""Every exception that opic raises on purpose, one tree.

A message names the thing, the value, the limit and the way out; it never carries a secret.
"""


class OpicError(Exception):
    """The root: catching it catches whatever opic raises on purpose."""


class SettingsError(OpicError):
    """A setting is wrong, or contradicts another one or the store's own."""


class BadInput(OpicError):
    """The caller's fault: an event, a URL or a parameter that can't be taken."""


class BadEvent(BadInput):
    """A crawl event that can't be taken; its text is the reason that goes with the dead letter."""


class BadFraming(BadInput):
    """Bytes that can't be cut into values."""


class BadUrl(BadInput):
    """Not an absolute http(s) URL, or one over its size limit."""


class KeyReused(BadInput):
    """An Idempotency-Key came again with another body."""


class Refused(BadInput):
    """The log took it, and by then the store could not: another time, or something smaller, it may."""


class NotBuiltYet(OpicError):
    """The public contract names it, this version does not have it."""


class StoreError(OpicError):
    """The store can't be used as it is."""


class StoreUnavailable(StoreError):
    """The store does not answer; trying again later may help."""


class KeysFull(StoreUnavailable):
    """As many Idempotency-Keys are remembered as may be; the call was not taken."""

    def __init__(self, message: str, retry_seconds: int) -> None:
        """Say when the first of them ends."""
        super().__init__(message)
        self.retry_seconds = retry_seconds


class DiskFull(StoreUnavailable):
    """The disk of the embedded store has no room; nothing was written."""


class StoreMismatch(StoreError):
    """The store was made with other settings or by another format version."""


class StoreFull(StoreError):
    """A number would leave the range in which it is exact; nothing was written."""


class FenceMoved(StoreError):
    """Someone else moved the shard since it was read; recompute and try again. Never seen outside the store."""


class DataDirBusy(StoreError):
    """Another service holds the data directory."""
