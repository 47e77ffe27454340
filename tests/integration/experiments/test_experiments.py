"""The papers' experiments run on the graphs that ship, and their results have the shape of the contract."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.algorithms.discovery import EXPANSIONS
from experiments.catalogue import EXPERIMENTS, reproduce
from experiments.davis_dhillon import KEPT
from experiments.distribution import Layout, SimulatedShards
from experiments.kumar import PLANS, dynamic_curve, ranked
from experiments.opic_streams import ORDERS, known_by_links, read_by_service
from experiments.recorded_graphs import NoGraph, RecordedGraph, load_graph
from experiments.recorded_time_graphs import pep_history
from experiments.recorded_topics import load_articles
from experiments.sampling_classifier import without_categories
from experiments.skeleton import Axes, Run
from opic.errors import BadInput
from opic.graph.crawled import link_matrix
from opic.graph.pagerank import DAMPING, pagerank

pytestmark = pytest.mark.slow

ALGORITHMS = {"none", "SC", "SC, focused start", "PF", "OutlinkCount", "InlinkCount", "Random"}
ARTICLES = load_articles(None)
WITHOUT_FIGURES = {"discovery-knob", "rankmass-fig10"}  # Experiments of which the paper prints no figures.


def test_quick_run_writes_the_table_and_the_picture(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["table2", "--quick", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    table = json.loads((tmp_path / "table2.json").read_text())
    assert list(table) == ["name", "paper", "columns", "rows", "seconds", "notes"]
    assert json.loads(done.stdout) == table
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    domains = {row["domain"] for row in rows}
    assert len(domains) == 3
    assert "all 2" in domains
    assert {row["graph"] for row in rows} == {"wikispeedia"}
    for domain in domains:
        of_domain = {row["algorithm"]: row for row in rows if row["domain"] == domain}
        views = {f"50% {order}{kept}" for order in ORDERS for kept in ("", KEPT)}
        assert of_domain.keys() == ALGORITHMS | views | {f"alone {view}" for view in views}
        assert of_domain["SC"]["of_sc"] == 1.0
        assert all(of_domain[view]["of_best"] >= of_domain[view]["of_sc"] for view in views)
        assert all(0 < row["l1"] < 2 and -1 <= row["tau"] <= 1 for row in of_domain.values())
    assert "Runs of each domain: 1." in table["notes"]
    for kept in ("", KEPT):
        said = f"wikispeedia, the combination with 50% coverage{kept}: L1 is 0."
        assert any(note.startswith(said) for note in table["notes"])
    assert {"domain": "socialism", "algorithm": "SC", "l1": 0.04318, "tau": 0.9604} in table["paper"]
    assert ElementTree.parse(tmp_path / "table2.svg").getroot().tag.endswith("svg")


def test_table_is_printed_with_the_papers_own() -> None:
    done = CliRunner().invoke(app, ["table1", "--quick"])
    assert done.exit_code == 0, done.output
    assert "five computer science sites\tSC\t0.0384\t0.9257" in done.stdout
    assert "hollins\t" in done.stdout
    assert "left out: uk-2007-05-100000" in done.stderr


def small_run(name: str, directory: Path, *options: str) -> list[dict[str, Any]]:
    """The rows of an experiment that ran small, by column."""
    done = CliRunner().invoke(app, [name, "--quick", "--out", str(directory), *options])
    assert done.exit_code == 0, done.output
    table = json.loads((directory / f"{name}.json").read_text())
    assert bool(table["paper"]) == (name not in WITHOUT_FIGURES)
    assert table["notes"]
    assert ElementTree.parse(directory / f"{name}.svg").getroot().tag.endswith("svg")
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_rankmass_needs_fewer_downloads_than_breadth_first_and_a_window_fewer_still(tmp_path: Path) -> None:
    rows = small_run("rankmass-table2", tmp_path)
    graphs = {row["graph"] for row in rows}
    assert graphs == {"hollins", "power law, 5,000 pages"}
    for graph in graphs:
        of_graph = {row["algorithm"]: row for row in rows if row["graph"] == graph}
        after = {name: row["guaranteed_after"] for name, row in of_graph.items()}
        assert all(row["actual_after"] <= row["guaranteed_after"] for row in of_graph.values())
        assert after["optimal"] <= after["5 % window"] < after["RankMass"] < after["L-Neighbor"]
        assert after["5 % window, four sweeps"] < after["5 % window"]
        assert after["RankMass, pushed first"] < after["RankMass"]


def test_smaller_windows_take_more_iterations(tmp_path: Path) -> None:
    rows = small_run("rankmass-table3", tmp_path)
    for graph in {row["graph"] for row in rows}:
        of_graph = {row["algorithm"]: row for row in rows if row["graph"] == graph}
        windows = [of_graph[f"{share} % window"] for share in (100, 20, 10, 5)]
        assert windows[0]["iterations"] == of_graph["L-Neighbor"]["iterations"]
        assert sorted(row["iterations"] for row in windows) == [row["iterations"] for row in windows]
        assert len({row["downloads"] for row in of_graph.values()}) == 1
        assert all(row["guaranteed"] <= row["actual"] for row in of_graph.values())


def test_few_seeds_cannot_guarantee_more_than_their_trust(tmp_path: Path) -> None:
    rows = small_run("rankmass-fig10", tmp_path)
    assert [row["seeds"] for row in rows] == [16, 160, 1_600] * 2
    assert all(few["trust"] < more["trust"] for few, more in pairwise(rows) if few["graph"] == more["graph"])
    assert all(row["guaranteed_at_0.5"] <= row["trust"] for row in rows)


def test_discovery_is_measured_on_fixed_graphs(tmp_path: Path) -> None:
    rows = small_run("kumar-fig1", tmp_path)
    assert {(row["graph"], row["algorithm"]) for row in rows} == {
        (graph, algorithm) for graph in ("hollins", "wikispeedia") for algorithm in EXPANSIONS
    }
    assert all(0 <= row["rank"] <= row["crawl"] <= 1 for row in rows)
    of_wikispeedia = {
        row["algorithm"]: row["crawl"] for row in rows if row["graph"] == "wikispeedia" and row["crawled"] == 100
    }
    assert of_wikispeedia["Crawl-GAI"] > of_wikispeedia["Sample-I"] > of_wikispeedia["Sample-U"]


def test_links_of_a_page_history_are_there_from_version_to_version() -> None:
    graph = pep_history(None)
    assert (graph.pages, len(graph.start)) == (741, 2001)
    assert (graph.end >= graph.start).all()
    assert len(np.flatnonzero(graph.end > graph.start[-1])) == 1667


@pytest.mark.parametrize("pair", [("Crawl-GAI", "OR"), ("Crawl-AI", "LDU"), ("Sample-U", "none")])
def test_discovery_is_measured_on_graphs_that_change(pair: tuple[str, str]) -> None:
    plan = PLANS["pep-history"]
    curve = dynamic_curve(plan.load(None, 0), plan, 300, pair, 1)
    assert curve.shape == (50, 5)
    assert (np.diff(curve[:, 0]) > 0).all()
    assert (curve[:, 1] <= curve[:, 2]).all()
    assert (curve[:, 3] <= 741 / 3).all()


def test_places_are_by_performance_per_graph_and_only_for_policies_that_recrawl() -> None:
    found = [("a", "OR", 0.3), ("a", "none", 0.9), ("a", "U", 0.5), ("b", "U", 0.1)]
    rows = [{"graph": graph, "recrawl": policy, "crawl": crawl, "place": ""} for graph, policy, crawl in found]
    ordered = ranked(Run(None, 1, False, Axes(), lambda *_: None), rows)
    assert [(row["graph"], row["recrawl"], row["place"]) for row in ordered] == [
        ("a", "U", 1), ("a", "OR", 2), ("a", "none", ""), ("b", "U", 1),
    ]  # fmt: skip


def test_ranking_by_several_runs_says_how_sure_it_is(tmp_path: Path) -> None:
    rows = small_run("kumar-fig1", tmp_path, "--runs", "3")
    assert {row["runs"] for row in rows} == {3}
    of_wikispeedia = {row["algorithm"]: row for row in rows if (row["graph"], row["crawled"]) == ("wikispeedia", 100)}
    best, worst = of_wikispeedia["Crawl-GAI"], of_wikispeedia["Sample-U"]
    assert best["crawl"] - 3 * best["crawl ±"] > worst["crawl"] + 3 * worst["crawl ±"]
    assert 0 < worst["crawl ±"] < 0.1


def test_list_shows_each_experiment() -> None:
    done = CliRunner().invoke(app, ["--list", "--json"])
    assert [row["name"] for row in json.loads(done.stdout)["experiments"]] == list(EXPERIMENTS)


def test_focused_samples_are_shown_beside_the_truth(tmp_path: Path) -> None:
    rows = small_run("sampling", tmp_path)
    assert {row["graph"] for row in rows} == {"made up", "wikispeedia", "hollins"}
    of_topic = {row["focus"]: row for row in rows if row["topic"] == "geography"}
    assert of_topic.keys() == {"none", "hard", "neighbourhood", "trial", "hard, real steps"}
    assert of_topic["hard"]["precision"] == 1.0
    assert of_topic["none"]["precision"] < of_topic["trial"]["precision"] < 1
    assert of_topic["hard"]["rmse"] < of_topic["hard, real steps"]["rmse"]


def test_precision_falls_with_the_number_of_tries(tmp_path: Path) -> None:
    rows = small_run("sampling-precision", tmp_path)
    mean = {row["k"]: row["precision"] for row in rows if row["graph"] == "mean of the topics"}
    assert [*mean] == [1, 3, 10, 30]
    assert mean[1] > mean[3] > mean[30]


def test_shares_by_value_are_shown_beside_the_truth(tmp_path: Path) -> None:
    rows = small_run("sampling-values", tmp_path)
    of = {row["focus"]: row for row in rows if row["topic"] == "geography"}
    assert of.keys() == {"hard", "neighbourhood", "trial"}
    for row in of.values():
        assert row["distance"] < 0.3
        assert abs(row["mean estimated"] - row["mean"]) < 0.1


def test_influence_is_compared_with_the_effect_of_fetching_a_page(tmp_path: Path) -> None:
    rows = small_run("davis-fig1", tmp_path)
    assert len(rows) == 2
    for row in rows:
        assert row["error by objective"] <= row["error by random"]
        assert row["error by objective"] < 1
        assert 0 <= row["raise the error"] <= 1
        assert all(-1 <= row[f"rho {name}"] <= 1 for name in ("SC score", "out-links", "exact influence", "impact"))


def test_classifiers_are_compared_on_texts(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "articles_text.jsonl.gz", "wt") as file:
        for number, (name, categories) in enumerate(zip(ARTICLES.names, ARTICLES.categories, strict=True)):
            words = "wings and species of the sea" if any("Biology" in one for one in categories) else "other things"
            text = f"Title Related subjects: Birds; {words if number % 9 else 'unlike'} {number}"
            file.write(json.dumps({"article": name, "text": text}) + "\n")
    rows = small_run("sampling-classifier", tmp_path, "--data", str(tmp_path))
    assert [row["classifier"] for row in rows] == ["category", "keyword 'species'", "decision tree", "linear"]
    for row in rows:
        assert row["accuracy"] > 0.9
        assert abs(row["estimate"] - row["truth"]) < 0.25
    done = CliRunner().invoke(app, ["sampling-classifier"])
    assert "articles_text.jsonl.gz is missing; name the directory that has it with --data DIR" in str(done.exception)


def test_category_headings_before_an_article_are_removed() -> None:
    texts = ["A 2007 Schools. Related subjects: British History 1500 and before; Birds The text", "no heading"]
    names = [["subject.History.British_History.British_History_1500_and_before"], ["subject.Birds"]]
    assert without_categories(texts, names) == ["The text", "no heading"]


def test_unknown_experiment_is_refused() -> None:
    with pytest.raises(BadInput, match="no experiment 'table3': did you mean table"):
        reproduce("table3", None, lambda *_: None)


def test_graph_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoGraph, match=r"gr0-california: gr0\.California\.gz is missing; name the directory"):
        load_graph("gr0-california", tmp_path)


def made_up_graph() -> tuple[np.ndarray, RecordedGraph]:
    rng = np.random.default_rng(4)
    web = rng.random((40, 40)) < 0.1
    np.fill_diagonal(web, False)
    parts = np.arange(40) // 10
    return web, RecordedGraph("made up", link_matrix(*np.nonzero(web), web.shape), parts, ["a", "b", "c", "d"])


def test_service_that_keeps_links_gives_what_opic_approaches() -> None:
    _, graph = made_up_graph()
    pages = np.arange(0, 40, 3)
    kept, measured = known_by_links(graph, pages), read_by_service(graph, pages, reads=400)
    assert (np.isnan(kept.importance) == np.isnan(measured.importance)).all()
    assert kept.read.tolist() == measured.read.tolist()
    assert kept.dangling.tolist() == measured.dangling.tolist()
    known = ~np.isnan(kept.importance)
    assert kept.importance[known] == pytest.approx(measured.importance[known], rel=0.02)
    assert kept.inflow == pytest.approx(measured.inflow, rel=0.05, abs=1e-4)


def test_service_that_read_everything_has_the_pagerank_and_the_inflow() -> None:
    web, graph = made_up_graph()
    truth, out = pagerank(graph.links, threshold=1e-12), np.maximum(web.sum(axis=1), 1)
    service = read_by_service(graph, np.arange(40), reads=40)
    assert service.importance == pytest.approx(truth, rel=0.02)
    (domain, *_) = graph.domains(1)
    outside = np.setdiff1d(np.arange(40), domain.pages)
    inflow = DAMPING * (truth[outside] / out[outside]) @ web[np.ix_(outside, domain.pages)]
    assert service.knowledge(domain, domain.pages).inflow == pytest.approx(inflow, rel=0.05, abs=1e-4)


def test_each_order_names_every_page_once() -> None:
    graph = load_graph("hollins")
    for pages_in in ORDERS.values():
        assert sorted(pages_in(graph, np.random.default_rng(1)).tolist()) == list(range(len(graph)))


def test_bytes_between_shards_fall_with_their_buffers_and_are_fewer_by_host(tmp_path: Path) -> None:
    rows = small_run("distribution", tmp_path)
    by = {name: [row for row in rows if row["by"] == name] for name in ("one shard", "host", "url")}
    for name in ("host", "url"):
        sent = [row["bytes_a_read"] for row in by[name]]
        assert sorted(sent, reverse=True) == sent
        assert all(row["bytes_a_read"] < row["plain_bytes_a_read"] for row in by[name])
    assert all(a["bytes_a_read"] < b["bytes_a_read"] for a, b in zip(by["host"], by["url"], strict=True))
    assert [row["bytes_a_read"] for row in by["one shard"]] == [0]
    assert by["url"][0]["l1_at_1n"] < by["url"][-1]["l1_at_1n"]


def test_deposits_of_shards_keep_all_cash_and_arrive() -> None:
    rng = np.random.default_rng(3)
    web = rng.random((60, 60)) < 0.1
    np.fill_diagonal(web, False)
    graph = RecordedGraph("made up", link_matrix(*np.nonzero(web), web.shape), np.arange(60) // 6, [*"abcdefghij"])
    for by in ("host", "url"):
        shards = SimulatedShards(graph.links, Layout.of(graph, by, 4))
        for _ in range(5):
            shards.read_batch()
        out, here = np.maximum(web.sum(axis=1), 1), shards.cash + shards.owed.sum(axis=0)
        received = 1 + DAMPING * (shards.history / out) @ web
        assert here + shards.history == pytest.approx(received)
        assert shards.in_flight() > 0
        shards.deliver()
        assert shards.in_flight() == 0
        assert shards.cash == pytest.approx(here)
        assert shards.traffic.deposits <= shards.traffic.links


def test_importance_of_sites_from_links_between_them_alone_is_not_the_sum_over_pages(tmp_path: Path) -> None:
    rows = {row["computation"]: row for row in small_run("sites", tmp_path)}
    assert rows["sites, weighted by pages' importance"]["l1"] < 1e-9
    assert rows["sites, each link once"]["l1"] > 0.1
    assert rows["sites, each link between pages"]["l1"] > 0.1
    assert 0 < rows["pages, without links inside sites"]["l1"] < rows["sites, each link once"]["l1"]


def test_weight_of_pages_never_read_buys_discovery_and_costs_accuracy(tmp_path: Path) -> None:
    rows = [row for row in small_run("discovery-knob", tmp_path) if row["knob"] == "weight" and row["reads"] == 1]
    assert [row["value"] for row in rows] == [0.01, 1, 100]
    for rising in ("known", "read", "importance_read", "age"):
        assert sorted(row[rising] for row in rows) == [row[rising] for row in rows]
    assert rows[0]["l1_known"] < rows[1]["l1_known"] < rows[2]["l1_known"]
