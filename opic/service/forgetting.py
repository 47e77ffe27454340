"""Forgets the pages of a URL, a prefix, a host or a domain: finds them, and appends them to the log, in portions.

Between two portions the worker takes other records, and endpoints answer. What the log still has of a page makes it
known anew when it takes effect, as any later link does.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from opic.arrays import Int64s
from opic.errors import BadInput
from opic.ingest.event_log import Positions
from opic.model.cash import Flag
from opic.model.events import FORGOTTEN_MAX, encode_forgotten
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.service.positions import shown_position
from opic.store.local_lists import drop_lists
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
            BadInput: none or several are given, or the value can't be taken.
        """
        chosen = [(kind, value) for kind, value in given.items() if value is not None]
        if len(chosen) != 1:
            raise BadInput("pages are forgotten by url, by prefix, by host or by domain: give one of them")
        ((kind, value),) = chosen
        if kind not in ("url", "prefix"):
            return cls(kind, canonical_host(value, normalization if kind == "host" else PLAIN))
        rules = normalization.of_prefix if kind == "prefix" else normalization
        return cls(kind, canonical_url(value, normalization=rules))


def forget(backend: Backend, chosen: PageSelection) -> dict[str, object]:
    """Forget the pages of a selection, as `forget_pages` does."""
    return forget_pages(backend, partial(_ids, chosen=chosen), chosen.name if chosen.kind == "prefix" else "")


def forget_pages(backend: Backend, find: Callable[[Crawl], list[Int64s]], begin: str = "") -> dict[str, object]:
    """Forget pages, and wait until this has taken effect.

    Args:
        backend: the open store.
        find: returns the ids of known pages, by shard.
        begin: only pages whose URLs begin so.

    Returns:
        "forgotten": how many; "position": see `opic.service.positions`, if there were any; and "more": true if there
        may be more, which another call forgets.

    Raises:
        StoreUnavailable: the store is unavailable, or the worker lags. The call can be repeated.
    """
    crawl, count, deadline = backend.crawl, 0, time.monotonic() + CALL_SECONDS_MAX
    written: dict[str, int] = {}
    crawl.follow()
    loads = crawl.loads
    for number, ids in enumerate(find(crawl)):
        for first in range(0, len(ids), PORTION_PAGES):
            if crawl.loads != loads or (count and time.monotonic() > deadline):
                return _told(count, written, more=True)
            urls = _known_urls(crawl, begin, number, ids[first : first + PORTION_PAGES])
            if not urls:
                continue
            parts = [urls[start : start + FORGOTTEN_MAX] for start in range(0, len(urls), FORGOTTEN_MAX)]
            domains = {registered_domain(host_of(url)) for url in urls}
            # Before, since nobody would come back to it if this process died; after, since another may have come.
            drop_lists(crawl.client, backend.shard.keys, domains)
            end = backend.accept([encode_forgotten(part) for part in parts], "forget")
            backend.settle(end)
            written.update(end)
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


def _known_urls(crawl: Crawl, begin: str, shard: int, ids: Int64s) -> list[str]:
    """Return the URLs of those pages that are still known, and begin so."""
    with crawl.replicas[shard].reading() as replica:
        ids = ids[(replica.state[ids] & Flag.KNOWN) != 0]
    urls = crawl.steadily(lambda: crawl.urls_of((shard, page) for page in ids.tolist())).values()
    return [url for url in urls if url and url.startswith(begin)]
