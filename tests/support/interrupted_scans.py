"""Does something to a server in the middle of scans, just before chosen calls of HSCAN, ZSCAN and SCAN."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from opic.store.connection import Line

SCANS = ("HSCAN", "ZSCAN", "SCAN")


class Scans:
    """The number of calls that scanned so far."""

    def __init__(self) -> None:
        self.calls = 0


@contextmanager
def amid_scans(numbers: Collection[int], what: Callable[[], object]) -> Iterator[Scans]:
    """Do `what` before each call with one of the `numbers`, counted from 1, whichever connection sends it."""
    send, scans = Line.send, Scans()

    def sending(line: Line, *commands: Sequence[Any]) -> None:
        if commands and commands[0][0] in SCANS:
            scans.calls += 1
            if scans.calls in numbers:
                what()
        send(line, *commands)

    with patch.object(Line, "send", sending):
        yield scans
