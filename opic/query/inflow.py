"""In-flow: the cash that pages of a domain receive from outside, as a local-domain PageRank estimator needs it.

Source: Davis, Dhillon (2006), "Estimating the global PageRank of web communities": a few numbers represent the rest of
the web. Here they are measured during the crawl.
"""

import numpy as np

from opic.errors import BadInput, NotKept
from opic.model.cash import Flag
from opic.query.host_index import Bools
from opic.query.queries import Query, check_count
from opic.query.snapshots import Snapshot
from opic.urls.canonical import canonical_host, canonical_url, registered_domain


def inflow(query: Query, domain: str, after: str | None = None, n: int = 1_000) -> dict[str, object]:
    """Return how much cash each page of a registered domain received by links from read pages outside the domain.

    Args:
        query: the query object of the crawl.
        domain: a registered domain.
        after: continue after this page: the "next" of the answer before.
        n: maximum number of pages.

    Returns:
        "pages", in order of shard and first sight, each with its "url" and "inflow": the cash received so, as a share
        of all history and cash (the sum of H + C); "next", the value for `after`, if there are more; the importance of
        live pages outside the domain: "outside_mass" of all of them, "unread_mass" of those never read since they
        became known or came back, "dangling_mass" of those read that have no links; "known_pages", the number of live
        pages in the whole store; and "as_of".

    Raises:
        NotKept: the store was created with OPIC_INFLOW off.
        BadInput: `domain` is not a registered domain, or `after` is not a page of it.
    """
    if not query.crawl.rules.inflow:
        raise NotKept("this store was made with OPIC_INFLOW=off and keeps no in-flow: replay the log into a new store")
    name = canonical_host(domain)
    check_count(n, "page")
    if (whole := registered_domain(name)) != name:
        raise BadInput(f"domain={name} is a part of {whole}; in-flow is counted per registered domain: ask for {whole}")
    return query.crawl.steadily(lambda: _page_of_inflow(query, name, after, n))


def _page_of_inflow(query: Query, name: str, after: str | None, n: int) -> dict[str, object]:
    snapshot = query.snapshots.fresh()
    inside, live = _inside(snapshot, name), snapshot.scores >= 0
    at = np.flatnonzero(inside & live)
    first = 0 if after is None else int(np.searchsorted(at, _position(query, snapshot, inside, after), side="right"))
    positions = at[first : first + n]
    outside, opened = live & ~inside, (snapshot.state & Flag.OPEN) != 0
    masses = {
        "outside_mass": outside,
        "unread_mass": outside & ~opened,
        "dangling_mass": outside & opened & snapshot.dangling,
    }
    places = snapshot.places(positions)
    urls = query.crawl.urls_of(places)
    grains = query.crawl.rows(places).inflow.tolist()
    total = query.crawl.totals().static_total(query.crawl.rules.minted)
    return {
        "pages": [{"url": urls[place], "inflow": min(g / total, 1.0)} for place, g in zip(places, grains, strict=True)],
        **({"next": urls[places[-1]]} if first + n < len(at) else {}),
        **{name: min(int(snapshot.scores[mask].sum()) / snapshot.total, 1.0) for name, mask in masses.items()},
        "known_pages": snapshot.books.live,
        "as_of": snapshot.as_of,
    }


def _inside(snapshot: Snapshot, domain: str) -> Bools:
    """Return a mask of the pages of a registered domain."""
    host = snapshot.host  # Read before the names, so that there is a name for each of these numbers.
    of_domain = [n for n in snapshot.table.below(domain) if registered_domain(snapshot.hosts[n]) == domain]
    return np.isin(host, np.array(of_domain, np.int32))


def _position(query: Query, snapshot: Snapshot, inside: Bools, url: str) -> int:
    (place,) = query.crawl.ids_of([canonical_url(url, query.url_bytes_max)])
    if place is not None:
        at = int(snapshot.positions(np.array([place[0]]), np.array([place[1]]))[0])
        if at < len(snapshot) and inside[at]:
            return at
    raise BadInput("after is not a page of this domain: send the `next` of the answer before")
