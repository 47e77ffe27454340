"""Scrapy in a process of its own, on a site and a service of the test."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import environment
from repository import ROOT

END_SECONDS = 90.0
SETTINGS = {
    "ADDONS": {"opic.scrapy.Addon": 500},
    "OPIC_CLOSE_AFTER_IDLE": 0.5,
    "LOG_LEVEL": "DEBUG",
    "RETRY_TIMES": 1,
    "TELNETCONSOLE_ENABLED": False,
    "ITEM_PIPELINES": {"__main__.Written": 1},
}


class SpiderRun:
    """A spider that runs."""

    def __init__(self, folder: Path, spider: str, start: list[str], service: str, **settings: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        domains = settings.pop("allowed_domains", ["127.0.0.1"])
        files = {
            "ITEMS_FILE": str(folder / "items.jsonl"),
            "STATS_FILE": str(folder / "stats.json"),
        }
        given = {
            "settings": {**SETTINGS, **files, "OPIC_URL": service, **settings},
            "arguments": {"start_urls": start, "allowed_domains": domains},
        }
        command = [sys.executable, str(ROOT / "tests/support/scrapy_spiders.py"), spider, json.dumps(given)]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> "SpiderRun":
        """Ask it to close, and wait for its end."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> "SpiderRun":
        """Wait until it has closed by itself."""
        assert self.process.wait(END_SECONDS) == 0, self.log[-3000:]
        return self

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def items(self) -> list[dict[str, Any]]:
        path = self.folder / "items.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def stats(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.folder / "stats.json").read_text())
        return found


@contextmanager
def spider_running(folder: Path, spider: str, start: list[str], service: str, **settings: Any) -> Iterator[SpiderRun]:
    run = SpiderRun(folder, spider, start, service, **settings)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def crawled(folder: Path, spider: str, start: list[str], service: str, **settings: Any) -> SpiderRun:
    """A spider that has run to its end."""
    with spider_running(folder, spider, start, service, **settings) as run:
        return run.end()
