"""Writes opic/client/sync.py from aio.py, for `make client`; a test compares the two."""

import subprocess
import sys
import tempfile
from pathlib import Path

import unasync
from repository import ROOT, relative

AIO, SYNC = ROOT / "opic/client/aio.py", ROOT / "opic/client/sync.py"
NOTE = '"""The client that blocks. Generated from aio.py: edit that file, then run `make client`."""\n'
REPLACED = {
    "AsyncClient": "Client",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncRetrying": "Retrying",
    "aclose": "close",
}


def generated(source: str | None = None) -> str:
    """What sync.py should hold: aio.py without `await`, below a note in place of its first line."""
    _, body = (AIO.read_text() if source is None else source).split("\n", 1)
    with tempfile.TemporaryDirectory() as directory:
        rule = unasync.Rule("/aio/", "/sync/", REPLACED)
        before, after = (Path(directory, name, "client.py") for name in ("aio", "sync"))
        before.parent.mkdir()
        before.write_text(NOTE + body)
        unasync.unasync_files([str(before)], [rule])
        text = after.read_text()
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", relative(SYNC), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=True).stdout


if __name__ == "__main__":
    SYNC.write_text(generated())
