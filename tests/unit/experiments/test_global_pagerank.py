"""FindGlobalPR fetches each page once at most, and ends at the PageRank of all that can be reached."""

import numpy as np
import pytest
from random_webs import crawled, random_web

from experiments.algorithms.comparison import distance
from experiments.algorithms.global_pagerank import find_global_pagerank
from experiments.davis_dhillon import inlink_counts
from opic.graph.crawled import CrawledLinks, link_matrix
from opic.graph.page_selection import sc_scores
from opic.graph.pagerank import pagerank


def test_fetching_everything_gives_the_global_pagerank() -> None:
    web = random_web(11, 50, 0.15)
    truth = pagerank(link_matrix(*np.nonzero(web), (50, 50)))
    links = crawled(web, 10, 10)
    rounds = list(
        find_global_pagerank(
            links, lambda pages: {p: np.flatnonzero(web[p]) for p in pages}, sc_scores, iterations=50, count=5
        )
    )
    errors = [distance(one.estimate, truth[:10]).l1 for one in rounds]
    reached = set(links.graph().fetched.tolist())
    whole = pagerank(link_matrix(*np.nonzero(web[np.ix_(sorted(reached), sorted(reached))]), (len(reached),) * 2))
    assert errors[-1] == pytest.approx(distance(whole[:10], truth[:10]).l1, abs=1e-5)
    assert rounds[-1].fetched == len(reached) - 10
    assert errors[-1] < errors[0]


def test_unfetchable_page_is_tried_once() -> None:
    asked: list[int] = []

    def fetch(pages: list[int]) -> dict[int, np.ndarray]:
        asked.extend(pages)
        return {page: np.array([page + 1]) for page in pages if page != 3}

    links = CrawledLinks([0], [np.array([1, 3])])
    rounds = list(find_global_pagerank(links, fetch, inlink_counts, iterations=4, count=2))
    assert asked == [
        1,
        3,
        2,
    ]
    assert rounds[-1].fetched == 3
