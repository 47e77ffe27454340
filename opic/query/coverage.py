"""Coverage: the guaranteed share of personalized PageRank that the fetched pages hold.

The answer is computed from the kept links (`opic.query.kept_links`), from the weights of the trusted pages and from the
states of all pages: so it is that of the known graph as it is now, not of earlier links, pages or trust. A link
to a page that its shard does not know yet counts as one to a page that was not fetched.
"""

import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from opic.arrays import Float64s
from opic.errors import NoTrust
from opic.graph.rank_coverage import LINKS_A_SETTLE, RankCoverage, coverage
from opic.model.cash import Flag
from opic.query.kept_links import LinksRead
from opic.query.page_flows import PageFlows, PageStates
from opic.replica.effect import Head

FIRST: Final = 10  # The first answer, which begins from nothing, may follow ten times as many links as later ones.
QUICK_SECONDS: Final = 0.1  # Coverage that takes longer is used for a while as the order of pages:
REST: Final = 20  # for this many times as long.
GIVE: Final = "trust with POST /v1/seeds or `opic seed --trust 1 URL`"
NO_TRUST: Final = f"no page is trusted: give seeds {GIVE}"
ALL_GONE: Final = f"every trusted page is gone (404 or 410): give other seeds {GIVE}"


@dataclass(frozen=True, slots=True)
class CoverageView:
    """The coverage of a crawl at a time."""

    as_of: float  # Unix seconds; the state is at least as recent.
    heads: list[Head]  # Of the replicas that it was computed from,
    loads: list[int]  # and their load counts.
    flow: RankCoverage
    # By shard and id: the trust that waits at a page for its first fetch, as a share of all.
    frontier_trust: list[Float64s]
    fetched_pages: int
    links_unknown: int  # Fetched pages whose links are not kept: they were read before the keeping began.
    trusted_pages: int

    def answer(self, target: float | None = None, delta: float = 0.0) -> dict[str, object]:
        """Return the fields of the answer as the public contract defines them.

        Args:
            target: the coverage wanted.
            delta: the share of all trust, less than 1, that is on pages not named.
        """
        flow = self.flow.named(delta)
        fields: dict[str, object] = {
            "coverage": flow.coverage,
            "fetched_pages": self.fetched_pages,
            "links_unknown": self.links_unknown,
            "trusted_pages": self.trusted_pages,
            "damping": flow.damping,
            **({"delta": delta} if delta else {}),
        }
        if target is not None:
            expected = flow.fetches_to(target, np.concatenate(self.frontier_trust))
            fields |= {"target": target, "fetches_expected": expected}
        return {**fields, "as_of": self.as_of}


class CoverageQuery:
    """Answers questions about coverage, from the flow of trust. Thread-safe."""

    def __init__(self, flows: PageFlows) -> None:
        self._flows, self._kept, self._crawl = flows, flows.kept, flows.kept.crawl
        self._view: CoverageView | None = None  # The last one.
        self._took, self._at = 0.0, float("-inf")  # Seconds that it took, and when it was computed (monotonic).

    @property
    def trusts(self) -> bool:
        """Whether the crawl has trusted pages, as far as its replicas know."""
        return any(replica.trust for replica in self._crawl.replicas)

    @property
    def latest(self) -> CoverageView | None:
        """The coverage that was last asked for; None without trusted pages, or if nobody asked yet."""
        return self._view if self.trusts else None

    def now(self) -> CoverageView:
        """Return the coverage of the present state.

        Raises:
            NoTrust: no page is trusted, or none that exists.
            StoreUnavailable: the store is unavailable.
        """
        with self._kept.lock:
            return self._settled(self._kept.catch_up(self._check, PageStates.of))

    def _check(self) -> None:
        if not self.trusts:
            raise NoTrust(NO_TRUST)

    def recent(self) -> CoverageView:
        """Return the coverage of the present state, or of a moment ago where that takes long: for the order of pages.

        Raises:
            NoTrust: as `now`.
            StoreUnavailable: as `now`.
        """
        view = self._view
        if (
            view is not None
            and self._took > QUICK_SECONDS
            and time.monotonic() - self._at < REST * self._took
            and view.loads == self._crawl.loads
            and self.trusts
        ):
            return view
        return self.now()

    def _settled(self, read: LinksRead[PageStates]) -> CoverageView:
        """Return the coverage at the position that the links are at."""
        view = self._view
        if view is not None and view.loads != self._kept.loads:
            view = self._view = None
        if view is not None and view.heads == read.heads and view.flow.settled:
            self._view = replace(view, as_of=read.as_of)
            return self._view
        began = time.monotonic()
        self._flows.follow(read)
        flow, graph, state = self._flows.by_trust(read), self._flows.graph, self._flows.state
        if not flow.teleport.any():
            self._view = None
            raise NoTrust(ALL_GONE)
        rank_coverage = coverage(flow, LINKS_A_SETTLE * (FIRST if view is None else 1))
        fetchable = (state & (Flag.OPEN | Flag.GONE | Flag.EXCLUDED)) == 0
        frontier_trust = self._kept.numbers.gathered(
            np.where(fetchable, rank_coverage.frontier_trust, 0.0), [len(states.state) for states in read.taken]
        )
        unknown = int((graph.fetched & ~graph.moves & ~graph.gone).sum())
        counts = int(graph.fetched.sum()), unknown, int((flow.teleport > 0).sum())
        self._view = CoverageView(read.as_of, read.heads, self._kept.loads, rank_coverage, frontier_trust, *counts)
        self._at = time.monotonic()
        self._took = self._at - began
        return self._view
