"""`opic local-rank` and its consumer as their users run them: files, the web, the service, kills."""

import csv
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import curls
import pytest
from estimator_process import LocalDomain, clean, settled_list
from processes import running, wait_until
from repository import ROOT
from website import WebPage, Website, linking, redirect, website

pytestmark = pytest.mark.slow

SHOP, WEB = ROOT / "examples/data/local/shop.jsonl", ROOT / "examples/data/local/web.jsonl"
RECORDED = ("shop.example", "--crawl", SHOP, "--recorded", WEB)
SECONDS_MAX = 120.0


def local_rank(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opic", "local-rank", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=clean(), cwd=cwd, timeout=SECONDS_MAX, check=False
    )


def listed(*words: object, cwd: Path) -> dict[str, Any]:
    done = local_rank(*words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "select",
    ["sc", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("pf", "outlinks", "random")), "combined"],
)
def test_recorded_web_gives_a_ranked_list(tmp_path: Path, select: str) -> None:
    found = listed(*RECORDED, "--fetch", 40, "--select", select, cwd=tmp_path)
    assert {"domain", "pages", "outside_fetched", "method", "service_coverage", "as_of"} <= found.keys()
    importance = [page["importance"] for page in found["pages"]]
    assert [page["rank"] for page in found["pages"]] == list(range(1, 31))
    assert importance == sorted(importance, reverse=True)
    assert sum(importance) == pytest.approx(1)
    assert (found["outside_fetched"], found["method"], len(found["frontier"])) == (40, "paper", 10)


def test_more_fetches_bring_the_list_nearer_to_that_of_the_whole_web(tmp_path: Path) -> None:
    whole = {page["url"]: page["importance"] for page in listed(*RECORDED, "--fetch", 1_000, cwd=tmp_path)["pages"]}
    errors = []
    for fetch in (0, 100):
        found = listed(*RECORDED, "--fetch", fetch, "--select", "sc", cwd=tmp_path)["pages"]
        errors.append(sum(abs(whole[page["url"]] - page["importance"]) for page in found))
    assert errors[1] < 0.6 * errors[0]


def test_list_is_printed_as_lines_and_as_csv(tmp_path: Path) -> None:
    lines = local_rank(*RECORDED, "--fetch", 10, cwd=tmp_path)
    names, *rows = lines.stdout.splitlines()
    assert (names, len(rows)) == ("importance\turl", 30)
    assert "30 pages of shop.example, 10 outside pages fetched, 0 failed; method paper" in lines.stderr
    table = list(csv.DictReader(local_rank(*RECORDED, "--fetch", 10, "--csv", cwd=tmp_path).stdout.splitlines()))
    assert [row["rank"] for row in table] == [str(rank) for rank in range(1, 31)]
    assert [row["url"] for row in table] == [line.split("\t")[1] for line in rows]


def test_list_and_its_rounds_are_drawn(tmp_path: Path) -> None:
    done = local_rank(*RECORDED, "--fetch", 40, "--plot", tmp_path / "new" / "ranks.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = (tmp_path / "new" / "ranks.svg").read_text()
    assert all(text in drawn for text in ("shop.example", "importance", "outside pages fetched"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("none.example", "--crawl", SHOP, "--recorded", WEB), "no page of none.example was fetched"),
        (("none.example", "--recorded", WEB), "no page of none.example was fetched"),
        (("http://shop.example/", "--recorded", WEB), "is not a host or a domain"),
        ((*RECORDED, "--json", "--csv"), "--json and --csv contradict each other"),
        ((*RECORDED, "--select", "best"), "Invalid value for '--select'"),
        ((*RECORDED, "--service", "http://127.0.0.1:1", "--data", "x"), "--service answers for its own store"),
    ],
)  # fmt: skip
def test_impossible_request_is_refused_with_the_reason(
    tmp_path: Path, words: tuple[object, ...], complaint: str
) -> None:
    done = local_rank(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.replace("│", "").split())
    assert "Traceback" not in done.stderr


def test_bad_lines_are_reported_and_left_out(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(SHOP.read_bytes() + b'{"url": "/about"}\nnot json\n' * 5)
    done = local_rank("shop.example", "--crawl", bad, "--recorded", WEB, "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["pages"]) == 30
    assert "bad.jsonl:31: url '/about' is not an absolute http(s) URL" in done.stderr
    assert "and 5 more invalid events" in done.stderr


# End to end: a service, a website with pages outside, the estimator as a process.

FETCHED = 40
HOME, OUTSIDE = "127.0.0.1", ("127.0.0.2", "127.0.0.3", "127.0.0.4")


@contextmanager
def world(pages: int = 12, outside: int = 20) -> Iterator[Website]:
    """A site and three hosts around it, which link to each other at random; lend the site."""
    choice = random.Random(5)
    with ExitStack() as stack:
        sites = [stack.enter_context(website(address, {})) for address in (HOME, *OUTSIDE)]
        home, *others = sites
        own = [f"{home.url}/{n}" for n in range(pages)]
        foreign = [f"{site.url}/{n}" for site in others for n in range(outside)]
        home.pages = {"/": linking(*own)}
        for n in range(pages):
            home.pages[f"/{n}"] = linking(f"{home.url}/", *choice.sample(own, 3), *choice.sample(foreign, 6))
        for site in others:
            site.pages = {"/robots.txt": WebPage("User-agent: *\nDisallow: /3\n")}
            for n in range(outside):  # A fifth of them is missing, some lead back.
                if n % 7 == 1:
                    site.pages[f"/{n}"] = redirect(choice.choice(own))
                elif n % 5:
                    site.pages[f"/{n}"] = linking(*choice.sample(foreign, 3), choice.choice(own))
        yield home


def test_estimator_outlives_its_service_and_sends_all_events_when_it_is_back(tmp_path: Path) -> None:
    with world() as home, running(tmp_path / "store", tmp_path / "log", host_delay_seconds=0) as service:
        estimator = LocalDomain(HOME, f"{home.url}/", tmp_path / "state", service.url, fetch=FETCHED)
        wait_until(lambda: estimator.metric("opic_local_outside_fetched") > 5)
        service.stop()
        wait_until(lambda: estimator.metric("opic_local_outside_fetched") + estimator.metric("opic_local_failed") == 40)
        assert curls.get(f"http://127.0.0.1:{estimator.port}/readyz").status_code == 200
        wait_until(lambda: estimator.metric("opic_local_service_away") == 1)
        service.start()
        wait_until(lambda: estimator.metric("opic_local_combined") == 1)
        assert settled_list(estimator, service, HOME)["method"] == "combined"
        estimator.end()
        assert service.get("/v1/stats").json()["read_pages"] > 40


def test_command_crawls_a_site_and_the_web_around_it(tmp_path: Path) -> None:
    with world() as home:
        words = (
            HOME,
            "--seed-url",
            f"{home.url}/",
            "--allow-private",
            "--host-delay",
            0,
            "--fetch",
            30,
            "--state",
            tmp_path / "state",
        )
        found = listed(*words, cwd=tmp_path)
        assert len(found["pages"]) == 13
        assert found["outside_fetched"] + found["failed"] == 30
        assert found["outside_fetched"] > 15
        again = listed(*words, cwd=tmp_path)  # Nothing is fetched a second time.
        assert home.paths().count("/") == 1
    assert {**again, "as_of": 0} == {**found, "as_of": 0}
