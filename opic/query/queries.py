"""Queries about a whole crawl: top pages, hosts and domains, statistics and audit; those about named pages beside.

Anything that needs all pages (the top, a rank) is computed from one state of all of them: an `ExactView`, or else a
snapshot. It is current, or at most a second old: see `opic.replica.upkeep`.
"""

from typing import Any, Final, Literal

from opic.arrays import Float64s
from opic.errors import BadInput
from opic.model.books import Books, BooksAudit
from opic.model.cash import ROUND_BITS
from opic.model.series import Window
from opic.query.exact_view import ExactView
from opic.query.host_index import Sites
from opic.query.page_entries import EXACT, terms_of
from opic.query.page_queries import PageQuery
from opic.query.rankings import View, largest
from opic.query.snapshots import Snapshot
from opic.query.top_pages import best_pages
from opic.urls.canonical import canonical_host

TOPS_KEPT_MAX: Final = 32  # Number of cached top answers of a snapshot, of at most 1,000 pages each.


class Query(PageQuery):
    """Answers queries about a crawl."""

    def top(
        self, n: int = 100, domain: str | None = None, policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object]]:
        pages: list[dict[str, object]] = self.top_from(n, domain, policy, window)["pages"]
        return pages

    def top_from(
        self,
        n: int = 100,
        domain: str | None = None,
        policy: str | None = None,
        window: float | str | None = None,
        after: str | None = None,
        *,
        state: str | None = None,
    ) -> dict[str, Any]:
        """Return the most important live pages, descending; ties by shard, then by order of first sight.

        Importance, rank and, by cash, the cash are from one state of the crawl. The number of reads is from the time of
        the first such query on this state; the same query on the same state returns the same cached pages.

        Args:
            n: maximum number of pages.
            domain: only pages of this host or domain and its subdomains; ranks are still among all pages.
            policy: as in `importance`.
            window: as in `importance`.
            after: go on here: the "next" of the answer before; see `opic.query.top_pages`.
            state: only pages that were never read (unread), were read, or may not be read (excluded).

        Returns:
            "pages"; "next", if there are more; and "as_of", a time (Unix seconds) that no value is older than.

        Raises:
            BadInput: a parameter is invalid.
        """
        check_count(n, "page")
        within = None if domain is None else canonical_host(domain)
        return self.answered(policy, lambda named: self._top(n, within, after, state, *self.policy_of(named, window)))

    def _top(  # noqa: PLR0917 - the terms of one question
        self, n: int, within: str | None, after: str | None, state: str | None, policy: str, span: Window | None
    ) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            pages, view = self._shown(policy, span, further=True)
            tops: dict[object, tuple[dict[str, Any], float]] = pages.kept.setdefault("tops", {})
            if (top := tops.get(key := (n, within, after, state, policy, span))) is None:
                top = best_pages(pages, view, n, within, after, state=state)
                if len(tops) >= TOPS_KEPT_MAX:
                    tops.clear()
                tops[key] = top
            answer, lost = top
            view, best = view.without(lost) if isinstance(view, ExactView) else view, answer["pages"]
            measured = self._measured(policy, span, pages, view)
            if not isinstance(view, ExactView):
                return answer | {"pages": [{**page, **measured} for page in best]}
            certain = zip(best, view.certain([page["importance"] for page in best]), strict=True)
            told = [{**page, **measured, "certain": sure} for page, sure in certain]
            return answer | {"pages": told, "as_of": view.as_of}

        return self.crawl.steadily(ask)

    def _shown(
        self, policy: str, span: Window | None, *, further: bool = False
    ) -> tuple[Snapshot | ExactView, View | None]:
        """Return the pages for answers about all of them, and their estimates by the policy; None for static.

        `further` is as in `Exact.view`.
        """
        if policy == EXACT:
            exact = self.exact_view(further=further)
            return exact, exact
        return (self.snapshots.fresh(), None) if span is None else self.snapshots.view(policy, span)

    def estimates(self) -> tuple[Snapshot | ExactView, Float64s]:
        """Return all pages, and the importance of each by the default policy, 0 where it is not there.

        Raises:
            StoreUnavailable: as `Exact.view`.
        """

        def ask(named: str | None) -> tuple[Snapshot | ExactView, Float64s]:
            pages, view = self._shown(*self.policy_of(named, None))
            if view is None:
                assert isinstance(pages, Snapshot)
                return pages, pages.shares(None)
            return pages, view.estimates

        return self.answered(None, ask)

    def sites(
        self,
        kind: Literal["host", "domain"],
        n: int = 100,
        policy: str | None = None,
        window: float | str | None = None,
    ) -> dict[str, Any]:
        """Return the most important hosts or registered domains, descending; ties by the first page seen of each.

        The importance of a host is the sum of the importance of its live pages: the site importance of Abiteboul,
        Preda, Cobena (2003), section 4.3. Over all hosts, and over all domains, it sums to 1. The hosts of a domain may
        be in several shards; one without a registered domain (an address, a name of one label) stands for itself.

        Args:
            kind: what pages are added up by.
            n: maximum number of hosts or domains; those without live pages are left out.
            policy: as in `importance`.
            window: as in `importance`.

        Returns:
            "hosts" or "domains", each with its name as "host" or "domain", "importance", "pages" (known, not gone),
            "read_pages", and of a domain "hosts", how many of them have live pages; "as_of", a time (Unix seconds) that
            no value is older than.

        Raises:
            BadInput: a parameter is invalid.
        """
        check_count(n, kind)

        def ask(named: str | None) -> dict[str, Any]:
            policy, span = self.policy_of(named, window)
            pages, view = self._shown(policy, span)
            measured = self._measured(policy, span, pages, view)
            if kind == "host":
                best = _best_sites(pages, view, pages.sites, n)
                rows = [{"host": pages.hosts[number], **counts, **measured} for number, counts in best]
                return {"hosts": rows, "as_of": pages.as_of}
            sites, names, hosts = pages.domains
            best = _best_sites(pages, view, sites, n)
            rows = [
                {"domain": names[number], **counts, "hosts": int(hosts[number]), **measured} for number, counts in best
            ]
            return {"domains": rows, "as_of": pages.as_of}

        return self.answered(policy, ask)

    def stats(self) -> dict[str, object]:
        """Return the current counts.

        `error_bound`, that of the default policy, is left out if it says nothing, `granted_rounds` under the continuous
        payout, and `sweeps_left` until a read has moved cash.
        """
        parts, rules = self.crawl.books(), self.crawl.rules
        books = Books.merged(parts, rules)
        policy, bound = self.default_bound(parts, books)
        left = books.sweeps_left(rules)
        return {
            "known_pages": books.live,
            "gone_pages": books.gone,
            "read_pages": books.open,
            "clock": books.clock,
            "rounds": books.rounds / (1 << ROUND_BITS),
            "reads": books.reads,
            "failures": books.failures,
            "departures": books.departures,
            "exclusions": books.exclusions,
            "links": books.links,
            "bad_links": books.bad_links,
            "dead_letters": books.dead_letters,
            "policy": policy,
            **({} if bound is None else {"error_bound": bound}),
            "pool": books.pool,
            **({} if rules.continuous else {"granted_rounds": books.credit / rules.grant}),
            **({} if left is None else {"sweeps_left": left}),
            "version": books.version,
            "shards": len(self.crawl),
        }

    def _measured(
        self, policy: str, span: Window | None, pages: Snapshot | ExactView, view: View | None
    ) -> dict[str, object]:
        """Return the fields that say how importance was estimated, with the error bound of the policy that did."""
        bound = self.bound_of(pages, view)
        told = {"policy": policy, "window": span and span.shown(), **terms_of(view)}
        return told if bound is None else told | {"error_bound": bound}

    def bound_of(self, pages: Snapshot | ExactView, view: View | None) -> float | None:
        """Return the bound on the error of a view, or of the static estimates of a snapshot; None if there is none."""
        if isinstance(view, ExactView):
            return view.bound
        if view is not None or isinstance(pages, ExactView):
            return None
        return self.error_bound([part.books for part in pages.parts])

    def audit(self) -> dict[str, object]:
        """Recount the books: `minted = pages + virtual + in_flight`, in grains, for the crawl and for each shard.

        A shard's numbers are of one instant. Its `in_flight` is what it sent to other shards minus what it received.
        """
        whole, parts = self.crawl.audit()
        shards = [{"shard": n, **_grains(part), "mismatches": list(part.mismatches)} for n, part in enumerate(parts)]
        return {**_grains(whole), "shards": shards}


def check_count(n: int, item: str) -> None:
    """Check that at least one item is requested.

    Raises:
        BadInput: `n` is less than 1.
    """
    if n < 1:
        raise BadInput(f"n={n}: ask for at least one {item}")


def _best_sites(
    pages: Snapshot | ExactView, view: View | None, sites: Sites, n: int
) -> list[tuple[int, dict[str, object]]]:
    """Return the numbers of the `n` most important sites, descending, each with its importance and page counts."""
    sums = sites.sums(pages.scores if view is None else view.scores)
    best = sites.order[largest(sums[sites.order], n)]
    total = pages.total if view is None else 1.0
    columns = (best, sums[best], sites.pages[best], sites.read_pages[best])
    return [
        (number, {"importance": min(score / total, 1.0), "pages": pages, "read_pages": read})
        for number, score, pages, read in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _grains(audit: BooksAudit) -> dict[str, object]:
    sums = {"minted": audit.minted, "pages": audit.pages, "virtual": audit.virtual, "in_flight": audit.in_flight}
    return {**sums, "conserved": audit.conserved}
