"""The exception hierarchy: every exception that opic raises on purpose.

A message names the thing, the value, the limit and the remedy; it never contains a secret.
"""

from collections.abc import Iterable
from typing import Final

from opic.redaction import without_logins

LIKENESS_MIN: Final = 0.65  # Of 1: `outlinks` is as close as 0.77 to `links`, and `timestamp` 0.62 to `meta`.
PREFIX_CHARS_MIN: Final = 3
NAMES_LISTED_MAX: Final = 20


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped one probably stands for, or None.

    >>> nearest_name("outLinks", ["url", "links"]), nearest_name("colour", ["url", "links"])
    ('links', None)
    >>> nearest_name("lease", ["url", "lease_seconds"])
    'lease_seconds'
    >>> nearest_name("max_keys", ["max_links", "max_keys_bytes"])
    'max_keys_bytes'
    """
    from difflib import get_close_matches  # Only a mistake needs it.

    by_lower_case, name = {other.lower(): other for other in known}, name[:100].lower()
    matches = [other for other in by_lower_case if len(name) >= PREFIX_CHARS_MIN and other.startswith(f"{name}_")]
    matches += get_close_matches(name, by_lower_case, 1, LIKENESS_MIN)
    return by_lower_case[matches[0]] if matches else None


def instead_of(name: str, known: Iterable[str]) -> str:
    """Return the advice that follows the mention of an unknown name: the nearest known name, or all of them.

    >>> instead_of("link", ["url", "links"]), instead_of("colour", ["url", "links"])
    ('did you mean links?', 'there are url, links')
    """
    names = list(known)
    if (near := nearest_name(name, names)) is not None:
        return f"did you mean {near}?"
    more = ", …" if len(names) > NAMES_LISTED_MAX else ""
    return f"there are {', '.join(names[:NAMES_LISTED_MAX])}{more}"


class OpicError(Exception):
    """The base class of all exceptions that opic raises on purpose."""

    def __str__(self) -> str:
        """Return the message; it may name a URL, but not the user and password in it."""
        return without_logins(super().__str__())


class SettingsError(OpicError):
    """A setting is invalid, or contradicts another setting or the store's rules."""


class BadInput(OpicError):
    """The caller passed an invalid event, URL or parameter."""


class BadEvent(BadInput):
    """A crawl event, or what seeds get, is invalid; the message is the reason stored with the dead letter."""


class BadFraming(BadInput):
    """Bytes can't be split into values."""


class BadUrl(BadInput):
    """A string is not an absolute http(s) URL, or exceeds the size limit."""


class KeyReused(BadInput):
    """An Idempotency-Key was used again with another body."""


class Refused(BadInput):
    """The log accepted a request, but the store refused it later; a retry or a smaller request may succeed."""


class ChangedMeanwhile(BadInput):
    """What was to be changed is of another version than the caller read."""


class NoSuchCrawl(BadInput):
    """The store has no crawl of this name."""

    def __init__(self, shown_name: str) -> None:
        """Name the crawl, quoted as untrusted text is."""
        super().__init__(f"there is no crawl {shown_name}: GET /v1/crawls lists those there are, PUT makes one")


class TooManyCrawls(OpicError):
    """The endpoint has as many crawls open as OPIC_MAX_CRAWLS allows."""


class NotKept(BadInput):
    """The store was created without the data that the request needs."""


class LinksTooLarge(NotKept):
    """The kept links need more memory than this endpoint may use."""


class MissingExtra(OpicError, ImportError):
    """A part of opic was asked for whose packages are not installed."""

    def __init__(self, part: str, extra: str) -> None:
        super().__init__(f"{part} is not installed: install opic[{extra}], as in: pip install 'opic[{extra}]'")


class NoTrust(BadInput):
    """A question about coverage of a crawl without trusted pages."""


class NotBuiltYet(OpicError):
    """A feature of the public contract that this version does not have."""


class StoreError(OpicError):
    """The store can't be used as it is."""


class StoreUnavailable(StoreError):
    """The store does not answer; trying again later may help."""


class SlotMoving(StoreUnavailable):
    """A slot of the cluster moves to another server, or has moved."""


class StoreLoading(StoreUnavailable):
    """The store is reading its data from the disk after a start."""


class StoreLost(StoreUnavailable):
    """The store had a crawl, and has lost it or a part of it."""

    def __init__(self, crawl: str, what: str) -> None:
        super().__init__(
            f"the store lost crawl {crawl!r}: {what}. Restore a backup with `opic restore`, or accept the loss with "
            "`opic begin-anew`"
        )


class KafkaUnavailable(StoreUnavailable):
    """Kafka does not answer; trying again later may help."""


class KafkaThrottled(KafkaUnavailable):
    """Kafka answers, but holds this client back by a quota."""

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class KafkaRefused(StoreError):
    """Kafka can't be used as it is: a topic or a permission is missing, or unread events were deleted."""


class BeingRestored(StoreUnavailable):
    """A backup is being restored into the crawl, or a restore broke off. Nothing is accepted until it is complete."""


class CrawlStopped(StoreUnavailable):
    """The crawl is being moved to another one, or was: for a moment it takes no writes."""

    def __init__(self, why: str = "the crawl is being moved to another one, which takes a moment: try again") -> None:
        super().__init__(why)


class CrawlMoved(StoreUnavailable):
    """Another crawl has taken the place of this one."""

    def __init__(self, crawl: str, to: str, store: str = "") -> None:
        """Name the crawl, the one in its place, and the store of that one if it is another store."""
        where = f" in the store {store}" if store else ""
        super().__init__(
            f"crawl {crawl!r} was moved to crawl {to!r}{where}: name that one, with --crawl or OPIC_CRAWL, before "
            f"`opic crawls --delete {crawl}` removes what is left of {crawl!r}"
        )
        self.crawl, self.to, self.store = crawl, to, store


class ScanBroken(StoreUnavailable):
    """A scan was not answered by one run of one server from beginning to end: discard what it returned, scan again."""


class TailLost(StoreUnavailable):
    """A server lost writes that it had confirmed: read again from the store's resume point."""

    def __init__(self, shard: int, partition: str, offset: int, known: int) -> None:
        super().__init__(
            f"shard {shard} is at {partition}@{offset}, but had confirmed all below {known}: its server lost "
            "the last of what it wrote; reading that again"
        )
        self.shard, self.partition, self.offset = shard, partition, offset


class KeysFull(StoreUnavailable):
    """The limit of remembered Idempotency-Keys is reached; the call was not accepted."""

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class DiskFull(StoreUnavailable):
    """The disk of the embedded store is full; nothing was written."""


class StoreMismatch(StoreError):
    """The store was created with other settings or by another format version."""


class NotPermitted(StoreError):
    """The user of the store may not do this there."""


class StoreFull(StoreError):
    """A number would exceed the range in which it is exact; nothing was written."""


class StoreDamaged(StoreError):
    """A record or a block of the store is damaged."""


class UrlMissing(StoreDamaged):
    """The checkpoint lacks the URL of a page that a replica knows, and the replica's memory does not have it."""

    def __init__(self, shard: int, page: int) -> None:
        super().__init__(f"shard {shard}: the URL of page {page} is missing: restore a backup")
        self.shard = shard


class FenceMoved(StoreError):
    """Another worker appended to the shard since it was read; recompute and retry. Never leaves `opic.ingest`."""


class OutOfOrder(StoreError):
    """An entry of another shard's outbox does not follow the last entry that the replica has taken."""


class OutboxFull(StoreUnavailable):
    """The outbox for another shard is full until that shard takes some entries."""


class DeliveryPaused(StoreUnavailable):
    """A shard accepts no deliveries from other shards while a backup reads the heads of all shards."""


class DataDirBusy(StoreError):
    """Another service uses the data directory."""
