"""Ports for servers that tests start: none that the system gives to a connection meanwhile, none of another process.

A server binds its port seconds after it was chosen. A port below the system's range for connections stays free until
then, and each process that runs tests takes its own ones, in turn.
"""

import itertools
import os
import socket
from contextlib import suppress

FIRST, LAST = 10_000, 32_767  # The system gives out 32768 and more (ip_local_port_range).
PROCESSES_MAX = 32

_SHARE = (LAST - FIRST) // PROCESSES_MAX
_BEGIN = FIRST + os.getpid() % PROCESSES_MAX * _SHARE
_TURN = itertools.cycle(range(_BEGIN, _BEGIN + _SHARE))


def free_port() -> int:
    """A port that nobody listens on now; the next call gives another."""
    for port in itertools.islice(_TURN, _SHARE):
        with suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: a closed one is free.
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port from {_BEGIN} to {_BEGIN + _SHARE - 1} is free")


def free_ports(count: int) -> list[int]:
    """So many, each another."""
    return [free_port() for _ in range(count)]
