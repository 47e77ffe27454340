"""`opic serve --processes`: several endpoint processes answer on one port, as one service."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import curls
import httpx
import pytest
from ports import free_port
from processes import Service, children_of, command_of, environment, gone, running, wait_until
from prometheus_client.parser import text_string_to_metric_families

from opic.migration.migrate import Migration, begin
from opic.replica import Crawl
from opic.service.stored_crawls import delete_crawl
from opic.store import connect

pytestmark = pytest.mark.slow

PROCESSES = 4
CRAWLERS = 16
PAGES = 400


@contextmanager
def serving(directory: Path, **settings: object) -> Iterator[Service]:
    terms = {"host_delay_seconds": 0, "processes": PROCESSES, **settings}
    with running(directory / "data", directory / "said", **terms) as service:
        wait_until(lambda: "opic answers at" in service.said())  # All answer.
        yield service


def endpoints(service: Service) -> list[int]:
    assert service.process is not None
    return [pid for pid in children_of(service.process.pid) if "serve" in command_of(pid)]


def seed(service: Service, pages: int = PAGES) -> None:
    urls = [f"http://h{page % 20}.example/{page}" for page in range(pages)]
    assert service.post("/v1/seeds", {"urls": urls}).json()["new"] == pages


@contextmanager
def begun(service: Service, body: bytes) -> Iterator[socket.socket]:
    """Begin a call that the service has in hand: it asks for the body, which is still to be sent."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as wire:
        head = (
            "POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
        )
        wire.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        assert wire.recv(100).startswith(b"HTTP/1.1 100 ")
        yield wire


def samples(service: Service, name: str) -> list[Any]:
    """The samples of a metric in one scrape."""
    families = text_string_to_metric_families(service.get("/metrics").text)
    return [sample for family in families for sample in family.samples if sample.name == name]


def values(service: Service, name: str) -> dict[str, float]:
    """The values of a metric by process."""
    return {sample.labels["process"]: sample.value for sample in samples(service, name)}


def handed(service: Service) -> float:
    """How many pages were handed out, as a scrape says."""
    return sum(sample.value for sample in samples(service, "opic_suggestions_total"))


def crawled(service: Service) -> list[str]:
    """Lease all pages, by crawlers with a connection each, so that all processes hand out some."""

    def crawl(number: int) -> list[str]:
        leased = list[str]()
        with httpx.Client(base_url=service.url, timeout=60) as client:
            while pages := client.post("/v1/next", json={"n": 3, "crawler": f"c{number}"}).json()["pages"]:
                leased += [page["url"] for page in pages]
        return leased

    with ThreadPoolExecutor(CRAWLERS) as pool:
        return [url for leased in pool.map(crawl, range(CRAWLERS)) for url in leased]


def test_no_page_is_leased_twice_and_a_scrape_shows_what_all_processes_did(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        seed(service)
        assert len(set(endpoints(service))) == PROCESSES
        leased = crawled(service)
        assert Counter(leased).most_common(1)[0][1] == 1
        assert len(leased) == PAGES
        assert handed(service) == PAGES
        for of_each in ("process_resident_memory_bytes", "opic_tokens_file_ok"):
            assert values(service, of_each).keys() == set(map(str, range(PROCESSES)))
        wait_until(lambda: set(values(service, "opic_replica_pages").values()) == {PAGES})
        # Whichever process takes the call: a key counts once, and a position shows what was written.
        event = {"url": leased[0], "links": []}
        sent = [service.post("/v1/events", event, **{"Idempotency-Key": "one"}) for _ in range(2 * PROCESSES)]
        assert {answer.json()["accepted"] for answer in sent} == {1}
        after = service.post("/v1/events", {"url": leased[1]}).json()["position"]
        asked = [(url, after) for url in leased[:2] for _ in range(PROCESSES)]
        reads = [service.get("/v1/importance", url=url, after=after).json()["reads"] for url, after in asked]
        assert set(reads) == {1}
        assert service.get("/v1/audit").json()["conserved"]


def test_a_killed_process_is_started_again_while_the_others_answer(tmp_path: Path) -> None:
    with serving(tmp_path, processes=2) as service:
        seed(service, 20)
        assert len(crawled(service)) == 20
        before = endpoints(service)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: gone(before[0]))  # What it was answering, and had not accepted yet, is lost with it.
        until = time.monotonic() + 1
        while time.monotonic() < until:  # New connections go to the other.
            assert curls.get(f"{service.url}/healthz", timeout=30).status_code == 200
        wait_until(lambda: len(endpoints(service)) == 2 and before[0] not in endpoints(service))
        wait_until(lambda: set(values(service, "opic_replica_pages").values()) == {20})
        assert handed(service) == 20  # Its counts go on.
        assert "endpoint process 0 ended (exit -9)" in service.said() or "endpoint process 1 ended" in service.said()


def test_on_sigterm_open_calls_are_answered_and_all_processes_end(tmp_path: Path) -> None:
    with serving(tmp_path, processes=2) as service:
        seed(service, 20)
        assert service.process is not None
        pids = [service.process.pid, *children_of(service.process.pid)]
        body = b'{"url": "http://a.example/"}'
        with ExitStack() as stack:
            wires = [stack.enter_context(begun(service, body)) for _ in range(8)]
            service.process.send_signal(signal.SIGTERM)
            for wire in wires:
                wire.sendall(body)
            assert {wire.recv(1_000).split(b" ")[1] for wire in wires} == {b"202"}
        assert service.process.wait(30) == 0
        assert all(map(gone, pids))


def test_the_processes_of_a_service_that_is_killed_end(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", tmp_path / "said", processes=2)
    service.start()
    assert service.process is not None
    pids = endpoints(service)
    service.process.kill()
    service.process.wait()
    wait_until(lambda: all(map(gone, pids)))
    os.kill(service.store_pid(), signal.SIGTERM)


def test_what_keeps_a_process_from_starting_is_said_once(tmp_path: Path) -> None:
    store = f"redis://127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "opic.cli.main", "serve", "--store", store, "--processes", "3", "--port", "0"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.count("Connection refused") == 1
    assert "endpoint process 0 ended at its start" in done.stderr


def test_all_processes_answer_for_a_crawl_that_one_makes_until_one_removes_it(tmp_path: Path) -> None:
    def asked(method: str, path: str, **more: Any) -> httpx.Response:
        with httpx.Client(base_url=service.url, timeout=60) as http:  # A connection each time, of any process.
            return http.request(method, f"/v1/crawls/{path}", **more)

    with serving(tmp_path, processes=2) as service:
        for damping in (0.5, 0.6):
            assert asked("PUT", "news", json={"damping": damping}).status_code == 201
            answer = asked("POST", "news/events", json=[{"url": "http://a.example/", "links": ["http://b.example/"]}])
            after = {"after": answer.json()["position"]}
            with ThreadPoolExecutor(8) as threads:
                calls = [threads.submit(asked, "GET", "news/stats", params=after) for _ in range(16)]
                assert {call.result().json().get("known_pages") for call in calls} == {2}
            removed = asked("DELETE", "news", params={"confirm": "news"})
            assert removed.status_code == 200, removed.text
            wait_until(lambda: {asked("GET", "news/stats").status_code for _ in range(8)} == {404})
        assert service.said().count("the worker of crawl news ended") == 0


def test_worker_goes_on_after_a_move_of_which_nothing_is_left(tmp_path: Path) -> None:
    with serving(tmp_path, processes=2) as service:
        seed(service, 1)
        client = connect(service.store_url())
        begin(Crawl.open(client, "default", create=False), client, Migration("two", changes={"shards": 2}), print)
        wait_until(lambda: service.said().count("going on with that one") == 3)  # Both endpoints, and who started them.
        delete_crawl(client, "default", force=True)
        client.close()
        os.kill(service.pids()["worker"], signal.SIGKILL)
        position = service.post("/v1/events", {"url": "http://h0.example/0"}).json()["position"]
        wait_until(lambda: service.get("/v1/stats", after=position).json().get("read_pages") == 1)
