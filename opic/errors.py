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


class NotKept(BadInput):
    """The store was made without what this asks for."""


class MissingExtra(OpicError, ImportError):
    """A part of opic was asked for whose packages are not installed."""

    def __init__(self, part: str, extra: str) -> None:
        """Say which extra brings them."""
        super().__init__(f"{part} is not installed: install opic[{extra}], as in: pip install 'opic[{extra}]'")


class NotBuiltYet(OpicError):
    """The public contract names it, this version does not have it."""


class StoreError(OpicError):
    """The store can't be used as it is."""


class StoreUnavailable(StoreError):
    """The store does not answer; trying again later may help."""


class KafkaUnavailable(StoreUnavailable):
    """Kafka does not answer; trying again later may help."""


class KafkaRefused(StoreError):
    """Kafka can't be used as it is: a topic is missing, a right, or events that were still to be read."""


class TailLost(StoreUnavailable):
    """A server came back without the last of what it had confirmed: read on from where the store says."""

    def __init__(self, shard: int, partition: str, offset: int, known: int) -> None:
        """Say where the partition goes on for this shard, and where it would have."""
        super().__init__(
            f"shard {shard} goes on from {partition}@{offset}, and had confirmed all below {known}: its server lost "
            "the last of what it wrote; reading that again"
        )
        self.shard, self.partition, self.offset = shard, partition, offset


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


class StoreDamaged(StoreError):
    """A record or a block of the store can't be read as what it should be."""


class UrlMissing(StoreDamaged):
    """The checkpoint lacks the URL of a page that a replica knows, and the replica's memory does not have it."""

    def __init__(self, shard: int, page: int) -> None:
        """Say which."""
        super().__init__(f"shard {shard}: the URL of page {page} is missing: restore a backup")
        self.shard = shard


class FenceMoved(StoreError):
    """Someone else moved the shard since it was read; recompute and try again. Never seen outside the store."""


class OutOfOrder(StoreError):
    """An entry of another shard's outbox does not follow the last one that was taken, as far as the replica goes."""


class OutboxFull(StoreUnavailable):
    """Too much waits for another shard, which has to take it first."""


class DeliveryPaused(StoreUnavailable):
    """A shard takes nothing from other shards for a moment: a backup reads the end of each."""


class DataDirBusy(StoreError):
    """Another service holds the data directory."""
