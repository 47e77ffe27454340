"""Real failures of single calls to the store: whichever call is chosen fails, those before and behind it do not."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import redis
from chaos.proxy import Proxy

from opic.store.connection import Line

PIECE_LATE_SECONDS = 0.1
PROCESSED_SECONDS_MAX = 10.0
# What a server is told just before a call, so that it refuses it, and just behind it.
REFUSALS = {
    "memory full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    "too few replicas": (
        ("CONFIG", "SET", "min-replicas-to-write", "1"),
        ("CONFIG", "SET", "min-replicas-to-write", "0"),
    ),
}


class Chosen:
    """Chooses every `each`-th call of one function."""

    def __init__(self, function: str, each: int, most: int = 1_000_000) -> None:
        self._function, self._each, self._most = f"opic_5_{function}", each, most
        self.calls = self.failed = 0

    def __call__(self, command: Sequence[Any]) -> bool:
        if list(command[:2]) != ["FCALL", self._function]:
            return False
        self.calls += 1
        if self.calls % self._each or self.failed == self._most:
            return False
        self.failed += 1
        return True


@contextmanager
def refused(chosen: Chosen, reason: str) -> Iterator[None]:
    """Let the server refuse the chosen calls, each by itself, wherever it stands among commands sent in one piece."""
    send, read = Line.send, Line._read
    ours: dict[Line, deque[bool]] = {}  # Of each answer to come: whether a test asked for it.
    before, after = REFUSALS[reason]

    def sending(line: Line, *commands: Sequence[Any]) -> None:
        more, marks = list[Sequence[Any]](), ours.setdefault(line, deque())
        for command in commands:
            fails = chosen(command)
            more += [before, command, after] if fails else [command]
            marks += [True, False, True] if fails else [False]
        send(line, *more)

    def reading(line: Line) -> Any:
        marks = ours[line]

        def skip() -> None:
            while marks and marks[0]:
                marks.popleft()
                assert read(line) == b"OK"

        skip()
        marks.popleft()
        try:
            return read(line)
        finally:
            skip()

    with patch.object(Line, "send", sending), patch.object(Line, "_read", reading):
        yield


@contextmanager
def cut_off(chosen: Chosen, proxy: Proxy, head: Callable[[], object], *, answered: bool) -> Iterator[None]:
    """Cut all connections at the chosen calls: before the call is sent, or once it ran and nobody knows of it yet.

    Args:
        chosen: says at which.
        proxy: that the connections go through.
        head: asks the server itself, not through the proxy, for what changes as it runs what was sent.
        answered: cut once it ran.
    """
    send = Line.send

    def sending(line: Line, *commands: Sequence[Any]) -> None:
        at = next((at for at, command in enumerate(commands) if chosen(command)), None)
        if at is None:
            return send(line, *commands)
        if answered:
            at += 1
            proxy.delay(PIECE_LATE_SECONDS)
        known = head()
        if at:
            send(line, *commands[:at])
        deadline = time.monotonic() + PROCESSED_SECONDS_MAX
        while at and head() == known:
            assert time.monotonic() < deadline, "nothing that was sent has arrived"
        proxy.cut()
        proxy.heal()
        return send(line, *commands[at:])  # Fails, now or when its answers are read.

    with patch.object(Line, "send", sending):
        yield


def calls_of(client: redis.Redis) -> Callable[[], object]:
    """Return what counts the functions that a server ran."""
    return lambda: client.info("commandstats").get("cmdstat_fcall")
