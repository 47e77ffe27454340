"""The paper's synthetic graphs: in-degrees by a power law, and the ways in which they change."""

from typing import Final

import numpy as np

from opic.experiments.opic_engine import PageLinks
from opic.graph.crawled import Int64s, LinkMatrix, link_matrix

EXPONENT: Final = 2.1
DISTINCT_MIN: Final = 500  # Pages with more in-links draw distinct pages; among fewer, few are drawn twice.
HALVED: Final = 2 / 3  # Of the pages that change: twice as many are halved as doubled keeps the number of links.


def power_law_links(pages: int, rng: np.random.Generator) -> PageLinks:
    """Draw for each page an in-degree of probability 1/k^2.1, k < N/2, and that many other pages that link to it.

    So out-degrees are nearly a Poisson distribution. The importance of the few largest pages, and with it every error,
    differs much from graph to graph.

    Source: Abiteboul, Preda, Cobena (2003), section 4.2; "details omitted" there.
    """
    return _links_of(_drawn_keys(np.arange(pages), _degrees(pages, pages // 2, rng), pages, rng), pages)


def power_law_matrix(pages: int, seed: int) -> LinkMatrix:
    """Return links whose in-degrees follow 1/k^2.1 but for links drawn twice: millions of pages in seconds."""
    rng = np.random.default_rng(seed)
    targets = np.repeat(np.arange(pages), _degrees(pages, pages // 2, rng))
    ends = np.unique(rng.integers(pages, size=len(targets)) * pages + targets)
    sources, targets = ends // pages, ends % pages
    kept = sources != targets
    return link_matrix(sources[kept], targets[kept], (pages, pages))


def power_law_both_ways(pages: int, rng: np.random.Generator) -> PageLinks:
    """Draw in-degrees and out-degrees of probability 1/k^2.1, k < N/10, and join their ends at random.

    Of the more numerous ends some are left out; repeated links and self-links count for nothing.

    Source: Abiteboul, Preda, Cobena (2003), section 4.2, which also controlled the distribution of outgoing links.
    """
    ends_in, ends_out = (np.repeat(np.arange(pages), _degrees(pages, pages // 10, rng)) for _ in range(2))
    count = min(len(ends_in), len(ends_out))
    return _links_of(rng.permutation(ends_out)[:count] * pages + rng.permutation(ends_in)[:count], pages)


def _degrees(pages: int, end: int, rng: np.random.Generator) -> Int64s:
    degrees = np.arange(1, max(end, 2))
    chances = degrees**-EXPONENT
    return rng.choice(degrees, pages, p=chances / chances.sum())


def change_in_degrees(links: PageLinks, count: int, rng: np.random.Generator) -> PageLinks:
    """Let `count` random pages have their in-degree divided by two, rounded up, or multiplied by two.

    Source: Abiteboul, Preda, Cobena (2003), section 4.2, "impact of the size of the window".
    """
    pages = len(links.starts) - 1
    sources = np.repeat(np.arange(pages), links.degrees)
    changed = rng.permutation(pages)[:count]
    halved = np.zeros(pages, np.bool_)
    halved[changed[rng.random(len(changed)) < HALVED]] = True
    doubled = np.setdiff1d(changed, np.flatnonzero(halved))
    # Of the links to a halved page, in random order, every second one goes.
    candidates = rng.permutation(np.flatnonzero(halved[links.targets]))
    candidates = candidates[np.argsort(links.targets[candidates], kind="stable")]
    targets = links.targets[candidates]
    place = np.arange(len(targets)) - np.searchsorted(targets, targets)
    kept = np.ones(len(sources), np.bool_)
    kept[candidates[place % 2 == 1]] = False
    more = np.bincount(links.targets, minlength=pages)[doubled]
    old = sources[kept] * pages + links.targets[kept]  # Already in order: sorting all links anew would take longest.
    new = np.unique(_drawn_keys(doubled, more, pages, rng))
    place = np.searchsorted(old, new)
    fresh = (old[np.minimum(place, len(old) - 1)] != new) if len(old) else np.ones(len(new), np.bool_)
    return _links_in_order(np.insert(old, place[fresh], new[fresh]), pages)


def _drawn_keys(targets: Int64s, counts: Int64s, pages: int, rng: np.random.Generator) -> Int64s:
    """Draw so many sources for each target; a link is the number source * N + target."""
    few = counts < DISTINCT_MIN
    to = np.repeat(targets[few], counts[few])
    keys = [rng.integers(pages, size=len(to)) * pages + to]
    for target, count in zip(targets[~few].tolist(), counts[~few].tolist(), strict=True):
        keys.append(rng.choice(pages, min(count, pages), replace=False) * pages + target)
    return np.concatenate(keys)


def _links_of(keys: Int64s, pages: int) -> PageLinks:
    return _links_in_order(np.unique(keys), pages)


def _links_in_order(keys: Int64s, pages: int) -> PageLinks:
    sources = keys // pages
    targets = keys - sources * pages
    others = sources != targets
    starts = np.searchsorted(sources[others], np.arange(pages + 1)).astype(np.int64)
    return PageLinks(starts, targets[others])
