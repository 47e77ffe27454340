"""OPIC with other link matrices finds the walk on the matrix, which is its eigenvector only if its lines sum alike."""

import numpy as np
import pytest
from scipy import sparse

from experiments.link_matrices import MATRICES, OUT, OUTSIDE_WEIGHT, RULES, dominant_eigenvector, repeated
from experiments.opic_engine import Engine, fixed_point
from experiments.recorded_graphs import RecordedGraph, load_graph
from experiments.sites import weighted_pagerank
from opic.graph.crawled import LinkMatrix, link_matrix

PAGES = 30


def graph() -> RecordedGraph:
    rng = np.random.default_rng(5)
    web = rng.random((PAGES, PAGES)) < 0.12
    np.fill_diagonal(web, False)
    return RecordedGraph("made", link_matrix(*np.nonzero(web), web.shape), np.arange(PAGES) // 10, ["a", "b", "c"])


def matrix(name: str) -> LinkMatrix:
    found = MATRICES[name](graph())
    assert found is not None
    return found


@pytest.mark.parametrize("name", MATRICES)
def test_estimates_approach_the_walk_on_every_matrix(name: str) -> None:
    links = repeated(matrix(name))
    truth = fixed_point(links, RULES)
    assert truth == pytest.approx(weighted_pagerank(matrix(name)), rel=1e-9)
    engine = Engine(links, RULES, compiled=False)
    engine.know(np.arange(PAGES))
    engine.read_greedily(30 * PAGES)
    assert np.abs(engine.estimate() - truth).sum() < 0.02


def test_each_matrix_matches_its_name() -> None:
    links, cited = graph().links.toarray(), matrix("co-citation, K'K").toarray()
    assert (matrix("links in").toarray() == links.T).all()
    assert (matrix("both directions").toarray() == np.maximum(links, links.T)).all()
    assert (cited == links.T @ links - np.diag(links.sum(axis=0))).all()
    outside = graph().group[:, None] != graph().group
    weighted = matrix(f"links out, to other sites {OUTSIDE_WEIGHT} times").toarray()
    assert (weighted == links * np.where(outside, OUTSIDE_WEIGHT, 1)).all()
    assert (matrix("links out, to other sites only").toarray() == links * outside).all()
    assert graph().links.toarray().max() == 1, "the graph itself is left as it is"


def test_co_citation_of_a_graph_with_too_many_entries_is_left_out() -> None:
    assert MATRICES["co-citation, K'K"](load_graph("wikispeedia")) is None


def test_computed_eigenvector_is_the_dominant_one() -> None:
    both = matrix("both directions")
    values, vectors = np.linalg.eigh(both.toarray())
    dominant = np.abs(vectors[:, np.argmax(values)])
    assert dominant_eigenvector(both) == pytest.approx(dominant / dominant.sum(), abs=0.002)
    walk = sparse.csr_array(matrix(OUT) / np.maximum(np.asarray(matrix(OUT).sum(axis=1)), 1)[:, None])
    # Where all lines sum to 1, the walk and the eigenvector are one.
    undamped = np.linalg.matrix_power((walk.toarray().T + np.eye(PAGES)) / 2, 4_000) @ np.full(PAGES, 1 / PAGES)
    assert dominant_eigenvector(walk) == pytest.approx(undamped / undamped.sum(), abs=0.005)
