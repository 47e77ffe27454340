"""A random graph whose in-degrees follow a power law, as large as wanted."""

from typing import Final

import numpy as np

from opic.graph.crawled import LinkMatrix, link_matrix

EXPONENT: Final = 2.1


def power_law_graph(pages: int, seed: int, exponent: float = EXPONENT) -> LinkMatrix:
    """Return the links of a random graph: a page has k in-links with a chance in proportion to 1/k^exponent.

    They come from pages chosen at random, so out-degrees are Poisson: some pages lack links. Distinct links, none from
    a page to itself. O(links log links).

    Args:
        pages: n > 2; k is from 1 to n/2.
        seed: of the random choices.
        exponent: of the law.

    Source: Abiteboul, Preda, Cobena (2003), section 4.1, has such in-degrees in its experiments.
    """
    rng = np.random.default_rng(seed)
    degrees = np.arange(1, max(2, pages // 2))
    chances = degrees**-exponent
    targets = np.repeat(np.arange(pages), rng.choice(degrees, pages, p=chances / chances.sum()))
    ends = np.unique(rng.integers(pages, size=len(targets)) * pages + targets)
    sources, targets = ends // pages, ends % pages
    kept = sources != targets
    return link_matrix(sources[kept], targets[kept], (pages, pages))
