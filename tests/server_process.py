"""A server's process in the tests: started until it is ready, killed, stopped, paused, woken, and gone at the end."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

# Most starts take some 20 ms. A loaded machine gets far more, a server that hangs gets an end.
READY_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.01
SAID_AGAIN_SECONDS = 1.0
LAST_LINES = 15


class ServerFailed(RuntimeError):
    """A server did not start or stop in time; the message ends with its last words."""


class ServerProcess:
    """One server with its files in a directory of its own, which it keeps over restarts."""

    stop_seconds_max = STOP_SECONDS_MAX

    def __init__(self, name: str) -> None:
        """Nothing is started yet."""
        self.name = name
        # Not pytest's tmp_path: the path of a Unix socket may have 107 bytes at most.
        self.directory = Path(tempfile.mkdtemp(prefix=f"opic-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._started().pid

    def launch(self, command: Sequence[str], ready: Callable[[], bool], seconds: float = READY_SECONDS_MAX) -> None:
        """Start the process, its words in a file, and wait until it is ready."""
        if self.alive:
            raise ServerFailed(f"{self.name} runs already, as process {self.pid}")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C at a terminal is for pytest, which stops us in order.
            )
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise ServerFailed(f"{self.name} ended at its start{self.last_words()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} gave no answer in {seconds:g} s{self.last_words()}")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Take the server down with SIGKILL, as a crash does: it gets no chance to save."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the server to end, and wait until it has."""
        if self.alive:
            self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start again over the same directory, stopping first where it still runs."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the server where it stands: connections live, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Take the server down, since nobody will read its files again, and remove them."""
        try:
            if self.alive:
                self.kill()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log_path(self) -> Path:
        """What the server says."""
        return self.directory / "server.log"

    def last_words(self) -> str:
        """The end of it, to be put behind a message."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return ":\n" + "\n".join(lines)

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise ServerFailed(f"{self.name} was not started")
        return self._process

    def _end(self, what: signal.Signals) -> None:
        process, deadline = self._started(), time.monotonic() + self.stop_seconds_max
        while process.poll() is None:
            if time.monotonic() > deadline:
                late = f"{self.name} still runs {self.stop_seconds_max:g} s after {what.name}"
                raise ServerFailed(late + self.last_words())
            process.send_signal(signal.SIGCONT)  # It may be paused.
            # Said again: a server whose file is being written for the first time does not end when it is told to.
            process.send_signal(what)
            try:
                process.wait(SAID_AGAIN_SECONDS)
            except subprocess.TimeoutExpired:
                continue
