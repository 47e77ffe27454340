"""Coverage: the guaranteed share of personalized PageRank that the fetched pages hold.

The answer is computed from the kept links (`opic.query.kept_links`), from the weights of the trusted pages and from the
states of all pages: so it is that of the known graph as it is now, not of earlier links, pages or trust. A link
to a page that its shard does not know yet counts as one to a page that was not fetched.
"""

import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.errors import NoTrust
from opic.graph.trust_flow import LINKS_A_SETTLE, Coverage, TrustFlow
from opic.model.cash import MILLION, Flag
from opic.query.kept_links import KeptLinks, LinksRead
from opic.replica import Replica
from opic.replica.effect import Head

FIRST: Final = 10  # The first answer, which reads all links, may follow so many times as many links as others.
QUICK_SECONDS: Final = 0.1  # Coverage that takes longer is used for a while as the order of pages:
REST: Final = 20  # for this many times as long.
GIVE: Final = "trust with POST /v1/seeds or `opic seed --trust 1 URL`"
NO_TRUST: Final = f"no page is trusted: give seeds {GIVE}"
ALL_GONE: Final = f"every trusted page is gone (404 or 410): give other seeds {GIVE}"
Bytes = NDArray[np.uint8]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CoverageView:
    """The coverage of a crawl at a time."""

    as_of: float  # Unix seconds; the state is at least as recent.
    heads: list[Head]  # Of the replicas that it was computed from,
    loads: list[int]  # and their load counts.
    flow: Coverage
    shards: int
    fetchable: NDArray[np.bool_]  # By position, see `place`: whether the page may be fetched for the first time.
    fetched_pages: int
    trusted_pages: int

    def answer(self, target: float | None = None) -> dict[str, object]:
        """Return the fields of the answer as the public contract defines them."""
        found: dict[str, object] = {
            "coverage": self.flow.coverage,
            "fetched_pages": self.fetched_pages,
            "trusted_pages": self.trusted_pages,
            "damping": self.flow.damping,
        }
        if target is not None:
            expected = self.flow.fetches_to(target, self.held)
            found |= {"target": target, "fetches_expected": expected}
        return {**found, "as_of": self.as_of}

    @property
    def held(self) -> Float64s:
        """By position: the trust that waits at a page for its first fetch, as a share of all."""
        return np.where(self.fetchable, self.flow.held, 0.0)


class CoverageQuery:
    """Answers questions about coverage, by positions of pages as `KeptLinks` has them. Thread-safe."""

    def __init__(self, kept: KeptLinks) -> None:
        """Read nothing before the first question."""
        self._kept, self._crawl = kept, kept.crawl
        self._flow, self._generation = TrustFlow(1 - self._crawl.rules.q / MILLION, kept.pool), kept.generation
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
            return self._settled(self._kept.catch_up(self._check, _state_and_trust))

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

    def _settled(self, read: LinksRead[tuple[Bytes, dict[int, float]]]) -> CoverageView:
        """Return the coverage at the position that the links are at."""
        if self._generation != self._kept.generation:
            self._flow, self._view = TrustFlow(1 - self._crawl.rules.q / MILLION, self._kept.pool), None
            self._generation = self._kept.generation
        if self._view is not None and self._view.heads == read.heads and self._view.flow.settled:
            self._view = replace(self._view, as_of=read.as_of)
            return self._view
        shards, (states, trusts) = len(self._crawl), zip(*read.taken, strict=True)
        began = time.monotonic()
        size = max(map(len, states)) * shards
        state, trust = np.zeros(size, np.uint8), np.zeros(size)
        for number in range(shards):
            state[number : len(states[number]) * shards : shards] = states[number]
            pages = np.fromiter(trusts[number], np.int64, len(trusts[number]))
            trust[pages * shards + number] = list(trusts[number].values())
        gone, fetched = (state & Flag.GONE) != 0, (state & Flag.OPEN) != 0
        trust[gone] = 0.0
        if not trust.any():
            self._view = None
            raise NoTrust(ALL_GONE)
        self._view = CoverageView(
            read.as_of,
            read.heads,
            self._kept.loads,
            self._flow.settle(trust, fetched, gone, LINKS_A_SETTLE * (FIRST if self._view is None else 1)),
            shards,
            (state & (Flag.OPEN | Flag.GONE | Flag.EXCLUDED)) == 0,
            int(fetched.sum()),
            int((trust > 0).sum()),
        )
        self._at = time.monotonic()
        self._took = self._at - began
        return self._view


def _state_and_trust(replica: Replica) -> tuple[Bytes, dict[int, float]]:
    return replica.state.copy(), replica.trust or {}
