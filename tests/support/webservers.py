"""nginx as a process of the test's own."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
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
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: accepts(port))
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
