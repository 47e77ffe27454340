"""Random webs, and crawls of a part of them."""

import numpy as np

from opic.graph.crawled import CrawledGraph, CrawledLinks


def random_web(seed: int, pages: int, density: float) -> np.ndarray:
    """A random directed graph as a matrix of booleans; some pages are dangling, none links to itself."""
    rng = np.random.default_rng(seed)
    links = rng.random((pages, pages)) < density * 2 * rng.random((1, pages))
    links[rng.random(pages) < 0.2] = False
    np.fill_diagonal(links, False)
    return links


def crawled(web: np.ndarray, local: int, fetched: int) -> CrawledLinks:
    """The first pages of a web are local, further ones are fetched."""
    links = CrawledLinks(range(local), [np.flatnonzero(web[page]) for page in range(local)])
    for page in range(local, fetched):
        links.add(page, np.flatnonzero(web[page]))
    return links


def random_crawl(seed: int) -> CrawledGraph:
    rng = np.random.default_rng(seed)
    local = int(rng.integers(1, 12))
    fetched = local + int(rng.integers(0, 6))
    return crawled(random_web(seed, fetched + 5, rng.choice([0.1, 0.25, 0.5])), local, fetched).graph()
