"""What the benchmarks of a running store share: servers, and how results are written."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import opic
from opic.api import bind, create_app, make_server
from opic.api.server import url_of
from opic.model.cash import MILLION
from opic.model.events import Record, encode_seeds
from opic.service.embedded import EmbeddedServer
from opic.service.service import EmbeddedService
from opic.settings import Settings

RESULTS = Path(__file__).parent / "results"
SEEDS_A_RECORD = 1_000
STOP_SECONDS = 30.0
RECORD_TIME_US = 1_750_000_000 * MILLION  # Of the log: the events' own time.


def seed_records(urls: Sequence[str]) -> list[Record]:
    """Return records that make pages known, in this order."""
    starts = range(0, len(urls), SEEDS_A_RECORD)
    return [
        Record(nth, RECORD_TIME_US, encode_seeds(urls[at : at + SEEDS_A_RECORD]), "seeds")
        for nth, at in enumerate(starts)
    ]


@contextmanager
def embedded_server() -> Iterator[EmbeddedServer]:
    """Lend a new server with the settings of the embedded store: appendonly yes, appendfsync always."""
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as data:
        server = EmbeddedServer(Path(data))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def served(directory: Path, **settings: object) -> Iterator[str]:
    """Serve a new crawl with all of the service in this process; lend the URL."""
    with EmbeddedService(Settings.load(data=directory, **settings)) as backend:
        listener = bind("127.0.0.1", 0)
        server = make_server(create_app(backend))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join(STOP_SECONDS)


def commit(checkout: Path) -> str:
    """Return the commit of the code that is measured; with a plus where files differ from it."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--exclude", "*", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_result(name: str, found: dict[str, Any], path: Path | None = None) -> None:
    """Write `results/<name>.json` with the machine, the date and the command."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "commit": commit(Path(opic.__file__).resolve().parents[1]),
        "load_average": os.getloadavg()[0],  # Of the minute before: who else was at work.
    }
    path.write_text(json.dumps(about | found, indent=1) + "\n")
