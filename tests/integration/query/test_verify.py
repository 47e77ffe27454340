"""`opic verify`: PageRank from the stored links by another way, and exit 1 where the bound is below the error."""

import json

import numpy as np
import pytest
from exact_readers import asked
from hypothesis import given
from hypothesis import strategies as st
from linked_web import PAGES, Web
from servers import Server
from typer.testing import CliRunner

from opic.cli.main import app
from opic.errors import NotKept
from opic.graph.flow import Flow
from opic.model.classes import check_classes, encode_classes
from opic.model.events import Record
from opic.query.verification import computed_pagerank, verified


def crawled(valkey: Server, name: str, shards: int = 1, *, keep_links: bool = True) -> Web:
    web = Web(valkey, name, shards, keep_links=keep_links)
    for page in range(10):
        web.read(PAGES[page], [PAGES[0], PAGES[(page + 3) % 14], PAGES[(5 * page + 1) % 14]])
    web.read(PAGES[4], [], status=404)
    web.writer.drain()
    return web


@pytest.mark.parametrize("shards", [1, 3])
def test_error_is_within_the_bound(valkey: Server, shards: int) -> None:
    web = crawled(valkey, f"verify-{shards}", shards)
    found = verified(asked(web.crawl))
    assert 0 <= found["error"] <= found["error_bound"] <= 0.01  # type: ignore[operator]
    assert found["pages"] == 13
    assert found["links_unknown"] == 0


def test_weighted_jump_is_verified_by_igraph(valkey: Server) -> None:
    web = crawled(valkey, "verify-classes")
    classes = check_classes([{"name": "main", "weight": 4, "hosts": ["h0.org"]}])
    web.last = [Record(web.offset, web.at_us, encode_classes(classes), "classes")]
    web.again()
    found = verified(asked(web.crawl))
    assert found["computed_by"] == "igraph"
    assert 0 <= found["error"] <= found["error_bound"] <= 0.01  # type: ignore[operator]


@given(st.data(), st.integers(1, 12), st.floats(0, 0.99))
def test_pagerank_is_that_of_a_dense_solution_under_any_jump(data: st.DataObject, pages: int, damping: float) -> None:
    page = st.integers(0, pages - 1)
    links = sorted(data.draw(st.sets(st.tuples(page, page).filter(lambda link: link[0] != link[1]), max_size=30)))
    weights = np.array(data.draw(st.lists(st.integers(0, 4), min_size=pages, max_size=pages).filter(any)), float)
    sources, targets = np.array(links, np.int64).reshape(-1, 2).T
    jump = weights / weights.sum()
    walk = np.tile(jump[:, None], pages)  # From pages without links, to where the random jump goes.
    for source in set(sources.tolist()):
        walk[:, source] = np.bincount(targets[sources == source], minlength=pages) / (sources == source).sum()
    truth = np.linalg.solve(np.eye(pages) - damping * walk, (1 - damping) * jump)
    found, way = computed_pagerank(sources, targets, jump, damping)
    assert way == "igraph"
    assert np.abs(found - truth).sum() < 1e-9


def test_command_prints_the_error_beside_the_bound_and_fails_where_the_bound_is_below(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawled(valkey, "verify-command")
    asked = ["verify", "--store", valkey.url, "--crawl", "verify-command", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["error"] <= found["error_bound"]
    monkeypatch.setattr(Flow, "bound", property(lambda _: 1e-12))
    assert CliRunner().invoke(app, asked).exit_code == 1


def test_without_kept_links_verification_is_refused(valkey: Server) -> None:
    web = crawled(valkey, "verify-none", keep_links=False)
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
        verified(asked(web.crawl))


def test_crawl_whose_pages_are_all_gone_has_no_error(valkey: Server) -> None:
    web = Web(valkey, "verify-gone")
    web.read(PAGES[0], [], status=404)
    found = verified(asked(web.crawl))
    assert (found["pages"], found["error"]) == (0, 0.0)
