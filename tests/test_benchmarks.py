"""The benchmark of the endpoint still runs, and what it checks with sees what is wrong."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import lease_check

    return lease_check


def suggested(check: Any, *rows: tuple[str, float, float]) -> list[Any]:
    return [check.Suggestion(url, f"crawler-{i}", since, until) for i, (url, since, until) in enumerate(rows)]


def test_leases_one_after_the_other_are_no_violation(check: Any) -> None:
    found = suggested(check, ("http://a.example/", 10.0, 20.0), ("http://a.example/", 20.0, 30.0))
    verdict = check.judge(found, 1.0, ())
    assert not verdict.violations
    assert (verdict.suggestions, verdict.distinct_pages, verdict.pages_again, verdict.hosts_again) == (2, 1, 1, 1)
    assert verdict.host_gap_min_s == 10.0


def test_page_leased_while_its_lease_runs_is_seen(check: Any) -> None:
    found = suggested(check, ("http://a.example/", 15.0, 25.0), ("http://a.example/", 10.0, 20.0))
    (told,) = check.judge(found, 1.0, ()).violations
    assert told.startswith("http://a.example/: leased to crawler-1 until 20.0")


def test_page_that_events_read_may_be_leased_again(check: Any) -> None:
    found = suggested(check, ("http://a.example/", 10.0, 20.0), ("http://a.example/", 15.0, 25.0))
    assert not check.judge(found, 1.0, {"http://a.example/"}).violations


def test_host_suggested_before_its_delay_is_seen(check: Any) -> None:
    found = suggested(check, ("http://a.example/1", 10.0, 20.0), ("http://a.example/2", 10.9, 20.0))
    assert check.judge(found, 1.0, ()).violations == ["a.example: suggested 0.900000 s after the last time"]
    assert not check.judge(found, 0.9, ()).violations


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="no wrk on the PATH; Debian, Ubuntu: apt-get install wrk")
def test_benchmark_of_the_endpoint_runs(tmp_path: Path) -> None:
    result = tmp_path / "endpoint.json"
    command = [sys.executable, str(BENCHMARKS / "bench_endpoint.py"), "--quick", "--only", "load,top,check"]
    command += ["--pages", "20000", "--seconds", "1", "--suggestions", "2000", "--result", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    assert found["world"]["pages"] == 20_000
    for phase in ("quiet", "busy"):
        assert set(found["load"][phase]) == {"next", "importance", "batch", "top"}
    assert sum(row["requests"] for row in found["load"]["quiet"].values()) > 0
    assert found["load"]["busy"]["importance"]["cpu_share"].keys() == {"endpoint 1", "worker", "store"}
    assert found["check"]["suggestions"] >= 2_000
    assert found["check"]["hosts_again"] > 0
    assert found["check"]["violations"] == 0
