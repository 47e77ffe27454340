"""Recrawls by the links that are expected to wait on a page: those that came since its last crawl and are still there.

Links come to a page at a rate λ of its own, and each link goes away at a rate μ, the same for all. After a time a, of
those that came since, λ g(a) are there, g(a) = (1 - e^(-μ a)) / μ: λ a where links persist, and at most λ/μ where they
don't. Both rates are learned from what the crawl sees, so nothing has to be known of how long links last.

    μ   links that were gone at a recrawl, per link and time watched
    λ   (n + 1) / (t + 1/m): n new links in t, the time in which they could be seen, beside the mean m over all pages

A link counts as watched for the whole time between two crawls if it was there at both, for half of it if it went away.
The links of a page's first crawl came in the time for which links last, or since the crawl began if that is shorter.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from experiments.algorithms.discovery import ELAPSED_MIN_S, DiscoveryCrawl, Expansion
from experiments.algorithms.weighted_picks import Generator
from opic.arrays import Float64s

FIRST_HORIZON_S: Final = 86_400.0  # At least so long ago came the links that a first crawl sees.
# How a page is chosen by the expected links of all: the most of them, or in proportion.
MOST, DRAWN = "most", "drawn"
CHOICES: Final[dict[str, Callable[[Float64s, Generator], int]]] = {
    MOST: lambda waiting, _: int(np.argmax(waiting)),
    DRAWN: lambda waiting, rng: int(np.searchsorted(np.cumsum(waiting), rng.random() * waiting.sum(), side="right")),
}


def still_there(elapsed: Float64s, loss: float) -> Float64s:
    """Return g: for how long, of some times, the links that came in them are still there, on average.

    >>> still_there(np.array([2.0, 1e9]), loss=0.1).round(2), still_there(np.array([2.0]), loss=0.0)
    (array([ 1.81, 10.  ]), array([2.]))
    """
    g: Float64s = -np.expm1(-loss * elapsed) / loss if loss > 0 else elapsed
    return g


class WaitingLinksCrawl(DiscoveryCrawl):
    """A crawl that recrawls the page on which most new links are expected; a choice costs O(crawled pages)."""

    def __init__(self, expansion: Expansion, rng: Generator, pages: int, choice: str = MOST) -> None:
        """Start with nothing crawled; `pages` is the number of pages, of which each has a number below it."""
        super().__init__(expansion, "U", rng)
        self._choice = CHOICES[choice]
        self._order = list[int]()  # The crawled pages; the columns have them in this order.
        self._place = dict[int, int]()
        self._new, self._watched, self._last = (np.zeros(pages) for _ in range(3))
        self._lost = self._link_seconds = 0.0
        self._began: float | None = None

    @property
    def loss(self) -> float:
        """The rate at which links go away, a second; 0 until one did."""
        return self._lost / self._link_seconds if self._link_seconds else 0.0

    def choose(self) -> int | None:
        """Return the page to crawl now; None if there is none."""
        page = self._expansion.pick(self._rng) if self._rng.random() >= self._share else None
        if page is None and self._order:
            return self._order[self._choice(self.waiting(), self._rng)]
        return page

    def waiting(self) -> Float64s:
        """Return of each crawled page, in order of their first crawls, how many new links are expected on it."""
        count = len(self._order)
        new, watched, last = (column[:count] for column in (self._new, self._watched, self._last))
        mean = (new.sum() + 1) / watched.sum()
        rate = (new + 1) / (watched + 1 / mean)
        expected: Float64s = rate * still_there(np.maximum(self._now - last, ELAPSED_MIN_S), self.loss)
        return expected

    def fetched(self, page: int, now: float, links: Sequence[int], targets: Sequence[int]) -> None:
        """Take in what a crawl of a page saw, as `DiscoveryCrawl.fetched`."""
        now = max(now, self._now)
        before = self.crawled.get(page)
        self._began = now if self._began is None else self._began
        if before is None:
            self._place[page] = len(self._order)
            self._order.append(page)
            fresh, elapsed = len(links), max(now - self._began, FIRST_HORIZON_S)
        else:
            fresh = sum(link not in before.links for link in links)
            elapsed = max(now - before.crawled_at, ELAPSED_MIN_S)
            kept = len(links) - fresh
            lost = len(before.links) - kept
            self._lost += lost
            self._link_seconds += (kept + lost / 2) * elapsed
        place = self._place[page]
        self._new[place] += fresh
        self._watched[place] += float(still_there(np.array([elapsed]), self.loss)[0])
        self._last[place] = now
        super().fetched(page, now, links, targets)
