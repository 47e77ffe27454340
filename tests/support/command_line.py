"""Commands of `opic` in the process of the test: the same program, without the imports that take most of its time."""

import io
import logging
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from opic.cli.main import main


def run_here(words: Iterable[object], env: Mapping[str, str], *, given: str = "") -> "CompletedProcess[str]":
    """Run a command that ends by itself, with this environment alone and this text as its input."""
    argv, out, err = ["opic", *map(str, words)], io.StringIO(), io.StringIO()
    root, hang_up = logging.getLogger(), signal.getsignal(signal.SIGHUP)
    level = root.level
    try:
        with (
            patch.dict(os.environ, env, clear=True), patch.object(sys, "argv", argv),
            patch.object(sys, "stdin", io.StringIO(given)), redirect_stdout(out), redirect_stderr(err),
            patch.object(root, "handlers", []), patch.object(sys, "excepthook", sys.excepthook),
        ):  # fmt: skip
            status = _status()
    finally:
        root.setLevel(level)
        signal.signal(signal.SIGHUP, hang_up)
    return CompletedProcess(argv, status, out.getvalue(), err.getvalue())


def _status() -> int:
    try:
        main()
    except SystemExit as ended:
        match ended.code:
            case None:
                return 0
            case int(status):
                return status
        raise
    return 0
