"""PageRank is that of networkx, from any start, and an error where it does not settle."""

import networkx as nx
import numpy as np
import pytest
from random_webs import random_crawl, random_web

from opic.graph.crawled import link_matrix
from opic.graph.pagerank import NotConverged, pagerank

EXACT = 1e-14


@pytest.mark.parametrize("seed", range(20))
def test_pagerank_equals_networkx(seed: int) -> None:
    web = random_web(seed, 30, 0.1)
    expected = nx.pagerank(nx.from_numpy_array(web, create_using=nx.DiGraph), tol=EXACT, max_iter=10_000)
    found = pagerank(link_matrix(*np.nonzero(web), (30, 30)), threshold=EXACT)
    assert found == pytest.approx([expected[page] for page in range(30)], abs=1e-12)


def test_pagerank_does_not_depend_on_the_start_vector() -> None:
    links = random_crawl(3).inside
    start = np.arange(1.0, links.shape[0] + 1)
    assert pagerank(links, start=start, threshold=EXACT) == pytest.approx(pagerank(links, threshold=EXACT))


def test_threshold_that_floats_cannot_reach_is_an_error() -> None:
    with pytest.raises(NotConverged, match="PageRank did not settle to 0 in"):
        pagerank(link_matrix(*np.nonzero(random_web(1, 40, 0.2)), (40, 40)), threshold=0.0)
