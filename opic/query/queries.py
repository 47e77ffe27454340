"""Queries: importance of pages, top pages and hosts, page history, statistics and audit.

A single page is read from a replica that has just caught up, so its numbers are current; on a large store, which a
thread follows, they are as of a moment ago (`RECENT_SECONDS` in `opic.replica.crawl`). Anything that needs all pages
(the top, a rank) is computed from a snapshot: exact on a small or idle store, at most a second old on a large busy one.
With several shards, each shard is read at its own journal position: cash that moves between shards during an answer may
be missing from it or counted twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from opic.errors import BadInput, NotKept, SettingsError, StoreError
from opic.model import windows
from opic.model.books import Books, BooksAudit
from opic.model.cash import ROUND_BITS
from opic.model.crawl_books import grants_due_of, same_weights
from opic.model.series import Window
from opic.query.exact import BoundedView, Exact, ExactView
from opic.query.exact_pages import TOPS_KEPT_MAX, LatestExactPages
from opic.query.host_index import Sites
from opic.query.kept_links import NOT_KEPT
from opic.query.page_entries import EXACT, entries_of, measures_of, times_of, use_exact, use_window
from opic.query.rankings import Ranking, View, largest
from opic.query.snapshots import Snapshot, Snapshots
from opic.query.top_pages import best_pages
from opic.replica import Crawl
from opic.replica.crawl import Outdated, Place, Rows
from opic.urls.canonical import URL_BYTES_MAX, canonical_host, canonical_url, shown

T = TypeVar("T")
POLICIES = (EXACT, *windows.POLICIES)
WINDOW_ROUNDS = 8.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One caller's request for the importance of pages; see `Query.importance`."""

    urls: Sequence[str]
    policy: str | None = None
    window: float | str | None = None


@dataclass(frozen=True, slots=True)
class ImportanceAnswer:
    """The answer to one caller."""

    pages: list[dict[str, object] | None]
    as_of: float  # Unix seconds; no value is older than this,
    rank_as_of: float | None  # except the ranks, which are as of this time if it is not None.


@dataclass(frozen=True, slots=True)
class _Taken:
    """A validated request, with the URLs in canonical form."""

    urls: list[str]
    policy: str
    span: Window | None


class Query:
    """Answers queries about a crawl."""

    def __init__(
        self,
        crawl: Crawl,
        snapshots: Snapshots,
        url_bytes_max: int = URL_BYTES_MAX,
        policy: str | None = None,
        window_rounds: float = WINDOW_ROUNDS,
        *,
        exact: Exact | None = None,
    ) -> None:
        """Answer from an open crawl and its snapshots; `policy` and `window_rounds` are the defaults of requests.

        If `policy` is None, it is exact where links are kept. Else, and while they are still being read, it depends on
        the store's payout: static under grants, interpolation otherwise.

        Raises:
            SettingsError: the store keeps too few measures for the policy.
        """
        self.crawl, self.snapshots, self.url_bytes_max = crawl, snapshots, url_bytes_max
        self._policy = policy
        self.by_cash = (
            policy if policy not in (None, EXACT) else "interpolation" if crawl.rules.continuous else "static"
        )
        self.window_rounds, self.exact = window_rounds, exact
        self.exact_pages = LatestExactPages(snapshots, lambda further: self.exact_view(further=further))
        try:
            windows.check_measures(self.by_cash, crawl.rules.measures_max)
        except BadInput as error:
            raise SettingsError(f"OPIC_POLICY: {error}") from None

    def canonical(self, url: str) -> str:
        """Return the canonical form of a URL in this crawl.

        Raises:
            BadUrl: see `canonical_url`.
        """
        return canonical_url(url, self.url_bytes_max, self.crawl.rules.normalization)

    @property
    def policy(self) -> str:
        """The policy of requests that name none."""
        if self._policy is None and self.exact is not None and self.exact.usable():
            return EXACT
        return self._policy or self.by_cash

    def answered(self, policy: str | None, ask: Callable[[str | None], T]) -> T:
        """Return `ask(policy)`, or what it returns from cash if no policy was named and links are not kept any more."""
        try:
            return ask(policy)
        except NotKept:
            if policy is not None:
                raise
            return ask(self.by_cash)

    def exact_view(self, *, further: bool = False, since: float | None = None) -> ExactView:
        """Return the exact importance; see `Exact.view`.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: as `Exact.view`.
        """
        if self.exact is None:
            raise NotKept(NOT_KEPT)
        return self.exact.view(further=further, since=since)

    def as_of(self, policy: str | None = None) -> float:
        """Return a time (Unix seconds): answers by a policy from now on show a state that is no older."""
        policy = self.policy if policy is None else policy
        if policy == EXACT:
            return self.exact_pages.latest().as_of
        return (self.snapshots.fresh() if policy == "static" else self.snapshots.picked()).as_of

    def never_seen(self, url: str) -> str:
        """Return the message for a page that is not known."""
        return f"{self.canonical(url)} was never seen: neither fetched, nor linked to, nor a seed"

    def importance(
        self, urls: Sequence[str], policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object] | None]:
        """Estimate the importance of pages.

        Exact policy: PageRank of the known graph as last crawled, within the "error_bound". Static policy: (H + C) /
        sum of H + C over live pages, computed in integers and rounded once, from the current state; the rank is from a
        snapshot, up to a second older on a large busy store. Window policies: as defined in `opic.model.windows`, from
        a snapshot, since each page's share depends on all pages' measures. Cash and reads are current under every
        policy.

        Args:
            urls: any number, in any form; each batch of 2,000 is read at one instant in each shard.
            policy: one of POLICIES; that of OPIC_POLICY if None.
            window: for the window policies: a number of rounds, or a duration like "30d" or "12h" before the last
                record; OPIC_WINDOW_ROUNDS if None. A round is the clock advancing by one grant for every live page, or,
                under the continuous payout, by all cash; `opic.model.series` converts durations to clock values.

        Returns:
            For each URL its entry as the public contract defines it, or None for a page never seen. A gone page has
            importance 0 and no rank, and its cash may be negative, because it has given its grants back.

        Raises:
            BadUrl: one of the URLs is invalid.
            BadInput: the policy or the window is invalid, or the store keeps too few measures for it.
        """
        (answer,) = self.importances([Ask(urls, policy, window)])
        if isinstance(answer, Exception):
            raise answer
        return answer.pages

    def importances(self, asks: Sequence["Ask"]) -> list["ImportanceAnswer | Exception"]:
        """Answer several `importance` requests together; a page in several of them has the same values in all answers.

        Costs one round trip for all requests, and more if the replicas were far behind.

        Returns:
            For each request its answer, or the BadInput that `importance` would raise.
        """
        asked_at = self.crawl.recent()
        taken: list[_Taken | BadInput] = []
        for ask in asks:
            try:
                policy, span = self.policy_of(ask.policy, ask.window)
                taken.append(_Taken([self.canonical(url) for url in ask.urls], policy, span))
            except BadInput as error:
                taken.append(error)
        answers = self.crawl.steadily(lambda: self._answers(taken, asked_at))
        for at, (ask, answer) in enumerate(zip(asks, answers, strict=True)):
            if isinstance(answer, NotKept) and ask.policy is None:  # The keeping of links ended meanwhile.
                (answers[at],) = self.importances([replace(ask, policy=self.by_cash)])
        return answers

    def importances_at_hand(self, asks: Sequence[Ask]) -> list[ImportanceAnswer | Exception | None]:
        """Answer requests about a few pages from what is in memory, without waiting; None where that can't be done.

        An answer is one that `importances` might give. It takes some .2 ms, and 20 us a page.
        """
        taken: list[_Taken | BadInput | None] = []
        view = self.exact.young() if self.exact is not None else None
        for ask in asks:
            policy = ask.policy or self._policy
            if policy is None:
                policy = EXACT if view is not None else None if self.exact and self.exact.kept else self.by_cash
            if policy is None or not (policy == "static" or (policy == EXACT and view is not None)):
                taken.append(None)
                continue
            try:
                taken.append(_Taken([self.canonical(url) for url in ask.urls], policy, None))
            except BadInput as error:
                taken.append(error)
        nothing: list[ImportanceAnswer | Exception | None] = [
            one if isinstance(one, Exception) else None for one in taken
        ]
        try:
            with self.crawl.at_hand() as free:
                return self._at_hand(taken, view) if free else nothing
        except (Outdated, StoreError):
            return nothing

    def _at_hand(
        self, taken: Sequence["_Taken | BadInput | None"], view: ExactView | None
    ) -> list[ImportanceAnswer | Exception | None]:
        valid = [ask for ask in taken if isinstance(ask, _Taken)]
        urls = list(dict.fromkeys(url for ask in valid for url in ask.urls))
        places = {url: place for url, place in zip(urls, self.crawl.find(urls), strict=True) if place is not None}
        rows = self.crawl.rows(list(places.values()))
        by_cash = any(ask.policy != EXACT for ask in valid)
        ranking = self.snapshots.ranking_at_hand(rows) if by_cash else None
        told = not any(part.cuts for part in rows.books)
        entries = self.entries(places, rows, ranking) if told else {}
        answers: list[ImportanceAnswer | Exception | None] = []
        for ask in taken:
            if not isinstance(ask, _Taken) or any(url not in entries for url in ask.urls):
                answers.append(ask if isinstance(ask, Exception) else None)
            elif ask.policy == EXACT and view is not None:
                own = {url: dict(entries[url]) for url in ask.urls}
                use_exact({places[url]: entry for url, entry in own.items()}, view, self.crawl.loads)
                answers.append(ImportanceAnswer([own[url] for url in ask.urls], min(rows.as_of, view.as_of), None))
            elif ranking is not None:
                answers.append(ImportanceAnswer([entries[url] for url in ask.urls], *times_of(rows, ranking)))
            else:
                answers.append(None)
        return answers

    def _answers(self, taken: Sequence["_Taken | BadInput"], asked_at: float) -> list["ImportanceAnswer | Exception"]:
        valid = [ask for ask in taken if isinstance(ask, _Taken)]
        urls = list(dict.fromkeys(url for ask in valid for url in ask.urls))
        # Ranks by cash cost a sort of all pages.
        by_cash = any(ask.policy != EXACT for ask in valid)
        entries, places, as_of, rank_as_of = self._look(urls) if by_cash else self._look_by_links(urls, asked_at)
        exact = self._exact_for_all(valid, asked_at)
        answers: list[ImportanceAnswer | Exception] = []
        for ask in taken:
            if not isinstance(ask, _Taken):
                answers.append(ask)
                continue
            own, then, ranked = {url: entries[url] for url in ask.urls if url in entries}, as_of, rank_as_of
            if ask.policy == EXACT:
                if not isinstance(exact, ExactView):
                    answers.append(exact)
                    continue
                own = {url: dict(entry) for url, entry in own.items()}
                use_exact({places[url]: entry for url, entry in own.items()}, exact, self.crawl.loads)
                then, ranked = min(then, exact.as_of), None
            elif ask.span is not None:
                own = {url: {**entry, "policy": ask.policy, "window": ask.span.shown()} for url, entry in own.items()}
                snapshot, view = self.snapshots.view(ask.policy, ask.span)
                then, ranked = min(then, snapshot.as_of), None
                if own:
                    use_window({places[url]: entry for url, entry in own.items()}, snapshot, view)
            answers.append(ImportanceAnswer([own.get(url) for url in ask.urls], then, ranked))
        return answers

    def _exact_for_all(self, asks: Sequence["_Taken"], asked_at: float) -> "ExactView | NotKept | StoreError":
        """Return the one view that all these requests are answered from, or why they can't be."""
        if not any(ask.policy == EXACT for ask in asks):
            return NotKept(NOT_KEPT)
        try:
            return self.exact_view(since=asked_at)
        except (NotKept, StoreError) as error:
            return error

    def _look_by_links(
        self, urls: Sequence[str], asked_at: float
    ) -> tuple[dict[str, dict[str, object]], dict[str, Place], float, float | None]:
        """As `_look`, for answers by links alone: without importance and ranks."""
        looked_up, rows = self.crawl.look(urls, asked_at)
        places = {url: place for url, place in zip(urls, looked_up, strict=True) if place is not None}
        return self.entries(places, rows, None), places, rows.as_of, None

    def _look(self, urls: Sequence[str]) -> tuple[dict[str, dict[str, object]], dict[str, Place], float, float | None]:
        """Read distinct pages by their canonical URLs.

        Returns:
            The entries of the known pages under the static policy; their places; a time that none of this is older
            than; and the time of the ranks, if that is another one.
        """
        looked_up, rows, ranking = self.snapshots.beside(lambda: self.crawl.look(urls, self.crawl.recent()))
        places = {url: place for url, place in zip(urls, looked_up, strict=True) if place is not None}
        as_of, rank_as_of = times_of(rows, ranking)
        return self.entries(places, rows, ranking), places, as_of, rank_as_of

    def entries(self, places: dict[str, Place], rows: Rows, ranking: Ranking | None) -> dict[str, dict[str, object]]:
        """Return the static entries of known pages by URL; see `entries_of`."""
        books = Books.merged(rows.books, self.crawl.rules)
        names = self.class_names() if any(books.known_by) else {}
        bound = self.error_bound(rows.books)
        return entries_of(places, rows, ranking, books=books, rules=self.crawl.rules, bound=bound, names=names)

    def class_names(self) -> dict[int, str]:
        """Return the name of each class by its slot, from the replicas."""
        return {slot: page_class.name for slot, page_class in self.crawl.replicas[0].classes.placed}

    def history(self, url: str) -> dict[str, object] | None:
        """Return the current last measures of a page, oldest first, or None for a page never seen.

        A measure is a read: the clock after it, the grains it spent, and the time of the fetch (Unix seconds).

        Raises:
            BadUrl: the URL is invalid.
        """
        canonical = self.canonical(url)
        (place,), rows = self.crawl.look([canonical])
        if place is None:
            return None
        return {"url": canonical, "measures": measures_of(rows)}

    def top(
        self, n: int = 100, domain: str | None = None, policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object]]:
        """Return the first pages of `top_from`."""
        pages: list[dict[str, object]] = self.top_from(n, domain, policy, window)["pages"]
        return pages

    def top_from(
        self,
        n: int = 100,
        domain: str | None = None,
        policy: str | None = None,
        window: float | str | None = None,
        after: str | None = None,
    ) -> dict[str, Any]:
        """Return the most important live pages, descending; ties by shard, then by order of first sight.

        Importance, rank and cash are from one snapshot. The number of reads is from the time of the first such query on
        this snapshot; the same query on the same snapshot returns the same cached answer.

        Args:
            n: maximum number of pages.
            domain: only pages of this host or domain and its subdomains; ranks are still among all pages.
            policy: as in `importance`.
            window: as in `importance`.
            after: go on here: the "next" of the answer before; see `opic.query.top_pages`.

        Returns:
            "pages"; "next", if there are more; and "as_of", a time (Unix seconds) that no value is older than.

        Raises:
            BadInput: a parameter is invalid.
        """
        check_count(n, "page")
        within = None if domain is None else canonical_host(domain)
        return self.answered(policy, lambda named: self._top(n, within, after, *self.policy_of(named, window)))

    def _top(self, n: int, within: str | None, after: str | None, policy: str, span: Window | None) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            if policy == EXACT:
                return self.exact_pages.latest(further=True).top(n, within, after)
            snapshot, view = self._shown(policy, span)
            tops: dict[object, dict[str, Any]] = snapshot.kept.setdefault("tops", {})
            answer = tops.get(key := (n, within, after, policy, span))
            if answer is None:
                measured = self._measured(policy, span, snapshot, view)
                answer = best_pages(snapshot, view, n, within, after)
                answer["pages"] = [{**page, **measured} for page in answer["pages"]]
                if len(tops) >= TOPS_KEPT_MAX:
                    tops.clear()
                tops[key] = answer
            return answer

        return self.crawl.steadily(ask)

    def _shown(self, policy: str, span: Window | None) -> tuple[Snapshot, View | None]:
        """Return the snapshot for answers about all pages, and its view under a window policy; None for static."""
        if policy == EXACT:
            shown = self.exact_pages.latest()
            return shown.snapshot, shown.view
        return (self.snapshots.fresh(), None) if span is None else self.snapshots.view(policy, span)

    def hosts(
        self, n: int = 100, policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object]]:
        """Return the most important hosts, descending; ties by the first page seen of each host.

        A host's importance is the sum of the importance of its live pages: the site importance of Abiteboul, Preda,
        Cobena (2003), section 4.3. Over all hosts it sums to 1. Hosts without live pages are left out.

        Args:
            n: maximum number of hosts.
            policy: as in `importance`.
            window: as in `importance`.

        Returns:
            For each host: "host", "importance", "pages" (known, not gone) and "read_pages".

        Raises:
            BadInput: a parameter is invalid.
        """
        check_count(n, "host")
        return self.answered(policy, lambda named: self._hosts(n, *self.policy_of(named, window)))

    def _hosts(self, n: int, policy: str, span: Window | None) -> list[dict[str, object]]:
        snapshot, view = self._shown(policy, span)
        best = _best_sites(snapshot, view, snapshot.sites, n)
        measured = self._measured(policy, span, snapshot, view)
        return [{"host": snapshot.hosts[number], **counts, **measured} for number, counts in best]

    def domains(
        self, n: int = 100, policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object]]:
        """Return the most important registered domains, descending; ties by the first page seen of each.

        As `hosts`, with the pages of all hosts of a domain; these may be in several shards. "hosts" is how many of them
        have live pages. A host that has no registered domain (an address, a name of one label) stands for itself.

        Raises:
            BadInput: a parameter is invalid.
        """
        check_count(n, "domain")
        return self.answered(policy, lambda named: self._domains(n, *self.policy_of(named, window)))

    def _domains(self, n: int, policy: str, span: Window | None) -> list[dict[str, object]]:
        snapshot, view = self._shown(policy, span)
        sites, names, hosts = snapshot.domains
        best = _best_sites(snapshot, view, sites, n)
        measured = self._measured(policy, span, snapshot, view)
        return [{"domain": names[at], **counts, "hosts": int(hosts[at]), **measured} for at, counts in best]

    def stats(self) -> dict[str, object]:
        """Return the current counts.

        `error_bound` is left out if it says nothing, `granted_rounds` under the continuous payout, and `sweeps_left`
        until a read has moved cash.
        """
        parts, rules = self.crawl.books(), self.crawl.rules
        books, bound = Books.merged(parts, rules), self.error_bound(parts)
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
            **({} if bound is None else {"error_bound": bound}),
            "pool": books.pool,
            **({} if rules.continuous else {"granted_rounds": books.credit / rules.grant}),
            **({} if left is None else {"sweeps_left": left}),
            "version": books.version,
            "shards": len(self.crawl),
        }

    def error_bound(self, parts: Sequence[Books]) -> float | None:
        """Return the bound on the static estimate's error, from the shards' books, or None if it says nothing.

        It is None under the continuous payout, and while new weights are on their way to some of the shards. It is
        also None once a weight was cut, on a store that changes faster
        than its snapshots: what pages owe is not in any total, and a snapshot's sum of it is then of another instant.
        """
        rules, debt = self.crawl.rules, 0
        if rules.continuous or not same_weights(parts):
            return None
        books = Books.merged(parts, rules)
        if books.cuts:
            snapshot = self.snapshots.fresh()
            if [part.books for part in snapshot.parts] != list(parts):
                return None
            debt = snapshot.debt
        bound = books.error_bound(rules.minted, rules.q, debt, grants_due_of(parts))
        return bound if bound < 2 else None

    def _measured(self, policy: str, span: Window | None, snapshot: Snapshot, view: View | None) -> dict[str, object]:
        """Return the fields that say how importance was estimated, with the error bound of the policy that did."""
        bound = self.error_bound([part.books for part in snapshot.parts]) if view is None else None
        if isinstance(view, BoundedView):
            bound = view.bound
        return {"policy": policy, "window": span and span.shown(), **({} if bound is None else {"error_bound": bound})}

    def audit(self) -> dict[str, object]:
        """Recount the books: `minted = pages + virtual + in_flight`, in grains, for the crawl and for each shard.

        A shard's numbers are of one instant. Its `in_flight` is what it sent to other shards minus what it received.
        """
        whole, parts = self.crawl.audit()
        shards = [{"shard": n, **_grains(part), "mismatches": list(part.mismatches)} for n, part in enumerate(parts)]
        return {**_grains(whole), "shards": shards}

    def policy_of(self, policy: str | None, window: float | str | None) -> tuple[str, Window | None]:
        """Resolve a policy and its window, applying the defaults; the static policy has no window."""
        policy = self.policy if policy is None else policy
        if policy not in POLICIES:
            raise BadInput(f"policy={shown(policy)} is none of {', '.join(POLICIES)}")
        span = Window.parse(self.window_rounds if window is None else window)
        if policy in (EXACT, "static"):
            return policy, None
        windows.check_measures(policy, self.crawl.rules.measures_max)
        return policy, span


def check_count(n: int, of: str) -> None:
    """Check that at least one item is requested.

    Raises:
        BadInput: `n` is less than 1.
    """
    if n < 1:
        raise BadInput(f"n={n}: ask for at least one {of}")


def _best_sites(snapshot: Snapshot, view: View | None, sites: Sites, n: int) -> list[tuple[int, dict[str, object]]]:
    """Return the numbers of the `n` most important sites, descending, each with its importance and page counts."""
    sums = sites.sums(snapshot.scores if view is None else view.scores)
    best = sites.order[largest(sums[sites.order], n)]
    total = snapshot.total if view is None else 1.0
    columns = (best, sums[best], sites.pages[best], sites.read_pages[best])
    return [
        (number, {"importance": min(score / total, 1.0), "pages": pages, "read_pages": read})
        for number, score, pages, read in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _grains(audit: BooksAudit) -> dict[str, object]:
    sums = {"minted": audit.minted, "pages": audit.pages, "virtual": audit.virtual, "in_flight": audit.in_flight}
    return {**sums, "conserved": audit.conserved}
