"""The worker processes of a service with the bundled store: one for each crawl, started, watched and stopped."""

import logging
import subprocess
import sys
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
        self._data, self._log_level = data, log_level
        self._running = dict[str, tuple[Settings, subprocess.Popen[bytes]]]()

    def start(self, settings: Settings, store: str) -> None:
        """Start the worker of a crawl on the store at a URL."""
        environment = child_environment(settings) | {"OPIC_STORE": store}
        environment["OPIC_CHILD_LOG_LEVEL"] = str(self._log_level)
        if self._data is not None:
            environment["OPIC_DATA"] = str(self._data)
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "opic.service.worker_process"],  # -P: not what lies in the working directory.
            env=environment,
            start_new_session=True,  # Ctrl-C at a terminal is for us to pass on, in order.
            stdin=subprocess.DEVNULL,
        )
        self._running[settings.crawl] = settings, worker

    def process(self, crawl: str) -> subprocess.Popen[bytes]:
        return self._running[crawl][1]

    def all_run(self) -> bool:
        """Return whether there are workers, and all run."""
        return bool(self._running) and not self._ended()

    def _ended(self) -> list[tuple[Settings, subprocess.Popen[bytes]]]:
        return [(settings, worker) for settings, worker in list(self._running.values()) if worker.poll() is not None]

    def restart(self, store: str) -> bool:
        """Start those again that ended by themselves; return whether there were any."""
        ended = self._ended()
        for settings, worker in ended:
            text = "the worker of crawl %s ended (exit %s); starting it again"
            log.error(text, settings.crawl, worker.returncode)
            self.start(settings, store)
        return bool(ended)

    def stop(self) -> None:
        """End all."""
        end_all([worker for _, worker in self._running.values()], "a worker")
