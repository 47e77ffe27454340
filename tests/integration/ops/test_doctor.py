"""`opic doctor` finds what is wrong and says what to do; and several crawls live in one store."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import curls
import pytest
from command_line import run_here
from kafka_crawl import WorkerProcess
from logs import record
from processes import wait_until
from servers import Server
from serving import serving

from opic.api.metrics import Metrics
from opic.ingest import ShardWriter
from opic.ingest.event_log import EventLog
from opic.ingest.heartbeats import ALIVE_SECONDS, BEAT_SECONDS, workers_seen
from opic.ops import doctor as doctor_module
from opic.ops.doctor import run_checks
from opic.replica.stored_links import read_list
from opic.service.backend import Backend
from opic.service.service import EmbeddedService
from opic.service.standing import StandingService
from opic.service.tokens import new_token
from opic.settings import Settings
from opic.store import Shard
from opic.store.keys import Keys

START_ONE = "start one with `opic worker`, or see its log"


def opic(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPIC_")}
    return run_here(words, clean | {"NO_COLOR": "1"} | env)


def verdicts(**settings: object) -> dict[str, tuple[str, str]]:
    return {f.check: (f.verdict, f.text) for f in run_checks(lambda: Settings.load(**settings))}


def test_healthy_store_passes_every_check(servers: Server) -> None:
    Backend(Settings.load(store=servers.url), servers.url).close()
    found = verdicts(store=servers.url)
    assert {check for check, (verdict, _) in found.items() if verdict != "ok"} == {"workers"}
    assert found["workers"] == ("warn", "no worker runs, and no event waits for one: start one with `opic worker`")
    assert found.keys() >= {"settings", "store", "eviction", "durability", "format", "functions", "lag", "audit"}
    assert servers.name in found["store"][1]


@pytest.mark.parametrize(
    ("option", "value", "check", "verdict", "advice"),
    [
        ("maxmemory-policy", "allkeys-lru", "eviction", "FAIL", "set it to noeviction"),
        ("appendfsync", "everysec", "durability", "warn", "set it to always"),
        ("appendonly", "no", "durability", "FAIL", "set it to yes"),
        ("aof-use-rdb-preamble", "no", "append-only files", "ok", "is no: they hold plain commands"),
        ("aof-use-rdb-preamble", "yes", "append-only files", "ok", "is yes: only this version of the server and newer"),
        ("maxmemory", "600000000", "journal", "warn", "OPIC_JOURNAL_BYTES 67,108,864 bytes, more than a tenth"),
    ],
)
def test_server_that_would_lose_cash_or_stand_still_is_found(
    servers: Server, option: str, value: str, check: str, verdict: str, advice: str
) -> None:
    client = servers.client()
    before = client.config_get(option)[option]
    client.config_set(option, value)
    try:
        found = verdicts(store=servers.url)
    finally:
        client.config_set(option, before)
    assert found[check][0] == verdict
    assert advice in found[check][1]


def test_problems_of_a_crawl_are_found(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = valkey.client()
    assert "no crawl named 'default' yet" in verdicts(store=valkey.url)["crawl"][1]
    shard = Shard.open(client)
    EventLog(client, shard.keys).append([b'{"url":"http://a.example/"}'] * 3, 1_790_000_000_000_000)
    assert verdicts(store=valkey.url, max_lag=4)["lag"][0] == "ok"
    assert verdicts(store=valkey.url, max_lag=3)["lag"][0] == "FAIL"  # Endpoints refuse events.
    monkeypatch.setattr(doctor_module, "LAG_WARN", 3)
    assert verdicts(store=valkey.url)["lag"][0] == "warn"
    ShardWriter(shard).apply("log/0", EventLog(client, shard.keys).read(0, 10))
    assert verdicts(store=valkey.url)["lag"][0] == "ok"
    client.hincrby(shard.keys.books, "pool", 1)
    assert verdicts(store=valkey.url)["audit"][0] == "FAIL"
    assert verdicts(store=valkey.url, damping=0.5)["crawl"][0] == "FAIL"
    client.hset(shard.keys.meta, "format", "99")
    assert "99" in verdicts(store=valkey.url)["format"][1]


def test_memory_of_kept_links_is_reported(valkey: Server) -> None:
    shard = Shard.open(valkey.client())
    off = verdicts(store=valkey.url, keep_links=False)["kept links"]
    assert off == ("ok", "none are kept: OPIC_KEEP_LINKS is off")
    ShardWriter(shard).apply("log/0", [record(0, "http://a.example/", [])])
    told = verdicts(store=valkey.url)["kept links"]
    assert told == ("ok", "none are kept yet: workers begin to with their next batch")
    shard.keep_links = True
    writer = ShardWriter(shard)
    writer.apply("log/0", [record(1, "http://a.example/", ["http://b.example/"])])
    writer.checkpoint()
    size = read_list(shard.client, shard.keys).size
    assert size > 50
    text = f"{size} bytes in 1 segment, and the newest in the journal"
    assert verdicts(store=valkey.url)["kept links"] == ("ok", text)
    with closing(Backend(Settings.load(store=valkey.url), valkey.url, create=False)) as backend:
        scraped, _ = Metrics(backend).scrape("")
    for line in (f"opic_kept_link_bytes {size}.0", "opic_kept_link_segments 1.0", "opic_kept_link_merges_total 0.0"):
        assert f"\n{line}\n" in scraped.decode()


def test_unavailable_store_and_wrong_settings_are_found(tmp_path: Path) -> None:
    verdict, found = verdicts(store=f"unix://{tmp_path}/none")["store"]
    assert (verdict, found.endswith("; is it running, and is OPIC_STORE right?")) == ("FAIL", True)
    assert verdicts(damping=7)["settings"][0] == "FAIL"
    assert verdicts(data=tmp_path / "new", host="0.0.0.0")["token"][0] == "warn"
    (tmp_path / "file").touch()
    assert verdicts(data=tmp_path / "file")["data directory"][0] == "FAIL"
    assert verdicts(data=tmp_path / "file" / "below")["data directory"][0] == "FAIL"


def test_disk_that_is_full_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, verdict in ((1 << 20, "FAIL"), (1 << 30, "warn"), (1 << 40, "ok")):
        monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert verdicts(data=tmp_path)["disk"][0] == verdict


def test_secret_in_a_store_url_is_not_shown() -> None:
    assert "hunter2" not in str(verdicts(store="redis://user:hunter2@127.0.0.1:1/0"))


def test_command_prints_one_line_per_check_and_exits_with_1_on_failure(tmp_path: Path) -> None:
    plain = opic("doctor", "--data", tmp_path / "new")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert {line.split("\t")[0].strip() for line in plain.stdout.splitlines()} <= {"ok", "warn"}
    wrong = opic("doctor", "--json", "--store", f"unix://{tmp_path}/none")
    assert wrong.returncode == 1
    assert {c["check"]: c["verdict"] for c in json.loads(wrong.stdout)["checks"]}["store"] == "FAIL"


# Workers.


def test_dead_workers_are_found_within_half_a_minute(valkey: Server, tmp_path: Path) -> None:
    """By the doctor, by the endpoint's readiness and counts, and by its metrics."""
    settings = Settings.load(store=valkey.url)
    with StandingService(settings) as service, serving(service) as url:
        worker = WorkerProcess(settings, tmp_path / "worker.log")
        try:
            curls.post(f"{url}/v1/events", json={"url": "http://a.example/"}).raise_for_status()
            wait_until(lambda: curls.get(f"{url}/v1/stats").json()["read_pages"] == 1)
            wait_until(lambda: curls.get(f"{url}/readyz").json() == {"status": "ready", "warnings": []})
            verdict, found = verdicts(store=valkey.url)["workers"]
            assert verdict == "ok"
            assert re.fullmatch(r"1 worker, last seen \d seconds? ago", found)
        finally:
            worker.process.kill()
            worker.process.wait()
        killed = time.time()
        wait_until(lambda: verdicts(store=valkey.url)["workers"][0] != "ok", seconds=2 * BEAT_SECONDS + 5)
        told = r"1 worker, last seen 1\d seconds ago, though a worker says every 5 s that it is there"
        assert re.fullmatch(told, verdicts(store=valkey.url)["workers"][1])
        wait_until(lambda: curls.get(f"{url}/readyz").json()["warnings"])
        assert time.time() - killed < ALIVE_SECONDS + BEAT_SECONDS + 5
        (warning,) = curls.get(f"{url}/readyz").json()["warnings"]
        assert re.fullmatch(rf"no worker was seen for 2\d seconds: {START_ONE}", warning)
        assert verdicts(store=valkey.url)["workers"][0] == "FAIL"
        curls.post(f"{url}/v1/events", json={"url": "http://b.example/"}).raise_for_status()
        said = r"no worker has applied an event for [23]\d seconds, and 1 accepted event waits: " + START_ONE
        for answer in (curls.get(f"{url}/readyz"), curls.get(f"{url}/v1/stats")):
            (warning,) = answer.json()["warnings"]
            assert re.fullmatch(said, warning)
        verdict, found = verdicts(store=valkey.url)["workers"]
        assert verdict == "FAIL"
        assert re.fullmatch(said, found)
        seen = re.search(r"^opic_worker_seen_timestamp_seconds (\S+)", curls.get(f"{url}/metrics").text, re.MULTILINE)
        assert seen is not None
        assert killed - BEAT_SECONDS - 2 <= float(seen[1]) <= killed


def test_worker_that_was_just_killed_is_found_if_an_event_waits(valkey: Server, tmp_path: Path) -> None:
    """What the worker applied before is no sign that one is there."""
    settings = Settings.load(store=valkey.url, crawl="just-killed")
    with StandingService(settings) as service, serving(service) as url:
        worker = WorkerProcess(settings, tmp_path / "worker.log")
        try:
            curls.post(f"{url}/v1/events", json={"url": "http://a.example/"}).raise_for_status()
            wait_until(lambda: curls.get(f"{url}/v1/stats").json()["read_pages"] == 1)
            wait_until(lambda: workers_seen(valkey.client(), Keys("just-killed", 0)).alive)  # It tells after its step.
        finally:
            worker.process.kill()
            worker.process.wait()
        curls.post(f"{url}/v1/events", json={"url": "http://b.example/"}).raise_for_status()
        verdict, found = verdicts(store=valkey.url, crawl="just-killed")["workers"]
    assert verdict == "FAIL"
    said = "no worker has applied an event for 5 seconds, and 1 accepted event waits; seen: 1 worker, last seen"
    assert found.startswith(said)


# Several crawls in one store.


@contextmanager
def running(settings: Settings) -> Iterator[tuple[EmbeddedService, str]]:
    with EmbeddedService(settings) as service, serving(service) as url:
        yield service, url


@pytest.mark.slow
def test_crawls_of_one_store_do_not_see_each_other(tmp_path: Path) -> None:
    events = tmp_path / "b.jsonl"
    events.write_text('{"url":"http://b.example/","links":["http://b.example/1"]}\n')
    with running(Settings.load(data=tmp_path / "d", crawl="a")) as (service, url):
        key = {"idempotency-key": "one"}
        one = curls.post(f"{url}/v1/events", json={"url": "http://a.example/"}, headers=key)
        assert one.status_code == 202
        service.backend.await_effect({"log/0": 1})
        fed = opic("replay", events, "--data", tmp_path / "d", "--crawl", "b", "--json")
        assert fed.returncode == 0, fed.stderr
        seen = {
            crawl: {
                p["url"]
                for p in json.loads(opic("top", "--crawl", crawl, "--data", tmp_path / "d", "--json").stdout)["pages"]
            }
            for crawl in "ab"
        }
        assert seen == {"a": {"http://a.example/"}, "b": {"http://b.example/", "http://b.example/1"}}
        assert {p["url"] for p in curls.get(f"{url}/v1/top").json()["pages"]} == seen["a"]
        for crawl in "ab":
            assert opic("doctor", "--crawl", crawl, "--data", tmp_path / "d").returncode == 0
            assert opic("audit", "--crawl", crawl, "--data", tmp_path / "d").returncode == 0
        assert "no crawl named 'c'" in opic("stats", "--crawl", "c", "--data", tmp_path / "d").stderr
    with running(Settings.load(data=tmp_path / "d", crawl="b")) as (_, url):
        assert {p["url"] for p in curls.get(f"{url}/v1/top").json()["pages"]} == seen["b"]
        # The key is another crawl's.
        assert curls.post(f"{url}/v1/events", json={"url": "http://b.example/"}, headers=key).status_code == 202


def test_file_of_tokens_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    made = [new_token("reader", ["read"], []), new_token("crawler-7", ["crawl", "read"], ["default", "news"])]
    path.write_text("".join(lines for _, lines in made))
    path.chmod(0o640)
    found = verdicts(data=tmp_path / "d", tokens_file=path, host="0.0.0.0")
    assert found["tokens"] == ("ok", "reader: read; crawler-7: crawl, read")
    assert "token" not in found  # One is wanted of other machines, as with OPIC_API_TOKEN.
    assert "OPIC_TOKENS_FILE" in found["settings"][1]
    path.chmod(0o666)
    assert verdicts(data=tmp_path / "d", tokens_file=path)["tokens"][0] == "warn"
    path.write_text(made[1][1])
    verdict, said = verdicts(data=tmp_path / "d", tokens_file=path, crawl="shop")["tokens"]
    assert (verdict, "is for crawl shop" in said) == ("warn", True)
    path.write_text("[tokens.reader]\nroles = ['read']\n")
    verdict, said = verdicts(data=tmp_path / "d", tokens_file=path)["tokens"]
    assert (verdict, "sha256" in said) == ("FAIL", True)
