"""Forgets the pages of a URL, a prefix, a host or a domain: finds them, and appends them to the log, in portions.

Between two portions the worker takes other records, and endpoints answer. What the log still has of a page makes it
known again when it takes effect, as any later link does.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np

from opic.arrays import Int64s
from opic.errors import BadInput
from opic.ingest.event_log import ANY_ERA, LogPositions, Positions
from opic.model.cash import Flag
from opic.model.events import FORGOTTEN_MAX, encode_forgotten
from opic.replica import Crawl
from opic.service.positions import shown_position
from opic.store.local_lists import drop_lists
from opic.store.shard import Shard
from opic.urls.canonical import canonical_host, canonical_url, host_of, registered_domain
from opic.urls.normalization import PLAIN, Normalization

PORTION_PAGES: Final = 4 * FORGOTTEN_MAX  # In the log at once: less than a tenth of a second of a worker.
CALL_SECONDS_MAX: Final = 20.0  # After this time a call leaves the rest to the next one.


@dataclass(frozen=True, slots=True)
class PageSelection:
    """The pages to forget: of a `kind`, url, prefix, host or domain."""

    kind: str
    name: str  # Canonical.

    @classmethod
    def of(cls, given: Mapping[str, str | None], normalization: Normalization = PLAIN) -> "PageSelection":
        """Check a choice; `given` has a value for one of the kinds. The crawl has normalization rules.

        Raises:
            BadInput: none or several are given, or the value is invalid.
        """
        chosen = [(kind, value) for kind, value in given.items() if value is not None]
        if len(chosen) != 1:
            raise BadInput("pages are forgotten by url, by prefix, by host or by domain: give one of them")
        ((kind, value),) = chosen
        if kind not in ("url", "prefix"):
            return cls(kind, canonical_host(value, normalization if kind == "host" else PLAIN))
        rules = normalization.of_prefix if kind == "prefix" else normalization
        return cls(kind, canonical_url(value, normalization=rules))


class Feed(Protocol):
    """What forgetting needs of an open store: `opic.service.backend.Backend`."""

    crawl: Crawl
    shard: Shard

    def accept(self, values: Sequence[bytes], kind: str = ..., time_us: int | None = ...) -> Positions:
        """Append records to the log durably."""

    def settle(self, positions: Positions) -> None:
        """Let all records below the positions take effect."""


def forget(backend: Feed, chosen: PageSelection, *, dry_run: bool = False) -> dict[str, object]:
    """Forget the pages of a selection, as `forget_pages` does; or, in a dry run, as `count_pages` does, count them."""
    work = count_pages if dry_run else forget_pages
    return work(backend, partial(_ids, chosen=chosen), chosen.name if chosen.kind == "prefix" else "")


def count_pages(backend: Feed, find: Callable[[Crawl], list[Int64s]], begin: str = "") -> dict[str, object]:
    """Return how many pages `forget_pages` would forget, as "would_forget"; it forgets none."""
    crawl, count = backend.crawl, 0
    crawl.follow()
    for number, ids in enumerate(find(crawl)):
        if not begin:
            count += len(still_known(crawl, number, ids))
            continue
        for first in range(0, len(ids), PORTION_PAGES):
            count += len(_urls_of(crawl, begin, number, still_known(crawl, number, ids[first : first + PORTION_PAGES])))
    return {"forgotten": 0, "would_forget": count}


def still_known(crawl: Crawl, shard: int, ids: Int64s) -> Int64s:
    """Return those of the pages of a shard that are known."""
    with crawl.replicas[shard].reading() as replica:
        known: Int64s = ids[(replica.state[ids] & Flag.KNOWN) != 0]
        return known


def forget_pages(
    backend: Feed,
    find: Callable[[Crawl], list[Int64s]],
    begin: str = "",
    kind: str = "forget",
    fit: Callable[[Crawl, int, Int64s], Int64s] = still_known,
) -> dict[str, object]:
    """Forget pages, and wait until this has taken effect.

    Args:
        backend: the open store.
        find: returns the ids of known pages, by shard.
        begin: only pages whose URLs begin so.
        kind: of the records, forget or expire.
        fit: returns those of a portion, given its shard and ids, that are to be forgotten now.

    Returns:
        "forgotten": how many; "position": see `opic.service.positions`, if there were any; and "more": true if there
        may be more, which another call forgets.

    Raises:
        StoreUnavailable: the store is unavailable, or the worker lags. The call can be repeated.
    """
    crawl, count, deadline = backend.crawl, 0, time.monotonic() + CALL_SECONDS_MAX
    written = LogPositions()
    crawl.follow()
    loads = crawl.loads
    for number, ids in enumerate(find(crawl)):
        for first in range(0, len(ids), PORTION_PAGES):
            if crawl.loads != loads or (count and time.monotonic() > deadline):
                return _told(count, written, more=True)
            urls = _urls_of(crawl, begin, number, fit(crawl, number, ids[first : first + PORTION_PAGES]))
            if not urls:
                continue
            parts = [urls[start : start + FORGOTTEN_MAX] for start in range(0, len(urls), FORGOTTEN_MAX)]
            domains = {registered_domain(host_of(url)) for url in urls}
            # Before, since nobody would come back to it if this process died; after, since another may have come.
            drop_lists(crawl.client, backend.shard.keys, domains)
            end = backend.accept([encode_forgotten(part) for part in parts], kind)
            backend.settle(end)
            written.update(end)
            written.era = end.era if isinstance(end, LogPositions) else ANY_ERA
            count += len(urls)
            drop_lists(crawl.client, backend.shard.keys, domains)
            crawl.follow()
    return _told(count, written)


def _told(count: int, written: Positions, **more: bool) -> dict[str, object]:
    return {"forgotten": count, **more, **({"position": shown_position(written)} if written else {})}


def _ids(crawl: Crawl, chosen: PageSelection) -> list[Int64s]:
    """Return the ids of the known pages, by shard; those of the host whose URLs may begin so if a prefix is chosen."""
    by_shard = [np.zeros(0, np.int64) for _ in crawl.replicas]
    if chosen.kind == "url":
        for shard, page in filter(None, crawl.ids_of([chosen.name])):
            by_shard[shard] = np.array([page])
        return by_shard
    host = host_of(chosen.name) if chosen.kind == "prefix" else chosen.name
    for shard, replica in enumerate(crawl.replicas):
        with replica.reading():
            hosts = replica.hosts.below(host) if chosen.kind == "domain" else [replica.hosts.number(host)]
            numbers = np.array([number for number in hosts if number is not None], np.uint32)
            by_shard[shard] = np.flatnonzero(np.isin(replica.host, numbers) & ((replica.state & Flag.KNOWN) != 0))
    return by_shard


def _urls_of(crawl: Crawl, begin: str, shard: int, ids: Int64s) -> list[str]:
    """Return the URLs of pages that are known, those that begin so."""
    urls = crawl.steadily(lambda: crawl.urls_of((shard, page) for page in ids.tolist())).values()
    return [url for url in urls if url and url.startswith(begin)]
