"""In-links: the pages that link to a page, and the pages that most pages link to, also as of the last days.

The in-links of a page are the distinct pages that were read, exist, and link to it as last read. With a window only
those count whose last read is in it: pages that were not read again for longer say nothing about what is linked now.

Source: Kumar, Lang, Marlow, Tomkins (2008): a page is authoritative if its in-degree is high; section III, the same
over the links of a time window.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from opic.arrays import Bools, Int64s
from opic.errors import BadInput, NotKept, StoreUnavailable
from opic.model.cash import Flag
from opic.model.series import UNITS_US, Window
from opic.query.kept_links import KeptLinks
from opic.query.queries import Query, check_count
from opic.query.rankings import largest
from opic.query.top_pages import Cursor, answer_of
from opic.replica import Crawl, Replica
from opic.replica.crawl import Outdated, Place
from opic.urls.canonical import canonical_host

GIVERS_MAX: Final = 3
PAGES_AT_ONCE: Final = 1 << 16  # Pages whose last reads are looked up while a replica waits: some milliseconds.


def inlinks(query: Query, kept: KeptLinks, url: str, n: int = 100) -> dict[str, object] | None:
    """Return the pages known to link to a page. It compares all kept links with the page: O(links).

    Pages that were read before links were kept are unknown, and those that are gone are left out. A link to a page that
    moved is one to the old URL; the redirect itself is a link to the new one.

    Args:
        url: the page.
        n: maximum number of pages in the answer.

    Returns:
        None for a page never seen. Otherwise "url"; "inlinks", the URLs of up to `n` pages that link to it, in order of
        first sight, then of shard; "known", how many there are in all; "as_of".

    Raises:
        NotKept: no links are kept.
        BadUrl: the URL is invalid.
    """
    check_count(n, "page")
    canonical = query.canonical(url)
    return query.crawl.steadily(lambda: _linking(query, kept, canonical, n))


def _linking(query: Query, kept: KeptLinks, url: str, n: int) -> dict[str, object] | None:
    crawl = query.crawl
    (shard_page,) = crawl.ids_of([url])
    with kept.lock:
        as_of = kept.catch_up(kept.check, lambda _: None).as_of
        if shard_page is None:
            return None
        sources = _Sources.of(crawl, kept, shard_page)
    first = np.lexsort((sources.shards, sources.ids))[:n]
    places = sources.places(first)
    urls = crawl.urls_of(places)
    shown = [urls[source] for source in places if urls[source]]  # Without what was forgotten a moment ago.
    return {"url": url, "inlinks": shown, "known": len(sources.ids), "as_of": as_of}


@dataclass(frozen=True, slots=True)
class _Sources:
    """The pages that were read, are not gone, and link to a page. Arrays are (n,)."""

    shards: Int64s
    ids: Int64s
    links: Int64s  # How many links each has.

    @classmethod
    def of(cls, crawl: Crawl, kept: KeptLinks, shard_page: Place) -> "_Sources":
        """Find them. The caller holds the lock of the links, which are up to date.

        Raises:
            Outdated: a replica was reloaded.
        """
        loads = crawl.loads
        if kept.loads != loads:
            raise Outdated
        sources = kept.pool.to(kept.numbers.number_of(*shard_page))
        parts, shards, ids = kept.numbers.by_shard(sources), *kept.numbers.places(sources)
        links = kept.pool.counts_to(int(sources.max(initial=-1)) + 1)[sources].astype(np.int64)
        live = np.zeros(len(sources), np.bool_)
        for (positions, ids_of_shard), replica in zip(parts, crawl.replicas, strict=True):
            with replica.reading():
                if crawl.loads != loads:
                    raise Outdated
                live[positions] = (replica.state[ids_of_shard] & (Flag.OPEN | Flag.GONE)) == Flag.OPEN
        return cls(shards[live], ids[live], links[live])

    def places(self, some: Int64s) -> list[Place]:
        """Return the places of some of them, by their positions in the arrays."""
        return list(zip(self.shards[some].tolist(), self.ids[some].tolist(), strict=True))


def givers(query: Query, kept: KeptLinks, url: str, damping: float) -> dict[str, object] | None:
    """Return which pages give a page its exact importance. It compares all kept links with the page: O(links).

    A page gives each of its links an equal share of damping times its importance; links to pages that are gone count
    here, though they count for nothing in PageRank.

    Returns:
        None where that can't be told, or the page has no importance. Otherwise "pages", the GIVERS_MAX that give it
        most, each with "url" and "share" of the page's importance; "known", how many pages link to it; "jump", the
        share that the random jump gives, which is what links do not.
    """
    try:
        return query.crawl.steadily(lambda: _giving(query, kept, query.canonical(url), damping))
    except (NotKept, StoreUnavailable):
        return None


def _giving(query: Query, kept: KeptLinks, url: str, damping: float) -> dict[str, object] | None:
    crawl, view = query.crawl, query.exact_view()
    (shard_page,) = crawl.ids_of([url])
    own = None if shard_page is None else view.share(shard_page)
    if shard_page is None or not own:
        return None
    with kept.lock:
        kept.catch_up(kept.check, lambda _: None)
        sources = _Sources.of(crawl, kept, shard_page)
    positions = view.positions(sources.shards, sources.ids)
    here = positions < len(view)
    given = np.zeros(len(positions))
    given[here] = damping * view.estimates[positions[here]] / np.maximum(sources.links[here], 1) / own
    best = np.argsort(-given, kind="stable")[:GIVERS_MAX]
    places = sources.places(best)
    urls = crawl.urls_of(places)
    pages = [
        {"url": urls[source], "share": min(share, 1.0)}
        for source, share in zip(places, given[best].tolist(), strict=True)
        if urls[source]
    ]
    return {"pages": pages, "known": len(positions), "jump": max(1.0 - float(given.sum()), 0.0)}


@dataclass(frozen=True, slots=True)
class _Shard:
    pages: int
    wanted: Bools  # By page: whether it may be in the answer.
    time_us: int  # Of the last record.


class _Linked(NamedTuple):
    shard_page: Place
    url: str
    inlinks: int


def most_linked(  # noqa: PLR0917 - the terms of one question
    query: Query,
    kept: KeptLinks,
    n: int = 100,
    domain: str | None = None,
    policy: str | None = None,
    window: float | str | None = None,
    after: str | None = None,
) -> dict[str, Any]:
    """Return the pages with the most in-links, descending, ties by shard and first sight, as `Query.top_from` does.

    With a window it takes a pass over all links.

    Args:
        n: maximum number of pages; pages without in-links are left out.
        domain: only pages of this host or domain and its subdomains; links from all pages count.
        policy: of the importance that each page comes with.
        window: a duration before the last record, like "7d" or "12h"; all links if None.
        after: go on here: the "next" of the answer before.

    Raises:
        NotKept: no links are kept.
        BadInput: a parameter is invalid.
    """
    check_count(n, "page")
    within = None if domain is None else canonical_host(domain)
    span = None if window is None else Window.parse(window)
    if span is not None and not span.unit:
        raise BadInput(
            f'window={span.shown()} is a number of rounds: with by=inlinks say a duration like "7d" or "12h"'
        )
    cursor = None if after is None else Cursor.parse(after, len(query.crawl))
    linked, as_of = query.crawl.steadily(lambda: _most_linked(kept, n, within, span, cursor))
    told = {"window": None if span is None else span.shown()}
    pages = [
        {**page, **told, "inlinks": entry.inlinks}
        for page, entry in zip(query.importance([entry.url for entry in linked], policy), linked, strict=True)
        if page is not None
    ]
    return answer_of(pages, lambda last: Cursor(*linked[last].shard_page, linked[last].inlinks), n, as_of)


def _most_linked(
    kept: KeptLinks, n: int, within: str | None, span: Window | None, cursor: Cursor | None
) -> tuple[list[_Linked], float]:
    """Return the pages with the most in-links, one more than `n` if there are more; and a time."""
    counts, as_of = _counts(kept, within, span)
    together, starts = np.concatenate(counts), np.cumsum([0, *map(len, counts)])
    if cursor is not None:
        newer = cursor.page >= len(counts[cursor.shard])
        position = len(together) if newer else int(starts[cursor.shard]) + cursor.page
        together[~cursor.later(together, position)] = -1
    best = largest(together, n + 1)
    shards = np.searchsorted(starts, best, side="right") - 1
    places: list[Place] = list(zip(shards.tolist(), (best - starts[shards]).tolist(), strict=True))
    urls = kept.crawl.urls_of(places)
    linked = zip(places, together[best].tolist(), strict=True)
    # Those without a URL were forgotten a moment ago.
    return [_Linked(shard_page, urls[shard_page], count) for shard_page, count in linked if urls[shard_page]], as_of


def _counts(kept: KeptLinks, within: str | None, span: Window | None) -> tuple[list[Int64s], float]:
    """Return by shard the in-links of pages, -1 for those that may not be in the answer; and a time."""

    def read_shard(replica: Replica) -> _Shard:
        state = replica.state
        wanted: Bools = (state & (Flag.KNOWN | Flag.GONE)) == Flag.KNOWN
        if within is not None:
            inside = np.zeros(len(replica.hosts), np.bool_)
            inside[replica.hosts.below(within)] = True
            wanted &= inside[replica.host]
        return _Shard(len(state), wanted, replica.books.time_us)

    crawl, loads = kept.crawl, kept.crawl.loads
    with kept.lock:
        read = kept.catch_up(kept.check, read_shard)
        numbers = [kept.numbers.of_first(shard, part.pages) for shard, part in enumerate(read.taken)]
        if span is None:
            counts = [kept.inlinks.counts_of(some) for some in numbers]
        else:
            since_us = max(part.time_us for part in read.taken) - span.amount * UNITS_US[span.unit]
            recent = [
                some[_read_since(replica, len(some), since_us)]
                for replica, some in zip(crawl.replicas, numbers, strict=True)
            ]
            column = kept.pool.link_counts(len(kept.numbers), np.concatenate(recent))
            counts = [column[some] for some in numbers]
        if kept.loads != loads or crawl.loads != loads:
            raise Outdated
    wanted_counts = [
        np.where(part.wanted & (some > 0), some, -1) for part, some in zip(read.taken, counts, strict=True)
    ]
    return wanted_counts, read.as_of


def _read_since(replica: Replica, pages: int, since_us: float) -> Bools:
    """Return a mask of the first pages of a shard that were read at some time or later."""
    mask = np.zeros(pages, np.bool_)
    for first in range(0, pages, PAGES_AT_ONCE):
        part = slice(first, min(first + PAGES_AT_ONCE, pages))
        with replica.reading():
            if pages > len(replica):
                raise Outdated
            mask[part] = replica.histories.last_read_us(replica.columns.row[part]) >= max(since_us, 1)
    return mask
