"""The worker processes of a service with the bundled store: one for each crawl, started, watched and stopped."""

import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from opic.service.child_processes import child_environment, end_all
from opic.settings import Settings

log = logging.getLogger("opic.service")


class WorkerProcesses:
    """The workers, by crawl."""

    def __init__(self, data: Path | None, log_level: int = logging.INFO) -> None:
        """Start none yet.

        Args:
            data: the data directory, whose disk the workers look at; None where the store runs elsewhere.
            log_level: of the records that the workers write to standard error, at least.
        """
        self._data, self._log_level, self._lock = data, log_level, threading.RLock()
        self._running = dict[str, tuple[Settings, subprocess.Popen[bytes]]]()

    def run(self, wanted: Sequence[Settings], store: str) -> None:
        """Let a worker run for each of the crawls of these settings, and end the others."""
        with self._lock:
            for settings in wanted:
                if settings.crawl not in self._running:
                    self.start(settings, store)
            names = {settings.crawl for settings in wanted}
            ended = [self._running.pop(name)[1] for name in list(self._running) if name not in names]
        end_all(ended, "a worker")

    def start(self, settings: Settings, store: str) -> None:
        """Start the worker of a crawl on the store at a URL."""
        self._running[settings.crawl] = settings, self._started(settings, store)

    def _started(self, settings: Settings, store: str) -> subprocess.Popen[bytes]:
        environment = child_environment(settings) | {"OPIC_STORE": store}
        environment["OPIC_CHILD_LOG_LEVEL"] = str(self._log_level)
        if self._data is not None:
            environment["OPIC_DATA"] = str(self._data)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "opic.service.worker_process"],  # -P: not what lies in the working directory.
            env=environment,
            start_new_session=True,  # Ctrl-C at a terminal is for us to pass on, in order.
            stdin=subprocess.DEVNULL,
        )

    def follow(self, crawl: str, settings: Settings) -> None:
        """Start the worker of a crawl with other settings from now on: another crawl has taken its place."""
        with self._lock:
            if (started := self._running.get(crawl)) is not None:
                self._running[crawl] = settings, started[1]

    def process(self, crawl: str) -> subprocess.Popen[bytes]:
        return self._running[crawl][1]

    def runs(self, crawl: str) -> bool:
        """Return whether the worker of a crawl was started, and has not ended."""
        started = self._running.get(crawl)
        return started is not None and started[1].poll() is None

    def restart(self, store: str) -> bool:
        """Start those again that ended by themselves; return whether there were any."""
        with self._lock:
            ended = [(name, *run) for name, run in self._running.items() if run[1].poll() is not None]
            for name, settings, worker in ended:
                text = "the worker of crawl %s ended (exit %s); starting it again"
                log.error(text, settings.crawl, worker.returncode)
                self._running[name] = settings, self._started(settings, store)
        return bool(ended)

    def stop(self) -> None:
        end_all([worker for _, worker in self._running.values()], "a worker")
