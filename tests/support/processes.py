"""`opic serve --embedded` as its users run it: a tree of three processes, each of which a test may take down."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import curls
import httpx
from ports import free_port
from repository import ROOT

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02
ASKED_MAX = 10_000  # OPIC_MAX_URLS.
WORKER = "opic.service.worker_process"


def children_of(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listing.stdout.split()]


def command_of(pid: int) -> list[str]:
    """Its command line; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except FileNotFoundError:
        return []


def gone(pid: int) -> bool:
    """Whether a process has ended, and all of its threads: until the last one has, its sockets are open."""
    process = Path(f"/proc/{pid}")
    try:
        return "\nState:\tZ" in (process / "status").read_text() and len(list((process / "task").iterdir())) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def environment() -> dict[str, str]:
    """Ours, without settings."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("OPIC_")}, "PYTHONPATH": str(ROOT)}


def without_source(said: str) -> list[str]:
    """The lines that a command says, but that by which it tells whose crawl answers."""
    return [line for line in said.splitlines() if not line.startswith("opic: crawl ")]


def wait_until(done: Callable[[], Any], seconds: float = START_SECONDS_MAX) -> Any:
    """Return what `done` says once it says anything; a loaded machine gets time, a hang an end."""
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(POLL_SECONDS)
    return found


class Service:
    """A running service."""

    def __init__(self, data: Path, said: Path, **settings: object) -> None:
        self.data, self.port, self._said = data, free_port(), said
        self._environment = environment() | {f"OPIC_{name.upper()}": str(value) for name, value in settings.items()}
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.program = ["-m", "opic.cli.main"]  # What Python runs.

    def start(self, *, ready: bool = True) -> None:
        """Start it, and wait until it is ready, or at least answers."""
        command = [sys.executable, *self.program, "serve", "--embedded", "--data", str(self.data)]
        with self._said.open("ab") as said:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                env=self._environment,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
            )

        def there() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.said()[-2000:]
            return self.ready() if ready else self.alive()

        wait_until(there)

    def stop(self) -> None:
        """Tell it to end; nothing of it is left."""
        assert self.process is not None
        pids = [self.process.pid, *children_of(self.process.pid)]
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_SECONDS_MAX) == 0
        assert all(gone(pid) for pid in pids), "a process outlived the service"

    def said(self) -> str:
        """Its log."""
        return self._said.read_text(errors="replace")

    def alive(self) -> bool:
        try:
            return curls.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def ready(self) -> bool:
        return curls.ready(self.url)

    def store_pid(self) -> int:
        """The store's server, the last one that was started."""
        return int(json.loads((self.data / "service.json").read_text())["server_pid"])

    def store_url(self) -> str:
        """Where the store's server is."""
        return f"unix://{json.loads((self.data / 'service.json').read_text())['socket']}"

    def pids(self) -> dict[str, int]:
        """The three processes that are the service; 0 is one that does not run."""
        assert self.process is not None
        # By its command: a store that is being started again is a child before its number is written down.
        (worker,) = [pid for pid in children_of(self.process.pid) if WORKER in command_of(pid)] or [0]
        return {"endpoint": self.process.pid, "worker": worker, "store": self.store_pid()}

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        """Send a call; it may take long, but not for ever."""
        return curls.post(f"{self.url}{path}", json=body, headers=headers, timeout=60)

    def get(self, path: str, **parameters: str) -> httpx.Response:
        return curls.get(f"{self.url}{path}", params=parameters, timeout=60)

    def settle(self) -> None:
        """Wait until all that was accepted has taken effect."""
        wait_until(lambda: self.get("/v1/stats").raise_for_status().json()["lag"] == 0)

    def reads(self, urls: list[str]) -> list[int]:
        """How often each page was read; 0 for one never seen."""
        parts = [urls[at : at + ASKED_MAX] for at in range(0, len(urls), ASKED_MAX)]
        answers = [self.post("/v1/importance", {"urls": part}).raise_for_status().json() for part in parts]
        return [page.get("reads", 0) for answer in answers for page in answer["pages"]]


@contextmanager
def running(data: Path, said: Path, **settings: object) -> Iterator[Service]:
    """A service that is started, and ended whatever happens."""
    service = Service(data, said, **settings)
    try:
        service.start()
        yield service
        service.stop()
    finally:
        if service.process is not None and service.process.poll() is None:
            for pid in (*children_of(service.process.pid), service.process.pid):
                os.kill(pid, signal.SIGKILL)
            service.process.wait()
