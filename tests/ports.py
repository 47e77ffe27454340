"""Ports for the servers that tests start.

A server binds its port seconds after it was chosen. So a port lies below the range from which the system takes ports of
connections, and each worker of pytest-xdist has a part of the rest to itself.
"""

import itertools
import os
import random
import socket
from contextlib import suppress

FIRST, LAST = 10_000, 32_767  # The system takes 32768 and more for connections (ip_local_port_range).
WORKERS_MAX = 8

_PART = (LAST - FIRST + 1) // WORKERS_MAX
_BEGIN = FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX * _PART
# From a random place on: other processes of this worker, and other sessions, take ports of the same part.
_PORTS = itertools.cycle(range(_BEGIN, _BEGIN + _PART))
next(itertools.islice(_PORTS, random.SystemRandom().randrange(_PART), None))


def free_port() -> int:
    """A port on which nobody listens; each call gives another."""
    for port in itertools.islice(_PORTS, _PART):
        with suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: a closed one is free.
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port from {_BEGIN} to {_BEGIN + _PART - 1} is free")


def free_ports(count: int) -> list[int]:
    """Different free ports, `count` of them."""
    return [free_port() for _ in range(count)]


def ports_in_a_row(count: int) -> list[int]:
    """Free ports, one after another."""
    row = free_ports(count)
    while row != list(range(row[0], row[0] + count)):
        row = free_ports(count)
    return row
