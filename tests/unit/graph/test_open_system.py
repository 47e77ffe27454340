"""With the exact inflow from outside, the ranks of a part are those of the whole web."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_webs import crawled, random_web

from opic.graph.crawled import link_matrix
from opic.graph.open_system import Outside, open_system_ranks
from opic.graph.pagerank import pagerank

EXACT = 1e-14


@given(seed=st.integers(0, 1 << 32))
def test_exact_inflow_gives_the_pagerank_of_the_whole_web(seed: int) -> None:
    web = random_web(seed, 40, 0.1)
    out, truth = web.sum(axis=1), pagerank(link_matrix(*np.nonzero(web), (40, 40)), threshold=EXACT)
    graph = crawled(web, 10, 15).graph()
    rest = np.arange(15, 40)
    linked = rest[out[rest] > 0]
    inflow = 0.85 * (truth[linked] / out[linked]) @ web[linked, :15]
    outside = Outside(inflow, truth[rest][out[rest] == 0].sum(), 40)
    assert open_system_ranks(graph, outside, threshold=EXACT) == pytest.approx(truth[:15], abs=1e-12)
