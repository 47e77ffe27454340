"""What comes to the pages of a domain from outside: what a local-domain estimator has to know of the rest of the web.

Source: Davis, Dhillon (2006), "Estimating the global PageRank of web communities": the rest of the web is seen as a few
numbers, which here are measured while the crawl goes on.
"""

import numpy as np

from opic.errors import BadInput, NotKept
from opic.model.cash import Flag
from opic.query.host_index import Bools
from opic.query.queries import Query, check_count
from opic.query.snapshots import Snapshot
from opic.urls.canonical import canonical_host, canonical_url, registered_domain


def inflow(query: Query, domain: str, after: str | None = None, n: int = 1_000) -> dict[str, object]:
    """Say how much came to each page of a registered domain by links from read pages outside it.

    Args:
        query: of the crawl.
        domain: a registered domain.
        after: go on after this page, as `next` said.
        n: how many pages at most.

    Returns:
        "pages", in order of shard and first sight, each with its "url" and "inflow": the share of all history and cash,
        sum of H + C, that came so; "next", the value for `after`, if there are more; importance of live pages outside
        the domain: "outside_mass" of all, "unread_mass" of those never read since they became known or came back,
        "dangling_mass" of those read that have no links; "known_pages", live ones of the whole store; and "as_of".

    Raises:
        NotKept: the store was made with OPIC_INFLOW off.
        BadInput: it is no registered domain; or `after` is no page of it.
    """
    if not query.crawl.rules.inflow:
        raise NotKept("this store was made with OPIC_INFLOW=off and keeps no in-flow: replay the log into a new one")
    name = canonical_host(domain)
    check_count(n, "page")
    if (whole := registered_domain(name)) != name:
        raise BadInput(
            f"domain={name} is a part of {whole}, and in-flow is counted for registered domains: ask for that"
        )
    return query.crawl.steadily(lambda: _page_of_inflow(query, name, after, n))


def _page_of_inflow(query: Query, name: str, after: str | None, n: int) -> dict[str, object]:
    snapshot = query.mirror.fresh()
    inside, live = _inside(snapshot, name), snapshot.scores >= 0
    found = np.flatnonzero(inside & live)
    first = 0 if after is None else int(np.searchsorted(found, _position(query, snapshot, inside, after), side="right"))
    some = found[first : first + n]
    outside, opened = live & ~inside, (snapshot.state & Flag.OPEN) != 0
    masses = {
        "outside_mass": outside,
        "unread_mass": outside & ~opened,
        "dangling_mass": outside & opened & snapshot.dangling,
    }
    places = snapshot.places(some)
    urls = query.crawl.urls_of(places)
    grains = query.crawl.rows(places).inflow.tolist()
    total = max(query.crawl.totals().importance_total(query.crawl.rules.minted), 1)
    return {
        "pages": [{"url": urls[place], "inflow": min(g / total, 1.0)} for place, g in zip(places, grains, strict=True)],
        **({"next": urls[places[-1]]} if first + n < len(found) else {}),
        **{name: min(int(snapshot.scores[at].sum()) / snapshot.total, 1.0) for name, at in masses.items()},
        "known_pages": snapshot.books.live,
        "as_of": snapshot.as_of,
    }


def _inside(snapshot: Snapshot, domain: str) -> Bools:
    """Tell which pages are of a registered domain."""
    host = snapshot.host  # Before the names, which are then as many as these need, or more.
    of_domain = [n for n in snapshot.table.below(domain) if registered_domain(snapshot.hosts[n]) == domain]
    return np.isin(host, np.array(of_domain, np.int32))


def _position(query: Query, snapshot: Snapshot, inside: Bools, url: str) -> int:
    (place,) = query.crawl.ids_of([canonical_url(url, query.url_bytes_max)])
    if place is not None:
        at = int(snapshot.positions(np.array([place[0]]), np.array([place[1]]))[0])
        if at < len(snapshot) and inside[at]:
            return at
    raise BadInput("after is no page of this domain: give the `next` of the answer before")
