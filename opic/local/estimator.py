"""The local-domain estimator: fetches outside pages, and ranks the local pages by their PageRank in the whole web.

A round selects k outside pages, fetches and publishes them. All that a round depends on is in the journal, so an
estimator that was killed resumes: it fetches the rest of the pages that the round had planned. Pages enter the graph in
the planned order, not in the order of their arrival.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from opic.arrays import Bools, Float64s
from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph, CrawledLinks
from opic.graph.pagerank import pagerank
from opic.local.combination import ServiceKnowledge, combined_estimate
from opic.local.crawl_pages import FetchedPage, PageNumbers, fetched_page, other_name
from opic.local.fetcher import Fetcher
from opic.local.journal import LOCAL, OUTSIDE, Journal, PlannedRound, batches
from opic.local.selection import check_selection, choose, scores, with_suggestions
from opic.local.service_view import ServiceView
from opic.model.events import CrawlEvent, EventLimits, Outcome

ROUNDS: Final = 25  # As the paper has for topics; it takes 50 for sites.
PUBLISHED_AT_ONCE: Final = 100
NAMES_MAX: Final = 5  # Names of a page, by normalization rules, that are tried: they may redirect to each other.
WAVE_MAX: Final = 100  # Pages of the domain in one round of its own crawl.
SETTLE_SECONDS: Final = 10.0
SETTLE_POLL_SECONDS: Final = 0.05
FRONTIER_SHOWN: Final = 10
CHANGES_MAX: Final = 1_000  # The last ones; /v1/local takes no more.


@dataclass(frozen=True, slots=True)
class EstimatorOptions:
    """What an estimator is asked to do. Attributes:

    fetch        outside pages to fetch, including those that fail
    select       how they are selected; see `opic.local.selection`
    round_pages  outside pages per round; None: a 25th of `fetch`
    local_max    pages of the domain to fetch where no crawl of it is given
    seed         of the selection `random`
    publish      send what was fetched to the service
    """

    fetch: int = 100
    select: str = "combined"
    round_pages: int | None = None
    local_max: int = 1_000
    seed: int = 0
    publish: bool = True
    limits: EventLimits = field(default_factory=EventLimits)


@dataclass(frozen=True, slots=True)
class EstimatorProgress:
    """Counts to show: pages tried of those to be tried, and why the service gives no answer, if so."""

    part: str
    tried: int
    pages_max: int
    failed: int
    candidates: int
    away: str | None


@dataclass(frozen=True, slots=True)
class DomainRanking:
    """The ranked pages of the domain, descending, with the best candidates and their scores.

    `changes` has, for each round, the outside pages fetched until then and how far it moved the PageRank of the local
    pages by the crawled links alone, as an L1 distance.
    """

    domain: str
    urls: Sequence[str]
    importance: Sequence[float]
    outside_fetched: int
    failed: int
    method: str
    select: str
    service_coverage: float
    service_away: str | None
    frontier: Sequence[tuple[str, float]]
    as_of: float
    changes: Sequence[tuple[int, float]]

    def shown(self, n: int | None = None) -> dict[str, Any]:
        """Return it in the form of GET /v1/local/{domain}, with the first `n` pages, and some more fields."""
        ranked = zip(self.urls[:n], self.importance[:n], strict=True)
        return {
            "domain": self.domain,
            "pages": [{"url": url, "importance": score, "rank": rank} for rank, (url, score) in enumerate(ranked, 1)],
            **self._told(),
            "select": self.select,
            "failed": self.failed,
            "service_away": self.service_away,
            "frontier": [{"url": url, "score": score} for url, score in self.frontier],
        }

    def sent(self, n: int) -> dict[str, Any]:
        """Return the body of PUT /v1/local/{domain}."""
        ranked = zip(self.urls[:n], self.importance[:n], strict=True)
        return {"pages": [{"url": url, "importance": min(score, 1.0)} for url, score in ranked], **self._told()}

    def _told(self) -> dict[str, Any]:
        return {
            "outside_fetched": self.outside_fetched,
            "method": self.method,
            "service_coverage": self.service_coverage,
            "as_of": self.as_of,
            "changes": [{"outside_fetched": fetched, "change": change} for fetched, change in self.changes],
        }


def _local_shares(graph: CrawledGraph, ranks: Float64s) -> Float64s:
    shares: Float64s = ranks[: graph.local] / ranks[: graph.local].sum()
    return shares


class Estimator:
    """One domain's estimator. `open` it, make rounds until there is no more to fetch, and ask for the ranking."""

    def __init__(
        self,
        domain: str,
        options: EstimatorOptions,
        fetcher: Fetcher,
        journal: Journal,
        service: ServiceView | None = None,
        *,
        on_progress: Callable[[EstimatorProgress], object] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin with no page; `domain` is canonical.

        Raises:
            BadInput: there is no such selection.
        """
        check_selection(options.select)
        self.domain, self.options, self.service = domain, options, service
        self._fetcher, self._journal = fetcher, journal
        self._on_progress, self._stopped = on_progress, stopped
        self._numbers = PageNumbers(domain)
        self._local: dict[int, Sequence[str]] = {}  # The pages of the domain, with their links.
        self._links: CrawledLinks | None = None
        self._state: tuple[CrawledGraph, Float64s] | None = None
        self._scored: Float64s | None = None
        self._changes: list[tuple[int, float]] = []
        self._rounds = self._tried = self._failed = 0

    # The domain's own pages.

    def open(self, crawl: Iterable[CrawlEvent] | None, seeds: Sequence[str]) -> None:
        """Take the pages of the domain from their crawl, or crawl them; then take the rounds that are in the journal.

        Args:
            crawl: crawl events, of which those of other domains are left out; None crawls the domain itself.
            seeds: where that crawl begins, if the service knows no page of the domain.

        Raises:
            BadEvent: an event is invalid.
            BadInput: the domain has no page.
        """
        rounds = self._journal.rounds
        if crawl is not None:
            for event in crawl:
                self._add_local(fetched_page(event, self.options.limits))
        else:
            self._crawl_domain([planned for planned in rounds if planned.part == LOCAL], seeds)
            if self._stopped():
                return
        if not self._local:
            raise BadInput(
                f"no page of {self.domain} was fetched: give its crawl events with --crawl, or check the name"
            )
        pages = list(self._local)
        self._links = CrawledLinks(pages, [self._numbers.ids_of(self._local[page]) for page in pages])
        self._rank()
        for planned in rounds:
            if planned.part == OUTSIDE:
                if planned.left:
                    self._fetch(planned)
                if not planned.left:
                    self._add_round(planned)
        self._publish()

    def _crawl_domain(self, before: Sequence[PlannedRound], seeds: Sequence[str]) -> None:
        """Crawl the domain breadth-first in waves, beginning with those that the journal has."""
        seen: dict[str, None] = {}
        tried = 0
        waves = list(before)
        read = any(event.status // 100 in (2, 3) for planned in waves for event in planned.events.values())
        if not read and not any(planned.left for planned in waves):
            # The first time, or the domain did not answer then.
            known = self.service.inflow() if self.service is not None else None
            first = [page.url for page in known.pages] if known is not None and known.pages else list(seeds)
            waves.append(self._journal.plan(LOCAL, first[: self.options.local_max]))
        while waves:
            for planned in waves:
                seen |= dict.fromkeys(planned.urls)
                if planned.left:
                    self._fetch(planned)
                if planned.left:
                    return  # Stopped.
                tried += len(planned.urls)
                for url in planned.urls:
                    self._add_local(fetched_page(planned.events[url], self.options.limits))
            waves = []
            room = max(min(self.options.local_max - tried, WAVE_MAX), 0)
            linked = dict.fromkeys(url for links in self._local.values() for url in links if url not in seen)
            more = [url for url in linked if self._numbers.is_local(self._numbers.id_of(url))][:room]
            if more and not self._stopped():
                waves = [self._journal.plan(LOCAL, more)]
        self._publish()

    def _add_local(self, page: FetchedPage) -> None:
        """Take the last event of a page of the domain."""
        number = self._numbers.id_of(page.url)
        if not self._numbers.is_local(number):
            return
        if page.outcome is Outcome.READ:
            self._local[number] = page.links
        elif page.outcome is Outcome.GONE:
            self._local.pop(number, None)

    # Rounds.

    @property
    def done(self) -> bool:
        """Whether all pages that were asked for were fetched, or there is no candidate left."""
        return self._tried >= self.options.fetch or not self._candidates().any()

    @property
    def outside_fetched(self) -> int:
        """The number of outside pages in the graph."""
        return len(self._links) - len(self._local) if self._links is not None else 0

    def round(self) -> bool:
        """Select, fetch and publish pages; return False if there is no candidate, or it was stopped."""
        planned = self._plan()
        if planned is None:
            return False
        self._fetch(planned)
        if planned.left:
            return False
        self._add_round(planned)
        self._publish()
        return True

    def _plan(self) -> PlannedRound | None:
        options = self.options
        graph, _ = self._graph()
        count = options.round_pages or max(1, -(-options.fetch // ROUNDS))
        count = min(count, options.fetch - self._tried)
        open_pages = self._candidates()
        if count <= 0 or not open_pages.any():
            return None
        scored = np.where(open_pages, self._scores(), -np.inf)
        release: Callable[[Sequence[str]], None] | None = None
        if options.select == "combined" and self.service is not None:
            scored, release = with_suggestions(scored, graph, self._numbers, self.service, count)
        columns = choose(scored, graph, self._numbers, count, self._fetcher.host_pages_max)
        urls = [self._numbers.urls[page] for page in graph.candidates[columns].tolist()]
        planned = self._journal.plan(OUTSIDE, urls)
        if release is not None:
            release(urls if options.publish else [])  # Without its event, a lease would only expire.
        return planned

    def _fetch(self, planned: PlannedRound) -> None:
        """Fetch what is left of a round, and journal each event as it comes."""
        self._show(planned)
        pages, other = {url: url for url in planned.left}, dict[str, str]()  # By the name under which it is fetched.
        tries = NAMES_MAX

        def took(event: CrawlEvent) -> None:
            page = pages.get(event.url)
            if page is None or page in planned.events:
                return
            if tries and (name := other_name(event, self.options.limits)) is not None:
                other[name] = page
                return
            event.url = page
            self._journal.took(event, planned)
            self._show(planned)

        while pages:
            tries -= 1
            self._fetcher.fetch(list(pages), took, self._stopped)
            pages, other = other, {}

    def _add_round(self, planned: PlannedRound) -> None:
        """Add the pages of a complete round to the graph, and rank it again."""
        assert self._links is not None
        for url in planned.urls:
            page = fetched_page(planned.events[url], self.options.limits)
            number = self._numbers.id_of(url)
            self._numbers.tried(number)
            self._tried += 1
            if page.outcome is Outcome.READ and number not in self._links:
                self._links.add(number, self._numbers.ids_of(page.links))
            else:
                self._failed += 1
        self._rounds += 1
        self._rank()

    def _rank(self) -> None:
        """Compute PageRank of the crawled graph, and note how far the last round moved that of the local pages."""
        assert self._links is not None
        graph, before = self._links.graph(), self._state
        self._state, self._scored = (graph, pagerank(graph.inside)), None
        # A round whose pages all failed changes nothing, which would look as if the ranking had settled.
        if before is not None and self.outside_fetched > (self._changes[-1][0] if self._changes else 0):
            change = np.abs(_local_shares(*self._state) - _local_shares(*before)).sum()
            self._changes.append((self.outside_fetched, float(change)))

    def _graph(self) -> tuple[CrawledGraph, Float64s]:
        assert self._state is not None
        return self._state

    def _scores(self) -> Float64s:
        if self._scored is None:
            self._scored = scores(self.options.select, *self._graph(), (self.options.seed, self._rounds))
        return self._scored

    def _candidates(self) -> Bools:
        return self._numbers.may_be_fetched(self._graph()[0].candidates)

    def _show(self, planned: PlannedRound) -> None:
        pages_max = self.options.fetch if planned.part == OUTSIDE else self.options.local_max
        tried = self._tried if planned.part == OUTSIDE else len(self._local)
        candidates = len(self._state[0].candidates) if self._state is not None else 0
        away = self.service.away if self.service is not None else None
        self._on_progress(
            EstimatorProgress(planned.part, tried + len(planned.events), pages_max, self._failed, candidates, away)
        )

    def _publish(self) -> None:
        if self.service is None or not self.options.publish:
            return
        for key, events in batches(self._journal, PUBLISHED_AT_ONCE):
            if not self.service.publish(events, key):
                return

    # The result.

    def ranking(self) -> DomainRanking:
        """Estimate the importance of the domain's pages, with the service's in-flow if it answers."""
        graph, ranks = self._graph()
        self._publish()
        estimate = combined_estimate(graph, ranks, self._knowledge(graph))
        urls = [self._numbers.urls[page] for page in graph.fetched[: graph.local].tolist()]
        order = sorted(range(len(urls)), key=lambda index: (-estimate.importance[index], urls[index]))
        return DomainRanking(
            self.domain,
            [urls[index] for index in order],
            estimate.importance[order].tolist(),
            self.outside_fetched,
            self._failed,
            estimate.method,
            self.options.select,
            estimate.coverage,
            self.service.away if self.service is not None else None,
            self._frontier(graph),
            time.time(),
            self._changes[-CHANGES_MAX:],
        )

    def _frontier(self, graph: CrawledGraph) -> list[tuple[str, float]]:
        scored = np.where(self._candidates(), self._scores(), -np.inf)
        columns = choose(scored, graph, self._numbers, FRONTIER_SHOWN, None)
        return [(self._numbers.urls[graph.candidates[column]], float(scored[column])) for column in columns]

    def _knowledge(self, graph: CrawledGraph) -> ServiceKnowledge | None:
        """Ask the service about the fetched pages, once it has taken in what we published; None if it is away."""
        service = self.service
        if service is None:
            return None
        deadline = time.monotonic() + SETTLE_SECONDS
        while not service.settled() and time.monotonic() < deadline and not self._stopped():
            time.sleep(SETTLE_POLL_SECONDS)
        inflow = service.inflow()
        if inflow is None:
            return None
        inflow_of = {page.url: page.inflow for page in inflow.pages}
        urls = [self._numbers.urls[page] for page in graph.fetched.tolist()]
        known = service.importances(urls)
        if service.away is not None:
            return None
        return ServiceKnowledge(
            np.array([inflow_of.get(url, 0.0) for url in urls[: graph.local]]),
            np.array([known[url].importance if url in known else np.nan for url in urls]),
            np.array([url in known and bool(known[url].reads) for url in urls], np.bool_),
            inflow.outside_mass,
            inflow.unread_mass,
            inflow.dangling_mass,
            inflow.known_pages,
        )
