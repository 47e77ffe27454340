"""The paper's synthetic graphs: in-degrees by a power law or a Poisson distribution; and the ways they change."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from experiments.opic_engine import PageLinks
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import LinkMatrix, link_matrix

QUICK_PAGES: Final = 300  # Of a small run.
EXPONENT: Final = 2.1
DISTINCT_MIN: Final = 500  # Pages with more in-links draw distinct pages; among fewer, few are drawn twice.
HALVED: Final = 2 / 3  # Of the pages that change: twice as many are halved as doubled keeps the number of links.

# From a graph and the number of pages that change: the new graph.
Change = Callable[[PageLinks, int, np.random.Generator], PageLinks]


def power_law_links(pages: int, rng: np.random.Generator) -> PageLinks:
    """Draw for each page an in-degree of probability 1/k^2.1, k < N/2, and that many other pages that link to it.

    So out-degrees are nearly a Poisson distribution. The importance of the few largest pages, and with it every error,
    differs much from graph to graph.

    Source: Abiteboul, Preda, Cobena (2003), section 4.2; "details omitted" there.
    """
    return _links_of(_drawn_keys(np.arange(pages), _degrees(pages, pages // 2, rng), pages, rng), pages)


def poisson_links(pages: int, rng: np.random.Generator) -> PageLinks:
    """Draw for each page an in-degree by a Poisson distribution, and that many other pages that link to it.

    Its mean is that of `power_law_links`, so that the two graphs have as many links; out-degrees are nearly a Poisson
    distribution too.

    Source: Abiteboul, Preda, Cobena (2003), section 4.2, the first graphs that the paper tried; it gives no mean.
    """
    degrees, chances = _power_law(pages // 2)
    drawn = np.minimum(rng.poisson(float(degrees @ chances), pages), max(pages - 1, 0))
    return _links_of(_drawn_keys(np.arange(pages), drawn, pages, rng), pages)


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
    degrees, chances = _power_law(end)
    return rng.choice(degrees, pages, p=chances)


def _power_law(end: int) -> tuple[Int64s, Float64s]:
    """Return degrees below `end`, at least 1, and their chances."""
    degrees = np.arange(1, max(end, 2))
    chances = degrees**-EXPONENT
    return degrees, chances / chances.sum()


def change_in_degrees(
    links: PageLinks,
    count: int,
    rng: np.random.Generator,
    halved_share: float = HALVED,
    *,
    by_out_degree: bool = False,
) -> PageLinks:
    """Let `count` random pages have their in-degree divided by two, rounded up, or multiplied by two.

    The links that halved pages lose are random. Those that doubled pages get are from random pages, or, with
    `by_out_degree`, from pages drawn in proportion to their out-degrees: then out-degrees keep their distribution, of
    which random pages would make one without pages of few links.

    Source: Abiteboul, Preda, Cobena (2003), section 4.2, "impact of the size of the window", which does not say which
    pages link to a page whose in-degree is multiplied.
    """
    pages = len(links.starts) - 1
    sources = np.repeat(np.arange(pages), links.degrees)
    changed = rng.permutation(pages)[:count]
    halved = np.zeros(pages, np.bool_)
    halved[changed[rng.random(len(changed)) < halved_share]] = True
    doubled = np.setdiff1d(changed, np.flatnonzero(halved))
    kept = np.ones(len(sources), np.bool_)
    kept[_second_links(links, halved, rng)] = False
    more = np.bincount(links.targets, minlength=pages)[doubled]
    old = sources[kept] * pages + links.targets[kept]  # Already in order: sorting all links anew would take longest.
    new = np.unique(_drawn_keys(doubled, more, pages, rng, links.degrees if by_out_degree else None))
    place = np.searchsorted(old, new)
    fresh = (old[np.minimum(place, len(old) - 1)] != new) if len(old) else np.ones(len(new), np.bool_)
    return _links_in_order(np.insert(old, place[fresh], new[fresh]), pages)


def _second_links(links: PageLinks, chosen: NDArray[np.bool_], rng: np.random.Generator) -> Int64s:
    """Return every second link, in random order, to each of the chosen pages: places in `links.targets`."""
    candidates = rng.permutation(np.flatnonzero(chosen[links.targets]))
    candidates = candidates[np.argsort(links.targets[candidates], kind="stable")]
    targets = links.targets[candidates]
    second: Int64s = candidates[(np.arange(len(targets)) - np.searchsorted(targets, targets)) % 2 == 1]
    return second


def move_links(links: PageLinks, count: int, rng: np.random.Generator, halved_share: float = HALVED) -> PageLinks:
    """Let the links that some pages lose go to others: `count` random pages, of which some are halved, some doubled.

    Each halved page loses half of its in-links, rounded down; the same pages then link to doubled pages instead. No
    out-degree changes. Links are moved as long as there are some to lose and some to get, so one side may fall short.
    """
    pages = len(links.starts) - 1
    sources, targets = np.repeat(np.arange(pages), links.degrees), links.targets.copy()
    changed = rng.permutation(pages)[:count]
    halves = round(halved_share * len(changed))
    halved = np.zeros(pages, np.bool_)
    halved[changed[:halves]] = True
    free = rng.permutation(_second_links(links, halved, rng))
    doubled = changed[halves:]
    wanted = rng.permutation(np.repeat(doubled, np.bincount(targets, minlength=pages)[doubled]))
    moved = min(len(free), len(wanted))
    targets[free[:moved]] = wanted[:moved]
    return _links_of(sources * pages + targets, pages)


def exchange_in_degrees(links: PageLinks, count: int, rng: np.random.Generator) -> PageLinks:
    """Let `count` random pages, in pairs of in-degrees k and k/2, exchange their in-degrees by moving k/2 links.

    One is halved and the other doubled, no out-degree changes, and the in-degrees remain what they were as a whole. A
    page without a partner, as the largest, does not change.
    """
    pages = len(links.starts) - 1
    sources, targets = np.repeat(np.arange(pages), links.degrees), links.targets.copy()
    by_target = np.argsort(targets, kind="stable")
    ends = np.searchsorted(targets[by_target], np.arange(pages + 1))
    partners: dict[int, list[int]] = {}
    for page in rng.permutation(pages).tolist():
        partners.setdefault(int(ends[page + 1] - ends[page]), []).append(page)
    changed = set[int]()
    for page in rng.permutation(pages).tolist():
        half = int(ends[page + 1] - ends[page]) // 2
        found = partners.get(half, []) if half and page not in changed else []
        while found and found[-1] in changed:
            found.pop()
        if found and len(changed) < count:
            changed |= {page, found[-1]}
            targets[rng.permutation(by_target[ends[page] : ends[page + 1]])[:half]] = found.pop()
    return _links_of(sources * pages + targets, pages)


def redirect_links(links: PageLinks, count: int, rng: np.random.Generator) -> PageLinks:
    """Exchange the targets of a share of the links, count/N of all: every page keeps its in-degree and out-degree.

    A link that would be a self-link, or the second between two pages, is dropped.
    """
    pages = len(links.starts) - 1
    sources, targets = np.repeat(np.arange(pages), links.degrees), links.targets.copy()
    chosen = rng.permutation(len(targets))[: round(len(targets) * count / pages)]
    targets[chosen] = rng.permutation(targets[chosen])
    return _links_of(sources * pages + targets, pages)


def rewire_pages(links: PageLinks, count: int, rng: np.random.Generator) -> PageLinks:
    """Let `count` random pages link elsewhere: to as many targets, drawn in proportion to their in-degrees."""
    pages = len(links.starts) - 1
    sources, targets = np.repeat(np.arange(pages), links.degrees), links.targets.copy()
    rewired = np.zeros(pages, np.bool_)
    rewired[rng.permutation(pages)[:count]] = True
    chosen = np.flatnonzero(rewired[sources])
    targets[chosen] = rng.choice(links.targets, len(chosen)) if len(chosen) else targets[chosen]
    return _links_of(sources * pages + targets, pages)


def _drawn_keys(
    targets: Int64s, counts: Int64s, pages: int, rng: np.random.Generator, weights: Int64s | None = None
) -> Int64s:
    """Draw so many sources for each target, by weight if any is given; a link is the number source * N + target."""
    few = counts < DISTINCT_MIN
    to = np.repeat(targets[few], counts[few])
    chances = None if weights is None or not weights.any() else weights / weights.sum()
    drawable = pages if chances is None else int(np.count_nonzero(chances))
    # Without chances `choice` would draw the same, but by another route: recorded results come from `integers`.
    drawn = rng.integers(pages, size=len(to)) if chances is None else rng.choice(pages, len(to), p=chances)
    keys = [drawn * pages + to]
    for target, count in zip(targets[~few].tolist(), counts[~few].tolist(), strict=True):
        keys.append(rng.choice(pages, min(count, drawable), replace=False, p=chances) * pages + target)
    return np.concatenate(keys)


def _links_of(keys: Int64s, pages: int) -> PageLinks:
    return _links_in_order(np.unique(keys), pages)


def _links_in_order(keys: Int64s, pages: int) -> PageLinks:
    sources = keys // pages
    targets = keys - sources * pages
    others = sources != targets
    starts = np.searchsorted(sources[others], np.arange(pages + 1)).astype(np.int64)
    return PageLinks(starts, targets[others])
