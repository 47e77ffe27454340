"""nginx and Caddy as processes of the test's own."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conftest import want_tool
from processes import wait_until

STOP_SECONDS = 10.0


@contextmanager
def nginx(folder: Path, config: str, port: int) -> Iterator[None]:
    """Run nginx in a folder, by a configuration that listens on a port of loopback."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or want_tool("nginx", "nginx-light")
    (folder / "nginx.conf").write_text(config)
    command = [program, "-p", f"{folder}/", "-c", "nginx.conf", "-e", "error.log"]
    with _listening(command, folder, port):
        yield


@contextmanager
def caddy(folder: Path, config: str, port: int) -> Iterator[None]:
    """Run Caddy in a folder, by a Caddyfile that listens on a port of loopback."""
    (folder / "Caddyfile").write_text(config)
    command = [want_tool("caddy", "caddy"), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with _listening(command, folder, port, HOME=str(folder), XDG_DATA_HOME=str(folder)):
        yield


@contextmanager
def _listening(command: Sequence[str], folder: Path, port: int, **env: str) -> Iterator[None]:
    """Run a program that writes to `said` in a folder, from when it listens on a port."""
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | env)

    def listens() -> bool:
        assert process.poll() is None, (folder / "said").read_text(errors="replace")[-2_000:]
        return accepts(port)

    try:
        wait_until(listens)
        yield
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def accepts(port: int) -> bool:
    """Whether something listens on a port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=STOP_SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True
