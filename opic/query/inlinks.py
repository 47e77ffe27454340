"""In-links: the pages that were read and whose links, as last read, lead to a page."""

from typing import NamedTuple

import numpy as np

from opic.model.cash import Flag
from opic.query.kept_links import KeptLinks
from opic.query.queries import Query, check_count
from opic.replica.crawl import Outdated, Place


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

    def ask() -> dict[str, object] | None:
        if (found := _linking(query, kept, canonical, n)) is None:
            return None
        urls = query.crawl.urls_of(found.places)
        # Without what was forgotten a moment ago.
        shown = [urls[place] for place in found.places if urls[place]]
        return {"url": canonical, "inlinks": shown, "known": found.known, "as_of": found.as_of}

    return query.crawl.steadily(ask)


class _Linking(NamedTuple):
    places: list[Place]  # The first ones, in order of first sight, then of shard.
    known: int  # How many there are in all.
    as_of: float


def _linking(query: Query, kept: KeptLinks, url: str, n: int) -> _Linking | None:
    """Return the pages that link to a page; None for one never seen."""
    crawl = query.crawl
    loads = crawl.loads
    (place,) = crawl.ids_of([url])
    with kept.lock:
        as_of = kept.catch_up(kept.check, lambda _: None).as_of
        if place is None:
            return None
        if kept.loads != loads:
            raise Outdated
        sources = kept.pool.to(kept.numbers.one(*place))
        parts, shards, ids = kept.numbers.by_shard(sources), *kept.numbers.places(sources)
    live = np.zeros(len(sources), np.bool_)
    for (at, ids_of_shard), replica in zip(parts, crawl.replicas, strict=True):
        with replica.reading():
            if crawl.loads != loads:
                raise Outdated
            live[at] = (replica.state[ids_of_shard] & (Flag.OPEN | Flag.GONE)) == Flag.OPEN
    first = np.lexsort((shards[live], ids[live]))[:n]
    places: list[Place] = list(zip(shards[live][first].tolist(), ids[live][first].tolist(), strict=True))
    return _Linking(places, int(live.sum()), as_of)
