"""The plain twin of trust in a crawl: what a log of events and seeds says of links and trust, and their coverage.

It reads the log record by record into dicts by URL, as if there was one shard, one partition and no crash.
"""

from collections.abc import Iterable, Mapping

import networkx as nx
import numpy as np
from link_pools import put

from opic.graph.flow import Flow
from opic.graph.known_graph import KnownGraph
from opic.graph.link_pool import LinkPool
from opic.graph.rank_coverage import RankCoverage, coverage
from opic.model.cash import gone_until_us
from opic.model.event_checks import decode_events
from opic.model.events import CheckedEvent, EventLimits, Outcome, Record

DAMPING = 0.85
NOWHERE = ""  # A page that was never fetched, and links to itself.
LIMITS = EventLimits()


class TrustLog:
    """Trust, links, and which pages are fetched or gone, after some records of a log."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        """Read records, each page's in their order."""
        self.trust: dict[str, float] = {}
        self.links: dict[str, tuple[str, ...]] = {}  # Of the last read of each page, from the first trust on.
        self.known: dict[str, None] = {}
        self.fetched: set[str] = set()
        self.gone: set[str] = set()
        self.reads, self._keeps = 0, False
        self._until_us: dict[str, int] = {}  # No link brings a page back before.
        self._times_gone: dict[str, int] = {}
        for record in records:
            self.read(record)

    def read(self, record: Record) -> None:
        """Read a record. It must not be a bad one."""
        for event in decode_events("log/0", record, LIMITS):
            self._take(event)

    def _take(self, event: CheckedEvent) -> None:
        if event.outcome is Outcome.SEEDS:
            for url in event.seeds:
                self._know(url)
                self.gone.discard(url)
                if event.trust is not None:
                    self.trust[url] = event.trust
            self._keeps |= bool(event.trust)
        elif event.outcome is Outcome.READ:
            self._read(event)
        elif event.outcome is Outcome.GONE:
            self._know(event.url)
            self._times_gone[event.url] = times = self._times_gone.get(event.url, 0) + 1
            until_us = gone_until_us(event.at_us, times)
            self._until_us[event.url] = max(self._until_us.get(event.url, 0), until_us)
            self.gone.add(event.url)
            self.fetched.discard(event.url)
            self.links.pop(event.url, None)
        else:
            assert event.outcome is Outcome.FAILED, event
            self._know(event.url)

    def _know(self, url: str) -> None:
        self.known[url] = None

    def _read(self, event: CheckedEvent) -> None:
        self._know(event.url)
        links = tuple(dict.fromkeys(link for link in event.links if link != event.url))
        if self._keeps:
            self.links[event.url] = links
        for link in links:
            self._know(link)
            if link in self.gone and event.at_us >= self._until_us[link]:
                self.gone.discard(link)
        self.gone.discard(event.url)
        self.fetched.add(event.url)
        self.reads += 1

    @property
    def weights(self) -> dict[str, float]:
        """The trust of each trusted page that exists."""
        return {url: weight for url, weight in self.trust.items() if weight and url not in self.gone}

    def flow(self) -> RankCoverage:
        """The coverage, from all links and weights at once."""
        numbers, pool = {url: number for number, url in enumerate(self.known)}, LinkPool()
        for url, links in self.links.items():
            put(pool, numbers[url], np.array([numbers[link] for link in links], np.uint32))
        trust = np.array([self.weights.get(url, 0.0) for url in numbers])
        fetched, gone = (np.array([url in some for url in numbers]) for some in (self.fetched, self.gone))
        graph = KnownGraph(pool)
        graph.advance(fetched & ~gone, gone, None)
        flow = Flow(DAMPING, graph)
        flow.advance(np.where(gone, 0.0, trust))
        return coverage(flow)

    def exact(self, elsewhere: Mapping[str, Iterable[str]]) -> float:
        """The share of personalized PageRank of the fetched pages, by networkx.

        Args:
            elsewhere: what the pages link to that were not fetched, or whose links were not kept; nobody links to
                NOWHERE else.
        """
        graph = nx.DiGraph([(NOWHERE, NOWHERE)])
        graph.add_nodes_from(url for url in self.known if url not in self.gone)
        for url in [url for url in graph if url != NOWHERE]:
            links = self.links[url] if url in self.fetched & self.links.keys() else elsewhere[url]
            graph.add_edges_from((url, link) for link in links if link not in self.gone)
        weights = self.weights
        ranks = nx.pagerank(graph, DAMPING, weights, max_iter=1_000, tol=1e-14, dangling=weights)
        return float(sum(rank for url, rank in ranks.items() if url in self.fetched))

    @property
    def least(self) -> float:
        """The share of the fetched pages if all other links lead away from them for ever: the best bound there is."""
        return self.exact({url: [NOWHERE] for url in self.known})
