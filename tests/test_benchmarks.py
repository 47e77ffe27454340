"""The benchmarks run, small, and what they check with sees what is wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import want_server, want_tool
from repository import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import lease_check

    return lease_check


def suggested(check: Any, *rows: tuple[str, float, float]) -> list[Any]:
    return [check.Suggestion(url, f"crawler-{i}", since, until) for i, (url, since, until) in enumerate(rows)]


def test_consecutive_leases_are_no_violation(check: Any) -> None:
    found = suggested(check, ("http://a.example/", 10.0, 20.0), ("http://a.example/", 20.0, 30.0))
    verdict = check.judge(found, 1.0, ())
    assert not verdict.violations
    assert (verdict.suggestions, verdict.distinct_pages, verdict.pages_again, verdict.hosts_again) == (2, 1, 1, 1)
    assert verdict.host_gap_min_s == 10.0


def test_page_leased_while_its_lease_runs_is_detected(check: Any) -> None:
    found = suggested(check, ("http://a.example/", 15.0, 25.0), ("http://a.example/", 10.0, 20.0))
    (told,) = check.judge(found, 1.0, ()).violations
    assert told.startswith("http://a.example/: leased to crawler-1 until 20.0")


def test_page_that_events_read_may_be_leased_again(check: Any) -> None:
    found = suggested(check, ("http://a.example/", 10.0, 20.0), ("http://a.example/", 15.0, 25.0))
    assert not check.judge(found, 1.0, {"http://a.example/"}).violations


def test_host_suggested_before_its_delay_is_detected(check: Any) -> None:
    found = suggested(check, ("http://a.example/1", 10.0, 20.0), ("http://a.example/2", 10.9, 20.0))
    assert check.judge(found, 1.0, ()).violations == ["a.example: suggested 0.900000 s after the last time"]
    assert not check.judge(found, 0.9, ()).violations


@pytest.mark.parametrize(("pages", "hosts"), [(1, 1), (10, 3), (12, 4), (1_003, 50)])
def test_known_pages_are_numbered_host_by_host(pages: int, hosts: int) -> None:
    import workloads

    known = workloads.Known(pages, hosts)
    sizes = [pages // hosts + (host < pages % hosts) for host in range(hosts)]
    assert list(known) == [(host, page) for host in range(hosts) for page in range(sizes[host])]
    known.append((hosts, 0))
    assert (len(known), known[pages]) == (pages + 1, (hosts, 0))


class Answering:
    """A contender whose audit answers what it is told to."""

    def __init__(self, **answer: Any) -> None:
        self.name, self.worker, self.answer = "told", self, answer

    def ask(self, _do: str, **_arguments: Any) -> dict[str, Any]:
        return self.answer


def test_race_ends_on_books_that_do_not_balance() -> None:
    import bench_journal

    bench_journal.check([Answering(known=5, conserved=True), Answering(known=5, off_by=1e-9)], 5, 5)
    for wrong in ({"known": 5, "conserved": False}, {"known": 5, "off_by": 1e-3}, {"known": 4, "conserved": True}):
        with pytest.raises(SystemExit):
            bench_journal.check([Answering(**wrong)], 5, 5)


def test_page_leased_again_is_free_only_by_an_event_that_took_effect_meanwhile() -> None:
    import bench_latency
    import workloads

    events = SimpleNamespace(reads={"http://a.example/": [5]}, applied=iter([4, 6, 8]).__next__)
    client = bench_latency.Client("http://127.0.0.1:9", workloads.Crawl(10), events)
    others = [{f"http://{turn}.example/{n}" for n in range(bench_latency.NEXT - 1)} for turn in range(3)]
    client.take({"http://a.example/"} | others[0], before=4)
    client.take({"http://a.example/"} | others[1], before=6)
    with pytest.raises(SystemExit, match=r"leased: .*a\.example"):
        client.take({"http://a.example/"} | others[2], before=8)


def run_benchmark(name: str, result: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / name), *arguments, "--result", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@pytest.mark.slow
def test_benchmark_of_the_journal_runs(tmp_path: Path) -> None:
    small = ("--pages", "2000", "--events", "100", "--rounds", "2", "--warm-up", "100")
    found = run_benchmark(
        "bench_journal.py", tmp_path / "journal.json", *small, "--latency", "--seconds", "1", "--restart"
    )
    assert [row["kind"] for row in found["speed"]] == ["warm", "tenth", "seven"]
    for row in found["speed"]:
        for name in ("now", "baseline"):
            assert all(row[name][figure] > 0 for figure in ("wall_us", "worker_cpu_us", "server_cpu_us", "aof_bytes"))
    assert found["speed"][0]["pages_in_the_end"] == 2_000
    (latency,) = found["latency"]
    assert latency["now, 2,000 events/s"]["gets"]["of"] == 500
    assert len(latency["now, full speed"]["importance"]) == 2
    (restart,) = found["restart"]
    assert restart["takeover_s"] > 0


@pytest.mark.slow
def test_benchmark_of_the_journal_runs_with_shards_and_several_workers(tmp_path: Path) -> None:
    small = ("--pages", "2000", "--events", "100", "--rounds", "1", "--warm-up", "100", "--kinds", "tenth")
    found = run_benchmark(
        "bench_journal.py", tmp_path / "journal.json", *small, "--shards", "4", "--workers", "2", "--no-baseline"
    )
    assert not found["through_log"]
    assert found["speed"][0]["pages_in_the_end"] > 2_000


@pytest.mark.slow
def test_benchmark_of_memory_runs(tmp_path: Path) -> None:
    found = run_benchmark("bench_memory.py", tmp_path / "memory.json", "--pages", "3000", "--settings", "0")
    ours = found["engines"]["defaults"]
    assert ours["pages"] >= 3_000
    figures = ("bytes_a_page", "worker_bytes_a_page", "loading_worker_bytes_a_page", "endpoint_bytes_a_page")
    assert all(ours[figure] > 0 for figure in figures)
    assert found["engines"]["baseline"]["columns"]["cash"] > 0


@pytest.mark.slow
def test_benchmark_of_the_endpoint_loads_it_open_loop(tmp_path: Path) -> None:
    import open_loop

    want_tool("vegeta", how=open_loop.HOW_TO_GET)
    small = ("--quick", "--only", "open,first", "--pages", "20000", "--seconds", "1")
    found = run_benchmark("bench_endpoint.py", tmp_path / "endpoint.json", *small)
    kinds = found["open"]["kinds"]
    # On a busy machine vegeta sends a few less.
    assert {kind: row["of"] for kind, row in kinds.items()} == pytest.approx(
        {"next": 200, "importance": 600, "batch": 40, "top": 20}, rel=0.1
    )
    assert all(row["age"]["max_ms"] > 0 for row in kinds.values())
    assert kinds["batch"]["pages_an_answer"] == 100
    assert found["first"]["first next after a restart of the store"]["of"] == 3


@pytest.mark.slow
def test_benchmark_of_the_endpoint_runs(tmp_path: Path) -> None:
    want_tool("wrk", "wrk")
    small = ("--quick", "--only", "load,top,check", "--pages", "20000", "--seconds", "1", "--suggestions", "2000")
    found = run_benchmark("bench_endpoint.py", tmp_path / "endpoint.json", *small)
    assert found["world"]["pages"] == 20_000
    for phase in ("quiet", "busy"):
        assert set(found["load"][phase]) == {"next", "importance", "batch", "top"}
    assert sum(row["requests"] for row in found["load"]["quiet"].values()) > 0
    assert found["load"]["busy"]["importance"]["cpu_share"].keys() == {"endpoint 1", "worker", "store"}
    assert found["check"]["suggestions"] >= 2_000
    assert found["check"]["hosts_again"] > 0
    assert found["check"]["violations"] == 0


@pytest.mark.slow
def test_benchmark_of_exports_runs(tmp_path: Path) -> None:
    found = run_benchmark("bench_export.py", tmp_path / "export.json", "--pages", "2000")
    assert found["pages"] == 2_000
    assert found["exports"].keys() == {"parquet with links", "csv", "jsonl", "cc-ranks"}
    assert found["readers"]["importance_sum_off_by"] <= 1e-9


@pytest.mark.slow
def test_benchmark_of_loaded_importance_runs(tmp_path: Path) -> None:
    found = run_benchmark("bench_loaded.py", tmp_path / "loaded.json", "--pages", "2000")
    assert found["pages"] == 2_000
    assert found["store_bytes_a_page"] < 5
    assert found["error_bound"] < 1e-5
    assert found["off_by"] < 1e-5


@pytest.mark.slow
def test_benchmark_of_tokens_runs(tmp_path: Path) -> None:
    found = run_benchmark("bench_tokens.py", tmp_path / "tokens.json", "--seconds", "1")
    assert all(value > 0 for value in found["call_us"].values())
    floods = {name: row["flood_events_per_s"] for name, row in found["sharing"].items()}
    assert floods["alone"] == 0
    # Five seconds of the rate at once, and then the rate; each client may bring a call more.
    rated_max = found["rate_events_per_s"] * (1 + 5 / (1 + 3)) + 4 * 200
    assert 0 < floods["flood with a rate, that waits"] <= rated_max
    assert floods["flood without a rate"] > 0


@pytest.mark.slow
def test_benchmark_of_forgetting_runs(tmp_path: Path) -> None:
    found = run_benchmark("bench_forget.py", tmp_path / "forget.json", "--pages", "2000", "--reads", "100")
    assert found["forgotten"] == 200
    assert found["audit_conserved"]


@pytest.mark.slow
def test_benchmark_of_expiry_runs(tmp_path: Path) -> None:
    found = run_benchmark("bench_expiry.py", tmp_path / "expiry.json", "--seconds", "2", "--rate", "20")
    assert found["audits_conserved"]
    assert found["accuracy"]["importance_of_forgotten"] == pytest.approx(0, abs=1e-3)  # Nothing is a minute old.
    assert sum("after_move" in sample for sample in found["samples"]) == 2


@pytest.mark.slow
def test_benchmark_of_archives_runs(tmp_path: Path) -> None:
    sample = ROOT / "tests/data/archives/example.warc.gz"
    found = run_benchmark("bench_archives.py", tmp_path / "archives.json", "--pages", "50", "--archive", str(sample))
    assert (found["made"]["records"], found["made_replayed"]["events"]) == (50, 50)
    assert found["archive"]["records"] == 2


@pytest.mark.slow
def test_benchmark_of_archive_writers_runs(tmp_path: Path) -> None:
    found = run_benchmark("bench_archive_writers.py", tmp_path / "writers.json", "--archives", "5")
    assert {row["archives"] for row in found["writers"].values()} == {5}
    assert not any("archives_that_differ" in row for row in found["writers"].values())


@pytest.mark.slow
def test_benchmark_of_kafka_runs(tmp_path: Path) -> None:
    want_server("kafka")
    set_ups = "2w 1n 16s,1w 1n 16s unfenced,1w 1n 16s,1w 1n 1s built-in"
    small = ("--pages", "2000", "--events", "2000", "--post-seconds", "1", "--set-ups", set_ups)
    found = run_benchmark("bench_kafka.py", tmp_path / "kafka.json", *small)
    assert found["publishing"]["events_per_s"] > 0
    assert len(found["set_ups"]) == 4
    assert all(row["events_per_s"] > 0 for row in found["set_ups"].values())


@pytest.mark.slow
def test_benchmark_of_the_order_of_scrapy_runs(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        for page in range(12):
            links = "".join(f'<a href="{link}.html">x</a>' for link in (2 * page, 2 * page + 1) if link < 12)
            (folder / f"{page}.html").write_text(f"<title>t</title>{links}")
        (folder / "index.html").write_text('<title>t</title><a href="1.html">x</a>')
    small = ("--runs", "1", "--no-peer", "--folders", ",".join(map(str, folders)))
    found = run_benchmark("bench_scrapy_order.py", tmp_path / "order.json", *small)
    assert found["pages"] == 24
    assert list(found["schedulers"]) == ["Scrapy, depth-first", "Scrapy, breadth-first", "opic.scrapy"]


@pytest.mark.slow
def test_benchmark_of_links_of_pages_runs(tmp_path: Path) -> None:
    want_server("chromium")
    found = run_benchmark("bench_page_links.py", tmp_path / "links.json", "--pages", "40")
    assert found["pages"] == 40
    assert found["links"] > 40
    assert sum(reason["pages"] for reason in found["differ"].values()) < 20


def test_each_benchmark_runs_small_in_a_test() -> None:
    run = set(re.findall(r'"(bench_\w+\.py)"', Path(__file__).read_text()))
    assert run == {path.name for path in BENCHMARKS.glob("bench_*.py")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("bench_query.py", ("--pages", "3000", "--busy-seconds", "1")),
        ("bench_latency.py", ("--pages", "20000", "--seconds", "3", "--rounds", "1")),
        ("bench_shards.py", ("--shards", "1,2", "--pages", "1000", "--events", "50", "--rounds", "1")),
        ("bench_flow.py", ("--graphs", "wikispeedia", "--pages", "5000")),
        ("bench_links.py", ("--pages", "1000", "--scan", "500")),
        ("bench_kafka_client.py", ("--events", "500", "--rounds", "2")),
        ("bench_librdkafka.py", ("--pages", "1000", "--events", "1000")),
        ("bench_local_rank.py", ("--local", "300", "--candidates", "2000")),
        ("bench_rankmass.py", ("--pages", "1000", "--plain-downloads", "50")),
        ("bench_discovery.py", ("--candidates", "1000,2000", "--steps", "200")),
        ("bench_flow.py", ("--graphs", "hollins", "--bounds", ".1")),
        pytest.param("bench_exact_http.py", ("--draws", "1"), marks=pytest.mark.thorough),
        ("bench_fetch_order.py", ("--graphs", "hollins", "--batches", "20")),
        ("bench_changing.py", ("--graphs", "hollins", "--shares", ".01", "--orders", "cycle")),
        ("bench_next_modes.py", ("--pages", "2000", "--rounds", "3")),
        ("bench_host_groups.py", ("--pages", "3000", "--rounds", "3")),
        (
            "bench_unfit.py",
            ("--free", "6000", "--denied", "500", "--rounds", "3", "--changes", "2"),
        ),
        ("bench_export.py", ("--pages", "2000")),
        ("bench_returns.py", ("--pages", "2000", "--returns", "3000")),
        ("bench_migrate.py", ("--pages", "2000", "--events-per-s", "20", "--next-per-s", "5", "--traffic", "1")),
        ("bench_loaded.py", ("--pages", "2000")),
        ("bench_archives.py", ("--pages", "50")),
        ("bench_archive_writers.py", ("--archives", "3", "--writers", "warcio")),
        pytest.param("bench_scrapy.py", ("--pages", "50", "--rounds", "1"), marks=pytest.mark.thorough),
        ("bench_urlfrontier.py", ("--items", "200")),
        ("bench_two_endpoints.py", ("--pages", "1000", "--seconds", "1", "--loads", "50x1,20x5")),
        ("bench_processes.py", ("--pages", "1000", "--seconds", "1", "--events-per-s", "50", "--processes", "2")),
        ("bench_upkeep.py", ("--pages", "500", "--seconds", "1", "--writes", "10")),
        ("bench_sampling.py", ("--pages", "2000", "--steps", "3000")),
        ("bench_shards_accuracy.py", ("--reads", "1", "--setups", "1x1")),
        ("bench_accuracy.py", ("--sets", "hollins", "--choices", "1")),
        ("bench_windows.py", ("--pages", "500", "--months", "10", "--seeds", "1")),
        ("bench_windows.py", ("--service", "--service-pages", "500")),
        pytest.param(
            "bench_durability.py",
            ("--pages", "1000", "--events", "50", "--rounds", "1", "--batches", "50"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_benchmark_runs_and_checks_its_answers(tmp_path: Path, name: str, small: tuple[str, ...]) -> None:
    assert run_benchmark(name, tmp_path / "result.json", *small)["commit"]


def test_guide_has_the_table_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import engines

    result = json.loads((BENCHMARKS / "results/engines.json").read_text())
    assert engines.table(result) in (ROOT / "docs/guide/compare.md").read_text()
    packages = {package for tool in engines.TOOLS for package in tool.packages}
    assert {package for row in result["rows"] for package in row["packages"]} <= packages


def test_graph_for_the_engines_is_as_the_guide_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import engines
    import networkx as nx
    import numpy as np

    links = engines.made_graph()
    out, into = (np.bincount(links[:, column], minlength=engines.MADE_PAGES) for column in (0, 1))
    assert (len(np.unique(links, axis=0)), (links[:, 0] == links[:, 1]).sum()) == (len(links), 0)
    assert (round((out == 0).mean(), 2), round(((out == 0) & (into == 0)).mean(), 2)) == (0.56, 0.31)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(engines.MADE_PAGES))
    graph.add_edges_from(links.tolist())
    right = nx.pagerank(graph, alpha=0.85, tol=1e-16, max_iter=500)
    figures = engines.measured(
        np.array([3 * right[page] for page in range(engines.MADE_PAGES)]), engines.pagerank(links, engines.MADE_PAGES)
    )
    assert (figures["sum"], figures["pages_missing"]) == (3, 0)
    assert figures["l1"] < 1e-11
