"""Queries about pages that are named: their importance and history.

A page is read from a replica that has just caught up, so its numbers are current, or as of a moment ago
(`opic.replica.upkeep`). Ranks and the estimates of window policies are computed from a snapshot. With several shards,
each shard is read at its own journal position: cash that moves between shards during an answer may be missing from it
or counted twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from opic.errors import BadInput, NotKept, SettingsError, StoreError
from opic.graph.flow import BOUND_MAX
from opic.model import windows
from opic.model.books import Books
from opic.model.crawl_books import grants_due_of, same_weights
from opic.model.series import NO_WINDOW, Window
from opic.query.exact import Exact
from opic.query.exact_view import ExactView
from opic.query.kept_links import NOT_KEPT
from opic.query.loaded import LOADED
from opic.query.page_entries import (
    EXACT,
    entries_of,
    live_positions,
    measures_of,
    times_of,
    use_exact,
    use_window,
)
from opic.query.rankings import Ranking
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.replica.crawl import Outdated, Place, Rows
from opic.urls.canonical import URL_BYTES_MAX, canonical_url, shown

T = TypeVar("T")
POLICIES = (EXACT, *windows.POLICIES, LOADED)
BOUNDED = (EXACT, "static")  # Those with a bound on the error; static under grants only.
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


@dataclass(frozen=True, slots=True)
class _Looked:
    """Pages that were looked up together; those never seen, or forgotten, are left out."""

    entries: dict[str, dict[str, object]]  # By URL, under the static policy: without a ranking, for links alone.
    places: dict[str, Place]
    as_of: float  # No value is older than this,
    rank_as_of: float | None  # except the ranks, if this is not None.

    def static(self, urls: Sequence[str]) -> ImportanceAnswer:
        return ImportanceAnswer([self.entries.get(url) for url in urls], self.as_of, self.rank_as_of)

    def exact(
        self, urls: Sequence[str], view: ExactView, loads: list[int], forgotten: Mapping[str, Place]
    ) -> ImportanceAnswer:
        """Return the exact answer.

        Args:
            urls: of the pages.
            view: the exact importance, as of an earlier moment than the entries.
            loads: the load counts of the replicas.
            forgotten: places of pages that are not told of: what importance the view has for them counts in the bound.
        """
        own = {url: dict(self.entries[url]) for url in urls if url in self.entries}
        if lost := sum(view.share(forgotten[url]) or 0.0 for url in urls if url in forgotten):
            view = view.without(lost)
        use_exact({self.places[url]: entry for url, entry in own.items()}, view, loads)
        return ImportanceAnswer([own.get(url) for url in urls], min(self.as_of, view.as_of), None)

    def windowed(self, urls: Sequence[str], policy: str, span: Window, snapshots: Snapshots) -> ImportanceAnswer:
        said = {"policy": policy, "window": span.shown()}
        own = {url: {**self.entries[url], **said} for url in urls if url in self.entries}
        snapshot, view = snapshots.view(policy, span)
        if own:
            use_window({self.places[url]: entry for url, entry in own.items()}, snapshot, view)
        return ImportanceAnswer([own.get(url) for url in urls], min(self.as_of, snapshot.as_of), None)


class PageQuery:
    """Answers queries about named pages of a crawl."""

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
        own = policy not in (None, EXACT, LOADED)
        self._by_cash = str(policy) if own else "interpolation" if crawl.rules.continuous else "static"
        self.window_rounds, self.exact = window_rounds, exact
        self._default_exact = exact if policy in (None, EXACT) else None  # Where that is the default policy.
        try:
            windows.check_measures(self._by_cash, crawl.rules.measures_max)
        except BadInput as error:
            raise SettingsError(f"OPIC_POLICY: {error}") from None

    def canonical(self, url: str) -> str:
        """Return the canonical form of a URL in this crawl.

        Raises:
            BadUrl: see `canonical_url`.
        """
        return canonical_url(url, self.url_bytes_max, self.crawl.rules.normalization)

    @property
    def by_cash(self) -> str:
        """The default policy where that is not exact: by cash, or loaded where that is set and something was loaded."""
        wanted = self._policy == LOADED and self.snapshots.loaded.usable()
        return LOADED if wanted else self._by_cash

    @property
    def policy(self) -> str:
        """The policy of requests that name none."""
        if self._policy is None and self.exact is not None and self.exact.usable():
            return EXACT
        return EXACT if self._policy == EXACT else self.by_cash

    def shares(self, places: Sequence[Place]) -> tuple[str, list[float | None]]:
        """Return the default policy and the importance of pages by it, as of what is in memory, or a moment later.

        None for pages whose history and cash tell it: all under the static policy, which also answers while links are
        still being read; under window policies those that became known since the last snapshot.
        """
        if self._default_exact is not None and (told := self._default_exact.told_of(places)) is not None:
            # Of a page that is newer still, the least that it can have.
            return EXACT, [
                (told.share(shard_page) or 0.0) if told.knows(shard_page) else told.jump for shard_page in places
            ]
        if (policy := self.by_cash) == "static":
            return policy, [None] * len(places)
        policy, span = self.policy_of(policy, None)
        assert span is not None
        snapshot, view = self.snapshots.view(policy, span)
        known = live_positions(places, snapshot, view)
        return policy, [None if position is None else float(view.estimates[position]) for position in known]

    def default_bound(self, parts: Sequence[Books], whole: Books | None = None) -> tuple[str, float | None]:
        """Return the default policy and the bound on the error of its estimates, as of what is in memory.

        None if it has none, or that says nothing. The arguments are those of `error_bound`.
        """
        if self._default_exact is not None and (exact := self._default_exact.told()) is not None:
            return EXACT, exact.bound if exact.bound < BOUND_MAX else None
        return self.by_cash, self.error_bound(parts, whole) if self.by_cash == "static" else None

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

    def never_seen(self, url: str) -> str:
        """Return the message for a page that is not known."""
        return f"{self.canonical(url)} was never seen: neither fetched, nor linked to, nor a seed"

    def importance(
        self, urls: Sequence[str], policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object] | None]:
        """Estimate the importance of pages.

        Exact policy: PageRank of the known graph as last crawled, within the "error_bound". Importance, rank and
        whether a page is gone are those of one state; a page newer than that has importance 0. Static policy: (H + C)
        / sum of H + C over live pages, computed in integers and rounded once, from the current state; the rank is from
        a snapshot, which may be up to a second older. Window policies: as defined in `opic.model.windows`,
        from a snapshot, since each page's share depends on all pages' measures. Cash and reads are current under every
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

    def importances(self, asks: Sequence[Ask]) -> list[ImportanceAnswer | Exception]:
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
        for index, (ask, answer) in enumerate(zip(asks, answers, strict=True)):
            if isinstance(answer, NotKept) and ask.policy is None:  # The keeping of links ended in the meantime.
                (answers[index],) = self.importances([replace(ask, policy=self.by_cash)])
        return answers

    def importances_at_hand(self, asks: Sequence[Ask]) -> list[ImportanceAnswer | Exception | None]:
        """Answer requests about a few pages from what is in memory, without waiting; None where that can't be done.

        An answer is one that `importances` might give. It takes some .2 ms, and 20 us a page.
        """
        nothing: list[ImportanceAnswer | Exception | None] = [None] * len(asks)
        try:
            return self.crawl.undisturbed(lambda: self._at_hand(asks)) or nothing
        except (Outdated, StoreError):
            return nothing

    def _at_hand(self, asks: Sequence[Ask]) -> list[ImportanceAnswer | Exception | None]:
        taken: list[_Taken | BadInput | None] = []
        view = self.exact.at_hand() if self.exact is not None else None
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
        valid = [ask for ask in taken if isinstance(ask, _Taken)]
        urls = _distinct(valid)
        places = _known(urls, self.crawl.find(urls, locked=False))
        rows = self.crawl.rows(list(places.values()), locked=False)
        ranking = self.snapshots.ranking_at_hand(rows) if any(ask.policy != EXACT for ask in valid) else None
        answers: list[ImportanceAnswer | Exception | None] = []
        if any(part.cuts for part in rows.books):  # What pages owe is not at hand.
            return [ask if isinstance(ask, Exception) else None for ask in taken]
        looked = self._looked(places, rows, ranking)
        for request in taken:
            if not isinstance(request, _Taken) or any(url not in looked.entries for url in request.urls):
                answers.append(request if isinstance(request, Exception) else None)
            elif request.policy == EXACT and view is not None:
                answers.append(looked.exact(request.urls, view, self.crawl.loads, {}))
            else:
                answers.append(looked.static(request.urls) if ranking is not None else None)
        return answers

    def _answers(self, taken: Sequence[_Taken | BadInput], asked_at: float) -> list[ImportanceAnswer | Exception]:
        valid = [ask for ask in taken if isinstance(ask, _Taken)]
        exact, urls = self._exact_for_all(valid, asked_at), _distinct(valid)
        places, rows = self.crawl.find_rows(urls, asked_at)
        by_cash = any(ask.policy != EXACT for ask in valid)  # Its ranks cost a sort of all pages.
        looked = self._looked(_known(urls, places), rows, self.snapshots.ranking_of(rows) if by_cash else None)
        forgotten: dict[str, Place] = {}
        if isinstance(exact, ExactView) and (missing := [url for url in urls if url not in looked.places]):
            forgotten = _known(missing, self.crawl.find(missing, forgotten=True))
        answers: list[ImportanceAnswer | Exception] = []
        for ask in taken:
            if not isinstance(ask, _Taken):
                answers.append(ask)
            elif ask.policy == EXACT:
                if isinstance(exact, ExactView):
                    answers.append(looked.exact(ask.urls, exact, self.crawl.loads, forgotten))
                else:
                    answers.append(exact)
            elif ask.span is not None:
                try:
                    answers.append(looked.windowed(ask.urls, ask.policy, ask.span, self.snapshots))
                except NotKept as error:  # Nothing was loaded.
                    answers.append(error)
            else:
                answers.append(looked.static(ask.urls))
        return answers

    def _looked(self, places: dict[str, Place], rows: Rows, ranking: Ranking | None) -> _Looked:
        """Return what rows say of pages; without a ranking, by links alone: no importance, no ranks."""
        return _Looked(self.entries(places, rows, ranking), places, *times_of(rows, ranking))

    def entries(self, places: dict[str, Place], rows: Rows, ranking: Ranking | None) -> dict[str, dict[str, object]]:
        """Return the static entries of known pages by URL; see `entries_of`."""
        books = Books.merged(rows.books, self.crawl.rules)
        bound = self.error_bound(rows.books, books)
        terms: dict[str, object] = {
            "policy": "static",
            "window": None,
            "teleport": "weighted" if books.weighted else "uniform",
        }
        if bound is not None:
            terms["error_bound"] = bound
        total = books.static_total(self.crawl.rules.minted, ranking.overdrawn if ranking else 0)
        names = self.class_names() if any(books.known_by) else {}
        return entries_of(places, rows, ranking, total=total, terms=terms, names=names)

    def _exact_for_all(self, asks: Sequence[_Taken], asked_at: float) -> ExactView | NotKept | StoreError:
        """Return the one view that all these requests are answered from, or why they can't be."""
        if not any(ask.policy == EXACT for ask in asks):
            return NotKept(NOT_KEPT)
        try:
            return self.exact_view(since=asked_at)
        except (NotKept, StoreError) as error:
            return error

    def class_names(self) -> dict[int, str]:
        """Return the name of each class by its slot, from the replicas."""
        return self.crawl.replicas[0].classes.names

    def history(self, url: str) -> dict[str, object] | None:
        """Return the current last measures of a page, oldest first, or None for a page never seen.

        A measure is a read: the clock after it, the grains it spent, and the time of the fetch (Unix seconds).

        Raises:
            BadUrl: the URL is invalid.
        """
        canonical = self.canonical(url)
        (shard_page,), rows = self.crawl.steadily(lambda: self.crawl.find_rows([canonical]))
        return None if shard_page is None else {"url": canonical, "measures": measures_of(rows)}

    def error_bound(self, parts: Sequence[Books], whole: Books | None = None) -> float | None:
        """Return the bound on the static estimate's error, from the shards' books, or None if it says nothing.

        Callers that have merged the books give them as `whole`.
        It is None under the continuous payout, and while new weights are on their way to some of the shards. It is
        also None once a weight was cut, on a store that changes faster than its snapshots: what pages owe is not in any
        total, and a snapshot's sum of it is then of another instant.
        """
        rules, debt = self.crawl.rules, 0
        if rules.continuous or not same_weights(parts):
            return None
        books = whole or Books.merged(parts, rules)
        if books.cuts:
            snapshot = self.snapshots.fresh()
            if [part.books for part in snapshot.parts] != list(parts):
                return None
            debt = snapshot.debt
        bound = books.error_bound(rules.minted, rules.q, debt, grants_due_of(parts))
        return bound if bound < BOUND_MAX else None

    def policy_of(self, policy: str | None, window: float | str | None) -> tuple[str, Window | None]:
        """Resolve a policy and its window, applying the defaults; the static policy has no window."""
        policy = self.policy if policy is None else policy
        if policy not in POLICIES:
            raise BadInput(f"policy={shown(policy)} is not one of {', '.join(POLICIES)}")
        span = Window.parse(self.window_rounds if window is None else window)
        if policy in (EXACT, "static"):
            return policy, None
        if policy == LOADED:
            return policy, NO_WINDOW
        windows.check_measures(policy, self.crawl.rules.measures_max)
        return policy, span


def _distinct(asks: Sequence[_Taken]) -> list[str]:
    return list(dict.fromkeys(url for ask in asks for url in ask.urls))


def _known(urls: Sequence[str], places: Sequence[Place | None]) -> dict[str, Place]:
    return {url: shard_page for url, shard_page in zip(urls, places, strict=True) if shard_page is not None}
