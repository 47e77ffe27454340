"""The worker processes of a service with the bundled store: one for each crawl, started, watched and stopped."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from opic.settings import Settings

STOP_SECONDS: Final = 30.0

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
        environment = {**os.environ, **settings.environment(), "OPIC_STORE": store}
        environment["OPIC_CHILD"] = str(os.getpid())
        environment["OPIC_CHILD_LOG_LEVEL"] = str(self._log_level)
        if self._data is not None:
            environment["OPIC_DATA"] = str(self._data)
        environment.pop("OPIC_API_TOKEN", None)
        # The service may have been started from anywhere: the child imports what we imported.
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
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
        running = [worker for _, worker in self._running.values() if worker.poll() is None]
        for worker in running:
            worker.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in running:
            try:
                worker.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                text = "a worker did not end within %.0f s; killing it: the store knows how far it got"
                log.error(text, STOP_SECONDS)
                worker.kill()
                worker.wait()
