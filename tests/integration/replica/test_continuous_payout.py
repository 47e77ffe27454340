"""The paper's payout, as a service: chosen once, known to the store from then on, answered by a window policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import networkx as nx
import pytest
from servers import Server
from serving import serving

from opic.errors import StoreMismatch
from opic.ops.replay import Plan, replay
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import Shard

NODES = 150
READS_A_PAGE = 30


@contextmanager
def asking(service: EmbeddedService) -> Iterator[httpx.Client]:
    with serving(service) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "nx.DiGraph[str]"]:
    """The data of a service that was made to pay at once and fed a graph; and the graph."""
    folder = tmp_path_factory.mktemp("continuous")
    meant: nx.DiGraph[str] = nx.DiGraph()
    drawn = nx.gnp_random_graph(NODES, 0.04, seed=3, directed=True)
    meant.add_edges_from((f"http://graph.example/{a}", f"http://graph.example/{b}") for a, b in drawn.edges)
    (folder / "graph.txt").write_text("".join(f"{a} {b}\n" for a, b in meant.edges))
    with EmbeddedService(
        Settings.load(data=folder / "data", virtual="continuous", keep_links=False), worker=True
    ) as service:
        plan = Plan("edges", "cycle", reads_per_page=READS_A_PAGE)
        replay(service.backend, [folder / "graph.txt"], plan)
    return folder / "data", meant


def test_service_answers_by_interpolation_without_an_error_bound(
    crawled: tuple[Path, "nx.DiGraph[str]"],
) -> None:
    """The setting is not given again: the store knows."""
    data, meant = crawled
    with EmbeddedService(Settings.load(data=data, keep_links=False)) as service, asking(service) as client:
        asked = client.post("/v1/importance", json={"urls": list(meant)}).json()["pages"]
        assert {page["policy"] for page in asked} == {"interpolation"}
        assert {page["window"] for page in asked} == {8.0}
        assert not any("error_bound" in page for page in asked)
        found = {page["url"]: page["importance"] for page in asked}
        assert sum(found.values()) == pytest.approx(1, abs=1e-9)
        exact = nx.pagerank(meant, alpha=0.85, tol=1e-12)
        assert sum(abs(found[url] - exact[url]) for url in exact) < 0.1

        static = client.get("/v1/top", params={"n": 1_000, "policy": "static"}).json()["pages"]
        assert sum(page["importance"] for page in static) == pytest.approx(1, abs=1e-9)
        assert {page["policy"] for page in client.get("/v1/top").json()["pages"]} == {"interpolation"}
        one = client.get("/v1/importance", params={"url": static[0]["url"], "policy": "static"}).json()
        assert (one["policy"], one["window"]) == ("static", None)
        assert "error_bound" not in one

        stats, audit = client.get("/v1/stats").json(), client.get("/v1/audit").json()
        assert "error_bound" not in stats
        assert stats["rounds"] == pytest.approx(stats["clock"] / 2**46)
        assert audit["conserved"]
        assert audit["minted"] == 2**46
        assert audit["virtual"] < NODES
        assert "opic_error_bound" not in client.get("/metrics").text


def test_store_keeps_its_payout_and_refuses_another(valkey: Server) -> None:
    assert Shard.open(valkey.client(), given={"virtual": "continuous"}).rules.continuous
    assert Shard.open(valkey.client()).rules.continuous
    with pytest.raises(StoreMismatch, match="OPIC_VIRTUAL is grants, but this store was made with continuous"):
        Shard.open(valkey.client(), given={"virtual": "grants"})
    assert not Shard.open(valkey.client(), "other").rules.continuous
