"""URLFrontier's queues: the hosts of a crawl, with page counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opic.arrays import Int64s
from opic.frontier.held_pages import leased_pages
from opic.frontier.page_keys import OFFERED_BITS
from opic.model.cash import MILLION, Flag
from opic.model.ledger_page import LedgerPage
from opic.replica import Crawl
from opic.urlfrontier.items import NEVER
from opic.urls.canonical import host_of


@dataclass(slots=True)
class Queue:
    """Page counts of a host: to be fetched now or later, leased, and not to be fetched again."""

    active: int = 0
    leased: int = 0
    completed: int = 0


def queues(crawl: Crawl) -> dict[str, Queue]:
    """Return the counts of all hosts that have pages, by name. Scans all pages."""
    crawl.follow()
    by_host = dict[str, Queue]()
    for replica, all_leased in zip(crawl.replicas, leased_pages(crawl), strict=True):
        with replica.reading():
            pages = len(replica)
            ids = np.flatnonzero((replica.state[:pages] & OFFERED_BITS) == Flag.KNOWN)
            done = replica.columns.values_of("not_before_us", ids) >= NEVER * MILLION
            hosts, names = replica.host[ids], replica.hosts.names
            leased = all_leased[all_leased < pages]
            of_leases = replica.host[leased[(replica.state[leased] & Flag.KNOWN) != 0]]
            counts = [np.bincount(some, minlength=len(names)) for some in (hosts[~done], of_leases, hosts[done])]
        for name, *count in zip(names, *(column.tolist() for column in counts), strict=False):
            if any(count):
                by_host[name] = Queue(*count)
    return by_host


def leased(crawl: Crawl, urls: Sequence[str]) -> list[bool]:
    """Return for each page whether it is leased now, through any endpoint."""
    places = crawl.ids_of(list(urls))
    known = [shard_page for shard_page in places if shard_page is not None]
    clocks = [["FCALL_RO", "opic_5_now", 1, shard.keys.leases] for shard in crawl.shards]
    asked = [["ZSCORE", crawl.shards[shard].keys.leases, page] for shard, page in known]
    replies = crawl.ask([*clocks, *asked])
    ends = dict(zip(known, replies[len(clocks) :], strict=True))
    return [shard_page is not None and float(ends[shard_page] or 0) > replies[shard_page[0]] for shard_page in places]


def pages(crawl: Crawl, key: str, wanted: str | None, *, ignore_case: bool) -> Iterator[LedgerPage]:
    """Yield the pages of a host, or of all hosts if `key` is empty, whose URLs contain `wanted`."""
    text = wanted.lower() if wanted and ignore_case else wanted
    for page in crawl.pages():
        url = page.url.lower() if ignore_case else page.url
        there = page.state & OFFERED_BITS == Flag.KNOWN and (not key or host_of(page.url) == key)
        if there and (not text or text in url):
            yield page


def known_since(crawl: Crawl, urls: Sequence[str]) -> list[int]:
    """Return when pages became known, in Unix seconds, to the minute; 0 if that is not kept, or the page is unknown."""
    places, tables = crawl.ids_of(list(urls)), crawl.known_since()
    return [
        0 if shard_page is None else int(tables[shard_page[0]].seconds_of([shard_page[1]])[0]) for shard_page in places
    ]


def known_before(crawl: Crawl, seconds: float, host: str) -> list[Int64s]:
    """Return the ids of the known pages that became known before a time, by shard; only of a host unless it is ""."""
    by_shard = []
    for replica, table in zip(crawl.replicas, crawl.known_since(), strict=True):
        with replica.reading():
            ids = table.before(seconds, len(replica))
            wanted = (replica.state[ids] & Flag.KNOWN) != 0
            if host:
                number = replica.hosts.number(host)
                wanted &= replica.host[ids] == (-1 if number is None else number)
            by_shard.append(ids[wanted])
    return by_shard
