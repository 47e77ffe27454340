"""Scans of whole hashes, sorted sets and key names, each answered by one run of one server.

A cursor of SCAN, HSCAN or ZSCAN is meaningful only to the process that returned it, because each process places
elements by a hash of its own. Another process, after a restart, a failover or a slot's move, accepts the cursor and
skips elements without an error. So a scan keeps one connection from its first call to its last. If the connection
breaks, or the server redirects it, the scan fails with ScanBroken, and the caller starts again from the beginning.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar

from opic.errors import ScanBroken, StoreUnavailable
from opic.store.cluster import Cluster
from opic.store.connection import Client, Line, run_of, store_errors
from opic.store.library import primaries

T = TypeVar("T")
SCAN_COUNT: Final = 1_000  # Elements per call: about a millisecond of the server's time.
SCANS_MAX: Final = 10  # Attempts to scan a key, or all keys, within one run.
PAUSE_SECONDS: Final = 0.5  # Between two attempts: a restart or a slot's move takes a moment.


def scan_hash(client: Client, key: str) -> Iterator[dict[bytes, bytes]]:
    """Yield the fields of a hash in parts: all that are there from the beginning to the end of the scan.

    Fields written in the meantime may be in a part or not; a field may be in several.

    Args:
        client: client of a server or a cluster.
        key: the hash.

    Raises:
        ScanBroken: the server restarted, failed over, or gave the key to another: discard the parts, and scan again.
        StoreUnavailable: the server can't be reached.
    """
    with closing(Line(client, key)) as line:
        for flat in _parts(line, "HSCAN", key):
            yield dict(zip(flat[::2], flat[1::2], strict=True))


def scan_sorted_set(client: Client, key: str) -> Iterator[list[tuple[bytes, float]]]:
    """Yield the members of a sorted set with their scores, in parts. See `scan_hash`."""
    with closing(Line(client, key)) as line:
        for flat in _parts(line, "ZSCAN", key):
            yield [(name, float(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)]


def read_hash(client: Client, key: str) -> dict[bytes, bytes]:
    """Return a whole hash that is too large for one HGETALL, starting again after a broken scan.

    Raises:
        StoreUnavailable: the server can't be reached, or each of SCANS_MAX scans was broken.
    """
    return _whole(lambda: {name: value for part in scan_hash(client, key) for name, value in part.items()})


def key_names(client: Client, pattern: str) -> set[bytes]:
    """Return the names of all keys that match a pattern, on all servers.

    In a cluster, a slot that moves meanwhile could take its keys from a server not scanned yet to one already scanned.
    So the scan starts again if any slot is moving, or is served by another server at the end than at the beginning.

    Raises:
        StoreUnavailable: a server can't be reached, or servers restarted or slots moved during SCANS_MAX scans.
    """

    def read() -> set[bytes]:
        with store_errors():
            before = _layout(client)
            names = {key for server in primaries(client) for key in _keys_of(server, pattern)}
            if _layout(client) != before:
                raise ScanBroken("slots of the cluster moved while its keys were read")
        return names

    return _whole(read)


@contextmanager
def one_run(client: Client, keys: Sequence[str]) -> Iterator[None]:
    """Raise ScanBroken at the end of the block unless the keys are where they were, on servers that did not restart.

    What was read in the block may otherwise contain writes that a server has lost since.
    """
    before = [run_of(client, key) for key in keys]
    yield
    if [run_of(client, key) for key in keys] != before:
        raise ScanBroken("a server restarted, or another took over its keys, while they were read")


def _parts(line: Line, *command: str, match: Sequence[str] = ()) -> Iterator[list[bytes]]:
    cursor = b"0"
    while True:
        cursor, flat = _answer(line, [*command, cursor, *match, "COUNT", SCAN_COUNT])
        yield flat
        if cursor == b"0":
            return


def _answer(line: Line, command: Sequence[Any]) -> Any:
    try:
        line.send(command)
        return line.answer()
    except StoreUnavailable as error:
        raise ScanBroken(f"the server went away during a scan of {command[1]}: {error}") from error


def _keys_of(server: Client, pattern: str) -> Iterator[bytes]:
    with closing(Line(server, pattern)) as line:
        for keys in _parts(line, "SCAN", match=("MATCH", pattern)):
            yield from keys


def _layout(client: Client) -> list[str]:
    """Return which slots each server of a cluster has, by its own account; [] without a cluster."""
    if not isinstance(client, Cluster):
        return []
    client.nodes_manager.initialize()
    lines = []
    for server in primaries(client):
        with closing(Line(server, "")) as line:
            nodes = _answer(line, ["CLUSTER", "NODES"]).decode().splitlines()
        # ID ADDRESS FLAGS PRIMARY PING PONG EPOCH LINK SLOT ..; a slot that moves is in brackets.
        fields = next(node.split() for node in nodes if "myself" in node.split()[2])
        if any(slot.startswith("[") for slot in fields[8:]):
            raise ScanBroken("a slot of the cluster is moving")
        lines.append(" ".join([fields[0], *fields[8:]]))
    return sorted(lines)


def _whole(read: Callable[[], T]) -> T:
    """Return what is read, again from the beginning while the scan is broken off."""
    for attempt in range(SCANS_MAX):
        try:
            return read()
        except ScanBroken as broken:
            if attempt == SCANS_MAX - 1:
                raise StoreUnavailable(
                    f"{SCANS_MAX} scans in a row were broken off: try again once servers and slots are at rest "
                    f"({broken})"
                ) from broken
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("unreachable")
