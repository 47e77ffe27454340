"""`python -m experiments` of the paper on OPIC: quick runs of each experiment, and what must hold at any size."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from frontiers import Crawl
from servers import Server

from experiments.catalogue import reproduce
from experiments.link_matrices import MATRICES
from experiments.opic_engine import PageLinks, fixed_point
from experiments.opic_reads import ALL, FEW, GRANTS, TARGETS, approach, prefix_pagerank, reachable
from experiments.polite_crawl import ORDERS, CrawlTerms, PoliteCrawl
from experiments.recorded_graphs import load_graph
from experiments.result import Result
from experiments.strategies import STRATEGIES
from experiments.window_crawls import WindowPolicy
from experiments.window_figures import CHANGES, COLD, SIZES, STORING, TYPES, WARM

pytestmark = pytest.mark.slow


def quick(name: str) -> tuple[Result, list[dict[str, object]]]:
    result = reproduce(name, None, lambda *_: None, quick=True)
    return result, [dict(zip(result.columns, row, strict=True)) for row in result.rows]


@pytest.mark.parametrize("name", ["fig2", "fig3"])
def test_quick_run_of_a_figure_compares_each_claim_with_our_result(name: str, tmp_path: Path) -> None:
    result, rows = quick(name)
    result.write(tmp_path)
    table = json.loads((tmp_path / f"{name}.json").read_text())
    assert all(row.keys() == {"claim", "paper", "ours"} for row in table["paper"])
    errors = {
        (row["degrees"], row["strategy"]): [float(str(row[f"error at {n} N"])) for n in (1, 2, 5, 10)]
        for row in rows
        if row["estimate"] == "(H+C)/(G+1)"
    }
    assert len(errors) == len(STRATEGIES) + 1 + 2 * 4
    assert all(later < earlier for of in errors.values() for earlier, later in pairwise(of))
    for degrees in ("in and out", "in", "Poisson"):
        greedy, cycle, random = (errors[degrees, strategy][-1] for strategy in ("Greedy", "Cycle", "Random"))
        assert greedy < cycle < random
    assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("name", "policies", "at", "rates"),
    [
        ("fig4", SIZES, (COLD,), len(CHANGES)),
        ("fig5", STORING, (WARM,), 1),
        ("fig6", TYPES, (COLD, WARM), len(CHANGES)),
    ],
)
def test_quick_run_of_windows_has_a_row_for_each_policy(
    name: str, policies: Sequence[WindowPolicy], at: Sequence[int], rates: int
) -> None:
    result, rows = quick(name)
    assert len(rows) == len(policies) * len(at) * rates
    assert all(row.keys() == {"claim", "paper", "ours"} for row in result.paper)
    still = {row["policy"]: row for row in rows if row["change"] == "0%" and row["months"] == at[-1]}
    assert all(0 < float(str(row["error"])) < 25 for row in still.values())
    measures = {policy: float(str(row["measures a page"])) for policy, row in still.items()}
    assert measures["Interpolation 4 months"] == 1
    if name == "fig5":
        assert measures["Variable 8 measures"] == measures["Fixed 8 months"] == 8
        assert 4 == measures["Fixed 4 months"] < measures["Improved Fixed 4 months"] <= 7


def test_residual_of_a_window_is_within_the_paper_s_bound_and_the_error_is_not() -> None:
    _, rows = quick("opic-windows")
    windows = [row for row in rows if row["bound 1/|H|"]]
    assert [row["estimate"] for row in windows] == ["H over T"] * 5 + ["H/G"] * 4
    for row in windows:
        assert 0 < float(str(row["greatest residual of a page"])) <= float(str(row["bound 1/|H|"]))
    sized = {row["window"]: row for row in windows if row["estimate"] == "H over T"}
    assert all(float(str(sized["1 months"][of])) > float(str(sized["16 months"][of])) for of in ("deviation", "error"))
    assert [float(str(row["L1 in bounds"])) > 2 for row in windows[-3:]] == [
        True
    ] * 3  # On real graphs, and on two halves.


def test_small_windows_follow_a_change_and_the_whole_history_does_not() -> None:
    _, rows = quick("opic-follow")
    after = {str(row["policy"]): [float(str(row[f"error {n} months after"])) for n in (1, 4, 16)] for row in rows}
    assert after["Interpolation 2 months"][1] < after["Interpolation 8 months"][1] < after["whole history"][1]
    assert after["whole history"][2] > 3 * after["Interpolation 8 months"][2]


def test_interpolated_edges_are_nearer_than_fixed_windows_and_lose_little_when_measures_are_grouped() -> None:
    _, rows = quick("opic-compression")
    error = {(row["estimate"], row["window"], row["measures"], row["change"]): float(str(row["error"])) for row in rows}
    grouped = "doubling groups, 4 of a size"
    for change in ("0%", "1%", "5%", "10%"):
        fixed, edges, fewer = (
            error[estimate, "4 months", measures, change]
            for estimate, measures in (
                ("Fixed", "all"),
                ("edges interpolated", "all"),
                ("edges interpolated", grouped),
            )
        )
        assert edges < fixed
        assert fewer < 1.2 * edges


def test_derivative_distinguishes_most_changing_pages() -> None:
    _, rows = quick("opic-derivative")
    told = [
        row for row in rows if row["what"] == "derivative" and row["change"] == "10%" and row["window"] != "1 months"
    ]
    assert len(told) == 3
    assert all(float(str(row["pairs right"])) > 0.7 and float(str(row["signs right"])) > 0.75 for row in told)


def test_quick_run_of_matrices_has_a_row_for_each() -> None:
    _, rows = quick("opic-matrices")
    assert [row["matrix"] for row in rows] == list(MATRICES)
    assert rows[0]["L1 from PageRank"] == 0
    assert all(float(str(row["L1 from PageRank"])) > 0.1 for row in rows[1:])
    assert all(float(str(row["L1 from eigenvector"])) > 1 for row in rows)


def test_windows_are_measured_in_days_and_in_rounds() -> None:
    _, rows = quick("opic-days")
    assert {row["window"] for row in rows} >= {"", "8 rounds", "8 days"}


def test_quick_run_of_reads_reports_missing_data_and_when_each_target_was_met() -> None:
    result, rows = quick("opic-reads")
    assert {row["graph"] for row in rows} == {"hollins", "wikispeedia"}
    assert len(result.missing) == 2
    cycle = {
        row["estimate"]: row
        for row in rows
        if (row["graph"], row["start"], row["strategy"]) == ("hollins", ALL, "Cycle")
    }
    assert [cycle["PageRank of the crawled"][target] for target in TARGETS] == [1.0] * len(TARGETS)
    assert cycle["OPIC"]["tau 0.90"] == pytest.approx(1.7, abs=0.2)
    assert cycle["OPIC"]["L1 1%"] == "> 2"


def test_crawl_from_seeds_approaches_the_pagerank_of_all_that_can_be_reached() -> None:
    links = PageLinks.of(load_graph("hollins").links)
    graph, seeds = reachable(links, FEW, np.random.default_rng(1))
    pages = len(graph.starts) - 1
    assert 3_000 < pages < len(links.starts) - 1
    truth = fixed_point(graph, GRANTS)
    opic, prefix = approach(graph, seeds, truth, "Cycle", end=1.5, compiled=False)
    assert opic.curve[-1][1] < 0.5 < opic.curve[0][1]
    assert prefix.met["L1 1%"] <= 1.4
    read = np.ones(pages, np.bool_)
    ranks = prefix_pagerank(graph, np.random.default_rng(3).permutation(pages), read, np.zeros(pages))
    assert np.abs(ranks - truth).sum() < 1e-4
    nobody = prefix_pagerank(graph, seeds, np.zeros(pages, np.bool_), np.zeros(pages))
    assert nobody[:5] == pytest.approx([0.2] * 5)
    assert nobody[5:].sum() == 0


def test_grants_are_nearer_the_site_s_pagerank_than_the_paper_s_payout() -> None:
    result, rows = quick("opic-history")
    static = {row["payout"]: float(str(row["L1"])) for row in rows if row["policy"] == "static"}
    assert static["grants"] < 0.5 < static["continuous"]
    (panel,) = (panel for panel in result.panels if panel.x_scale == "time")
    assert {"PEP 8", "PEP 8, exact", "PEP 20"} <= panel.lines.keys()
    assert "PEP 484" not in panel.lines


@pytest.mark.parametrize(("name", "strategy"), [("cash", "greedy"), ("cycle", "cycle")])
def test_crawl_in_virtual_time_reads_the_pages_that_the_service_suggests(
    valkey: Server, name: str, strategy: str
) -> None:
    rng, pages = np.random.default_rng(5), 150
    targets = [np.setdiff1d(rng.integers(0, pages, rng.integers(0, 9)), [page]) for page in range(pages)]
    links = PageLinks(np.cumsum([0, *map(len, targets)]), np.concatenate(targets).astype(np.int64))
    virtual = PoliteCrawl(links, np.zeros(pages, np.int64), ORDERS[name], CrawlTerms(10, crawlers=1), compiled=False)
    virtual.know(np.arange(pages))
    order = [virtual.run(done + 1) or int(virtual.last) for done in range(3 * pages)]
    urls = [f"http://a.org/{page}" for page in range(pages)]
    real = Crawl(valkey, regrant_ppm=GRANTS.regrant_ppm, strategy=strategy)
    real.seed(urls)
    read: list[str] = []
    while len(read) < len(order):
        for url in real.urls(10):
            read.append(url)
            real.event(url, [urls[target] for target in targets[urls.index(url)]])
    assert [urls.index(url) for url in read[: len(order)]] == order


def test_quick_run_of_orders_has_a_row_for_each_and_cash_is_ahead_of_random() -> None:
    _, rows = quick("service-order")
    last = {str(row["order"]): row for row in rows if row["reads"] == 1}
    assert last.keys() == ORDERS.keys()
    for row in rows:
        assert 0 < float(str(row["l1"])) < 2
        assert 0 <= float(str(row["empty"])) <= float(str(row["short"])) <= 1
    assert float(str(last["cash"]["l1"])) < float(str(last["random"]["l1"]))


def test_quick_run_of_change_models_reports_the_change_and_the_best_policy_of_each() -> None:
    result, rows = quick("opic-changes")
    assert all(row.keys() == {"claim", "paper", "ours"} for row in result.paper)
    still = [row for row in rows if row["what changes"] == "nothing"]
    assert [row["importance changed"] for row in still] == [0, 0]
    by_rate = {
        row["change"]: float(str(row["importance changed"])) for row in rows if row["what changes"] == "links exchanged"
    }
    assert 0 < by_rate["1%"] < by_rate["5%"] < by_rate["10%"]


def test_polling_more_often_brings_windows_and_the_crawled_graph_nearer_to_the_site() -> None:
    _, rows = quick("opic-polling")
    l1 = {
        (row["strategy"], row["reads a day"], f"{row['payout']} {row['estimate']}".strip()): float(str(row["L1"]))
        for row in rows
    }
    for strategy in ("Greedy", "Cycle", "Random"):
        for estimate in ("PageRank of the crawled", "continuous interpolation 8 rounds"):
            seldom, often = (l1[strategy, reads, estimate] for reads in (1, 16))
            assert often < seldom / 2
    assert l1["Cycle", 16, "PageRank of the crawled"] < 1e-3
    # A page's first links stay in the history of all its reads.
    assert l1["Cycle", 16, "grants static"] > 5 * l1["Cycle", 16, "continuous interpolation 8 rounds"]
