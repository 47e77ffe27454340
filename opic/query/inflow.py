"""In-flow: the cash that pages of a domain receive from outside, as a local-domain PageRank estimator needs it.

Source: Davis, Dhillon (2006), "Estimating the global PageRank of web communities": a few numbers represent the rest of
the web. Here they are measured during the crawl.

The step counts, for each page, what came from other registered domains. So the in-flow of a domain is exact. Of a host
it is a lower bound, as what came from the other hosts of its domain is not counted apart; `inflow_max` is an upper
bound, and equal to it while no other host of the domain has sent anything. Where links are kept, in-flow is computed
from them instead, of any set of pages and by any policy, unless the policy asked for is "static" and the set a domain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.errors import BadInput, NotKept
from opic.graph.flow import BOUND_MAX
from opic.model.books import Books
from opic.model.cash import CLASS_BITS, MILLION, Flag
from opic.query.crawl_pages import CrawlPages
from opic.query.exact_view import ExactView
from opic.query.kept_links import NOT_KEPT
from opic.query.page_entries import EXACT
from opic.query.page_flows import PageFlows
from opic.query.queries import Query, check_count
from opic.query.rankings import View
from opic.query.snapshots import Snapshot
from opic.replica.crawl import Outdated, Place, Rows
from opic.urls.canonical import canonical_host, canonical_url, host_of, registered_domain

LINKS_ONLY: Final = ("prefix", "list")  # Areas whose in-flow is not counted, only computed from kept links.


@dataclass(frozen=True, slots=True)
class Area:
    """The pages that in-flow is asked of: those of a registered domain or a host, below a URL prefix, or in a list.

    A prefix and a list need kept links.
    """

    name: str
    kind: str  # domain, host, prefix or list.
    urls: tuple[str, ...] = ()  # Of a list: canonical and distinct.

    @classmethod
    def of(
        cls, query: Query, domain: str | None, host: str | None, prefix: str | None, urls: Sequence[str] | None
    ) -> "Area":
        """Check what in-flow is asked of.

        Raises:
            BadInput: not one of them is given, it is invalid, or `domain` is not a registered domain.
        """
        if urls is not None:
            if not urls:
                raise BadInput("urls is empty: name the pages whose in-flow is wanted")
            return cls("the list", "list", tuple(dict.fromkeys(query.canonical(url) for url in urls)))
        if (domain is not None) + (host is not None) + (prefix is not None) != 1:
            raise BadInput(
                "in-flow is that of a registered domain, of a host, or of the pages below a URL prefix: give one of "
                "domain, host and prefix, or send a list of URLs by POST"
            )
        if host is not None:
            return cls(canonical_host(host), "host")
        if prefix is not None:
            return cls(canonical_url(prefix, normalization=query.crawl.rules.normalization.of_prefix), "prefix")
        assert domain is not None
        name = canonical_host(domain)
        if (whole := registered_domain(name)) != name:
            raise BadInput(
                f"domain={name} is a part of {whole}; in-flow is counted per registered domain: ask for {whole}, or "
                f"with host={name}; where links are kept (not OPIC_KEEP_LINKS=off), also with prefix=URL"
            )
        return cls(name, "domain")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A question, checked."""

    area: Area
    after: str | None
    n: int
    policy: str | None
    window: float | str | None


def inflow(
    query: Query,
    domain: str | None = None,
    after: str | None = None,
    n: int = 1_000,
    *,
    host: str | None = None,
    prefix: str | None = None,
    urls: Sequence[str] | None = None,
    policy: str | None = None,
    window: float | str | None = None,
) -> dict[str, object]:
    """Return how much cash each page of a registered domain, or of a host, received by links from read pages outside.

    Args:
        domain: a registered domain; or one of `host`, `prefix` and `urls`, see `Area`.
        after: continue after this page: the "next" of the answer before.
        n: maximum number of pages; all of a list, which is answered at once.
        host: or a host,
        prefix: or the beginning of URLs, with their host,
        urls: or a list of pages.
        policy: as in `Query.importance` where links are kept, else None or "static": the counts have no window.
        window: as in `Query.importance`, or None.

    Returns:
        As `_Part.answer`; with a list also "missing", those of its pages that are gone or were never seen.

    Raises:
        NotKept: the store was created with OPIC_INFLOW off, or keeps no links where they are needed.
        BadInput: as `Area.of`, `after` is not a page of the area, or a window is asked for without kept links.
    """
    check_count(n, "page")
    wanted = _Wanted(Area.of(query, domain, host, prefix, urls), after, n, policy, window)
    if urls is not None and any(other is not None for other in (domain, host, prefix, after)):
        raise BadInput("in-flow of a list of pages is asked for without domain, host, prefix and after")
    if _is_from_links(query, wanted):
        try:
            return query.crawl.steadily(lambda: _from_links(query, wanted))
        except NotKept:  # The keeping of links ended in the meantime; the counts remain.
            if wanted.area.kind in LINKS_ONLY or policy not in (None, "static") or window is not None:
                raise
    if not query.crawl.rules.inflow:
        raise NotKept("this store was made with OPIC_INFLOW=off and keeps no in-flow: replay the log into a new store")
    if policy not in (None, "static") or window is not None:
        raise BadInput(
            "in-flow has no window: one total a page is kept, since the store was made; ask without window, and with "
            "policy=static or none"
        )
    return query.crawl.steadily(lambda: _counted(query, wanted))


def _is_from_links(query: Query, wanted: _Wanted) -> bool:
    """Return whether in-flow is computed from kept links, not counted.

    Raises:
        NotKept: it would have to be.
    """
    query.crawl.follow()  # Links may be kept since a moment ago.
    kept, kind = query.exact is not None and query.exact.kept, wanted.area.kind
    if not kept and (kind in LINKS_ONLY or wanted.policy == EXACT):
        raise NotKept(NOT_KEPT)
    return kept and not (kind == "domain" and (wanted.policy or query.policy) == "static")


def inflow_error_bound(books: Books, importance_bound: float, minted: int, q: int) -> float:
    """Bound the L1 distance of the in-flow of all pages from that of exact PageRank of the known graph.

    The exact in-flow of a page is d x*_i / o_i, summed over the pages i outside that link to it. With our estimate x in
    the place of x*, it is wrong by at most d times the bound on x. And what was paid is not d x_i / o_i: cash on read
    pages is not spent yet, some was spent along other links or sent to pages that are gone, is on its way between
    shards, or was lost to rounding. Each of these is a total of the books; see docs/decisions/0001 and 0020.

    Args:
        books: of all shards.
        importance_bound: the bound on the L1 distance of the estimates.
        minted: at genesis.
        q: 1 - damping in parts of a million.
    """
    damping = 1 - q / MILLION
    unpaid = damping * (books.open_cash + books.drift_plus + books.drift_minus)
    lost = books.rounding + books.reads + books.v_gone + books.h_gone + abs(books.net)
    lost += books.sent_to_forgotten
    return damping * importance_bound + (unpaid + lost) / books.static_total(minted)


@dataclass(frozen=True, slots=True)
class _Part:
    """The pages of an answer: a part of those of an area, in one state of the crawl."""

    shown: Snapshot | ExactView
    inside: Bools  # (n,) which pages are of the area.
    positions: Int64s  # Of the pages of the answer,
    urls: list[str]  # and their URLs: pages that were forgotten since are left out.
    more: bool  # Whether the area has pages after them.
    missing: list[str] | None  # Of a list: what is gone or was never seen.

    @classmethod
    def of(cls, query: Query, shown: Snapshot | ExactView, wanted: _Wanted) -> "_Part":
        area = wanted.area
        listed = _positions(query, shown, area.urls)
        inside = _inside(shown, area, listed)
        if area.kind == "list":
            there = np.append(shown.live, False)[listed]
            positions, urls = _named(shown, listed[there])
            told = set(urls)
            return cls(shown, inside, positions, urls, False, [url for url in area.urls if url not in told])
        candidates, first = np.flatnonzero(inside & shown.live), 0
        if wanted.after is not None:
            first = int(np.searchsorted(candidates, _position(query, shown, inside, wanted.after), side="right"))
        positions, urls = candidates[:0], []
        while not urls and first < len(candidates):
            positions, urls = _named(shown, candidates[first : first + wanted.n])
            first += wanted.n
        return cls(shown, inside, positions, urls, first < len(candidates), None)

    def answer(
        self,
        columns: Mapping[str, Sequence[float]],
        share: Callable[[Bools], float],
        dangling: Bools,
        policy: str,
        error_bound: float | None,
    ) -> dict[str, object]:
        """Return the answer.

        "pages" are in order of shard and first sight, or of a list in its order, each with its "url" and "inflow": the
        cash received so, as a share of all history and cash (the sum of H + C), and of a host "inflow_max"; "next" is
        the value for `after`, if there are more. The importance of live pages outside: "outside_mass" of all of them,
        "unread_mass" of those never read since they became known or came back, "dangling_mass" of those read that have
        no links. "known_pages" is the number of live pages in the whole store; "error_bound", see `inflow_error_bound`.

        Args:
            columns: what is told of each page, by name.
            share: returns the importance of the pages in a mask.
            dangling: (n,) which pages had no links when they were last read.
            policy: of the importance.
            error_bound: None if it says nothing.
        """
        shown, urls = self.shown, self.urls
        outside, opened = shown.live & ~self.inside, (shown.state & Flag.OPEN) != 0
        masses = {
            "outside_mass": outside,
            "unread_mass": outside & ~opened,
            "dangling_mass": outside & opened & dangling,
        }
        names = ("url", *columns)
        return {
            "pages": [dict(zip(names, row, strict=True)) for row in zip(urls, *columns.values(), strict=True)],
            **({"next": urls[-1]} if self.more and urls else {}),
            **({} if self.missing is None else {"missing": self.missing}),
            **{name: min(share(mask), 1.0) for name, mask in masses.items()},
            "known_pages": int(shown.live.sum()),
            "policy": policy,
            **({} if error_bound is None else {"error_bound": error_bound}),
            "as_of": shown.as_of,
        }


def _from_links(query: Query, wanted: _Wanted) -> dict[str, object]:
    """Return a part of the in-flow as kept links say it.

    A page that was read sends d times its importance along its links, in equal shares. One pass over all links. Settles
    first, if need be. Exact importance and the links are of one state; importance by cash may be of another moment than
    the links, and then has no bound here.

    Raises:
        Outdated: a replica was reloaded during the call.
        NotKept: no links are kept.
    """
    exact = query.exact
    if exact is None:
        raise NotKept(NOT_KEPT)
    policy, span = query.policy_of(wanted.policy, wanted.window)
    flows = exact.flows
    with flows.kept.lock:  # Until the end, for the links may not change.
        settled = exact.settled()
        view: View | None = settled
        shown: Snapshot | ExactView = settled
        if policy != EXACT:
            shown, view = query.snapshots.fresh(), None
        if span is not None:
            shown, view = query.snapshots.view(policy, span)
        if settled.loads != shown.loads:
            raise Outdated
        part, numbers = _Part.of(query, shown, wanted), _numbers_of(flows, shown)
        shares = shown.estimates if isinstance(shown, ExactView) else shown.shares(view)
        came, dangling = _received(flows, numbers, part.inside, shares), _without_links(flows, numbers)
    bound = query.bound_of(shown, view) if shown.heads == settled.heads else None
    error = None if bound is None or bound >= BOUND_MAX else flows.damping * bound
    columns = {"inflow": came[part.positions].tolist()}
    return part.answer(columns, lambda mask: float(shares[mask].sum()), dangling, policy, error)


def _numbers_of(flows: PageFlows, shown: CrawlPages) -> Int64s:
    """Return the number of each page by position, that of no page for those newer than the links."""
    counts = np.diff(shown.starts).tolist()
    given = np.concatenate([flows.kept.numbers.of_first(shard, count) for shard, count in enumerate(counts)])
    numbers: Int64s = np.minimum(given, len(flows.graph))
    return numbers


def _received(flows: PageFlows, numbers: Int64s, inside: Bools, shares: Float64s) -> Float64s:
    """Return by position what comes to the pages from those that are not `inside`."""
    graph = flows.graph
    weights = np.zeros(len(graph) + 1)
    weights[numbers] = np.where(inside, 0.0, shares)
    weights = weights[:-1]
    weights[~graph.moves] = 0.0
    came = graph.matrix.spread(flows.damping * weights / np.maximum(graph.live, 1))
    came[graph.gone_at] = 0.0
    by_position: Float64s = np.append(came, 0.0)[numbers]
    return by_position


def _without_links(flows: PageFlows, numbers: Int64s) -> Bools:
    """Return by position which read pages have no links in the known graph, such as one to a page that is gone."""
    without = flows.graph.moves & (flows.graph.live == 0)
    by_position: Bools = np.append(without, False)[numbers]
    return by_position


def _counted(query: Query, wanted: _Wanted) -> dict[str, object]:
    """Return a part of the in-flow that was counted."""
    snapshot = query.snapshots.fresh()
    part = _Part.of(query, snapshot, wanted)
    places = snapshot.places(part.positions)
    rows, rules, books = query.crawl.rows(places), query.crawl.rules, query.crawl.totals()
    total = books.static_total(rules.minted)
    grains = {"inflow": rows.inflow.tolist()}
    if wanted.area.kind == "host":
        grains = _bounds_of_host(query, wanted.area.name, places, rows)
    columns = {name: [min(amount / total, 1.0) for amount in column] for name, column in grains.items()}
    bound = query.error_bound(rows.books)
    error = None if bound is None or books.cuts else inflow_error_bound(books, bound, rules.minted, rules.q)
    if error is not None and error >= 2 * (1 - rules.q / MILLION):
        error = None
    mass = snapshot.total

    def share(mask: Bools) -> float:
        return int(snapshot.scores[mask].sum()) / mass

    return part.answer(columns, share, snapshot.dangling, "static", error)


def _bounds_of_host(query: Query, host: str, places: Sequence[Place], rows: Rows) -> dict[str, list[int]]:
    """Return bounds of the grains that came to each page of a host from other hosts."""
    rules, names, shards = query.crawl.rules, query.snapshots.fresh().hosts, len(query.crawl)
    own, siblings = names.number(host), names.below(registered_domain(host))
    spent = taken_back = reads = 0  # Any history of forgotten pages may have been theirs.
    for shard, replica in enumerate(query.crawl.replicas):  # After the rows: what had come by then was spent by then.
        with replica.reading():
            numbers = [n // shards for n in siblings if n % shards == shard and n != own]
            sends = np.isin(replica.host, np.array(numbers, replica.host.dtype))
            spent += int(np.maximum(replica.spent()[sends], 0).sum())
            spent += max(replica.books.h_forgotten, 0)
            taken_back, reads = taken_back + replica.books.taken_back, reads + replica.books.reads
    received: Int64s | None = None
    if not rules.continuous:  # There a page that becomes known late owes what was paid before.
        credit = np.array([books.credits() for books in rows.books], np.int64)
        shard_of_page = np.array([shard for shard, _ in places], np.int64)
        received = rows.cash - credit[shard_of_page, rows.state & CLASS_BITS] + rows.spent
    least, most = host_bounds(rows.inflow, received, SiblingsSent(spent, taken_back, reads), rules.q)
    return {"inflow": least.tolist(), "inflow_max": most.tolist()}


@dataclass(frozen=True, slots=True)
class SiblingsSent:
    """What the other hosts of a host's domain may have sent, in grains.

    spent       by their reads, in all
    taken_back  by pages with negative cash, in the whole crawl: any of it may have been theirs
    reads       in the whole crawl: a read may send a grain more than its share, by rounding
    """

    spent: int
    taken_back: int
    reads: int

    def most(self, q: int) -> int:
        """Bound what they sent, and not to the virtual page; `q` is 1 - damping in parts of a million."""
        gross = self.spent + self.taken_back
        return -((q - MILLION) * gross // MILLION) + self.reads if gross else 0


def host_bounds(inflow: Int64s, received: Int64s | None, sent: SiblingsSent, q: int) -> tuple[Int64s, Int64s]:
    """Bound the grains that came to each page of a host from other hosts.

    To what came from other domains adds what came from the other hosts of its own. That is no more than what came from
    its domain in all, its own host included, and no more than what these hosts sent.

    Args:
        inflow: (n,) what came to each page from other registered domains.
        received: (n,) what came by links in all, that is its `v` and history under grants; None if it is not known.
        sent: what the other hosts of the domain may have sent.
        q: 1 - damping in parts of a million.

    Returns:
        The lower and the upper bounds, (n,) each; negative where more was taken back from a page than came.
    """
    back, most = sent.taken_back, sent.most(q)
    least = inflow - back
    siblings = np.full(len(inflow), most) if received is None else np.minimum(received - inflow + back, most)
    return least, np.maximum(inflow + siblings, least)


def _named(shown: CrawlPages, positions: Int64s) -> tuple[Int64s, list[str]]:
    """Return the positions that still have a URL, for pages may be forgotten at any time, and these URLs."""
    places = shown.places(positions)
    url_of = shown.crawl.urls_of(places)
    here = [bool(url_of[shard_page]) for shard_page in places]
    return positions[here], [url_of[shard_page] for shard_page in places if url_of[shard_page]]


def _positions(query: Query, shown: CrawlPages, urls: Sequence[str]) -> Int64s:
    """Return the positions of pages in a state, its length for those that it lacks."""
    places = query.crawl.ids_of(urls) if urls else []
    known = np.array([shard_page or (0, 0) for shard_page in places], np.int64).reshape(-1, 2)
    there = np.array([shard_page is not None for shard_page in places], np.bool_)
    return np.where(there, shown.positions(known[:, 0], known[:, 1]), len(shown))


def _inside(shown: CrawlPages, area: Area, listed: Int64s) -> Bools:
    """Return a mask of the pages of an area; `listed`: where those of a list are."""
    if area.kind == "list":
        inside = np.zeros(len(shown), np.bool_)
        inside[listed[listed < len(shown)]] = True
        return inside
    host = shown.host  # Read before the names, so that there is a name for each of these numbers.
    if area.kind != "domain":
        number = shown.hosts.number(area.name if area.kind == "host" else host_of(area.name))
        mask: Bools = host == (-1 if number is None else number)
        if area.kind == "prefix":
            candidates = np.flatnonzero(mask)
            places = shown.places(candidates)
            urls = shown.crawl.urls_of(places)
            mask[candidates] = [urls[shard_page].startswith(area.name) for shard_page in places]
        return mask
    of_domain = [n for n in shown.hosts.below(area.name) if registered_domain(shown.hosts[n]) == area.name]
    return np.isin(host, np.array(of_domain, np.int32))


def _position(query: Query, shown: CrawlPages, inside: Bools, url: str) -> int:
    (shard_page,) = query.crawl.ids_of([query.canonical(url)])
    if shard_page is not None:
        position = int(shown.positions(np.array([shard_page[0]]), np.array([shard_page[1]]))[0])
        if position < len(shown) and inside[position]:
            return position
    raise BadInput("after is not a page of this domain: send the `next` of the answer before")
