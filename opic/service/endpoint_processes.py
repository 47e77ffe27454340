"""Several endpoint processes of one service, which listen on one address.

Each is an endpoint like those of other machines: it has its own replicas, and the store decides about leases. The
kernel gives each connection to one of those that listen (SO_REUSEPORT), and a process listens once it can answer.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from opic.background import repeated
from opic.errors import StoreError
from opic.service.child_processes import child_environment, end_all, parent_is_gone
from opic.service.open_crawls import RunWorkers
from opic.settings import Settings

VARIABLE: Final = "OPIC_CHILD_ENDPOINT"
TOLD_BYTES: Final = 1 << 16  # What a pipe holds: all that was told is read at once.
LOOK_SECONDS: Final = 0.2
PARENT_SECONDS: Final = 1.0

log = logging.getLogger("opic.service")


@dataclass(frozen=True, slots=True)
class EndpointChild:
    """What an endpoint process is told by the one that started it."""

    number: int  # From 0 on.
    creates: bool  # Whether to make a missing crawl, as at its first start; later it was deleted by someone.
    kept: int  # The file descriptor of the socket that reserves the address,
    ready: int  # and of a pipe: it says there that it answers.
    instance: str  # The service's name, as /healthz tells it.
    metrics: str  # The directory of the metrics that the processes share.

    @classmethod
    def of_environment(cls) -> "EndpointChild | None":
        """Return what this process was told; None if it is no such child."""
        told = os.environ.get(VARIABLE)
        return None if told is None else cls(**json.loads(told))

    def socket(self) -> socket.socket:
        return socket.socket(fileno=self.kept)

    def answers(self) -> None:
        """Tell the process that started this one that it answers."""
        self._tell({"answers": True})

    def run_workers(self, crawls: Collection[str], ended: Collection[str] = ()) -> None:
        """Tell that process which other crawls are open here, so that it runs their workers, and which are to end."""
        self._tell({"crawls": list(crawls), "ended": list(ended)})

    def _tell(self, told: Mapping[str, object]) -> None:
        with suppress(BrokenPipeError):  # It is gone, and so is this process soon.
            os.write(self.ready, json.dumps(told).encode() + b"\n")

    def ending_with_its_parent(self) -> AbstractContextManager[None]:
        """End this process in order, during the block, if the one that started it is gone."""

        def check_parent() -> float:
            if parent_is_gone():
                os.kill(os.getpid(), signal.SIGTERM)
            return PARENT_SECONDS

        return repeated(check_parent, 0.0, "opic-parent")


class EndpointProcesses:
    """The endpoint processes of a service."""

    def __init__(
        self,
        settings: Settings,
        kept: socket.socket,
        instance: str,
        metrics: Path,
        *,
        options: Sequence[str],
        first_options: Sequence[str],
        run_workers: RunWorkers | None = None,
    ) -> None:
        """Start none yet.

        Args:
            settings: of the service; OPIC_PROCESSES of them are started.
            kept: a socket that reserves the address.
            instance: the service's name.
            metrics: an empty directory for the metrics that they share.
            options: of `opic serve`, those that have no setting.
            first_options: more of them, for the first process alone.
            run_workers: runs the workers of the crawls that the processes have open besides OPIC_CRAWL.
        """
        self._settings, self._kept, self._options = settings, kept, (options, first_options)
        self._instance, self._metrics = instance, metrics
        self._running = dict[int, subprocess.Popen[bytes]]()
        self._ready = dict[int, int]()
        self._run_workers, self._open = run_workers, dict[int, set[str]]()
        self._unread = dict[int, bytes]()  # What was told but for the end of its line.

    def start(self) -> None:
        """Start them; return once all answer. The first comes alone, so that one process says what is wrong.

        Raises:
            StoreError: one ended.
        """
        for numbers in ([0], range(1, self._settings.processes)):
            for number in numbers:
                self._start(number)
            for number in numbers:
                self._await(number)

    def _start(self, number: int) -> None:
        ready, tell = os.pipe()
        os.set_blocking(ready, False)
        creates = number not in self._running
        child = EndpointChild(number, creates, self._kept.fileno(), tell, self._instance, str(self._metrics))
        environment = child_environment(self._settings) | {VARIABLE: json.dumps(asdict(child))}
        if self._settings.api_token is not None:
            environment["OPIC_API_TOKEN"] = self._settings.api_token.get_secret_value()
        if self._settings.embedded:
            environment["OPIC_DATA"] = str(self._settings.data_dir().absolute())
        options, first_options = self._options
        words = [*options, *([] if number else first_options)]
        try:
            self._running[number] = subprocess.Popen(
                [sys.executable, "-P", "-m", "opic", "serve", *words],  # -P: not what lies in the working directory.
                env=environment,
                pass_fds=(self._kept.fileno(), tell),
                start_new_session=True,  # Ctrl-C at a terminal is for us to pass on, in order.
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(tell)
        if (before := self._ready.get(number)) is not None:
            os.close(before)
        self._ready[number] = ready
        for kept in (self._open, self._unread):
            kept.pop(number, None)

    def _await(self, number: int) -> None:
        ready, process = self._ready[number], self._running[number]
        while not wait([ready], LOOK_SECONDS):
            pass  # A process that ends closes its end of the pipe.
        if not self._hear(number):
            status = process.wait()
            raise StoreError(f"endpoint process {number} ended at its start (exit {status}): see what it said above")

    def _hear(self, number: int) -> bool:
        """Take what a process told; return whether it told anything. What it opens or ends, the workers do."""
        try:
            told = os.read(self._ready[number], TOLD_BYTES)
        except BlockingIOError:
            return False
        *lines, self._unread[number] = (self._unread.get(number, b"") + told).split(b"\n")
        for line in map(json.loads, lines):
            if "crawls" in line and self._run_workers is not None:
                self._open[number] = set(line["crawls"])
                for names in self._open.values():  # Of a crawl that one removes, the others hear later.
                    names.difference_update(line["ended"])
                self._run_workers(sorted(set().union(*self._open.values())), line["ended"])
        return bool(told)

    def supervise(self) -> bool:
        """Hear what the processes tell; start those again that ended by themselves, and return whether any had."""
        for number in self._running:
            self._hear(number)
        ended = [number for number, process in self._running.items() if process.poll() is not None]
        for number in ended:
            text = "endpoint process %d ended (exit %s); starting it again"
            log.error(text, number, self._running[number].returncode)
            self._start(number)
        return bool(ended)

    def stop(self) -> None:
        """End all, with the calls answered that they have."""
        end_all(self._running.values(), "an endpoint process")
        for ready in self._ready.values():
            os.close(ready)
        self._ready.clear()
