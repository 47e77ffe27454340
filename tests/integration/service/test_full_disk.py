"""A disk that fills up: what was accepted stays, writing is refused with what to do, and goes on once there is room."""

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from logs import PARTITION, pep_history
from processes import Service, children_of, environment, running, wait_until
from record_sources import Listed, work_through
from same_state import assert_same, assert_same_replica, small_blocks
from servers import Server
from written import written

from opic.errors import StoreError, StoreUnavailable
from opic.ingest import ShardWriter
from opic.ingest.event_log import EventLog
from opic.model.events import CrawlEvent, encode_crawl_event
from opic.model.ledger import Ledger
from opic.ops.backup import backup
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.service.embedded import EmbeddedServer, disk_full
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import Shard, connect
from opic.store.connection import Line

DISK_BYTES = 32 << 20  # An eighth of it is the room that the store wants.
BALLAST_BYTES = 24 << 20  # Of somebody else: its end is what makes room.
PAGE_BYTES = 4_096  # Of the file system: a file takes the rest of its last one even when the disk is full.
A_CALL = 10
CALLS_MAX = 2_000


class Disk:
    """A file system of its own, most of it taken by others."""

    def __init__(self, path: Path) -> None:
        self.path, self._rest = path, path / "rest"
        self._ballast = path / "ballast"

    def fill_most(self) -> None:
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)

    def fill(self, leave: int = 0) -> None:
        """Take all that is left, but for so many bytes."""
        with self._rest.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4_096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            file.truncate(file.tell() - leave)

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)
        self._rest.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mounted for the test; who may not mount skips it, in CI too: no package can be installed against that."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "opic-test", str(path)]
    try:
        tried = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("wants a small file system: no program called mount here")
    if tried.returncode:
        pytest.skip(f"wants a small file system, and this user may not mount one: {tried.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def service(disk: Disk, tmp_path: Path) -> Iterator[Service]:
    """With little room left."""
    with running(disk.path / "data", tmp_path / "serve.log") as found:
        disk.fill_most()
        yield found


def urls_of(number: int) -> list[str]:
    return [f"http://h{i % 7}.example/{number}/{i}" for i in range(A_CALL)]


def events_of(number: int) -> list[dict[str, object]]:
    links = [f"http://h{i % 5}.example/{number % 50}/{i}/link" for i in range(30)]
    return [{"url": url, "links": links} for url in urls_of(number)]


def post_until_full(service: Service) -> tuple[list[str], httpx.Response]:
    """Return the URLs that were accepted, and the first refusal."""
    accepted: list[str] = []
    for number in range(CALLS_MAX):
        answer = service.post("/v1/events", events_of(number))
        if answer.status_code != 202:
            return accepted, answer
        assert answer.json()["accepted"] == A_CALL
        accepted += urls_of(number)
        if not number:
            service.settle()  # On a busy machine the disk may be full before a worker has taken anything.
    raise AssertionError("the disk does not fill")


def is_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] in ("urn:opic:problem:disk-full", "urn:opic:problem:not-ready")
    assert "the disk of the store is full" in answer.json()["detail"]
    assert "make room" in answer.json()["detail"]


def worker_waits(service: Service) -> bool:
    """Nothing is under way then: the worker has looked at the disk, and writes nothing until there is room."""
    return "make room on it; retrying" in service.said()


def goes_on(service: Service, accepted: list[str]) -> None:
    """There is room again: nobody has to start anything, and each accepted event has taken effect once."""
    wait_until(service.ready)
    assert service.post("/v1/events", [{"url": "http://afterwards.example/"}]).status_code == 202
    service.settle()
    assert service.get("/v1/audit").json()["conserved"]
    assert service.reads([*accepted, "http://afterwards.example/"]) == [1] * (len(accepted) + 1)


@pytest.mark.slow
def test_full_disk_refuses_writes_and_answers_all_else(service: Service, disk: Disk) -> None:
    before = service.pids()
    accepted, refused = post_until_full(service)
    is_refused(refused)
    is_refused(service.post("/v1/events", {"url": "http://refused.example/"}, **{"idempotency-key": "a"}))
    is_refused(service.post("/v1/seeds", {"urls": ["http://refused.example/"]}))
    is_refused(service.post("/v1/next", {"n": 1}))
    is_refused(service.get("/readyz"))
    wait_until(lambda: worker_waits(service))  # A store that is just writing when the disk is full ends itself.
    disk.fill()
    is_refused(service.post("/v1/events", {"url": "http://refused.example/"}))
    assert service.get("/healthz").status_code == 200
    assert service.get("/v1/importance", url=accepted[0]).status_code == 200
    assert len(service.get("/v1/top", n="10").json()["pages"]) == 10
    assert service.get("/v1/audit").json()["conserved"]
    assert service.pids() == before, "something ended"
    disk.make_room()
    goes_on(service, accepted)
    assert service.reads(["http://refused.example/"]) == [0]
    assert service.post("/v1/next", {"n": 1}).json()["pages"]
    assert service.pids() == before, "something ended"


@pytest.mark.slow
def test_worker_that_has_caught_up_writes_nothing_on_a_full_disk(service: Service, disk: Disk) -> None:
    """What steps took is counted in the store up to a second later; that write would end the server."""
    before = service.pids()
    for number in range(5):
        assert service.post("/v1/events", events_of(number)).status_code == 202
    service.settle()
    files = (service.data / "store" / "appendonlydir").glob("*.incr.aof")
    size = max(files, key=lambda file: file.stat().st_mtime).stat().st_size
    client = connect(service.store_url(), retries=0)
    client.set(
        "padding", bytes(2 * PAGE_BYTES - size % PAGE_BYTES - 150)
    )  # Less than 150 bytes fit into its last page.
    disk.fill()
    wait_until(lambda: worker_waits(service))
    assert service.pids() == before
    assert "the store ended" not in service.said()
    disk.make_room()
    goes_on(service, [url for number in range(5) for url in urls_of(number)])


@pytest.mark.slow
def test_repeat_of_an_accepted_call_is_answered_on_a_full_disk(service: Service, disk: Disk) -> None:
    key = {"idempotency-key": "before"}
    taken = service.post("/v1/events", events_of(1), **key)
    assert taken.status_code == 202
    service.settle()  # A store that is just writing when the disk is full ends itself, and starts again.
    disk.fill()
    again = service.post("/v1/events", events_of(1), **key)
    assert (again.status_code, again.content) == (202, taken.content)
    is_refused(service.post("/v1/events", events_of(2), **{"idempotency-key": "another"}))
    disk.make_room()
    goes_on(service, urls_of(1))


@pytest.mark.slow
def test_server_that_ended_on_a_full_disk_comes_back_with_all_accepted_events(service: Service, disk: Disk) -> None:
    """Somebody writes without asking whether there is room, while events wait for a worker that is stopped."""
    pids = service.pids()
    os.kill(pids["worker"], signal.SIGSTOP)
    try:
        accepted = []
        for number in range(5):
            assert service.post("/v1/events", events_of(number)).status_code == 202
            accepted += urls_of(number)
        disk.fill()
        log = EventLog(connect(service.store_url(), retries=0), Shard.open(connect(service.store_url())).keys)
        lost = "http://never-answered.example/"
        with pytest.raises(StoreUnavailable):
            log.append([encode_crawl_event(CrawlEvent(lost, ["http://a.example/" + "a" * 2_000] * 100))] * 3, 1)
    finally:
        os.kill(pids["worker"], signal.SIGCONT)
    wait_until(lambda: service.get("/v1/stats").status_code == 200)  # It is read from, full as it is.
    assert service.get("/v1/stats").json()["lag"] == len(accepted)
    is_refused(service.post("/v1/events", events_of(9)))
    is_refused(service.get("/readyz"))
    assert service.get("/healthz").status_code == 200
    said = [line for line in service.said().splitlines() if "the store ended" in line]
    assert len(said) == 1, said
    assert "the disk of the store is full" in said[0]
    wait_until(lambda: worker_waits(service))
    disk.make_room()
    goes_on(service, accepted)
    assert service.reads([lost]) == [0]
    assert len(children_of(pids["endpoint"])) == 2
    assert service.said().count("the store ended") == 1


@pytest.mark.slow
def test_service_starts_on_a_full_disk_to_answer_questions(disk: Disk, tmp_path: Path) -> None:
    with running(disk.path / "data", tmp_path / "serve.log") as service:
        assert service.post("/v1/events", events_of(1)).status_code == 202
        service.settle()
        service.stop()
        disk.fill_most()
        disk.fill(leave=1 << 20)
        service.start(ready=False)
        is_refused(service.get("/readyz"))
        assert service.reads(urls_of(1)) == [1] * A_CALL
        assert "until then nothing is accepted" in service.said()
        disk.make_room()
        goes_on(service, urls_of(1))


@pytest.mark.slow
def test_start_on_a_disk_without_a_byte_left_is_an_error_that_says_so(disk: Disk, tmp_path: Path) -> None:
    data = disk.path / "data"
    with EmbeddedService(Settings.load(data=data)):
        pass
    disk.fill()
    command = [sys.executable, "-m", "opic.cli.main", "serve", "--embedded", "--data", str(data), "--port", "0"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "the disk of the store is full" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("call", [1, 3])
def test_disk_that_fills_up_during_a_checkpoint_leaves_the_state_whole(disk: Disk, call: int) -> None:
    """The server ends at a block, or between the pieces of one. The journal has all that this block was to have."""
    log, sent = pep_history()[:400], list[int]()
    server = EmbeddedServer(disk.path / "data")
    server.start()
    send = Line.send

    def sending(line: Line, *commands: Sequence[Any]) -> None:
        for command in commands:
            if command[1] == "opic_5_blocks":
                sent.append(1)
                if len(sent) == call:
                    disk.fill()
        send(line, *commands)

    try:
        with small_blocks(4, 2), connect(server.url, retries=0) as client:
            store = ShardWriter(Shard.open(client))
            store.apply(PARTITION, log[:300])
            dirty = store.checkpointer.dirty
            with patch.object(Line, "send", sending), pytest.raises(StoreUnavailable):
                store.checkpoint()
            assert call <= len(sent) < dirty  # The last page of its file takes some more.
            assert server.process is not None
            assert server.process.wait(10) != 0
            disk.make_room()
            server.start_server()
            work_through(store, Listed(log))
            store.checkpoint()
            ledger = Ledger()
            ledger.apply(PARTITION, log)
            assert_same(store.shard, ledger)
            cold = Crawl([store.shard])
            assert_same_replica(cold.follow()[0], store.replica)
    finally:
        server.stop()


def test_creating_a_store_on_a_full_disk_fails_with_the_reason(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(StoreError, match=r"disk.* is full.*make room"):
        EmbeddedServer(disk.path / "data").start()


def test_required_free_space_depends_on_the_size_of_the_disk(disk: Disk, tmp_path: Path) -> None:
    assert disk_full(disk.path) is None
    disk.fill_most()
    assert disk_full(disk.path) is None
    disk.fill(leave=DISK_BYTES // 8)
    assert disk_full(disk.path) is None
    disk.fill(leave=DISK_BYTES // 8 - 4_096)
    assert "4.0 MiB free, 4.0 MiB wanted" in str(disk_full(disk.path))
    assert disk_full(tmp_path / "not there") is None


def test_worker_of_a_store_elsewhere_works_on_a_full_disk(disk: Disk, valkey: Server, tmp_path: Path) -> None:
    """The server has a disk of its own."""
    disk.fill(leave=1 << 20)
    assert disk_full(disk.path) is not None
    settings = Settings.load(store=valkey.url, data=disk.path, crawl="elsewhere", shards=1)
    command = [sys.executable, "-m", "consumers.crawl_events"]
    with (
        (tmp_path / "worker.log").open("wb") as said,
        subprocess.Popen(command, env={**environment(), **settings.environment()}, stderr=said) as worker,
    ):
        backend = Backend(settings, valkey.url)
        try:
            assert written(backend.seed(["http://a.example/"])) == {"known": 0, "new": 1}
        finally:
            worker.terminate()
            backend.close()
    assert worker.returncode == 0, (tmp_path / "worker.log").read_text()


@pytest.mark.slow
def test_restore_that_runs_out_of_room_says_so_and_completes_once_there_is(disk: Disk, tmp_path: Path) -> None:
    """Also one that can't begin, as on a disk without a byte left."""
    with EmbeddedService(Settings.load(data=tmp_path / "data")) as service:
        rng = random.Random(5)
        metas = [{"url": f"http://a.example/{page}", "meta": {"of": rng.randbytes(450).hex()}} for page in range(8_000)]
        service.backend.settle(service.backend.accept([encode_crawl_event(CrawlEvent(**event)) for event in metas]))
        backup(service.backend.crawl, tmp_path / "copy")
    command = [sys.executable, "-m", "opic.cli.main", "restore", str(tmp_path / "copy"), "--replace", "--data"]

    def restored() -> "subprocess.CompletedProcess[str]":
        whole = [*command, str(disk.path / "data")]
        ended = subprocess.run(whole, env=environment(), capture_output=True, text=True, check=False)
        assert "Traceback" not in ended.stderr
        return ended

    disk.fill()
    ended = restored()
    assert ended.returncode == 2
    assert "the disk of the store is full" in ended.stderr
    disk.make_room()
    disk.fill(leave=5 << 20)
    ended = restored()
    assert ended.returncode == 2
    why = r"restore broke off .*; the embedded store ended \(exit \d+\): the disk of the store is full"
    assert re.search(why, ended.stderr)
    disk.make_room()
    assert restored().returncode == 0, ended.stderr
    with EmbeddedService(Settings.load(data=disk.path / "data"), create=False) as service:
        assert service.backend.query.audit()["conserved"]
        assert service.backend.stats()["read_pages"] == len(metas)


# A replay.

EVENTS = 4_000


@contextmanager
def replaying(data: Path, file: Path, said: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "opic.cli.main", "replay", str(file), "--data", str(data), "--json"]
    with said.open("wb") as errors:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a service"])
def test_replay_waits_for_room_and_feeds_each_event_once(disk: Disk, tmp_path: Path, beside: bool) -> None:
    data, file, said = disk.path / "data", tmp_path / "crawl.jsonl", tmp_path / "replay.log"
    urls = [url for number in range(EVENTS // A_CALL) for url in urls_of(number)]
    file.write_text(
        "".join(json.dumps(event) + "\n" for number in range(EVENTS // A_CALL) for event in events_of(number))
    )
    with EmbeddedService(Settings.load(data=data)) if beside else open(os.devnull):
        disk.fill_most()
        with replaying(data, file, said) as process:
            wait_until(lambda: "the disk of the store is full" in said.read_text())
            assert "make room" in said.read_text()
            disk.fill()
            assert process.poll() is None
            disk.make_room()
            answer, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said.read_text()
    summary = json.loads(answer)
    assert (summary["events"], summary["accepted"], summary["dead_letters"]) == (EVENTS, EVENTS, 0)
    with EmbeddedService(Settings.load(data=data)) as service:
        found = service.backend.query.importance(urls, None, None)
        assert [page["reads"] if page else 0 for page in found] == [1] * EVENTS
        assert service.backend.query.audit()["conserved"]
