"""Which page to crawl next to find the pages that most links point to, and which to crawl again as links come and go.

A crawl alternates at random between two procedures. An *expansion* crawls a page for the first time:

    Sample-U    any page, each as likely as any other (defined nowhere in the paper)
    Sample-I    in proportion to in-links             Sample-IO   in proportion to in-links and out-links
    Crawl-AI    of the frontier, in proportion to apparent in-degree: the links to it that the crawl has seen
    Crawl-GAI   of the frontier, the page with the greatest apparent in-degree

The first three know the whole graph; a real crawl does not. A *recrawl* chooses among the pages crawled before:

    U     each as likely as any other
    OR    in proportion to the number of links seen on it so far
    YR    in proportion to its yield
    YRU   half the time as YR, half as U
    LDU   half the time the page with the greatest link score, half as U
    none  never

Where the paper leaves it open: pages are sampled without replacement. Each link seen counts, also a second one between
the same pages. Ties are broken at random. A policy whose weights are all 0 chooses like U. If the frontier is empty,
the crawl recrawls, unless the policy is `none`. A page that vanished is a page without links: its next recrawl yields
0. A fetch with an earlier time than the one before gets the time of that one, so time never goes back.

Source: Kumar, Lang, Marlow, Tomkins (2008), "Efficient discovery of authoritative resources"; see docs/papers.md.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from experiments.algorithms.time_graph import greatest
from experiments.algorithms.weighted_picks import ByCount, ByWeight, Generator, GreatestCount, GreatestWeight, Uniform
from opic.arrays import Int64s
from opic.errors import BadInput

RECRAWL_SHARE: Final = 0.5
ELAPSED_MIN_S: Final = 1.0  # A yield is links per second; two crawls at one moment count as a second apart.


class Expansion(Protocol):
    """Pages that may be crawled for the first time."""

    def increment(self, page: int) -> None:
        """Count a link to a page that was not crawled."""

    def discard(self, page: int) -> None:
        """Forget a page, because it is crawled."""

    def pick(self, rng: Generator) -> int | None:
        """Return the page to crawl; None if there is none."""


class SampledOrder:
    """Pages of a graph that is known in advance, drawn without replacement in proportion to weights."""

    def __init__(self, weights: Int64s, rng: Generator) -> None:
        """Draw the whole order: by exponential times with the weights as rates (Efraimidis, Spirakis 2006)."""
        pages = np.flatnonzero(weights > 0)
        self._order = pages[np.argsort(rng.exponential(size=len(pages)) / weights[pages])].tolist()
        self._crawled: set[int] = set()
        self._next = 0

    def increment(self, page: int) -> None:
        """Ignore a link: the order does not depend on what the crawl has seen."""

    def discard(self, page: int) -> None:
        """Leave a page out."""
        self._crawled.add(page)

    def pick(self, _rng: Generator) -> int | None:
        """Return the next page of the order."""
        while self._next < len(self._order) and self._order[self._next] in self._crawled:
            self._next += 1
        return self._order[self._next] if self._next < len(self._order) else None


# By name: constructors that take the in-degrees and out-degrees of all pages; Crawl-AI and Crawl-GAI ignore them.
EXPANSIONS: Final[dict[str, Callable[[Int64s, Int64s, Generator], Expansion]]] = {
    "Sample-U": lambda inlinks, _outlinks, rng: SampledOrder(np.ones_like(inlinks), rng),
    "Sample-I": lambda inlinks, _outlinks, rng: SampledOrder(inlinks, rng),
    "Sample-IO": lambda inlinks, outlinks, rng: SampledOrder(inlinks + outlinks, rng),
    "Crawl-AI": lambda _inlinks, _outlinks, _rng: ByCount(),
    "Crawl-GAI": lambda _inlinks, _outlinks, _rng: GreatestCount(),
}


@dataclass(slots=True)
class CrawledPage:
    """What is kept of a page that was crawled.

    crawled_at   time of its last crawl, in seconds
    links        numbers of the links on it then
    """

    crawled_at: float
    links: Collection[int]


class RecrawlCandidates:
    """The pages that were crawled, and the weights by which each policy chooses among them."""

    def __init__(self, policy: str) -> None:
        """Start without pages.

        Raises:
            BadInput: there is no such policy.
        """
        if policy not in POLICIES:
            raise BadInput(f"no recrawl policy {policy!r}: there are {', '.join(POLICIES)}")
        self.uniform, self.by_outlinks = Uniform(), ByCount()
        self.by_yield, self.by_score = ByWeight(), GreatestWeight()
        self._choices = [getattr(self, name) for name in POLICIES[policy]]

    def pick(self, rng: Generator) -> int | None:
        """Return the page to crawl again; None if there is none, or the policy never does."""
        if not self._choices:
            return None
        choice = self._choices[int(rng.random() * len(self._choices))]
        page: int | None = choice.pick(rng)
        return self.uniform.pick(rng) if page is None else page


# By name: what a policy chooses by, each in an equal share of its choices.
POLICIES: Final[dict[str, tuple[str, ...]]] = {
    "U": ("uniform",),
    "OR": ("by_outlinks",),
    "YR": ("by_yield",),
    "YRU": ("by_yield", "uniform"),
    "LDU": ("by_score", "uniform"),
    "none": (),
}


class DiscoveryCrawl:
    """A crawl that discovers pages and recrawls them; the caller fetches what it chooses.

    Each link seen costs O(1) with Crawl-GAI and Crawl-AI; a choice O(1), or O(log n) by YR or LDU.

    Attributes:
        crawled: pages crawled so far, C.
        inlinks: links seen so far to each page, the apparent in-degree; the frontier F is its pages less C.

    >>> crawl = DiscoveryCrawl(GreatestCount(), "U", np.random.default_rng(1), recrawl_share=0)
    >>> crawl.fetched(0, now=0.0, links=[10, 11, 12], targets=[1, 2, 2])
    >>> crawl.choose()
    2
    """

    def __init__(self, expansion: Expansion, policy: str, rng: Generator, recrawl_share: float = RECRAWL_SHARE) -> None:
        """Start with nothing crawled.

        Args:
            expansion: as one of EXPANSIONS makes it.
            policy: a recrawl policy, of POLICIES.
            rng: source of all random choices.
            recrawl_share: probability that a step recrawls; 0 with the policy `none`.

        Raises:
            BadInput: there is no such policy, or the share is no probability.
        """
        if not 0 <= recrawl_share <= 1:
            raise BadInput(f"share of recrawls {recrawl_share} is not between 0 and 1")
        self.crawled: dict[int, CrawledPage] = {}
        self.inlinks: dict[int, int] = {}
        self.recrawl = RecrawlCandidates(policy)
        self._expansion, self._rng, self._share = expansion, rng, recrawl_share if policy != "none" else 0.0
        self._now = -np.inf

    def choose(self) -> int | None:
        """Return the page to crawl now; None if there is none."""
        page = None
        if self._rng.random() >= self._share:
            page = self._expansion.pick(self._rng)
        return self.recrawl.pick(self._rng) if page is None else page

    def fetched(self, page: int, now: float, links: Sequence[int], targets: Sequence[int]) -> None:
        """Take in what a crawl of a page saw.

        Args:
            page: the page.
            now: when it was crawled, in seconds.
            links: numbers of the links on it; a number always means the same link.
            targets: the pages that they point to, in the same order.
        """
        now = self._now = max(now, self._now)
        before, recrawl = self.crawled.get(page), self.recrawl
        self.crawled[page] = CrawledPage(now, frozenset(links))
        if before is None:
            self._expansion.discard(page)
            recrawl.uniform.add(page)
        inlinks, crawled = self.inlinks, self.crawled
        new = targets
        if before is not None:
            new = [to for link, to in zip(links, targets, strict=True) if link not in before.links]
        for target in new:
            inlinks[target] = inlinks.get(target, 0) + 1
            if target not in crawled:
                self._expansion.increment(target)
        recrawl.by_outlinks.increment(page, len(new))
        if before is not None:
            recrawl.by_yield.set(page, yield_score(len(new), now - before.crawled_at))
            recrawl.by_score.set(page, sum(inlinks[target] for target in new))

    def performance(self, targets: Int64s) -> "Performance":
        """Return how many of the target pages were crawled, and how many were seen."""
        crawled = sum(page in self.crawled for page in targets.tolist())
        seen = sum(page in self.crawled or page in self.inlinks for page in targets.tolist())
        return Performance(len(targets), crawled, seen)

    def best(self, k: int) -> Int64s:
        """Return the k crawled pages with the greatest apparent in-degree, K_H: the output of a static crawl."""
        pages = np.fromiter(self.crawled, np.int64, len(self.crawled))
        counts = np.fromiter((self.inlinks.get(page, 0) for page in self.crawled), np.int64, len(pages))
        return pages[greatest(counts, k)]


def yield_score(new_links: int, elapsed_s: float) -> float:
    """Return the yield of a recrawl: links that were not there at the crawl before, per second since then."""
    return new_links / max(elapsed_s, ELAPSED_MIN_S)


@dataclass(frozen=True, slots=True)
class Performance:
    """How many of the target pages K a crawl has found: |K|, |C and K|, |(C or F) and K|."""

    targets: int
    crawled: int
    seen: int

    @property
    def crawl(self) -> float:
        """Crawl performance: the share of the targets that was crawled; 1 without targets."""
        return self.crawled / self.targets if self.targets else 1.0

    @property
    def discovery(self) -> float:
        """Discovery performance: the share of the targets that was crawled or is in the frontier; 1 without targets."""
        return self.seen / self.targets if self.targets else 1.0


def rank_performance(best: Int64s, targets: Int64s) -> float:
    """Return the share of the targets among the pages that the crawl ranks best; 1 without targets."""
    return len(np.intersect1d(best, targets)) / len(targets) if len(targets) else 1.0
