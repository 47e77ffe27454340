"""The known graph of a crawl as its store has it, and the flows on it: importance, and trust.

A flow answers for the moment that its links were last followed to. All of it can be computed again from the kept links.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from opic.arrays import Float64s, Int64s, Uint8s, Uint32s
from opic.graph.flow import BOUND_MAX, Flow
from opic.graph.known_graph import KnownGraph
from opic.model.cash import MILLION, Flag
from opic.model.page_notes import NEAREST
from opic.query.host_index import frozen
from opic.query.kept_links import KeptLinks, LinksRead
from opic.query.saved_visits import SavedVisits
from opic.query.unsettled import teleport_by_state
from opic.replica import Replica
from opic.replica.effect import Head
from opic.replica.hosts import HostTable

log = logging.getLogger("opic.query")

BOUND: Final = 0.01  # Of the error of importance, as it is wanted.
SAYS_SOMETHING: Final = BOUND_MAX / 2  # With a larger bound, estimates from cash are the default.
LINKS_A_SETTLE: Final = 500_000_000  # Links followed at once, some seconds; the rest of the flow waits.


@dataclass(frozen=True, slots=True)
class PageStates:
    """What a replica says of its pages, at the position of the links."""

    state: Uint8s
    trust: dict[int, float]
    extra: Sequence[int]  # By class: by how many millionths its weight is above 1.
    host: Uint32s  # The number of each page's host,
    hosts: HostTable  # in this table.
    seeds: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))  # Pages of depth 0, if they were asked for.

    @classmethod
    def of(cls, replica: Replica) -> "PageStates":
        """Copy it. The caller holds the replica's lock."""
        hosts = frozen(replica.host), replica.hosts
        return cls(frozen(replica.state.copy()), replica.trust or {}, replica.books.extra, *hosts)

    @classmethod
    def with_seeds(cls, replica: Replica) -> "PageStates":
        """As `of`, with the seeds."""
        return replace(cls.of(replica), seeds=replica.columns.near(NEAREST, len(replica)))

    def weights(self) -> Float64s:
        """Return the teleport weight of each page: that of its class; 0 for pages that are gone, or not known."""
        return teleport_by_state(self.extra)[self.state]


class PageFlows:
    """The flows on the kept links of a crawl, by the numbers of pages that these have. Hold the lock of the links."""

    def __init__(self, kept: KeptLinks, directory: Path | None = None) -> None:
        """Look at nothing yet.

        Args:
            kept: the links.
            directory: where visits are saved, for flows to go on from after a restart; None: they begin from nothing.
        """
        self.kept, self.saved = kept, SavedVisits(directory, kept.crawl) if directory else None
        self.damping = 1 - kept.crawl.rules.q / MILLION
        self._start()
        kept.release_listeners.append(self._start)

    def _start(self) -> None:
        self._generation = self.kept.generation
        self.graph = KnownGraph(self.kept.pool)
        self.importance, self.trust = Flow(self.damping, self.graph), Flow(self.damping, self.graph)
        self._first: dict[Flow, Float64s] = {}  # The visits that a flow begins with, until it is asked for.
        self.heads: list[Head] = []  # The positions of the journals that the graph is at.
        self.state: Uint8s = np.zeros(0, np.uint8)  # By page.

    def follow(self, read: LinksRead[PageStates]) -> None:
        """Bring the graph to where the links are; the flows follow when they are asked for."""
        if self._generation != self.kept.generation:
            self._start()
        if read.heads == self.heads:
            return
        state = self.kept.numbers.spread([taken.state for taken in read.taken])
        fetched, gone = (state & Flag.OPEN) != 0, (state & Flag.GONE) != 0
        self.graph.advance(fetched & ~gone, gone, self.kept.take_replaced())
        if not self.heads:
            self._read_saved(read)
        self.heads, self.state = read.heads, state

    def by_importance(self, read: LinksRead[PageStates]) -> Flow:
        """Return the flow that starts on all pages alike, or by the weights of their classes."""
        return self._advanced(self.importance, self._column([taken.weights() for taken in read.taken]))

    def by_trust(self, read: LinksRead[PageStates]) -> Flow:
        """Return the flow that starts on the trusted pages."""
        return self._advanced(self.trust, self._trusted(read))

    def by_seeds(self, read: LinksRead[PageStates]) -> Flow:
        """Return the flow that starts on the trusted pages, or, where there are none, on the seeds alike."""
        weights, numbers = self._trusted(read), self.kept.numbers
        if not weights.any():
            for shard, taken in enumerate(read.taken):
                weights[numbers.numbers_of(shard, taken.seeds)] = 1.0
            weights[self.graph.gone_at] = 0.0
        return self._advanced(self.trust, weights)

    def save(self, pages: Sequence[int], heads: Sequence[Head]) -> None:
        """Save the visits of both flows, of the first pages of each shard, as of some position of the journals."""
        if self.saved is not None:
            columns = [np.zeros(len(self.kept.numbers)) for _ in range(2)]
            for column, flow in zip(columns, (self.importance, self.trust), strict=True):
                column[: len(flow.visits)] = flow.visits  # That of trust may be of an earlier moment.
            self.saved.write([self.kept.numbers.gathered(column, pages) for column in columns], heads)

    def _read_saved(self, read: LinksRead[PageStates]) -> None:
        """Have the flows begin with the saved visits, if there are some of use."""
        if self.saved is None:
            return
        visits = self.saved.read(read.heads, [len(taken.state) for taken in read.taken])
        if visits is not None:
            self._first = dict(zip((self.importance, self.trust), map(self._column, visits), strict=True))
            pages = sum(map(len, visits[0]))
            log.info("exact importance goes on from the visits of %d pages in %s", pages, self.saved.path)

    def _advanced(self, flow: Flow, weights: Float64s) -> Flow:
        flow.advance(weights)
        if (visits := self._first.pop(flow, None)) is not None:
            flow.start(visits)
        return flow

    def _trusted(self, read: LinksRead[PageStates]) -> Float64s:
        trust, numbers = np.zeros(len(self.graph)), self.kept.numbers
        for shard, taken in enumerate(read.taken):
            trusted = np.fromiter(taken.trust, np.int64, len(taken.trust))
            trust[numbers.numbers_of(shard, trusted)] = list(taken.trust.values())
        trust[self.graph.gone_at] = 0.0
        return trust

    def _column(self, parts: Sequence[Float64s]) -> Float64s:
        return self.kept.numbers.spread(parts)[: len(self.graph)]
