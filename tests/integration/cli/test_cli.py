"""The command line keeps the contract: its answers are the API's, its errors one line, and it leaves nobody behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import curls
import httpx
import pytest
import redis
from command_line import run_here
from processes import without_source
from repository import ROOT
from servers import Server

from opic.cli.serve import STARTING

pytestmark = pytest.mark.slow  # `make check` has the README's commands; this is each command at length.

SECONDS_MAX = 60
EVENTS = [
    {"url": "http://a.example/", "links": ["http://a.example/1", "http://b.example/"]},
    {"url": "http://b.example/", "links": ["http://a.example/", "http://c.example/"]},
    {"url": "http://c.example/", "links": ["http://a.example/"]},
    {"url": "http://a.example/", "links": ["http://a.example/1", "http://b.example/"]},
]
QUESTIONS = {
    "classes": ("classes",),
    "rules": ("rules",),
    "politeness": ("politeness",),
    "frontier": ("frontier", "--n", "3", "--mode", "discover"),
    "inflow": ("inflow", "a.example", "--n", "2"),
    "top": ("top", "--n", "3"),
    "top of a state": ("top", "--n", "3", "--state", "unread"),
    "importance": ("importance", "http://a.example/"),
    "importance of a window": ("importance", "http://a.example/", "--policy", "variable", "--window", "0.5"),
    "top of a window": ("top", "--n", "3", "--policy", "improved", "--window", "2"),
    "top of a window in days": ("top", "--n", "3", "--policy", "fixed", "--window", "1.5d"),
    "history": ("history", "http://a.example/"),
    "hosts": ("hosts", "--n", "3"),
    "domains": ("hosts", "--by", "domain", "--n", "3", "--policy", "variable", "--window", "2"),
    "explain": ("explain", "http://a.example/"),
    "explain a window": ("explain", "http://a.example/", "--policy", "fixed", "--window", "0.5"),
    "audit": ("audit",),
    "stats": ("stats",),
}
API_OF = {
    "classes": "/v1/classes",
    "rules": "/v1/rules",
    "politeness": "/v1/politeness",
    "frontier": "/v1/frontier?n=3&mode=discover",
    "inflow": "/v1/inflow?domain=a.example&n=2",
    "top": "/v1/top?n=3",
    "top of a state": "/v1/top?n=3&state=unread",
    "importance": "/v1/importance?url=http://a.example/",
    "importance of a window": "/v1/importance?url=http://a.example/&policy=variable&window=0.5",
    "top of a window": "/v1/top?n=3&policy=improved&window=2",
    "top of a window in days": "/v1/top?n=3&policy=fixed&window=1.5d",
    "history": "/v1/history?url=http://a.example/",
    "hosts": "/v1/hosts?n=3",
    "domains": "/v1/domains?n=3&policy=variable&window=2",
    "explain": "/v1/explain?url=http://a.example/",
    "explain a window": "/v1/explain?url=http://a.example/&policy=fixed&window=0.5",
    "audit": "/v1/audit",
    "stats": "/v1/stats",
}


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPIC_")}
    return clean | {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"} | more


def opic(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return run_here(words, environment(**env))


def refusal(*words: object, status: int = 2, **env: str) -> str:
    """What a command says that can't be done: one line beside its log, no traceback, nothing on stdout."""
    done = opic(*words, **env)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    lines = [line for line in without_source(done.stderr) if line != STARTING and " INFO opic." not in line]
    assert len(lines) == 1, lines
    return lines[0]


@dataclass
class Running:
    """A service that was told where to listen by its own first line."""

    process: "subprocess.Popen[str]"
    url: str

    def post(self, path: str, body: object) -> httpx.Response:
        return curls.post(self.url + path, json=body, timeout=30)

    def feed(self) -> None:
        assert self.post("/v1/events", EVENTS).json()["accepted"] == len(EVENTS)
        while curls.get(f"{self.url}/v1/stats").json()["lag"]:
            pass


@contextmanager
def serving(data: Path, **env: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "opic.cli.main", "serve", "--embedded", "--data", str(data), "--port", "0"]
    with (data.parent / "serve.log").open("a") as log:
        process = subprocess.Popen(command, env=environment(**env), stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        assert told.startswith("opic answers at http://127.0.0.1:"), (data.parent / "serve.log").read_text()
        yield Running(process, told.split()[3].rstrip(","))
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(SECONDS_MAX)
        assert process.stdout is not None
        process.stdout.close()


def processes_of(data: Path) -> list[int]:
    """All processes that have to do with a data directory, by their arguments and environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or entry.name == str(os.getpid()):
            continue
        try:
            about = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            dead = "\nState:\tZ" in (entry / "status").read_text()
        except OSError:
            continue
        if os.fsencode(data) in about and not dead:
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running]]:
    """A running service that has taken three events; hosts and read pages are offered at once."""
    data = tmp_path_factory.mktemp("cli") / "data"
    with serving(data, OPIC_HOST_DELAY_SECONDS="0", OPIC_REVISIT_SECONDS="0") as running:
        running.feed()
        yield data, running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a store in it that nobody serves."""
    home = tmp_path_factory.mktemp("store")
    (home / "crawl.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    assert opic("replay", home / "crawl.jsonl", "--data", home / "data").returncode == 0
    return home / "data"


# Help.


def test_unknown_option_is_wrong_usage() -> None:
    done = opic("top", "--none-such")
    assert done.returncode == 2
    assert "No such option" in done.stderr


# Answers.


@pytest.mark.parametrize("name", QUESTIONS)
def test_json_output_equals_the_api_answer(name: str, service: tuple[Path, Running]) -> None:
    data, running = service
    while name == "frontier" and curls.get(running.url + API_OF[name]).json()["order"] != "exact":
        pass  # The first answers come before the order by importance is computed.
    done = opic(*QUESTIONS[name], "--data", data, "--json", OPIC_REVISIT_SECONDS="0")
    assert (done.returncode, done.stderr) == (0, "")
    answer, expected = json.loads(done.stdout), curls.get(running.url + API_OF[name]).json()
    assert answer.keys() == expected.keys()
    for found in (answer, expected):
        found.pop("as_of", None)
        for name in ("next", "why_not", "host_free_at", "host_delay_seconds"):  # As set, and it runs on meanwhile.
            found.get("frontier", {}).pop(name, None)
    assert answer == expected


def test_next_takes_a_lease_like_a_crawler(service: tuple[Path, Running]) -> None:
    data, running = service
    asked = {"n": 1, "crawler": "a"}
    expected = running.post("/v1/next", asked).json()
    words = ("next", "--n", 1, "--crawler", "b", "--lease-seconds", 60, "--data", data, "--json")
    done = opic(*words, OPIC_REVISIT_SECONDS="0")
    answer = json.loads(done.stdout)
    assert answer.keys() == expected.keys()
    (theirs,), (ours,) = expected["pages"], answer["pages"]
    assert ours.keys() == theirs.keys()
    assert ours["url"] != theirs["url"]
    assert 50 < ours["lease_until"] - answer["as_of"] < 61
    assert ours["url"] not in [
        page["url"] for page in running.post("/v1/next", {"n": 9, "crawler": "c"}).json()["pages"]
    ]


def test_next_skips_busy_hosts_and_keeps_to_domain_and_mode(store: Path) -> None:
    at_once = {"OPIC_HOST_DELAY_SECONDS": "0", "OPIC_RETRY_SECONDS": "0", "OPIC_REVISIT_SECONDS": "0"}

    def urls(*words: str) -> list[str]:
        done = opic("next", "--n", "9", "--data", store, "--json", *words, **at_once)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        return [page["url"] for page in answer["pages"]]

    briefly = ("--lease-seconds", "0.05")  # Longer than an answer takes.
    assert urls("--busy-host", "a.example", "--busy-host", "c.example", *briefly) == ["http://b.example/"]
    assert urls("--mode", "discover", *briefly) == ["http://a.example/1"]
    assert urls("--domain", "b.example", "--mode", "refresh") == ["http://b.example/"]
    done = opic("--no-header", "next", "--domain", "b.example", "--data", store)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to crawl now: ask again in" in done.stderr


def test_explain_speaks_in_the_sentences_of_the_api(store: Path) -> None:
    url = "http://a.example/"
    reasons = json.loads(opic("explain", url, "--data", store, "--json").stdout)["reasons"]
    first, *lines = opic("explain", url, "--data", store).stdout.splitlines()
    assert first == url
    for reason in reasons:
        assert reason["about"] in lines
        for sentence in reason["sentences"]:
            if "seconds" not in sentence and " s" not in sentence:  # Those tell how long it waits now.
                assert f"  {sentence}" in lines
    assert "Who gives it its importance" in lines


def test_top_of_a_state_has_its_pages_alone(store: Path) -> None:
    def urls(*words: str) -> list[str]:
        return [
            line.split("\t")[-1] for line in opic("--no-header", "top", *words, "--data", store).stdout.splitlines()
        ]

    every, read, unread = urls(), urls("--state", "read"), urls("--state", "unread")
    assert sorted(read + unread) == sorted(every)
    assert set(read) == {event["url"] for event in EVENTS}
    assert urls("--state", "excluded") == []
    assert "is for by=importance" in refusal("top", "--state", "read", "--by", "inlinks", "--data", store)


def test_plain_output_has_one_record_per_line(store: Path) -> None:
    names, *top = opic("top", "--data", store).stdout.splitlines()
    assert names == "importance\tcertain\turl"
    assert opic("--no-header", "top", "--data", store).stdout.splitlines() == top
    assert len(top) == 4
    assert top[0].split("\t")[2] == "http://a.example/"
    assert sum(float(line.split("\t")[0]) for line in top) == pytest.approx(1, abs=1e-5)
    lines = [line.split("\t") for line in opic("audit", "--data", store).stdout.splitlines()]
    books = dict(line for line in lines if len(line) == 2)
    assert books["conserved"] == "true"
    assert int(books["minted"]) == int(books["pages"]) + int(books["virtual"])
    assert not processes_of(store), "a command left the store running that it had started"


def test_external_server_is_fed_and_queried(servers: Server, tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text("a b\nb a\n")
    fed = opic(
        "replay", tmp_path / "graph.txt", "--store", servers.url, "--reads-per-page", 3, "--json", OPIC_SHARDS="1"
    )
    summary = json.loads(fed.stdout)
    assert (summary["events"], summary["pages"], summary["audit"]["conserved"]) == (6, 2, True)
    progress = re.compile(r"\d of 6 events, ")  # Of a run that takes seconds.
    said = [line for line in fed.stderr.splitlines() if not progress.match(line)]
    assert said == [], "the worker that the command started tells of itself"
    assert json.loads(opic("stats", "--store", servers.url, "--json").stdout)["reads"] == 6


def test_unknown_page_exits_with_1(store: Path) -> None:
    assert "http://z.example/ was never seen" in refusal("importance", "http://z.example", "--data", store, status=1)
    assert "http://z.example/ was never seen" in refusal("history", "http://z.example", "--data", store, status=1)


def test_history_is_drawn_from_the_reads_kept(store: Path, tmp_path: Path) -> None:
    done = opic("history", "http://a.example/", "--data", store, "--plot", tmp_path / "reads.svg")
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "reads.svg").read_text()
    complaint = refusal("history", "http://b.example/", "--data", store, "--plot", tmp_path / "none.svg")
    assert "reads kept of this page: 1; a picture needs 2" in complaint


def test_coverage_is_drawn_over_the_fetches_that_it_still_takes(tmp_path: Path) -> None:
    data, picture = tmp_path / "data", tmp_path / "coverage.svg"
    urls = [f"http://a.example/{page}" for page in range(30)]
    events = [{"url": urls[0], "links": urls[1:20]}, {"url": urls[1], "links": urls[10:]}]
    (tmp_path / "crawl.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert opic("seed", urls[0], "--trust", 1, "--data", data).returncode == 0
    assert opic("replay", tmp_path / "crawl.jsonl", "--data", data).returncode == 0
    done = opic("coverage", "--data", data, "--target", 0.2, "--plot", picture, "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert answer["fetches_expected"] > 1
    assert done.stderr.endswith(f"wrote {picture}\n")
    drawn = picture.read_text()
    assert "<svg" in drawn
    more = answer["fetches_expected"]
    assert all(text in drawn for text in ("guaranteed coverage", "target 0.2", f">{more} more pages<")), drawn


def test_history_has_one_measure_per_line(store: Path) -> None:
    _, *lines = opic("history", "http://a.example/", "--data", store).stdout.splitlines()
    measures = [line.split("\t") for line in lines]
    assert len(measures) == 2
    assert int(measures[0][0]) < int(measures[1][0])
    assert all(datetime.fromisoformat(at).tzinfo is not None for _, _, at in measures)


def test_invalid_policy_and_invalid_window_are_refused(store: Path) -> None:
    assert "should be 'exact', 'static', 'interpolation'" in refusal("top", "--policy", "best", "--data", store)
    assert "positive number of rounds" in refusal("top", "--policy", "fixed", "--window", "0", "--data", store)
    assert "nor a duration, such as 30d or 12h" in refusal(
        "top", "--policy", "fixed", "--window", "3w", "--data", store
    )
    done = opic(
        "importance", "http://a.example/", "--data", store, "--json", OPIC_POLICY="fixed", OPIC_WINDOW_ROUNDS="2"
    )
    answer = json.loads(done.stdout)
    assert (answer["policy"], answer["window"]) == ("fixed", 2.0)


def test_books_that_do_not_balance_exit_with_1(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as running:
        running.feed()
        socket_path = json.loads((data / "service.json").read_text())["socket"]
        with redis.Redis(unix_socket_path=socket_path) as client:
            client.hincrby("opic:{default:0}:books", "pool", 1)
        done = opic("audit", "--data", data, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["conserved"] is False


# Refusals.


def test_invalid_input_is_named_in_the_error(store: Path, tmp_path: Path) -> None:
    toml = tmp_path / "opic.toml"
    toml.write_text('teapot = "yes"\n')
    assert "'/about' is not an absolute http(s) URL" in refusal("importance", "/about", "--data", store)
    assert "no embedded store in" in refusal("top", "--data", tmp_path / "none")
    assert "OPIC_MAX_N 1,000" in refusal("next", "--n", 1001, "--data", store)
    assert refusal("importance", "a.example/", "--data", store).endswith("which begins with http:// or https://")
    assert "no setting is named teapot" in refusal("top", "--config", toml)
    assert "OPIC_PORT='high'" in refusal("serve", OPIC_PORT="high")
    assert "OPIC_KAFKA_BOOTSTRAP is not set" in refusal("topics", "list")
    assert "contradict each other" in refusal("top", "--store", "redis://localhost", "--data", store)


def test_missing_crawl_is_not_created_by_a_query(service: tuple[Path, Running]) -> None:
    for _ in range(2):
        assert "no crawl named 'other'" in refusal("top", "--crawl", "other", "--data", service[0])


def test_store_made_with_other_settings_is_refused(store: Path, tmp_path: Path) -> None:
    toml = tmp_path / "opic.toml"
    toml.write_text("damping = 0.5\n")
    said = "OPIC_DAMPING is 0.5, but this store was made with 0.85, which is fixed: "
    by_variable = refusal("stats", "--data", store, OPIC_DAMPING="0.5")
    by_file = refusal("stats", "--data", store, "--config", toml)
    assert said in by_variable
    assert said in by_file
    assert "comes from" not in by_variable
    assert by_file.rstrip().endswith(f"(OPIC_DAMPING comes from damping in {toml})")
    assert opic("stats", "--data", store, OPIC_DAMPING="0.85").returncode == 0


def test_url_of_something_other_than_a_store_is_recognized(service: tuple[Path, Running]) -> None:
    url = service[1].url
    assert "that is the URL of a service; a store is a Redis server" in refusal("stats", "--store", url)
    for scheme in ("redis", "redis+cluster"):
        said = refusal("stats", "--store", url.replace("http", scheme))
        assert "this answers HTTP" in said
        assert "OPIC_STORE wants the URL of one, such as redis://HOST:6379" in said
    said = refusal("stats", "--store", "me:secret@127.0.0.1:6379")
    assert "OPIC_STORE=127.0.0.1:6379: use redis://HOST:PORT" in said
    assert "secret" not in said


def test_service_and_worker_name_the_store_that_they_miss() -> None:
    assert "the store does not answer" in refusal("serve", "--store", "redis://127.0.0.1:1/0")
    assert "contradict each other" in refusal("serve", "--embedded", "--store", "redis://127.0.0.1:1/0")
    assert "`opic serve --embedded` starts one" in refusal("worker", "--data", "none-such")


def test_service_listens_on_loopback_only_by_default(tmp_path: Path) -> None:
    said = refusal("serve", "--host", "0.0.0.0", "--port", 0, "--data", tmp_path / "data")
    assert "OPIC_API_TOKEN is not set" in said
    assert "--allow-open" in said
    assert not (tmp_path / "data").exists()


def test_port_in_use_is_reported_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in refusal("serve", "--port", port, "--data", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_unwritable_data_directory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for data in (file / "data", Path("/sys/kernel/opic")):
        assert f"--data {data}: can't write there" in refusal("serve", "--port", 0, "--data", data)


def test_second_service_on_one_data_directory_is_refused(service: tuple[Path, Running]) -> None:
    data, running = service
    said = refusal("serve", "--port", 0, "--data", data)
    assert f"another service (process {running.process.pid}) holds it" in said


def test_store_of_another_format_version_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data):
        socket_path = json.loads((data / "service.json").read_text())["socket"]
        with redis.Redis(unix_socket_path=socket_path) as client:
            client.hset("opic:{default:0}:meta", "format", "0")
        assert "format version 0, this program reads version 5" in refusal("backup", tmp_path / "copy", "--data", data)
    said = refusal("serve", "--port", 0, "--data", data)
    assert "format version 0, this program reads version 5" in said
    assert not processes_of(data)


# Beginning and end.


def test_service_stops_cleanly_on_signals_and_restarts_with_all_its_data(tmp_path: Path) -> None:
    data, expected = tmp_path / "data", []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with serving(data) as running:
            if not expected:
                running.feed()
            found = curls.get(f"{running.url}/v1/top").json()["pages"]
            expected = expected or found
            for page, before in zip(found, expected, strict=True):  # Settled anew, from the visits that were saved.
                bounds = page["error_bound"] + before["error_bound"]
                assert page["importance"] == pytest.approx(before["importance"], abs=bounds)
                assert [page[name] for name in ("url", "cash", "reads")] == [
                    before[name] for name in ("url", "cash", "reads")
                ]
            assert len(processes_of(data)) == 3  # Endpoint, worker, store.
            running.process.send_signal(number)
            assert running.process.wait(SECONDS_MAX) == 0
        assert not processes_of(data)
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


def test_extra_worker_runs_with_a_service_until_it_is_terminated(service: tuple[Path, Running]) -> None:
    data, running = service
    command = [sys.executable, "-m", "opic.cli.main", "worker", "--data", str(data)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        assert "ready, from offset" in worker.stderr.readline()
        running.feed()
        assert worker.poll() is None
        worker.terminate()
        assert worker.wait(SECONDS_MAX) == 0
    assert curls.get(f"{running.url}/v1/audit").json()["conserved"]


def test_crawl_beside_that_of_the_running_service_is_seeded_by_the_command(service: tuple[Path, Running]) -> None:
    data, _ = service
    done = opic("seed", "http://a.example/", "--data", data, "--crawl", "beside", "--json")
    assert json.loads(done.stdout) == {"known": 0, "new": 1}, done.stderr


def test_interrupted_command_prints_nothing_and_exits_with_130(tmp_path: Path) -> None:
    log = tmp_path / "crawl.jsonl"
    log.write_text((json.dumps(EVENTS[0]) + "\n") * 200_000)
    command = [sys.executable, "-m", "opic.cli.main", "replay", str(log), "--data", str(tmp_path / "data")]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "data" / "service.json").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert said == ("", f"opic: crawl default of the embedded store in {tmp_path / 'data'}\n")
    assert not processes_of(tmp_path / "data")
