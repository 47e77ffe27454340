"""Processes of this checkout and of others, each driven by lines of JSON: see journal_driver.py."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness import SEEDS_A_RECORD
from workloads import Crawl

from opic.model.events import encode_seeds

DRIVER = Path(__file__).parent / "journal_driver.py"
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Version:
    """A contender's code: what it is called, its interpreter, its checkout, and which engine it runs."""

    name: str
    python: str
    root: Path
    engine: str = "store"
    keep_links: bool = False


class Driver:
    """A process that runs journal_driver.py in a checkout."""

    def __init__(self, version: Version) -> None:
        """Start it."""
        self.name = version.name
        self.process = subprocess.Popen(
            [version.python, str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(version.root), "PATH": "/usr/bin:/bin"},
        )

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for the answer to a command."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the driver ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.tell(do, **arguments)
        return self.hear()

    def close(self) -> None:
        """Let it end its server and itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def write_values(path: Path, values: Iterable[bytes]) -> Path:
    """Write records to a file as journal_driver.py reads them."""
    with path.open("wb") as file:
        for value in values:
            file.write(len(value).to_bytes(4, "big") + value)
    return path


def seeds(crawl: Crawl) -> Iterator[bytes]:
    """Yield records of seeds: all pages that a crawl knows."""
    urls = crawl.each_url()
    while some := list(islice(urls, SEEDS_A_RECORD)):
        yield encode_seeds(some)


def versions(before: Path | None, *, baseline: bool, kept_links: bool = False) -> list[Version]:
    """Return this checkout, the one to compare it with if there is one, and the implementation on redis-py.

    With `kept_links`, also the first two with the links of pages kept, as "links" and "before-links".

    Raises:
        SystemExit: the other checkout was not set up.
    """
    out = [Version("now", sys.executable, ROOT)]
    if before is not None:
        python = before.resolve() / ".venv" / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"--before {before}: it has no .venv: run `make setup` there")
        out.append(Version("before", str(python), before.resolve()))
    if kept_links:
        names = {"now": "links", "before": "before-links"}
        out += [replace(version, name=names[version.name], keep_links=True) for version in out]
    return out + ([Version("baseline", sys.executable, ROOT, "baseline")] if baseline else [])
